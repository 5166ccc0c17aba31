//! Writes the SVG: the plain picture, the data and the script.

use std::fmt::Write;

use super::data::{self, Column, Totals};
use super::rule::WidthRule;
use super::size::{MAX_LEVELS, WIDTH};
use super::style;
use super::tree::{Frame, MERGED, ROOT, Tree};
use crate::measure::percentage;
use crate::nodes::Origin;
use crate::places::Places;
use crate::report::context::Context;
use callgraph::help;
use callgraph::paper;
use callgraph::text;
use callgraph::xml::{escape, escape_lines};
use profile::printable::printable;
use profile::variance::SamplingError;

/// The script that draws a tree. `boot.js` starts it in a standalone picture.
pub const SCRIPT: &str = concat!(
    include_str!("numbers.js"),
    include_str!("keys.js"),
    include_str!("tree.js"),
    include_str!("model.js"),
    include_str!("pattern.js"),
    include_str!("view.js")
);

const BOOT: &str = include_str!("boot.js");

/// Margin of the picture, in pixels.
const MARGIN: f64 = 10.0;
/// Height of a frame, in pixels.
const ROW_HEIGHT: f64 = 18.0;
/// Font size of frames, in pixels.
const FONT_SIZE: f64 = 12.0;
/// Height of a line of the legend, in pixels.
const LINE_HEIGHT: f64 = 17.0;
/// Minimum width of a frame in the plain picture, in pixels.
const MIN_WIDTH: f64 = 0.1;

/// A frame's extent in the plain picture.
struct Extent {
    x: f64,
    width: f64,
}

/// The frames, with everything needed to draw them.
struct Picture<'a> {
    context: &'a Context<'a>,
    tree: &'a Tree,
    /// Width of each frame with its callees.
    widths: Vec<i128>,
    /// Weight of each frame with its callees; in a comparison, its change.
    nets: Vec<i128>,
    /// Sampling errors of `nets`.
    errors: Vec<SamplingError>,
    /// Source positions of functions.
    places: Places<'a>,
    /// Set if there are negative values, so that colours show what changed.
    compared: bool,
    extents: Vec<Extent>,
    rows: u32,
}

/// Returns the document.
pub fn document(context: &Context, tree: &Tree, rule: WidthRule) -> String {
    let picture = Picture::new(context, tree, rule);
    let lines = picture.legend();
    let top = MARGIN + LINE_HEIGHT * lines.len() as f64 + 6.0;
    let height = top + f64::from(picture.rows) * ROW_HEIGHT + MARGIN;
    let width = WIDTH + 2.0 * MARGIN;
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" class=\"flame\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"{}\" \
         font-size=\"{FONT_SIZE}\">\n<style>\n{}{}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <g class=\"plain\">\n<g class=\"head\">\n",
        text::FONT,
        style::sheet(),
        paper::sheet(width, height)
    );
    for (i, line) in lines.iter().enumerate() {
        let y = MARGIN + LINE_HEIGHT * (i as f64 + 0.75);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#4a4742\">{}</text>",
            decimal(y),
            escape(line)
        );
    }
    out.push_str("</g>\n");
    for frame in 0..tree.frames.len() {
        picture.frame(&mut out, frame, height - MARGIN);
    }
    let columns = [Column {
        index: context.view.column(),
        total: Totals::same(context.view.total()),
    }];
    let _ = write!(
        out,
        "</g>\n<script type=\"application/json\" class=\"data\">\n{}</script>\n\
         <script><![CDATA[\n{}{SCRIPT}\n{BOOT}]]></script>\n</svg>\n",
        data::object(context, tree, &columns, rule),
        help::SCRIPT
    );
    out
}

impl<'a> Picture<'a> {
    fn new(context: &'a Context, tree: &'a Tree, rule: WidthRule) -> Self {
        let compared = (0..tree.frames.len()).any(|f| tree.self_weight(f, 0).minus != 0);
        let mut picture = Self {
            context,
            tree,
            widths: tree.sums(|f| rule.width(tree.self_weight(f, 0))),
            nets: tree.sums(|f| tree.self_weight(f, 0).net()),
            errors: tree.errors(0),
            places: Places::new(context.view, context.nodes),
            compared,
            extents: Vec::new(),
            rows: 0,
        };
        picture.lay_out();
        picture
    }

    /// Places callees side by side above their caller.
    fn lay_out(&mut self) {
        let whole = self.widths[0].max(1) as f64;
        let mut next_x = vec![MARGIN; self.widths.len()];
        for (i, frame) in self.tree.frames.iter().enumerate() {
            let width = self.widths[i] as f64 / whole * WIDTH;
            let x = next_x[frame.parent as usize];
            next_x[frame.parent as usize] += width;
            next_x[i] = x;
            if frame.node == ROOT {
                next_x[i] = MARGIN;
            }
            if width >= MIN_WIDTH && frame.depth < MAX_LEVELS {
                self.rows = self.rows.max(frame.depth + 1);
            }
            self.extents.push(Extent { x, width });
        }
        self.rows = self.rows.max(1);
    }

    /// Returns the lines above the picture.
    fn legend(&self) -> Vec<String> {
        let mut lines = self.context.origin();
        for file in &self.context.options.files {
            lines.push(format!("Dump: {}", profile::printable::path(file)));
        }
        let filters = self.context.options.filters.active();
        lines.extend(filters.iter().map(|f| format!("Filter: {f}")));
        lines.push(format!("Total: {}", self.label(self.nets[0])));
        if self.compared {
            lines.push("Colours: red is more than in the base, green is less".to_owned());
        }
        lines.extend(self.origins().map(|text| format!("Colours: {text}")));
        if self.widths[0] == 0 {
            lines.push("Nothing to show: the profile has no samples in this view.".to_owned());
        }
        lines.extend(self.omissions());
        lines
    }

