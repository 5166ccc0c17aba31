//! Decompresses sections.
//!
//! A whole section is decompressed by libdeflate, which takes two thirds of zlib's time. Only zlib
//! can stop early, if the beginning of a section is enough. The output is an anonymous mapping with
//! huge pages if available, because page faults on small pages take a fifth as long as the
//! decompression.
//!
//! Sections compressed by zstd are always decompressed as a whole.

use std::ops::Deref;

use flate2::{Decompress, FlushDecompress};
use libdeflater::Decompressor;
use memmap2::{Advice, MmapMut, MmapOptions};
use ruzstd::decoding::FrameDecoder;

/// Huge page size of x86-64, and of aarch64 with 4 KiB pages, in bytes.
const LARGE_PAGE: usize = 2 << 20;

/// Maximum window of a zstd frame, in bytes: what `zstd -21` uses.
const MAX_WINDOW: u64 = 64 << 20;

/// Contents of a section.
pub enum Content<'a> {
    /// Slice of the file.
    File(&'a [u8]),
    /// Decompressed contents: a mapping, and the number of its bytes that are used.
    Unpacked(MmapMut, usize),
}

impl Deref for Content<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Content::File(bytes) => bytes,
            Content::Unpacked(map, length) => &map[..*length],
        }
    }
}

impl Content<'_> {
    /// Drops everything after the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        match self {
            Content::File(bytes) => *bytes = &bytes[..bytes.len().min(length)],
            Content::Unpacked(_, used) => *used = length.min(*used),
        }
    }
}

/// A compressed section that is decompressed on demand.
pub struct Unpacked<'a> {
    packed: &'a [u8],
    engine: Decompress,
    /// Bytes decompressed so far.
    done: usize,
    /// Output, zero after the first `done` bytes. Untouched huge pages take no memory.
    map: MmapMut,
    /// Decompressed size of the whole section, in bytes.
    size: usize,
}

impl<'a> Unpacked<'a> {
    /// Prepares the decompression of a section with this decompressed size.
    pub fn new(packed: &'a [u8], size: usize) -> Option<Self> {
        Some(Self {
            packed,
            engine: Decompress::new(true),
            done: 0,
            map: output(size)?,
            size,
        })
    }

    /// Decompresses at least the first `end` bytes. Returns `None` if there are fewer.
    pub fn decompress_to(&mut self, end: usize) -> Option<()> {
        if end > self.size {
            return None;
        }
        if self.done == 0 && end > self.size / 3 * 2 {
            let mut all = Decompressor::new();
            let unpacked = all.zlib_decompress(self.packed, &mut self.map[..self.size]);
            // The undamaged beginning of a damaged section is decompressed below.
            self.done = unpacked.ok().filter(|&size| size >= end).unwrap_or(0);
        }
        while self.done < end {
            let read = usize::try_from(self.engine.total_in()).ok()?;
            let packed = self.packed.get(read..)?;
            let rest = &mut self.map[self.done..end];
            let unpacked = self.engine.decompress(packed, rest, FlushDecompress::None);
            unpacked.ok()?;
            let done = usize::try_from(self.engine.total_out()).ok()?;
            if done <= self.done {
                return None;
            }
            self.done = done;
        }
        Some(())
    }

    /// Returns the whole section; bytes not decompressed yet are zero.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.size]
    }

    /// Returns the whole section as its contents; bytes not decompressed yet are zero.
    pub fn into_content(self) -> Content<'a> {
        Content::Unpacked(self.map, self.size)
    }
}

/// Returns memory for a section of this decompressed size.
fn output(size: usize) -> Option<MmapMut> {
    // A large size may be wrong, so only a small mapping is populated in advance.
    let is_small = size < LARGE_PAGE;
    let mut options = MmapOptions::new();
    if is_small {
        options.populate();
    }
    // A mapping cannot be empty. The kernel aligns one of whole huge pages suitably.
    let unit = if is_small { 1 } else { LARGE_PAGE };
    let length = size.max(1).checked_next_multiple_of(unit)?;
    let map = options.len(length).map_anon().ok()?;
    if !is_small {
        // Errors are ignored: without huge pages, it is only slower.
        let _ = map.advise(Advice::HugePage);
    }
    Some(map)
}

/// Decompresses a section that was compressed by zstd and has this decompressed size.
pub fn zstd(packed: &[u8], size: usize) -> Option<Content<'static>> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(MAX_WINDOW);
    let mut map = output(size)?;
    let unpacked = decoder.decode_all(packed, &mut map[..size]).ok()?;
    (unpacked == size).then_some(Content::Unpacked(map, size))
}
