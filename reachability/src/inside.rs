//! Search in place: by a copy of the process, which does the work itself.
//!
//! Reading a page of another process takes the kernel longer than searching it. So a description of
//! the heap is written to memory that the copy shares ([`Tables`]), and the copy searches its own
//! memory ([`work`]). What it cannot read there, and anything unusual, is left to [`crate::mark`].
//!
//! The result is trusted no more than the memory itself, which also belongs to the other process.
//! Whatever the words say, only regions that exist and are allocated are accepted, and no more
//! bytes can have been searched than there are.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bits::Bits;
use crate::heap::{Extent, Heap};
use crate::memory::{Here, Memory, Place};

mod layout;
mod work;

use layout::{HEADERS, Header, Kind, LEAF, LEAF_BITS, PAGE, PAGE_BITS, Page, SINGLE_REGION};

/// Offset of the first table in words, after the header.
const FIRST_TABLE: u64 = 64;
/// Minimum and maximum number of regions in the queue. Regions beyond it are recorded as bits.
/// Small in tests, so that small heaps fill it.
const QUEUE_CAPACITY: [u64; 2] = [if cfg!(test) { work::RUN } else { 1 << 15 }, 1 << 22];
/// Number of extents for each entry of the queue in a large heap. Going through the bits of all
/// regions takes longer there.
const EXTENTS_PER_ENTRY: u64 = 8;
/// Maximum number of kinds of slabs. Real heaps have a few dozen.
const MAX_KINDS: usize = 1 << 12;
/// Maximum size of leaves in bytes that any heap may have. Of most leaves, a small part is used.
const FREE_LEAF_BYTES: u64 = 64 << 20;
/// Number of bytes of the heap for each additional byte of leaves.
const HEAP_PER_LEAF_BYTE: u64 = 32;

/// Description of a heap in shared memory.
pub struct Tables<'a> {
    heap: &'a Heap,
    place: Box<dyn Place + 'a>,
    header: Header,
    /// Maximum number of bytes that can be searched, each of them once.
    most: u64,
}

/// Plan of the tables.
struct Plan<'a> {
    heap: &'a Heap,
    here: &'a Here,
    /// Kind of each extent.
    kinds: Vec<u16>,
    shapes: Vec<Kind>,
    header: Header,
    /// Index and position of each leaf.
    leaves: Vec<(u64, u64)>,
    words: u64,
}

impl<'a> Tables<'a> {
    /// Writes the tables at the place where the memory is. Returns `None` if that is not possible.
    /// `traced`: the origin of each region is recorded. `ranges`: ranges to search in addition to
    /// pending regions, each with its origin.
    pub fn new(
        memory: &'a dyn Memory,
        heap: &'a Heap,
        traced: bool,
        ranges: &[(Range<u64>, u32)],
    ) -> Option<Self> {
        let here = memory.here()?;
        let plan = Plan::of(heap, &here, traced, ranges.len())?;
        let words = usize::try_from(plan.words).ok()?;
        let place = memory.place(work::work, words)?;
        if place.words().len() < words {
            return None;
        }
        plan.write(place.words(), ranges);
        let of_ranges = ranges.iter().map(|(range, _)| range.end - range.start);
        Some(Self {
            heap,
            place,
            header: plan.header,
            most: length_of(&here.parts).saturating_add(of_ranges.sum()),
        })
    }

    /// Returns the first words of a table.
    fn words(&self, table: u64, count: usize) -> &[AtomicU64] {
        &self.place.words()[table as usize..][..count]
    }

    /// Searches the pending regions and all that they lead to. Afterwards, `pending` contains the
    /// regions that are reached but must be searched from outside. Returns the number of bytes
    /// searched, or `None` on failure, after which the other arguments are undefined. `from`:
    /// origin of each region, or empty.
    pub fn spread(&self, reached: &mut Bits, pending: &mut Bits, from: &mut [u32]) -> Option<u64> {
        self.put(reached, pending, from);
        let words = self.place.words();
        // The work counts from zero.
        words[0].store(0, Ordering::Relaxed);
        if !self.place.run(self.most) {
            return None;
        }
        let scanned = words[0].load(Ordering::Relaxed);
        self.get(reached, pending, from);
        (scanned <= self.most).then_some(scanned)
    }

    /// Writes the state of the search to shared memory.
    fn put(&self, reached: &Bits, pending: &Bits, from: &[u32]) {
        let count = reached.words().len();
        let taken = self.words(self.header.taken, count).iter();
        for (index, word) in taken.enumerate() {
            word.store(
                reached.words()[index] | !self.allocated(index),
                Ordering::Relaxed,
            );
        }
        let waiting = self.words(self.header.pending, count).iter();
        for (word, bits) in waiting.zip(pending.words()) {
            word.store(*bits, Ordering::Relaxed);
        }
        for (word, pair) in self.origins(from.len()).iter().zip(from.chunks(2)) {
            let second = pair.get(1).copied().unwrap_or(0);
            word.store(
                u64::from(pair[0]) | u64::from(second) << 32,
                Ordering::Relaxed,
            );
        }
    }

