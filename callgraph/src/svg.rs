//! Writes the SVG.
//!
//! Without its script the document is a plain picture. All strings go through [`escape`], and the
//! script handles them as text only.

use crate::geometry::{Cubic, Point, Rect, cubic_at};
use crate::graph::{Edge, Graph, Node};
use crate::help;
use crate::layout::{LABEL_FONT, LINE_HEIGHT, Layout, Line, TITLE_FONT};
use crate::paper;
use crate::style;
use crate::text;
use crate::xml::escape;
use std::fmt::{self, Write};

const SCRIPT: &str = include_str!("script.js");

/// Distance from the top of a line of text to its baseline, as a fraction of the line's height.
const BASELINE: f64 = 0.78;

/// Returns the document.
pub fn write(graph: &Graph, layout: &Layout) -> String {
    let mut layout = layout.clone();
    let empty = graph.nodes.is_empty();
    if empty {
        layout.size.w = layout.size.w.max(360.0);
        layout.size.h += 50.0;
    }
    let w = layout.size.w.ceil();
    let h = layout.size.h.ceil();
    let mut out = String::with_capacity(1024 * (16 + graph.nodes.len() + graph.edges.len()));
    let _ = write!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" class=\"callgraph\" width=\"{w}\" \
         height=\"{h}\" viewBox=\"0 0 {w} {h}\" font-family=\"{}\">\n<style>\n{}{}</style>\n\
         <rect class=\"paper\" width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n\
         <g class=\"view\">\n",
        text::FONT,
        style::sheet(),
        paper::sheet(w, h)
    );
    if empty {
        let y = h - 30.0;
        let _ = writeln!(
            out,
            "<text x=\"20\" y=\"{y}\" font-size=\"14\" fill=\"#1c1b19\">\
             Nothing to show: the profile has no samples in this view.</text>"
        );
    }
    write_edges(&mut out, graph, &layout);
    for (v, node) in graph.nodes.iter().enumerate() {
        write_box(&mut out, v, node, graph.total, &layout);
    }
    write_legend(&mut out, &graph.title, layout.title);
    let _ = write!(
        out,
        "</g>\n<script><![CDATA[\n{}{}{SCRIPT}\n]]></script>\n</svg>\n",
        help::SCRIPT,
        help::KEYS,
    );
    out
}

/// Writes the edges, light ones first, so that heavy ones are on top where they cross.
fn write_edges(out: &mut String, graph: &Graph, layout: &Layout) {
    let mut edges: Vec<usize> = (0..graph.edges.len())
        .filter(|&e| !layout.curves[e].is_empty())
        .collect();
    let weight = |e: usize| style::share(graph.edges[e].weight, graph.total);
    edges.sort_by(|&a, &b| weight(a).total_cmp(&weight(b)));
    for e in edges {
        let curve = &layout.curves[e];
        let label = layout.labels[e];
        write_edge(out, graph, &graph.edges[e], curve, label);
    }
}

/// Writes a tooltip. Line breaks within a part are kept.
fn write_tooltip<'a>(out: &mut String, parts: impl IntoIterator<Item = &'a str>) {
    out.push_str("<title>");
    let lines = parts.into_iter().flat_map(str::lines);
    for (i, line) in lines.filter(|l| !l.is_empty()).enumerate() {
        let _ = write!(out, "{}{}", if i > 0 { "\n" } else { "" }, escape(line));
    }
    out.push_str("</title>");
}

/// Rounds a number to one decimal, for output.
fn tenths(value: f64) -> Tenths {
    Tenths((value * 10.0).round() as i64)
}

/// A number in tenths. Displayed without a decimal if it is whole.
struct Tenths(i64);

impl fmt::Display for Tenths {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.unsigned_abs() / 10;
        let rest = self.0.unsigned_abs() % 10;
        if self.0 < 0 {
            out.write_str("-")?;
        }
        fmt::Display::fmt(&whole, out)?;
        if rest > 0 {
            out.write_char('.')?;
            out.write_char((b'0' + rest as u8) as char)?;
        }
        Ok(())
    }
}

