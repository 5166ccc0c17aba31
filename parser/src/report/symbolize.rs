//! The dump itself, with symbols added.

use anyhow::Result;
use profile::{Profile, cpu, dump};

use super::format::{Format, Needs, Symbols};

/// `--symbolize`.
pub const FORMAT: Format = Format {
    needs: Needs {
        symbols: Symbols::Optional,
        ..Needs::TABLE
    },
    ..Format::conversion(
        "symbolize",
        "The dump itself with symbols inside, readable on any machine",
        render,
    )
};

fn render(profile: &Profile) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match profile.facts.cpu {
        Some(_) => cpu::write(profile, &mut out)?,
        None => dump::write(profile, &mut out)?,
    }
    Ok(out)
}
