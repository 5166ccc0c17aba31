//! Decompresses gzip and zstd files: profiles of any format.
//!
//! Some contents compress a thousandfold, so a small file may expand to any size. The decompressed
//! size is bounded by the number of compressed bytes read so far, not by the file's size. So a
//! decompression bomb is refused early, however large its file is. A file that was compressed
//! several times is bounded by the size of its outermost layer (decision 80).

mod zstd;

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

use self::zstd::ZstdFrames;
use crate::error::Fault;

/// Magic number of gzip.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Maximum number of layers of compression. Some web servers compress files that are compressed
/// already.
pub(crate) const MAX_LAYERS: usize = 4;

/// Limit on the decompressed size: `base + ratio × compressed bytes`.
#[derive(Clone, Copy)]
pub(crate) struct ExpansionLimit {
    /// Decompressed bytes that are always allowed.
    base: u64,
    /// Additional decompressed bytes per compressed byte read.
    ratio: u64,
}

/// Limit for text, which is streamed. Similar stacks compress well.
pub(crate) const TEXT_LIMIT: ExpansionLimit = ExpansionLimit {
    base: 16 << 20,
    ratio: 100,
};

/// Limit for contents that are held in memory as a whole.
pub(crate) const WHOLE_LIMIT: ExpansionLimit = ExpansionLimit {
    base: 32 << 20,
    ratio: 24,
};

/// Returns true if a file that begins with these bytes is compressed with gzip or zstd.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    start.starts_with(GZIP) || zstd::looks_like(start)
}

/// Decoder of one layer.
enum Decoder<'a> {
    Gzip(Box<MultiGzDecoder<&'a [u8]>>),
    Zstd(Box<ZstdFrames<'a>>),
}

impl<'a> Decoder<'a> {
    fn new(packed: &'a [u8]) -> Self {
        if zstd::looks_like(packed) {
            Self::Zstd(Box::new(ZstdFrames::new(packed)))
        } else {
            Self::Gzip(Box::new(MultiGzDecoder::new(packed)))
        }
    }

    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(out),
            Self::Zstd(decoder) => decoder.read(out),
        }
    }

    /// Returns the size of what has not been read yet, in bytes.
    fn bytes_left(&self) -> usize {
        match self {
            Self::Gzip(decoder) => decoder.get_ref().len(),
            Self::Zstd(decoder) => decoder.bytes_left(),
        }
    }
}

/// Reader of the decompressed contents of a file.
pub(crate) struct Unpacking<'a> {
    decoder: Decoder<'a>,
    /// Compressed size of this layer, in bytes.
    packed: u64,
    /// Size of the file, in bytes. May be less than `packed` in an inner layer.
    stored: u64,
    /// Bytes decompressed so far.
    unpacked: u64,
    expansion: ExpansionLimit,
}

impl<'a> Unpacking<'a> {
    /// Creates a reader of one layer of a file of `stored` bytes.
    pub(crate) fn new(packed: &'a [u8], stored: usize, expansion: ExpansionLimit) -> Self {
        Self {
            decoder: Decoder::new(packed),
            packed: packed.len() as u64,
            stored: stored as u64,
            unpacked: 0,
            expansion,
        }
    }
}

impl Read for Unpacking<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let read = self
            .decoder
            .read(out)
            .map_err(|error| invalid(format!("cannot be unpacked: {error}; cut off or damaged")))?;
        self.unpacked += read as u64;
        let consumed = (self.packed - self.decoder.bytes_left() as u64).min(self.stored);
        let ExpansionLimit { base, ratio } = self.expansion;
        if self.unpacked > base + ratio * consumed {
            let size = base >> 20;
            return Err(invalid(format!(
                "unpacks to more than {ratio} times its size, and more than {size} MiB; if you \
                 trust it, unpack it first"
            )));
        }
        Ok(read)
    }
}

/// Decompresses one layer of a file of `stored` bytes.
pub(crate) fn unpack(packed: &[u8], stored: usize) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    Unpacking::new(packed, stored, WHOLE_LIMIT).read_to_end(&mut out)?;
    Ok(out)
}

/// Compresses text. Returns `None` if it compresses so well that readers would refuse it.
pub(crate) fn pack(content: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    let packed = encoder.finish()?;
    let is_small = content.len() as u64 <= TEXT_LIMIT.base;
    let is_accepted = is_small || {
        let mut unpacking = Unpacking::new(&packed, packed.len(), TEXT_LIMIT);
        io::copy(&mut unpacking, &mut io::sink()).is_ok()
    };
    Ok(is_accepted.then_some(packed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_and_unpacking_round_trip() {
        let text: Vec<u8> = (0..100_000).flat_map(|n: u32| n.to_le_bytes()).collect();
        let packed = pack(&text).unwrap().expect("it is packed");
        assert!(looks_like(&packed) && packed.len() < text.len());
        assert_eq!(unpack(&packed, packed.len()).ok(), Some(text));
        assert!(unpack(&packed[..packed.len() / 2], packed.len()).is_err());
    }

    #[test]
    fn values_that_readers_refuse_are_not_packed() {
        let alike = vec![b'a'; 64 << 20];
        assert_eq!(pack(&alike).unwrap(), None);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&alike).unwrap();
        let bomb = encoder.finish().unwrap();
        assert!(unpack(&bomb, bomb.len()).is_err());
    }
}
