//! Which words count as pointers, and to which regions.

use crate::heap::Heap;
use crate::memory::word_of;
use crate::object::HEADER;

/// Bytes of a word.
const WORD: usize = 8;
/// Words up to this one are small numbers, no addresses, and the most frequent.
const SMALL: u64 = 0xffff;

/// What counts as a pointer. By default, each aligned word with an address in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointers {
    /// Multiples at which pointers lie: 1, 2, 4 or 8.
    alignment: usize,
    /// The bits of a word that are its address.
    mask: u64,
    /// How far into an object a pointer may lead.
    most_offset: u64,
    /// Where, in their regions, those objects begin that do not begin after a plain header; by
    /// region. Of no use without a `most_offset`.
    starts: Vec<(u32, u64)>,
}

impl Default for Pointers {
    fn default() -> Self {
        Self {
            alignment: WORD,
            mask: u64::MAX,
            most_offset: u64::MAX,
            starts: Vec::new(),
        }
    }
}

impl Pointers {
    /// Pointers that lie at multiples of 1, 2 or 4 bytes, too; anything else changes nothing.
    #[must_use]
    pub fn aligned(mut self, alignment: usize) -> Self {
        if matches!(alignment, 1 | 2 | 4) {
            self.alignment = alignment;
        }
        self
    }

    /// The uppermost bits of a word, this many, say nothing of its address.
    #[must_use]
    pub fn tagged(mut self, bits: u32) -> Self {
        self.mask = u64::MAX.checked_shr(bits).unwrap_or(0);
        self
    }

    /// Only those that lead at most this many bytes into an object count. `starts`: where sampled
    /// objects begin in their regions, by region ([`crate::lost::starts`]); those that are missing
    /// begin after a plain header.
    #[must_use]
    pub fn within(mut self, most_offset: u64, starts: Vec<(u32, u64)>) -> Self {
        self.most_offset = most_offset;
        self.starts = starts;
        self
    }

    /// Multiples at which pointers lie.
    pub(crate) fn alignment(&self) -> usize {
        self.alignment
    }

    /// Whether they are those of the default.
    #[inline]
    pub(crate) fn are_plain(&self) -> bool {
        self.mask == u64::MAX && self.most_offset == u64::MAX && self.alignment == WORD
    }

    /// The extent and the region that a word points to.
    #[inline]
    pub(crate) fn find(&self, heap: &Heap, word: u64) -> Option<(u32, u32)> {
        let address = word & self.mask;
        if address <= SMALL {
            return None;
        }
        let (extent, region) = heap.find(address)?;
        if self.most_offset == u64::MAX {
            return Some((extent, region));
        }
        let found = heap.extents().get(extent as usize)?;
        let base = found.start + u64::from(region - found.first) * found.size;
        let start = match heap.is_sampled(found) {
            true => self.start_in(region),
            false => 0,
        };
        let is_near = address - base <= self.most_offset.saturating_add(start);
        is_near.then_some((extent, region))
    }

    fn start_in(&self, region: u32) -> u64 {
        let found = self.starts.binary_search_by_key(&region, |start| start.0);
        found.map_or(HEADER, |index| self.starts[index].1)
    }

    /// Passes on the extent and the region of each pointer in some memory, which begins at such a
    /// multiple, with its distance. The usual case costs nothing extra here.
    #[inline]
    pub(crate) fn each(&self, heap: &Heap, bytes: &[u8], mut found: impl FnMut(usize, u32, u32)) {
        if self.are_plain() {
            for (index, bytes) in bytes.chunks_exact(WORD).enumerate() {
                let word = word_of(bytes);
                if word > SMALL
                    && let Some((extent, region)) = heap.find(word)
                {
                    found(index * WORD, extent, region);
                }
            }
            return;
        }
        for (index, bytes) in bytes.windows(WORD).step_by(self.alignment).enumerate() {
            if let Some((extent, region)) = self.find(heap, word_of(bytes)) {
                found(index * self.alignment, extent, region);
            }
        }
    }
}

#[cfg(test)]
mod tests;
