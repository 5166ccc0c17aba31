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
mod graph;
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

pub use graph::{Edge, Graph, Node};

/// Draws the graph as one complete SVG document.
pub fn render(graph: &Graph) -> String {
    svg::write(graph, &layout::lay_out(graph))
}