    /// Reads the state of the search from shared memory.
    fn get(&self, reached: &mut Bits, pending: &mut Bits, from: &mut [u32]) {
        let count = reached.words().len();
        let taken = self.words(self.header.taken, count);
        let foreign = self.words(self.header.foreign, count);
        for index in 0..count {
            let now = taken[index].load(Ordering::Relaxed) & self.allocated(index);
            // Reached regions remain reached.
            reached.words_mut()[index] |= now;
            let elsewhere = foreign[index].swap(0, Ordering::Relaxed);
            pending.words_mut()[index] = elsewhere & reached.words()[index];
        }
        for (word, pair) in self.origins(from.len()).iter().zip(from.chunks_mut(2)) {
            let word = word.load(Ordering::Relaxed);
            pair[0] = word as u32;
            if let Some(second) = pair.get_mut(1) {
                *second = (word >> 32) as u32;
            }
        }
    }

    /// Returns the allocation bits of 64 regions.
    fn allocated(&self, index: usize) -> u64 {
        let words = self.heap.allocated().words();
        words.get(index).copied().unwrap_or(0)
    }

    /// Returns the origins of this many regions, two in each word; empty if they are not recorded.
    fn origins(&self, count: usize) -> &[AtomicU64] {
        match self.header.from {
            0 => &[],
            table => self.words(table, count.div_ceil(2)),
        }
    }
}

impl<'a> Plan<'a> {
    fn of(heap: &'a Heap, here: &'a Here, traced: bool, ranges: usize) -> Option<Self> {
        let (first, last) = (heap.extents().first()?, heap.extents().last()?);
        let low = first.start >> LEAF_BITS << LEAF_BITS;
        let mut plan = Self {
            heap,
            here,
            kinds: Vec::with_capacity(heap.extents().len()),
            shapes: Vec::new(),
            header: Header {
                shift: here.shift,
                low,
                span: end_of(last).checked_sub(low)?,
                extent_count: heap.extents().len() as u64,
                range_count: ranges as u64,
                queue_room: queue_room(heap.extents().len() as u64),
                ..Header::default()
            },
            leaves: Vec::new(),
            words: FIRST_TABLE,
        };
        plan.find_kinds()?;
        let bits = u64::from(heap.regions()).div_ceil(64);
        plan.header.roots = plan.table((plan.header.span >> LEAF_BITS) + 1);
        plan.header.kinds = plan.table(2 * plan.shapes.len() as u64);
        plan.header.extents = plan.table(3 * plan.header.extent_count);
        plan.header.taken = plan.table(bits);
        plan.header.pending = plan.table(bits);
        plan.header.foreign = plan.table(bits);
        if traced {
            plan.header.from = plan.table(u64::from(heap.regions()).div_ceil(2));
        }
        plan.header.ranges = plan.table(3 * ranges as u64);
        plan.header.queue = plan.table(2 * plan.header.queue_room);
        plan.find_leaves()?;
        Some(plan)
    }

    /// Allocates a table of this many words.
    fn table(&mut self, words: u64) -> u64 {
        let start = self.words;
        self.words += words.next_multiple_of(8);
        start
    }

    /// Determines the kind of each extent. Returns `None` if there is anything unusual.
    fn find_kinds(&mut self) -> Option<()> {
        let mut numbers: HashMap<(u64, u64), u16> = HashMap::new();
        let mut parts = Cursor::new(&self.here.parts);
        let mut end = 0;
        for extent in self.heap.extents() {
            let (start, stop) = (extent.start, end_of(extent));
            // Extents must consist of whole words, in the order of their addresses.
            if start % 8 != 0 || extent.size % 8 != 0 || start < end || stop >> 48 != 0 {
                return None;
            }
            end = stop;
            if extent.count == 1 {
                self.kinds.push(SINGLE_REGION as u16);
                continue;
            }
            if start % PAGE != 0 || stop - start > 256 * PAGE {
                return None;
            }
            let is_sampled = u64::from(self.heap.has_headers(extent));
            let is_partial = u64::from(!parts.hold(start..stop));
            let flags = (is_sampled * Kind::SAMPLED) | (is_partial * Kind::PARTIAL);
            let shape = Kind::shape(extent.size, extent.count, flags);
            let next = self.shapes.len();
            let number = *numbers.entry((extent.inverse(), shape)).or_insert_with(|| {
                self.shapes.push(Kind {
                    inverse: extent.inverse(),
                    shape,
                });
                next as u16 + 1
            });
            if next >= MAX_KINDS {
                return None;
            }
            self.kinds.push(number);
        }
        Some(())
    }

