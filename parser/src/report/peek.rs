//! Callers and callees of matching functions. Equal to `pprof -peek`.

use anyhow::Result;

use super::context::Context;
use super::format::{Format, Needs};
use super::tree;

/// `--peek`.
pub const FORMAT: Format = Format {
    takes_pattern: true,
    needs: Needs {
        trim: None,
        variance: true,
        ..Needs::TABLE
    },
    ..Format::report("peek", "Callers and callees of matching functions", render)
};

fn render(context: &Context) -> Result<String> {
    tree::table(context, context.pattern)
}
