//! Call graphs as pictures: boxes for functions, arrows for calls, laid out and drawn here.
//! Knows nothing of profiles; numbers come with their labels.
//!
//! # Promises
//!
//! - [`render`] returns one complete, standalone SVG for any [`Graph`].
//! - No box or label overlaps another, and no arrow runs through a foreign box.
//! - The same graph gives the same bytes.
//! - Strings of the graph are shown as text only: nothing in them can become markup, style or
//!   script.
//! - Edges that name no existing node are ignored, and numbers that are not finite count as zero.
//!
//! # Caller's duties
//!
//! The graph is trimmed to what a person can look at: a few hundred boxes.
//!
//! # Limits
//!
//! - Layout time grows faster than linearly with the number of boxes and arrows.
//! - Text is measured with the widths of Helvetica, without a font; scripts other than Latin,
//!   Greek and Cyrillic get a full square for each character.
//!
//! The layout is the layered one of Sugiyama, Gansner and others, a file per step: `rank`
//! breaks cycles and assigns layers, `order` removes crossings (in `bare` rows), `axes` and
//! `position` choose coordinates, `route` bends the arrows, `pack` puts the components of
//! an unconnected graph side by side. `svg` draws, with texts measured by `text` and colours
//! of `style`.

mod axes;
mod bare;
pub mod geometry;
mod layers;
pub mod layout;
mod order;
mod pack;
mod position;
mod rank;
mod route;
mod simplex;
mod style;
mod svg;
pub mod text;
pub mod xml;

#[cfg(test)]
mod browser;
#[cfg(test)]
pub mod check;
#[cfg(test)]
pub mod synthetic;
#[cfg(test)]
mod tests;

/// A call graph with its legend, ready to be drawn.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Legend lines, top left.
    pub title: Vec<String>,
    /// The boxes.
    pub nodes: Vec<Node>,
    /// The arrows.
    pub edges: Vec<Edge>,
    /// 100 %, in the unit of the weights.
    pub total: f64,
}

/// A box: one function, line, file or address.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Short name; wrapped and, when very long, shortened in the middle.
    pub name: String,
    /// Tooltip: full signature, file.
    pub detail: String,
    /// Weight of the function itself; its size decides the font size.
    pub flat: f64,
    /// Weight of the function and its callees.
    pub cum: f64,
    /// Text of `flat`, such as `12.3MB (4.5%)`.
    pub flat_label: String,
    /// Text of `cum`, such as `25.1MB (9.1%)`.
    pub cum_label: String,
    /// -1 to 1: how strong the fill is; negative ones (less than the base) are green.
    pub color_weight: f64,
}

/// An arrow from caller to callee.
#[derive(Clone, Debug, Default)]
pub struct Edge {
    /// Index of the caller in [`Graph::nodes`].
    pub from: usize,
    /// Index of the callee in [`Graph::nodes`].
    pub to: usize,
    /// Weight that flows along it; decides thickness, colour and straightness.
    pub weight: f64,
    /// Text beside the arrow, such as `1.20MB`.
    pub label: String,
    /// Calls between the two were dropped: drawn dashed.
    pub residual: bool,
    /// The callee was inlined into the caller.
    pub inlined: bool,
    /// Tooltip.
    pub detail: String,
}

/// Draws the graph as one complete SVG document.
pub fn render(graph: &Graph) -> String {
    svg::write(graph, &layout::lay_out(graph))
}
