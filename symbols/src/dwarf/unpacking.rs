//! Compressed sections.
//!
//! A section is unpacked as a whole by libdeflate, which needs two thirds of the time that zlib's
//! equal needs; but that one can stop where no more is needed. What is unpacked lies in memory of
//! its own, in large pages where the kernel has them: to be given thousands of small ones, one
//! after the other, takes as long as a fifth of the unpacking.

use std::ops::Deref;

use flate2::{Decompress, FlushDecompress};
use libdeflater::Decompressor;
use memmap2::{Advice, MmapMut, MmapOptions};

/// The large pages of x86-64, and of aarch64 with pages of 4 KiB.
const LARGE_PAGE: usize = 2 << 20;

/// Content of a section.
pub enum Content<'a> {
    /// As it is in the file.
    File(&'a [u8]),
    /// Unpacked: this many bytes.
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
    /// Leaves out what is behind its first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        match self {
            Content::File(bytes) => *bytes = &bytes[..bytes.len().min(length)],
            Content::Unpacked(_, own) => *own = length.min(*own),
        }
    }
}

/// A compressed section, unpacked as far as it is needed.
pub struct Unpacked<'a> {
    packed: &'a [u8],
    engine: Decompress,
    /// Bytes that are unpacked.
    done: usize,
    /// All of it, and how many bytes it has. Zeros where nothing is unpacked yet: in a large section
    /// they take no memory.
    map: MmapMut,
    size: usize,
}

impl<'a> Unpacked<'a> {
    /// Of a section that says how many bytes it has; none is unpacked yet.
    pub fn new(packed: &'a [u8], size: usize) -> Option<Self> {
        // Who claims more than is there must not get the memory beforehand.
        let is_small = size < LARGE_PAGE;
        let mut options = MmapOptions::new();
        if is_small {
            options.populate();
        }
        // No mapping is empty, and whole large pages are laid out so that they can be used.
        let unit = if is_small { 1 } else { LARGE_PAGE };
        let length = size.max(1).checked_next_multiple_of(unit)?;
        let map = options.len(length).map_anon().ok()?;
        if !is_small {
            // Without large pages it takes longer.
            let _ = map.advise(Advice::HugePage);
        }
        Some(Self {
            packed,
            engine: Decompress::new(true),
            done: 0,
            map,
            size,
        })
    }

    /// Unpacks as many bytes from its beginning, if they are not yet; `None` where there are fewer.
    pub fn reach(&mut self, end: usize) -> Option<()> {
        if end > self.size {
            return None;
        }
        if self.done == 0 && end > self.size / 3 * 2 {
            let mut all = Decompressor::new();
            let unpacked = all.zlib_decompress(self.packed, &mut self.map[..self.size]);
            // What is damaged is unpacked as far as it goes, below.
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

    /// The section, as far as it is unpacked.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.size]
    }

    /// The same.
    pub fn into_content(self) -> Content<'a> {
        Content::Unpacked(self.map, self.size)
    }
}
