//! gperftools' binary CPU profile, for google-pprof.

use anyhow::Result;
use profile::Profile;
use profile::cpu::gperftools;

use super::format::{Format, Needs, Symbols};

/// `--gperftools`.
pub const FORMAT: Format = Format {
    extension: Some("prof"),
    needs: Needs {
        symbols: Symbols::Unused,
        ..Needs::TABLE
    },
    ..Format::conversion(
        "gperftools",
        "gperftools' binary CPU profile, for google-pprof",
        render,
    )
};

fn render(profile: &Profile) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    gperftools::write(profile, &mut out)?;
    Ok(out)
}
