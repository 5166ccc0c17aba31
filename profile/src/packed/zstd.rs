//! Decompresses a sequence of zstd frames.

use std::io::{self, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Magic number of a frame.
const FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Last three bytes of the magic number of a skippable frame; the first is `0x50` to `0x5f`.
const SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
/// Size of magic number and length of a skippable frame, in bytes.
const SKIPPABLE_HEADER: usize = 8;

/// Maximum window of a frame, in bytes: what `zstd -21` uses. The decoder holds twice as much.
const MAX_WINDOW: u64 = 64 << 20;

/// Returns true if a file that begins with these bytes is compressed with zstd.
pub(super) fn looks_like(start: &[u8]) -> bool {
    start.starts_with(&FRAME) || skippable_frame_bytes(start).is_some()
}

/// Returns the size of a skippable frame, in bytes.
fn skippable_frame_bytes(start: &[u8]) -> Option<usize> {
    let header = start.get(..SKIPPABLE_HEADER)?;
    let is_magic = header[0] & 0xf0 == 0x50 && header[1..4] == SKIPPABLE;
    let length = u32::from_le_bytes(header[4..].try_into().ok()?);
    is_magic.then_some(SKIPPABLE_HEADER + length as usize)
}

/// Reader of the contents of all frames.
pub(super) struct ZstdFrames<'a> {
    rest: &'a [u8],
    decoder: FrameDecoder,
    /// Set while a frame is being read.
    is_open: bool,
}

impl<'a> ZstdFrames<'a> {
    pub(super) fn new(packed: &'a [u8]) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW);
        Self {
            rest: packed,
            decoder,
            is_open: false,
        }
    }

    /// Returns the number of compressed bytes that have not been read yet.
    pub(super) fn bytes_left(&self) -> usize {
        self.rest.len()
    }

    /// Compares the checksum of the frame that has been read, if it has one.
    fn verify_checksum(&self) -> io::Result<()> {
        let expected = self.decoder.get_checksum_from_data();
        if expected.is_some() && expected != self.decoder.get_calculated_checksum() {
            return Err(io::Error::other("the checksum is wrong"));
        }
        Ok(())
    }

    /// Opens the next frame. Returns false after the last one.
    fn next_frame(&mut self) -> io::Result<bool> {
        while let Some(size) = skippable_frame_bytes(self.rest) {
            self.rest = self.rest.get(size..).unwrap_or_default();
        }
        if self.rest.is_empty() {
            return Ok(false);
        }
        self.decoder
            .reset(&mut self.rest)
            .map_err(io::Error::other)?;
        Ok(true)
    }
}

impl Read for ZstdFrames<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_open {
                self.is_open = self.next_frame()?;
                if !self.is_open {
                    return Ok(0);
                }
            }
            let read = self.decoder.read(out)?;
            if read > 0 {
                return Ok(read);
            }
            if self.decoder.is_finished() {
                self.verify_checksum()?;
                self.is_open = false;
                continue;
            }
            self.decoder
                .decode_blocks(&mut self.rest, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(io::Error::other)?;
        }
    }
}
