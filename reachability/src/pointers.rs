//! Rules that determine which words count as pointers, and to which regions.

use crate::heap::Heap;
use crate::memory::word_of;
use crate::object::HEADER;

/// Size of a word in bytes.
const WORD_BYTES: usize = 8;
/// Upper limit of small numbers. They are the most frequent words and never addresses.
const MAX_SMALL_NUMBER: u64 = 0xffff;

/// Rules for pointers. By default, each aligned word that is an address in a region is a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerRules {
    /// Alignment of pointers: 1, 2, 4 or 8.
    alignment: usize,
    /// Mask of the address bits of a word.
    mask: u64,
    /// Maximum offset in an object to which a pointer may point.
    max_offset: u64,
    /// Regions whose sampled objects are not at the usual offset, [`HEADER`], with the objects'
    /// offsets, sorted by region. Used only with a limited `max_offset`.
    starts: Vec<(u32, u64)>,
}

impl Default for PointerRules {
    fn default() -> Self {
        Self {
            alignment: WORD_BYTES,
            mask: u64::MAX,
            max_offset: u64::MAX,
            starts: Vec::new(),
        }
    }
}

impl PointerRules {
    /// Also accepts pointers at multiples of `alignment`, which is 1, 2 or 4. Other values have no
    /// effect.
    #[must_use]
    pub fn aligned(mut self, alignment: usize) -> Self {
        if matches!(alignment, 1 | 2 | 4) {
            self.alignment = alignment;
        }
        self
    }

    /// Ignores the uppermost `bits` bits of a word, which are not part of its address.
    #[must_use]
    pub fn tagged(mut self, bits: u32) -> Self {
        self.mask = u64::MAX.checked_shr(bits).unwrap_or(0);
        self
    }

    /// Accepts only pointers that point at most this many bytes into an object. `starts` has the
    /// offsets of sampled objects that are not at the usual offset in their regions, sorted by
    /// region ([`crate::lost::starts`]).
    #[must_use]
    pub fn within(mut self, max_offset: u64, starts: Vec<(u32, u64)>) -> Self {
        self.max_offset = max_offset;
        self.starts = starts;
        self
    }

    /// Returns the alignment of pointers.
    pub(crate) fn alignment(&self) -> usize {
        self.alignment
    }

    /// Returns true if these are the default rules.
    #[inline]
    pub(crate) fn are_plain(&self) -> bool {
        self.mask == u64::MAX && self.max_offset == u64::MAX && self.alignment == WORD_BYTES
    }

    /// Returns the extent and the region that a word points to.
    #[inline]
    pub(crate) fn find(&self, heap: &Heap, word: u64) -> Option<(u32, u32)> {
        let address = word & self.mask;
        if address <= MAX_SMALL_NUMBER {
            return None;
        }
        let (extent, region) = heap.find(address)?;
        if self.max_offset == u64::MAX {
            return Some((extent, region));
        }
        let in_extent = heap.extents().get(extent as usize)?;
        let base = in_extent.begin_of(region);
        let start = if heap.is_sampled(in_extent) {
            self.start_in(region)
        } else {
            0
        };
        let is_accepted = address - base <= self.max_offset.saturating_add(start);
        is_accepted.then_some((extent, region))
    }

    /// Returns the offset of the sampled object in a region.
    fn start_in(&self, region: u32) -> u64 {
        let index = self.starts.binary_search_by_key(&region, |start| start.0);
        index.map_or(HEADER, |index| self.starts[index].1)
    }

    /// Calls `found` with the offset, the extent and the region of each pointer in some memory,
    /// which must be aligned. The default rules have a fast path.
    #[inline]
    pub(crate) fn each(&self, heap: &Heap, bytes: &[u8], mut found: impl FnMut(usize, u32, u32)) {
        if self.are_plain() {
            for (index, bytes) in bytes.chunks_exact(WORD_BYTES).enumerate() {
                let word = word_of(bytes);
                if word > MAX_SMALL_NUMBER
                    && let Some((extent, region)) = heap.find(word)
                {
                    found(index * WORD_BYTES, extent, region);
                }
            }
            return;
        }
        for (index, bytes) in bytes
            .windows(WORD_BYTES)
            .step_by(self.alignment)
            .enumerate()
        {
            if let Some((extent, region)) = self.find(heap, word_of(bytes)) {
                found(index * self.alignment, extent, region);
            }
        }
    }
}

#[cfg(test)]
mod tests;
