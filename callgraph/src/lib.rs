//! Call graphs as pictures: lays out and draws boxes for functions and arrows for calls. Knows
//! nothing about profiles; numbers arrive as labels.
//!
//! # Guarantees
//!
//! - [`render`] returns one complete, standalone SVG for any [`Graph`].
//! - No box or label overlaps another, and no arrow runs through an unrelated box.
//! - The same graph yields the same bytes.
//! - Strings of the graph are shown as text only: nothing in them can become markup, style or
//!   script.
//! - Edges between nodes that do not exist are ignored, and non-finite numbers count as zero.
//!
//! # Callers
//!
//! Callers should trim the graph to a size that a person can read: a few hundred boxes.
//!
//! # Limits
//!
//! - Layout time grows faster than linearly with the number of boxes and arrows.
//! - Text is measured with built-in Helvetica widths; characters of scripts other than Latin, Greek
//!   and Cyrillic count as full squares.
//!
//! The layout is the layered one of Sugiyama, Gansner and others, one file per step: `rank` breaks
//! cycles and assigns layers, `order` removes crossings (on the rows of `box_rows`), `axes` and
//! `position` choose coordinates, `route` draws the curves, `pack` places the components of an
//! unconnected graph side by side. `svg` writes the picture, with text measured by `text` and
//! colours from `style`.

mod axes;
mod box_rows;
pub mod geometry;
mod graph;
pub mod help;
mod layers;
pub mod layout;
mod order;
mod pack;
pub mod paper;
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

/// Draws the graph as a complete SVG document.
pub fn render(graph: &Graph) -> String {
    svg::write(graph, &layout::lay_out(graph))
}
