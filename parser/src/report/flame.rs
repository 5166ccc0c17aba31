//! The flame graph: every stack at once, callers below what they called, as
//! wide as what they hold.
//!
//! Promises: [`render`] returns one standalone SVG. Without a script it is a
//! plain picture, light or dark as its surroundings; with one it zooms,
//! searches, and turns around ([`SCRIPT`]). Names are text and nothing else:
//! nothing from a dump can become markup, style or script. The same view gives
//! the same bytes.
//!
//! Limits: what is narrower than [`LIMIT`] of the whole is merged into one
//! frame of its caller, and the picture says how much that is. The plain
//! picture ends at [`ROWS`] levels, since viewers end there too; the script
//! shows all of them.
//!
//! In a comparison colours show what changed. The width is the change where
//! equal stacks cancel out (`--base`), and the larger of both where the base is
//! kept (`--diff_base`).

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
pub use rule::Rule;
pub use size::LIMIT;
use tree::Tree;

/// `--flame`.
pub const FORMAT: Format = Format {
    ending: Some("flame.svg"),
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

/// The picture, as SVG.
fn render(context: &Context) -> Result<String> {
    let column = context.view.column();
    let tree = Tree::new(context.view, context.nodes, &[column], LIMIT);
    Ok(draw::document(context, &tree, Rule::for_view(context)))
}
