//! Encodes profiles for clients.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use profile::{Profile, merge, pprof};

/// Encodes a profile as gzipped `profile.proto`. Merges equal stacks. Keeps allocators' frames,
/// which readers hide by the profile's own `drop_frames`.
pub fn pprof(profile: Profile) -> io::Result<Vec<u8>> {
    let merged = merge::merge(&[profile]).map_err(io::Error::other)?;
    let mut out = Vec::new();
    pprof::write(&merged, &mut out)?;
    Ok(out)
}

/// Encodes a heap profile as gzipped `profile.proto`. `column` is what readers show by default.
pub fn heap(mut profile: Profile, column: &str) -> io::Result<Vec<u8>> {
    if let Some(index) = profile.type_index(column) {
        profile.default_type = index;
    }
    pprof(profile)
}

/// Encodes a profile as a dump, the text that jeprof, google-pprof and `go tool pprof` read.
pub fn text(profile: &Profile) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    profile::dump::write(profile, &mut out)?;
    Ok(out)
}

/// Compresses a body for `Content-Encoding: gzip`.
pub fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(body);
    encoder.finish().unwrap_or_default()
}

/// Decompresses what this program has compressed.
pub fn gunzip(body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    // It is sound.
    let _ = GzDecoder::new(body).read_to_end(&mut plain);
    plain
}
