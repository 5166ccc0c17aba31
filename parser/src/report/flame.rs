//! The flame graph: all stacks in one picture, with callees above their callers and widths in
//! proportion to values.
//!
//! Guarantees: [`render`] returns one standalone SVG. Without its script it is a plain picture, in
//! the viewer's light or dark colour scheme; with the script it can be zoomed, searched and
//! inverted ([`SCRIPT`]). Names are shown as text only: nothing in a dump can become markup, style
//! or script. The same view yields the same bytes.
//!
//! Limits: frames narrower than [`MIN_SHARE`] of the whole are merged into one frame per caller, and
//! the picture shows how much they contain. The plain picture has at most 1500 levels, because
//! viewers limit its height; the script shows all of them.
//!
//! In a comparison, colours show what changed. The width is the change if equal stacks cancel out
//! (`--base`), and the larger of both values if the base is kept (`--diff_base`).

pub mod data;
mod draw;
mod rule;
mod size;
pub mod style;
pub mod tree;

use anyhow::Result;

use super::context::Context;
use super::format::{Format, Needs};
use crate::measure::Style;
pub use draw::SCRIPT;
pub use rule::WidthRule;
pub use size::MIN_SHARE;
use tree::Tree;

/// `--flame`.
pub const FORMAT: Format = Format {
    extension: Some("flame.svg"),
    style: Style::Own,
    needs: Needs {
        variance: true,
        ..Needs::TABLE
    },
    ..Format::report(
        "flame",
        "Flame graph as SVG, interactive in a browser",
        render,
    )
};

/// Renders the picture as SVG.
fn render(context: &Context) -> Result<String> {
    let column = context.view.column();
    let tree = Tree::new(context.view, context.nodes, &[column], MIN_SHARE);
    Ok(draw::document(context, &tree, WidthRule::for_view(context)))
}
