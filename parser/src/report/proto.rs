//! Gzipped `profile.proto`, for pprof.

use anyhow::Result;
use profile::{Profile, pprof};

use super::format::{Format, Needs};

/// `--proto`.
pub const FORMAT: Format = Format {
    extension: Some("pb.gz"),
    needs: Needs {
        merged_stacks: true,
        ..Needs::TABLE
    },
    ..Format::conversion("proto", "Gzipped profile.proto, for pprof", render)
};

fn render(profile: &Profile) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    pprof::write(profile, &mut out)?;
    Ok(out)
}
