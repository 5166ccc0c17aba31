//! Interface to graphviz: reads the graphs that pprof writes for it, and lays out our graphs with
//! it.

use crate::check::{Arrow, Picture};
use crate::geometry::{Point, Rect, Size};
use crate::layout;
use anyhow::{Context, bail};
use callgraph::{Edge, Graph, Node};
use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Reads the graph that `go tool pprof -dot` writes: one statement per line.
pub fn read(text: &str) -> Graph {
    let mut graph = Graph::default();
    let mut index = HashMap::new();
    for line in text.lines() {
        let Some((head, rest)) = line.split_once(" [") else {
            continue;
        };
        let attributes = attributes(rest);
        let get = |key: &str| attributes.get(key).cloned().unwrap_or_default();
        if line.contains("shape=box fontsize=16") {
            graph.title = get("label").split("\\l").map(str::to_string).collect();
            graph.title.retain(|l| !l.is_empty());
        } else if let Some((from, to)) = head.split_once(" -> ") {
            let (Some(&from), Some(&to)) = (index.get(from), index.get(to)) else {
                continue;
            };
            let label = get("label").trim().replace("\\n (inline)", "");
            let weight = amount(&label);
            let residual = get("style") == "dotted";
            let inlined = get("label").contains("(inline)");
            graph.edges.push(Edge {
                from,
                to,
                weight,
                label,
                residual,
                inlined,
                ..Edge::default()
            });
        // Boxes are `N1`, `N2` and so on. `N1_0` and `NN1_0` are tags of a box.
        } else if head.starts_with('N') && !head.contains('_') && head.len() > 1 && head != "NN" {
            index.insert(head.to_string(), graph.nodes.len());
            graph.nodes.push(node(&get("label"), &get("tooltip")));
        }
    }
    let total = graph
        .title
        .iter()
        .find_map(|l| l.split_once(" of ")?.1.split_once(" total"));
    let largest = graph.nodes.iter().map(|n| n.cum).fold(1.0, f64::max);
    graph.total = total.map_or(largest, |t| amount(t.0));
    graph
        .nodes
        .iter_mut()
        .for_each(|n| n.color_weight = n.cum / graph.total);
    graph
}

/// Parses the label of one of pprof's boxes: lines with parts of the name, then `flat (x%)` and `of
/// cum (y%)`, on two lines or on one.
fn node(label: &str, tooltip: &str) -> Node {
    let lines: Vec<&str> = label.split("\\n").collect();
    let is_number = |l: &&&str| l.starts_with("0 of ") || l.starts_with("of ") || amount(l) != 0.0;
    let first = lines.len() - lines.iter().rev().take_while(is_number).count();
    let numbers = lines[first..].join(" ");
    let (flat, cum) = numbers.split_once(" of ").unwrap_or((&numbers, &numbers));
    let name = lines[..first].join(".");
    Node {
        name: name.replace(":.", "::").trim_end_matches('.').to_string(),
        full_name: tooltip.to_string(),
        flat: amount(flat),
        cum: amount(cum),
        flat_label: flat.trim().to_string(),
        cum_label: cum.trim().to_string(),
        ..Node::default()
    }
}

/// Parses an amount such as `12.3MB`, `4kB` or `1.2s`. Returns it in bytes or seconds, or 0 if it
/// is not an amount.
fn amount(text: &str) -> f64 {
    let text = text.split_whitespace().next().unwrap_or("");
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    let scale = match &text[digits.len()..] {
        "kB" | "KB" => 1024.0,
        "MB" => 1024.0 * 1024.0,
        "GB" => 1024.0 * 1024.0 * 1024.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "B" | "s" | "" => 1.0,
        _ => 0.0,
    };
    digits.parse::<f64>().unwrap_or(0.0) * scale
}

/// Parses attributes such as `key=value key="quoted \" value"`, up to the closing bracket.
fn attributes(text: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim().to_string();
        if let Some(quoted) = after.strip_prefix('"') {
            let mut end = None;
            let mut escaped = false;
            for (at, c) in quoted.char_indices() {
                if c == '"' && !escaped {
                    end = Some(at);
                    break;
                }
                escaped = c == '\\' && !escaped;
            }
            let end = end.unwrap_or(quoted.len());
            found.insert(key, quoted[..end].replace("\\\"", "\""));
            rest = quoted.get(end + 1..).unwrap_or("");
        } else {
            let end = after.find([' ', ']']).unwrap_or(after.len());
            found.insert(key, after[..end].to_string());
            rest = &after[end..];
        }
    }
    found
}

