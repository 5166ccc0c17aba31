//! Profiles as bytes.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use heap_format::{Profile, merge, pprof};

/// Gzipped `profile.proto`: equal stacks are one sample, and allocators' frames stay, which readers
/// leave out by the profile's own `drop_frames`.
pub fn pprof(profile: Profile) -> io::Result<Vec<u8>> {
    let merged = merge::merge(&[profile]).map_err(io::Error::other)?;
    let mut out = Vec::new();
    pprof::write(&merged, &mut out)?;
    Ok(out)
}

/// The text that jeprof, google-pprof and `go tool pprof` read: a dump.
pub fn text(profile: &Profile) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    heap_format::dump::write(profile, &mut out)?;
    Ok(out)
}

/// A body as `Content-Encoding: gzip` has it.
pub fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(body);
    encoder.finish().unwrap_or_default()
}