/// Returns the path data of a curve.
fn path(curve: &[Cubic]) -> String {
    let mut d = String::with_capacity(32 * curve.len() + 16);
    for (i, [a, b, c, e]) in curve.iter().enumerate() {
        if i == 0 {
            let _ = write!(d, "M{} {}", tenths(a.x), tenths(a.y));
        }
        if a.x == b.x && b.x == c.x && c.x == e.x {
            let _ = write!(d, "V{}", tenths(e.y));
            continue;
        }
        for (mark, p) in [('C', b), (' ', c), (' ', e)] {
            let _ = write!(d, "{mark}{} {}", tenths(p.x), tenths(p.y));
        }
    }
    d
}

fn write_edge(out: &mut String, graph: &Graph, edge: &Edge, curve: &[Cubic], label: Option<Rect>) {
    let paint = style::edge_paint(edge.weight, graph.total);
    let thickness = style::thickness(edge, graph.total);
    let (line, head) = with_head(curve, 5.0 + 2.0 * thickness, 2.5 + thickness * 1.1);
    let dash = if edge.residual {
        " stroke-dasharray=\"5 3\""
    } else {
        ""
    };
    let d = path(&line);
    let _ = write!(
        out,
        "<g class=\"edge {}\" data-from=\"{}\" data-to=\"{}\">",
        paint.class, edge.from, edge.to,
    );
    let call = describe_call(graph, edge);
    write_tooltip(out, [call.as_str(), &edge.label, &edge.detail]);
    let _ = write!(
        out,
        "<path class=\"wide\" d=\"{d}\" fill=\"none\"/><path class=\"line\" d=\"{d}\" \
         fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{dash}/><path class=\"head\" d=\"{head}\" fill=\"{}\"/>",
        paint.main,
        tenths(thickness),
        paint.main,
    );
    if let Some(area) = label {
        let italic = if edge.inlined {
            " font-style=\"italic\""
        } else {
            ""
        };
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{}\" y=\"{}\" font-size=\"{LABEL_FONT}\" \
             fill=\"#4a4742\"{italic}{}>{}</text>",
            tenths(area.x + 1.0),
            tenths(area.y + area.h * BASELINE),
            fixed_width(&edge.label, LABEL_FONT),
            escape(&edge.label)
        );
    }
    out.push_str("</g>\n");
}

/// Describes an edge for its tooltip.
fn describe_call(graph: &Graph, edge: &Edge) -> String {
    let from = &graph.nodes[edge.from].name;
    let to = &graph.nodes[edge.to].name;
    let inlined = if edge.inlined { " (inlined)" } else { "" };
    let residual = if edge.residual {
        " (through functions not shown)"
    } else {
        ""
    };
    format!(
        "{} → {}{inlined}{residual}",
        text::printable(from),
        text::printable(to)
    )
}

/// Returns the attributes that fix the width of a text, for viewers that use another font.
fn fixed_width(text: &str, font: f64) -> String {
    let w = text::width(&text::printable(text)) * font;
    format!(
        " textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\"",
        tenths(w)
    )
}

/// Shortens the end of the curve by an arrow head, which is `length` long and twice `half` wide.
/// Returns the curve and the path of the head.
fn with_head(curve: &[Cubic], length: f64, half: f64) -> (Vec<Cubic>, String) {
    let mut line = curve.to_vec();
    let Some(tip) = line.last().map(|c| c[3]) else {
        return (line, String::new());
    };
    let distance = |p: Point| (p.x - tip.x).hypot(p.y - tip.y);
    while line.len() > 1 && line.last().is_some_and(|c| distance(c[0]) < length) {
        line.pop();
    }
    if let Some(last) = line.last_mut() {
        // Bisection for the parameter at which the curve is a head's length away from the tip.
        let mut low = 0.0;
        let mut high = 1.0;
        for _ in 0..24 {
            let middle = (low + high) / 2.0;
            if distance(cubic_at(last, middle)) > length {
                low = middle
            } else {
                high = middle
            }
        }
        *last = first_part(last, low);
    }
    let base = line.last().map_or(tip, |c| c[3]);
    let dx = tip.x - base.x;
    let dy = tip.y - base.y;
    let norm = dx.hypot(dy).max(0.1);
    let sx = -dy / norm * half;
    let sy = dx / norm * half;
    let d = format!(
        "M{} {}L{} {}L{} {}Z",
        tenths(tip.x),
        tenths(tip.y),
        tenths(base.x + sx),
        tenths(base.y + sy),
        tenths(base.x - sx),
        tenths(base.y - sy)
    );
    (line, d)
}