/// Formats our graph for `dot`, with boxes and labels of our sizes and pprof's settings.
pub fn write(graph: &Graph) -> String {
    let ours = layout::lay_out(graph);
    let mut out = String::from("digraph g {\nnode [shape=box fixedsize=true label=\"\"]\n");
    let size = |w: f64, h: f64| format!("width={:.4} height={:.4}", w / 72.0, h / 72.0);
    if let Some(title) = ours.title {
        out += &format!("title [{}]\n", size(title.w, title.h));
    }
    for (v, area) in ours.boxes.iter().enumerate() {
        out += &format!("N{v} [{}]\n", size(area.w, area.h));
    }
    for edge in &graph.edges {
        let share = (edge.weight / graph.total).abs().min(1.0);
        let Size { w, h } = layout::label_size(&edge.label);
        out += &format!(
            "N{} -> N{} [weight={} penwidth={:.1} label=<<TABLE BORDER=\"0\" CELLBORDER=\"0\" \
             CELLSPACING=\"0\" CELLPADDING=\"0\" FIXEDSIZE=\"TRUE\" WIDTH=\"{}\" HEIGHT=\"{}\">\
             <TR><TD></TD></TR></TABLE>>]\n",
            edge.from,
            edge.to,
            1 + (100.0 * share) as i64,
            1.0 + 4.0 * share,
            w.ceil(),
            h.ceil(),
        );
    }
    out + "}\n"
}

/// Duration of a run after which no further run is timed.
const LONG_RUN: Duration = Duration::from_secs(2);

/// Lays the graph out with `dot`. Returns the median time of three runs, or the time of one if it
/// is long.
pub fn lay_out(graph: &Graph) -> anyhow::Result<(Picture, Duration)> {
    let source = write(graph);
    let mut times = Vec::new();
    let mut plain = String::new();
    for _ in 0..3 {
        let start = Instant::now();
        plain = run(&source)?;
        times.push(start.elapsed());
        if times[0] > LONG_RUN {
            break;
        }
    }
    times.sort();
    Ok((parse(graph, &plain)?, times[times.len() / 2]))
}

fn run(source: &str) -> anyhow::Result<String> {
    let mut child = Command::new("dot")
        .arg("-Tplain")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run dot: install graphviz")?;
    let mut stdin = child.stdin.take().context("dot has no input")?;
    let source = source.to_string();
    let writer = std::thread::spawn(move || stdin.write_all(source.as_bytes()));
    let output = child.wait_with_output()?;
    if writer.join().is_err() || !output.status.success() {
        bail!("dot failed: {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Parses dot's plain format, which is in inches with y upwards.
fn parse(graph: &Graph, plain: &str) -> anyhow::Result<Picture> {
    let mut picture = Picture {
        size: Size::default(),
        title: None,
        boxes: vec![Rect::default(); graph.nodes.len()],
        arrows: Vec::new(),
    };
    let mut labels = HashMap::new();
    for edge in &graph.edges {
        let list: &mut Vec<Size> = labels.entry((edge.from, edge.to)).or_default();
        list.push(layout::label_size(&edge.label));
    }
    for line in plain.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| -> anyhow::Result<f64> {
            let word: &str = words.get(i).context("dot's output is cut off")?;
            Ok(word.parse::<f64>().with_context(|| format!("in {line}"))? * 72.0)
        };
        match words[0] {
            "graph" => {
                picture.size = Size {
                    w: number(2)?,
                    h: number(3)?,
                }
            }
            "node" => {
                let x = number(2)?;
                let y = number(3)?;
                let w = number(4)?;
                let h = number(5)?;
                let area = Rect {
                    x: x - w / 2.0,
                    y: picture.size.h - y - h / 2.0,
                    w,
                    h,
                };
                match words[1].strip_prefix('N') {
                    Some(v) => picture.boxes[v.parse::<usize>()?] = area,
                    None => picture.title = Some(area),
                }
            }
            "edge" => {
                let end = |i: usize| words[i].trim_start_matches('N').parse::<usize>();
                let from = end(1)?;
                let to = end(2)?;
                let count = words[3].parse::<usize>()?;
                let mut points = Vec::new();
                for i in 0..count {
                    let x = number(4 + 2 * i)?;
                    let y = picture.size.h - number(5 + 2 * i)?;
                    points.push(Point { x, y });
                }
                let curve = (0..count / 3).map(|i| [0, 1, 2, 3].map(|k| points[3 * i + k]));
                let curve = curve.collect();
                // The line ends with the label (`<...>`, as it is an empty table) and its x and y,
                // if there is one, and with style and colour.
                let at = words.len() - 4;
                let size = labels
                    .get_mut(&(from, to))
                    .and_then(|l| (!l.is_empty()).then(|| l.remove(0)));
                let size = size.unwrap_or_default();
                let label = if size.w > 0.0 && at > 4 + 2 * count {
                    let x = number(at)?;
                    let y = picture.size.h - number(at + 1)?;
                    Some(Rect {
                        x: x - size.w / 2.0,
                        y: y - size.h / 2.0,
                        w: size.w,
                        h: size.h,
                    })
                } else {
                    None
                };
                picture.arrows.push(Arrow {
                    from,
                    to,
                    curve,
                    label,
                });
            }
            _ => {}
        }
    }
    // Margin that dot leaves around its pictures; the plain format does not include it.
    const PAD: f64 = 4.0;
    picture.size.w += 2.0 * PAD;
    picture.size.h += 2.0 * PAD;
    Ok(picture)
}
