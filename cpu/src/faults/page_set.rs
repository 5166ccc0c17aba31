//! Set of pages: those that existed when sampling began.

use std::ops::Range;

use proc::{Pages, page_size};

/// Number of pages of a chunk.
const CHUNK_PAGES: u64 = 512;
const WORDS: usize = CHUNK_PAGES as usize / 64;
/// Maximum number of chunks (36 MiB), which hold 1 TiB of pages of 4 KiB if these are dense.
const MAX_CHUNKS: usize = 1 << 19;

/// Pages of one aligned chunk, one bit each.
struct Chunk {
    number: u64,
    bits: [u64; WORDS],
}

/// Set of pages, given by page number.
#[derive(Default)]
pub struct PageSet {
    /// Chunks that contain pages, by number.
    chunks: Vec<Chunk>,
    /// First page that may be missing, because there were too many chunks. It and all pages after it
    /// count as contained. `None`: no page is missing.
    unknown_from: Option<u64>,
}

impl PageSet {
    /// Reads the existing pages of a process in ranges of addresses, which must be sorted.
    pub fn read(pages: &mut Pages, ranges: &[Range<u64>]) -> Self {
        let size = page_size();
        let mut set = Self::default();
        for range in ranges {
            let is_read = pages.runs(range.clone(), &mut |run| {
                set.insert(run.range.start / size..run.range.end.div_ceil(size));
            });
            if !is_read {
                // Pages there must not be mistaken for new ones.
                set.insert(range.start / size..range.end.div_ceil(size));
            }
        }
        set
    }

    /// Adds pages, which must not precede those added before.
    pub(super) fn insert(&mut self, pages: Range<u64>) {
        let mut page = pages.start;
        while page < pages.end && self.unknown_from.is_none() {
            let number = page / CHUNK_PAGES;
            let end = pages.end.min((number + 1) * CHUNK_PAGES);
            if self.chunks.last().is_none_or(|last| last.number != number) {
                if self.chunks.len() >= MAX_CHUNKS {
                    self.unknown_from = Some(page);
                    return;
                }
                self.chunks.push(Chunk {
                    number,
                    bits: [0; WORDS],
                });
            }
            if let Some(chunk) = self.chunks.last_mut() {
                for page in page..end {
                    let offset = (page % CHUNK_PAGES) as usize;
                    chunk.bits[offset / 64] |= 1 << (offset % 64);
                }
            }
            page = end;
        }
    }

    /// Returns true if the set contains a page.
    pub fn contains(&self, page: u64) -> bool {
        if self.unknown_from.is_some_and(|first| page >= first) {
            return true;
        }
        self.chunk(page / CHUNK_PAGES).is_some_and(|chunk| {
            let offset = (page % CHUNK_PAGES) as usize;
            (chunk.bits[offset / 64] >> (offset % 64)) & 1 != 0
        })
    }

    fn chunk(&self, number: u64) -> Option<&Chunk> {
        let index = self
            .chunks
            .binary_search_by_key(&number, |chunk| chunk.number);
        Some(&self.chunks[index.ok()?])
    }

    /// Splits pages into runs that are all in the set, or all outside it, in order.
    pub fn split(&self, pages: Range<u64>, mut visit: impl FnMut(Range<u64>, bool)) {
        let mut start = pages.start;
        while start < pages.end {
            let is_inside = self.contains(start);
            let mut end = start;
            while end < pages.end && self.contains(end) == is_inside {
                end = self.next_change(end, is_inside).min(pages.end);
            }
            visit(start..end, is_inside);
            start = end;
        }
    }

    /// Returns the end of a run of pages that starts at `page` and is all inside or all outside the
    /// set: the rest of its chunk if that is uniform, otherwise one page.
    fn next_change(&self, page: u64, is_inside: bool) -> u64 {
        let number = page / CHUNK_PAGES;
        let whole = if is_inside { u64::MAX } else { 0 };
        let is_whole = match self.chunk(number) {
            Some(chunk) => chunk.bits == [whole; WORDS],
            None => !is_inside || self.unknown_from.is_some(),
        };
        if is_whole {
            (number + 1) * CHUNK_PAGES
        } else {
            page + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(set: &PageSet, pages: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut parts = Vec::new();
        set.split(pages, |part, is_inside| parts.push((part, is_inside)));
        parts
    }

    #[test]
    fn pages_are_split_by_membership() {
        let mut set = PageSet::default();
        set.insert(3..5);
        set.insert(500..1600);
        for (page, is_inside) in [(2, false), (3, true), (4, true), (5, false), (1599, true)] {
            assert_eq!(set.contains(page), is_inside, "{page}");
        }
        let parts = split(&set, 0..5000);
        let expected = [
            (0..3, false),
            (3..5, true),
            (5..500, false),
            (500..1600, true),
            (1600..5000, false),
        ];
        assert_eq!(parts, expected);
        assert_eq!(split(&set, 4..4), []);
        assert_eq!(split(&PageSet::default(), 7..9), [(7..9, false)]);
    }

    #[test]
    fn pages_without_room_count_as_existing() {
        let mut set = PageSet::default();
        for number in 0..=MAX_CHUNKS as u64 {
            set.insert(number * CHUNK_PAGES..number * CHUNK_PAGES + 1);
        }
        let last = MAX_CHUNKS as u64 * CHUNK_PAGES;
        assert!(!set.contains(last - 1) && set.contains(last) && set.contains(last + 1));
        assert_eq!(
            split(&set, last - 2..last + 2000),
            [(last - 2..last, false), (last..last + 2000, true)]
        );
    }
}