    /// Allocates the leaves of all parts of the address space that have extents. Returns `None` if
    /// these are too many for the heap's size, as in a forged heap that is meant to exhaust memory.
    fn find_leaves(&mut self) -> Option<()> {
        let present = length_of(&self.here.parts).saturating_add(length_of(&self.here.others));
        for extent in self.heap.extents() {
            let first = (extent.start - self.header.low) >> LEAF_BITS;
            let last = (end_of(extent) - 1 - self.header.low) >> LEAF_BITS;
            let next = self.leaves.last().map_or(0, |(number, _)| number + 1);
            for number in first.max(next)..=last {
                self.leaves.push((number, self.words));
                self.words += LEAF;
                if self.leaves.len() as u64 * LEAF * 8
                    > FREE_LEAF_BYTES + present / HEAP_PER_LEAF_BYTE
                {
                    return None;
                }
            }
        }
        Some(())
    }

    fn write(&self, words: &[AtomicU64], ranges: &[(Range<u64>, u32)]) {
        let put = |at: u64, word: u64| {
            if let Some(place) = words.get(at as usize) {
                place.store(word, Ordering::Relaxed);
            }
        };
        for (at, word) in (0..).zip(self.header.words()) {
            put(at, word);
        }
        for (number, leaf) in &self.leaves {
            put(self.header.roots + number, *leaf);
        }
        for (index, kind) in (0..).zip(&self.shapes) {
            put(self.header.kinds + 2 * index, kind.inverse);
            put(self.header.kinds + 2 * index + 1, kind.shape);
        }
        for (index, (range, from)) in (0..).zip(ranges) {
            let at = self.header.ranges + 3 * index;
            put(at, range.start);
            put(at + 1, range.end);
            put(at + 2, u64::from(*from));
        }
        for (index, extent) in (0..).zip(self.heap.extents()) {
            let at = self.header.extents + 3 * index;
            let headers = u64::from(self.heap.has_headers(extent)) * HEADERS;
            put(at, extent.start);
            put(at + 1, extent.size | headers);
            put(
                at + 2,
                u64::from(extent.first) | u64::from(extent.count) << 32,
            );
        }
        self.write_pages(put);
    }

    fn write_pages(&self, put: impl Fn(u64, u64)) {
        let (mut parts, mut others) = (
            Cursor::new(&self.here.parts),
            Cursor::new(&self.here.others),
        );
        let mut leaves = self.leaves.iter().copied();
        let mut leaf = leaves.next().unwrap_or_default();
        for ((index, extent), kind) in (0..).zip(self.heap.extents()).zip(&self.kinds) {
            let number = if extent.count == 1 {
                index
            } else {
                extent.first
            };
            let (first, end) = (extent.start & !(PAGE - 1), end_of(extent));
            for (place, at) in (0..).zip((first..end).step_by(PAGE as usize)) {
                let offset = at - self.header.low;
                while leaf.0 < offset >> LEAF_BITS {
                    leaf = leaves.next().unwrap_or((u64::MAX, 0));
                }
                let page = match *kind {
                    kind if u64::from(kind) == SINGLE_REGION => Page::new(number, 0, SINGLE_REGION),
                    kind => Page::new(number, place, kind.into()),
                };
                let whole = at..at + PAGE;
                let is_here = u64::from(parts.hold(whole.clone())) * Page::HERE;
                let is_there = u64::from(others.touch(whole)) * Page::ELSEWHERE;
                put(
                    leaf.1 + (offset >> PAGE_BITS) % LEAF,
                    page.0 | is_here | is_there,
                );
            }
        }
    }
}

/// Returns the capacity of the queue for this many extents, a power of two.
fn queue_room(extents: u64) -> u64 {
    let [least, most] = QUEUE_CAPACITY;
    (extents / EXTENTS_PER_ENTRY)
        .clamp(least, most)
        .next_power_of_two()
}

fn end_of(extent: &Extent) -> u64 {
    extent.start + extent.size * u64::from(extent.count)
}

fn length_of(ranges: &[Range<u64>]) -> u64 {
    let lengths = ranges
        .iter()
        .map(|range| range.end.saturating_sub(range.start));
    lengths.fold(0, u64::saturating_add)
}

/// Cursor over sorted ranges.
struct Cursor<'a>(&'a [Range<u64>]);

impl<'a> Cursor<'a> {
    fn new(ranges: &'a [Range<u64>]) -> Self {
        Self(ranges)
    }

    /// Returns the first range that ends after `at`, which must not decrease between calls.
    fn next(&mut self, at: u64) -> Option<&Range<u64>> {
        while self.0.first().is_some_and(|range| range.end <= at) {
            self.0 = &self.0[1..];
        }
        self.0.first()
    }

    /// Returns true if one range contains all of `range`.
    fn hold(&mut self, range: Range<u64>) -> bool {
        let found = self.next(range.start);
        found.is_some_and(|found| found.start <= range.start && range.end <= found.end)
    }

    /// Returns true if one range overlaps `range`.
    fn touch(&mut self, range: Range<u64>) -> bool {
        let found = self.next(range.start);
        found.is_some_and(|found| found.start < range.end)
    }
}

#[cfg(test)]
mod tests;
