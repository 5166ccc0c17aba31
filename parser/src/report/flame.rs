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
pub mod style;
pub mod tree;

use anyhow::Result;
use heap_format::merge::BASE_LABEL;

use super::context::Context;
use super::format::{Format, Needs};
use tree::{Tree, Weight};

/// `--flame`.
pub const FORMAT: Format = Format {
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

/// Width of the plain picture without its margins.
const WIDTH: f64 = 1180.0;

/// Least share of the whole for a frame of its own: a tenth of a pixel.
pub const LIMIT: f64 = 0.1 / WIDTH;

/// Levels of the plain picture.
const ROWS: u32 = 1500;

/// The script that draws a tree; `boot.js` starts it in a picture of its own.
pub const SCRIPT: &str = concat!(
    include_str!("flame/numbers.js"),
    include_str!("flame/tree.js"),
    include_str!("flame/view.js")
);

/// Width of a frame that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// As wide as the change.
    Change,
    /// As wide as the larger one of before and after.
    Larger,
}

impl Rule {
    /// The rule for a view: the larger one if it keeps its base apart.
    pub fn of(context: &Context) -> Self {
        let labels = &context.view.profile().labels;
        if labels.iter().any(|l| l.key == BASE_LABEL) {
            Self::Larger
        } else {
            Self::Change
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Larger => "larger",
        }
    }

    fn width(self, weight: Weight) -> i128 {
        match self {
            Self::Change => weight.net().abs(),
            Self::Larger => weight.plus.max(weight.minus),
        }
    }
}

/// The picture, as SVG.
fn render(context: &Context) -> Result<String> {
    let column = context.view.column();
    let tree = Tree::new(context.view, context.nodes, &[column], LIMIT);
    Ok(draw::document(context, &tree, Rule::of(context)))
}
