//! Encodes profiles for clients.

use std::fmt::Write as _;
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

/// Formats a growth profile as gperftools does, with return addresses.
pub fn growth(profile: &Profile) -> String {
    let column = |kind| profile.type_index(kind).unwrap_or(0);
    let objects = column("inuse_objects");
    let bytes = column("inuse_space");
    let mut text = "heap profile: ".to_owned();
    push_growth(&mut text, profile.total(objects), profile.total(bytes));
    text.push_str(" growth\n");
    for (number, frames) in profile.stacks.iter().enumerate() {
        let values = profile.values_of(number);
        if values[bytes] == 0 && values[objects] == 0 {
            continue;
        }
        push_growth(&mut text, values[objects], values[bytes]);
        for &frame in frames {
            let address = profile.locations[frame as usize].address;
            // Writing to a string cannot fail.
            let _ = write!(text, " {:#x}", address.wrapping_add(1));
        }
        text.push('\n');
    }
    text.push_str("\nMAPPED_LIBRARIES:\n");
    text.push_str(&String::from_utf8_lossy(&profile.facts.maps_text));
    text
}

/// Appends the four numbers of a line of a growth profile.
fn push_growth(text: &mut String, objects: i64, bytes: i64) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{objects:6}: {bytes:8} [{objects:6}: {bytes:8}] @");
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
    // Cannot fail, since this program has compressed it.
    let _ = GzDecoder::new(body).read_to_end(&mut plain);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growth_profile_is_read_back_with_its_totals() {
        let mut builder = profile::ProfileBuilder::new(1024);
        let detail = profile::Detail {
            alloc_samples: 2,
            alloc_objects: 20.0,
            alloc_bytes: 2000.0,
            freed_objects: 5.0,
            freed_bytes: 500.0,
            ..profile::Detail::default()
        };
        builder.stack([0x1001, 0x2001], &detail);
        let profile = builder.finish();
        let text = growth(&profile);
        assert!(
            text.starts_with("heap profile:     15:     1500 ["),
            "{text}"
        );
        assert!(text.contains("@ 0x1001 0x2001\n"), "{text}");
        let read = profile::read(text.as_bytes(), "growth").unwrap();
        let bytes = read.type_index("space").unwrap();
        assert_eq!(read.total(bytes), 1500);
    }
}
