//! Files that are compressed by gzip: a pprof profile, or the text of any other format.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

use crate::error::Fault;

const GZIP: &[u8] = &[0x1f, 0x8b];

/// Largest ratio of unpacked content to file: far more than
/// real profiles shrink, and little enough to be harmless.
const MOST_EXPANSION: u64 = 200;

/// Room for small files beyond their expansion.
const SMALL: u64 = 1 << 20;

/// Whether a file that starts like this is compressed.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    start.starts_with(GZIP)
}

/// The content of a file that is compressed.
pub(crate) fn unpack(packed: &[u8]) -> Result<Vec<u8>, Fault> {
    let most = most(packed);
    let mut out = Vec::new();
    MultiGzDecoder::new(packed)
        .take(most + 1)
        .read_to_end(&mut out)
        .map_err(|e| Fault::whole(format!("cannot be unpacked: {e}; cut off or damaged")))?;
    if out.len() as u64 > most {
        return Err(Fault::whole(format!(
            "unpacks to more than {MOST_EXPANSION} times its size"
        )));
    }
    Ok(out)
}

fn most(packed: &[u8]) -> u64 {
    packed.len() as u64 * MOST_EXPANSION + SMALL
}

/// Compresses a file's content, unless it shrinks so far that [`unpack`] would refuse it.
pub(crate) fn pack(content: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    let packed = encoder.finish()?;
    Ok((content.len() as u64 <= most(&packed)).then_some(packed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_can_be_unpacked() {
        let text: Vec<u8> = (0..100_000).flat_map(|n: u32| n.to_le_bytes()).collect();
        let packed = pack(&text).unwrap().expect("it is packed");
        assert!(looks_like(&packed) && packed.len() < text.len());
        assert_eq!(unpack(&packed).ok(), Some(text));
        assert!(unpack(&packed[..packed.len() / 2]).is_err());
    }

    #[test]
    fn what_would_be_refused_is_not_packed() {
        let alike = vec![b'a'; 64 << 20];
        assert_eq!(pack(&alike).unwrap(), None);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&alike).unwrap();
        assert!(unpack(&encoder.finish().unwrap()).is_err());
    }
}