    /// Explains the colours of origins, if there are others than the program.
    fn origins(&self) -> Option<String> {
        let nodes = self.tree.frames.iter().map(|f| f.node);
        let known = nodes.filter(|&node| node != ROOT && node != MERGED);
        let seen: Vec<Origin> = known.map(|n| self.context.nodes.entry(n).origin).collect();
        let parts = [
            (Origin::Kernel, "blue is the kernel"),
            (Origin::Jit, "green is code that the program made"),
            (Origin::Python, "violet is Python"),
        ];
        let parts = parts.iter().filter(|(origin, _)| seen.contains(origin));
        let parts: Vec<&str> = parts.map(|(_, text)| *text).collect();
        (!parts.is_empty() && !self.compared).then(|| parts.join(", "))
    }

    fn omissions(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let frames = || self.tree.frames.iter().enumerate();
        if self.tree.pruned > 0 {
            let small = frames().filter(|(_, f)| f.node == MERGED);
            let sum: i128 = small.map(|(i, _)| self.widths[i]).sum();
            lines.push(format!(
                "Merged: {} branches narrower than {MIN_WIDTH} px, {} ({}) together",
                self.tree.pruned,
                self.value(sum),
                self.share(sum)
            ));
        }
        if let Some(deepest) = frames()
            .map(|(_, f)| f.depth)
            .max()
            .filter(|&d| d >= MAX_LEVELS)
        {
            lines.push(format!(
                "Only {MAX_LEVELS} of {} levels are in the plain picture; a browser shows all of them",
                deepest + 1
            ));
        }
        lines
    }

    fn frame(&self, out: &mut String, index: usize, bottom: f64) {
        let frame = &self.tree.frames[index];
        let extent = &self.extents[index];
        if extent.width < MIN_WIDTH || frame.depth >= MAX_LEVELS {
            return;
        }
        let name = self.name(frame);
        let class = self.class(frame, index, &name);
        let y = bottom - ROW_HEIGHT * f64::from(frame.depth + 1);
        let _ = write!(
            out,
            "<g class=\"frame {class}\" fill=\"{}\"><title>{}\n{}{}</title>\
             <rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"/>",
            style::fill(&class),
            escape(&name),
            escape_lines(&self.place(frame)),
            escape_lines(&self.detail(index)),
            decimal(extent.x),
            decimal(y),
            decimal((extent.width - 0.6).max(0.1)),
            decimal(ROW_HEIGHT - 1.0),
        );
        if let Some(shown) = fit(&name, extent.width - 7.0) {
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{}\" fill=\"#1c1b19\">{}</text>",
                decimal(extent.x + 3.5),
                decimal(y + ROW_HEIGHT * 0.7),
                escape(&shown)
            );
        }
        out.push_str("</g>\n");
    }

    fn name(&self, frame: &Frame) -> String {
        match frame.node {
            ROOT => "all".to_owned(),
            MERGED => "smaller frames".to_owned(),
            node => printable(self.context.nodes.name(node)).into_owned(),
        }
    }

    /// Returns a line with file and line of a frame; empty if they are unknown.
    fn place(&self, frame: &Frame) -> String {
        let known = match frame.node {
            ROOT | MERGED => None,
            node => self.places.place_of(node),
        };
        known.map_or(String::new(), |place| format!("{}\n", printable(&place)))
    }

    fn class(&self, frame: &Frame, index: usize, name: &str) -> String {
        if self.compared {
            style::change_class(self.nets[index], self.widths[index])
        } else if frame.node == ROOT || frame.node == MERGED {
            style::PLAIN.to_owned()
        } else {
            style::name_class(name, self.context.nodes.entry(frame.node).origin)
        }
    }

    fn detail(&self, index: usize) -> String {
        let self_value = self.tree.self_weight(index, 0).net();
        let mut detail = self.label(self.nets[index]);
        if self_value != 0 && self_value != self.nets[index] {
            let _ = write!(detail, ", itself {}", self.label(self_value));
        }
        if self.errors[index].variance > 0.0 {
            let context = self.context;
            let error = context.format_error(self.errors[index], &context.options.unit);
            let _ = write!(detail, "\n\u{b1}{error} at 95 %");
        }
        detail
    }

    /// Formats a value and its share of the total.
    fn label(&self, value: i128) -> String {
        let sign = if self.compared && value > 0 { "+" } else { "" };
        format!("{sign}{} ({})", self.value(value), self.share(value))
    }

    fn value(&self, value: i128) -> String {
        self.context
            .format(clamp(value), &self.context.options.unit)
    }

    fn share(&self, value: i128) -> String {
        let share = percentage(clamp(value), self.context.view.total());
        share.trim().to_owned()
    }
}

fn clamp(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns as much of a name as fits into a frame.
fn fit(name: &str, width: f64) -> Option<String> {
    let name = text::printable(name);
    if text::width(&name) * FONT_SIZE <= width {
        return Some(name);
    }
    let mut free = width / FONT_SIZE - text::width("\u{2026}");
    let mut shown = String::new();
    for c in name.chars() {
        free -= text::width(c.encode_utf8(&mut [0; 4]));
        if free < 0.0 {
            break;
        }
        shown.push(c);
    }
    // Fewer than three letters are not useful.
    (shown.chars().count() >= 3).then(|| shown + "\u{2026}")
}

/// Formats a number with at most two decimals.
fn decimal(value: f64) -> String {
    format!("{}", (value * 100.0).round() / 100.0)
}
