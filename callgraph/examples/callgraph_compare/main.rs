//! Compares our call graphs with graphviz's, on the same graphs.
//!
//! ```text
//! callgraph_compare [--svg DIR] [FILE.dot]...
//! ```
//! Each FILE is output of `go tool pprof -dot`. Without a FILE, the synthetic graphs of the tests
//! are used. `dot` gets boxes and labels of exactly our sizes, so that only the layouts differ; its
//! result and ours are measured by the same code. With `--svg`, both pictures of each graph are
//! written to DIR. Needs `dot` (graphviz).

mod dot;
// The checker and the synthetic graphs belong to the tests, not to the library.
#[path = "../../src/check.rs"]
mod check;
#[path = "../../src/synthetic.rs"]
mod synthetic;

use callgraph::{Edge, Graph, Node, geometry, layout};
use check::{Arrow, Picture, Report};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn main() -> anyhow::Result<()> {
    let mut arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let mut out = None;
    if arguments.first().is_some_and(|a| a.as_os_str() == "--svg") {
        anyhow::ensure!(arguments.len() > 1, "--svg needs a directory");
        out = Some(arguments.remove(1));
        arguments.remove(0);
    }
    let mut graphs = Vec::new();
    for path in &arguments {
        let name = path.file_stem().map(|s| s.to_string_lossy().into_owned());
        graphs.push((
            name.unwrap_or_default(),
            dot::read(&std::fs::read_to_string(path)?),
        ));
    }
    if graphs.is_empty() {
        graphs = synthetic::all();
    }
    println!(
        "{:24} {:>9}  {:>13}  {:>11}  {:>11}  {:>9}  {:>15}  {:>6}",
        "graph", "boxes", "crossings", "thru boxes", "thru labels", "overlaps", "ms", "area"
    );
    let mut groups: Vec<Group> = Vec::new();
    for (name, graph) in &graphs {
        let (ours, our_time) = ours(graph);
        let (theirs, their_time) = dot::lay_out(graph)?;
        if let Some(out) = &out {
            save(out, name, graph)?;
        }
        let a = check::measure(&ours);
        let b = check::measure(&theirs);
        print_graph(name, graph, [&a, &b], [our_time, their_time]);
        // The part before the first dash is the program, or the kind of a synthetic graph.
        let group = name.split('-').next().unwrap_or(name);
        if groups.last().is_none_or(|g| g.name != group) {
            groups.push(Group::new(group));
        }
        if let Some(last) = groups.last_mut() {
            last.add(graph.nodes.len(), [&a, &b], [our_time, their_time]);
        }
    }
    print_summary(&groups);
    Ok(())
}

/// Results for the graphs of one program.
struct Group {
    name: String,
    graphs: usize,
    boxes: Range,
    // Sums of our results and of dot's.
    crossings: [usize; 2],
    through_boxes: [usize; 2],
    through_labels: [usize; 2],
    overlaps: [usize; 2],
    area: Range,
    speed: Range,
}

/// Smallest and largest of several numbers.
struct Range {
    least: f64,
    most: f64,
}

impl Range {
    const NONE: Range = Range {
        least: f64::INFINITY,
        most: f64::NEG_INFINITY,
    };

    fn add(&mut self, value: f64) {
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }

    fn show(&self, decimals: usize) -> String {
        let Range { least, most } = self;
        if format!("{least:.decimals$}") == format!("{most:.decimals$}") {
            return format!("{least:.decimals$}");
        }
        format!("{least:.decimals$}–{most:.decimals$}")
    }
}

impl Group {
    fn new(name: &str) -> Self {
        Group {
            name: name.to_string(),
            graphs: 0,
            boxes: Range::NONE,
            crossings: [0; 2],
            through_boxes: [0; 2],
            through_labels: [0; 2],
            overlaps: [0; 2],
            area: Range::NONE,
            speed: Range::NONE,
        }
    }

    fn add(&mut self, boxes: usize, reports: [&Report; 2], times: [Duration; 2]) {
        self.graphs += 1;
        self.boxes.add(boxes as f64);
        for (i, report) in reports.iter().enumerate() {
            self.crossings[i] += report.crossings;
            self.through_boxes[i] += report.through_boxes;
            self.through_labels[i] += report.through_labels;
            self.overlaps[i] += report.overlaps;
        }
        self.area.add(reports[0].area / reports[1].area);
        self.speed
            .add(times[1].as_secs_f64() / times[0].as_secs_f64());
    }
}

/// Prints a table in Markdown, with a row for each program.
fn print_summary(groups: &[Group]) {
    println!(
        "\n| | graphs | boxes | crossings, ours / dot's | arrows through boxes | arrows through \
         labels | overlaps | area ÷ dot's | dot's time ÷ ours |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for group in groups {
        let pair = |sums: [usize; 2]| format!("{} / {}", sums[0], sums[1]);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            group.name,
            group.graphs,
            group.boxes.show(0),
            pair(group.crossings),
            pair(group.through_boxes),
            pair(group.through_labels),
            pair(group.overlaps),
            group.area.show(2),
            group.speed.show(1),
        );
    }
}

/// Returns our layout and the median time of five runs.
fn ours(graph: &Graph) -> (Picture, Duration) {
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        callgraph::render(graph);
        times.push(start.elapsed());
    }
    times.sort();
    let layout = layout::lay_out(graph);
    let arrows = graph.edges.iter().enumerate().map(|(e, edge)| Arrow {
        from: edge.from,
        to: edge.to,
        curve: layout.curves[e].clone(),
        label: layout.labels[e],
    });
    let arrows = arrows.collect();
    (
        Picture {
            size: layout.size,
            title: layout.title,
            boxes: layout.boxes,
            arrows,
        },
        times[2],
    )
}

fn print_graph(name: &str, graph: &Graph, reports: [&Report; 2], times: [Duration; 2]) {
    let [a, b] = reports;
    let pair = |a: usize, b: usize| format!("{a} / {b}");
    let ms = |t: Duration| t.as_secs_f64() * 1e3;
    let flags = [
        (a.crossings > b.crossings, " CROSSINGS"),
        (
            a.through_boxes + a.through_labels + a.overlaps + a.outside + a.loose > 0,
            " FAULTS",
        ),
        (a.area > 1.2 * b.area, " AREA"),
        (times[0] * 5 > times[1], " TIME"),
    ];
    let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
    println!(
        "{name:24} {:>9}  {:>13}  {:>11}  {:>11}  {:>9}  {:>15}  {:>6.2}{flags}",
        format!("{}/{}", graph.nodes.len(), graph.edges.len()),
        pair(a.crossings, b.crossings),
        pair(a.through_boxes, b.through_boxes),
        pair(a.through_labels, b.through_labels),
        pair(a.overlaps, b.overlaps),
        format!("{:.1} / {:.0}", ms(times[0]), ms(times[1])),
        a.area / b.area,
    );
}

fn save(out: &Path, name: &str, graph: &Graph) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join(format!("{name}.svg")), callgraph::render(graph))?;
    std::fs::write(out.join(format!("{name}.same.dot")), dot::write(graph))?;
    Ok(())
}