/// Returns the part of a cubic from 0 to `t`.
fn first_part(c: &Cubic, t: f64) -> Cubic {
    let mix = |a: Point, b: Point| Point {
        x: a.x + (b.x - a.x) * t,
        y: a.y + (b.y - a.y) * t,
    };
    let ab = mix(c[0], c[1]);
    let bc = mix(c[1], c[2]);
    let cd = mix(c[2], c[3]);
    let abc = mix(ab, bc);
    let bcd = mix(bc, cd);
    [c[0], ab, abc, mix(abc, bcd)]
}

fn write_box(out: &mut String, index: usize, node: &Node, total: f64, layout: &Layout) {
    let area = layout.boxes[index];
    let lines = &layout.lines[index];
    let paint = style::box_paint(node.color_weight);
    let values = format!("flat {}, cum {}", node.flat_label, node.cum_label);
    let share = |weight: f64| (style::share(weight, total) * 1e5).round() / 1e5;
    let _ = write!(
        out,
        "<g class=\"node {}\" data-node=\"{index}\" \
         data-flat=\"{}\" data-cum=\"{}\">",
        paint.class,
        share(node.flat),
        share(node.cum),
    );
    let name = if node.full_name.is_empty() {
        &node.name
    } else {
        &node.full_name
    };
    write_tooltip(out, [name.as_str(), &node.place, &values, &node.detail]);
    let _ = write!(
        out,
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" \
         height=\"{}\" rx=\"3\" fill=\"{}\" stroke=\"{}\"/>",
        tenths(area.x),
        tenths(area.y),
        tenths(area.w),
        tenths(area.h),
        paint.main,
        paint.border,
    );
    write_lines(out, area, lines);
    out.push_str("</g>\n");
}

/// Writes the lines of a box, centred.
fn write_lines(out: &mut String, area: Rect, lines: &[Line]) {
    let height: f64 = lines.iter().map(|l| l.font * LINE_HEIGHT).sum();
    let mut y = area.y + (area.h - height) / 2.0;
    for line in lines {
        let (class, fill) = if line.number {
            ("number", "#36332f")
        } else {
            ("name", "#1c1b19")
        };
        let _ = write!(
            out,
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"middle\" \
             fill=\"{fill}\"{}>{}</text>",
            tenths(area.x + area.w / 2.0),
            tenths(y + line.font * LINE_HEIGHT * BASELINE),
            line.font,
            fixed_width(&line.text, line.font),
            escape(&line.text)
        );
        y += line.font * LINE_HEIGHT;
    }
}

fn write_legend(out: &mut String, title: &[String], area: Option<Rect>) {
    let Some(area) = area else { return };
    let _ = write!(
        out,
        "<g class=\"legend\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\" \
         fill=\"#fbfaf8\" stroke=\"#d5d1ca\"/>",
        tenths(area.x),
        tenths(area.y),
        tenths(area.w),
        tenths(area.h)
    );
    for (i, line) in title.iter().enumerate() {
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" font-size=\"{TITLE_FONT}\" fill=\"#1c1b19\"{}>{}</text>",
            tenths(area.x + 8.0),
            tenths(area.y + 6.0 + TITLE_FONT * 1.35 * (i as f64 + 0.75)),
            fixed_width(line, TITLE_FONT),
            escape(line)
        );
    }
    out.push_str("</g>\n");
}
