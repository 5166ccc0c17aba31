//! Search in place: a copy of the process searches its own memory.
//!
//! Reading a page of another process takes longer than searching it. So a description of the heap
//! is written to memory that is shared with the copy ([`Tables`]), and the copy searches its own
//! memory ([`work`]). Memory that the copy cannot read, and heaps with anything unusual, are left
//! to [`crate::mark`].
//!
//! The result is trusted no more than the searched memory, since the process may be able to change
//! it. Whatever the shared words contain, only regions that exist and are allocated are accepted,
//! and a number of searched bytes above the size of the heap is rejected.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bits::Bits;
use crate::heap::{Extent, Heap};
use crate::memory::{InPlace, Memory, Runner};

mod layout;
mod work;

use layout::{HEADERS, Header, LEAF, LEAF_BITS, PAGE, PAGE_BITS, Page, SINGLE_REGION, SlabClass};

/// Offset of the first table in words, after the header.
const FIRST_TABLE: u64 = 64;
/// Minimum and maximum capacity of the queue, in regions. Regions that do not fit are recorded in
/// the bitmap. The minimum is small in tests, so that small heaps fill the queue.
const QUEUE_CAPACITY: [u64; 2] = [
    if cfg!(test) {
        work::REGIONS_PER_DRAIN
    } else {
        1 << 15
    },
    1 << 22,
];
/// Number of extents per entry of the queue. A large heap gets a large queue, since a sweep over
/// the bitmap of all its regions takes long.
const EXTENTS_PER_ENTRY: u64 = 8;
/// Maximum number of slab classes. Real heaps have a few dozen.
const MAX_CLASSES: usize = 1 << 12;
/// Maximum size of the leaves of a small heap's page table, in bytes. Leaves may be sparsely used.
const BASE_LEAF_BYTES: u64 = 64 << 20;
/// The leaves of a large heap may have one more byte for each of this many bytes of the heap.
const HEAP_PER_LEAF_BYTE: u64 = 32;

/// Description of a heap in shared memory.
pub struct Tables<'a> {
    heap: &'a Heap,
    runner: Box<dyn Runner + 'a>,
    header: Header,
    /// Maximum number of bytes that can be searched, each of them once.
    max_bytes: u64,
}

/// Plan of the tables, before the shared memory is allocated.
struct Plan<'a> {
    heap: &'a Heap,
    in_place: &'a InPlace,
    /// Number of each extent's slab class.
    classes: Vec<u16>,
    slab_classes: Vec<SlabClass>,
    header: Header,
    /// Number of each leaf, and its offset in words.
    leaves: Vec<(u64, u64)>,
    /// Number of words planned so far.
    words: u64,
}

impl<'a> Tables<'a> {
    /// Writes the tables to words that are shared with the copy. Returns `None` if that is not
    /// possible. If `traced`, the origin of each region is recorded. `ranges` are searched in
    /// addition to the pending regions; each has its origin.
    pub fn new(
        memory: &'a dyn Memory,
        heap: &'a Heap,
        traced: bool,
        ranges: &[(Range<u64>, u32)],
    ) -> Option<Self> {
        let in_place = memory.in_place()?;
        let plan = Plan::of(heap, &in_place, traced, ranges.len())?;
        let words = usize::try_from(plan.words).ok()?;
        let runner = memory.runner(work::work, words)?;
        if runner.words().len() < words {
            return None;
        }
        plan.write(runner.words(), ranges);
        let range_lengths = ranges.iter().map(|(range, _)| range.end - range.start);
        Some(Self {
            heap,
            runner,
            header: plan.header,
            max_bytes: length_of(&in_place.parts).saturating_add(range_lengths.sum()),
        })
    }

    /// Returns the first `count` words of a table.
    fn words(&self, table: u64, count: usize) -> &[AtomicU64] {
        &self.runner.words()[table as usize..][..count]
    }

    /// Searches the pending regions and everything that they lead to. Afterwards, `pending`
    /// contains the regions that are reached but must be searched from outside. `origins` has the
    /// origin of each region, or is empty. Returns the number of bytes searched, or `None` on
    /// failure, after which the contents of the arguments are undefined.
    pub fn spread(
        &self,
        reached: &mut Bits,
        pending: &mut Bits,
        origins: &mut [u32],
    ) -> Option<u64> {
        self.write_state(reached, pending, origins);
        let words = self.runner.words();
        // The progress counter starts at zero.
        words[0].store(0, Ordering::Relaxed);
        if !self.runner.run(self.max_bytes) {
            return None;
        }
        let scanned = words[0].load(Ordering::Relaxed);
        self.read_state(reached, pending, origins);
        (scanned <= self.max_bytes).then_some(scanned)
    }

    /// Writes the state of the search to shared memory.
    fn write_state(&self, reached: &Bits, pending: &Bits, origins: &[u32]) {
        let count = reached.words().len();
        let marked = self.words(self.header.marked, count).iter();
        for (index, word) in marked.enumerate() {
            word.store(
                reached.words()[index] | !self.allocated(index),
                Ordering::Relaxed,
            );
        }
        let pending_words = self.words(self.header.pending, count).iter();
        for (word, bits) in pending_words.zip(pending.words()) {
            word.store(*bits, Ordering::Relaxed);
        }
        for (word, pair) in self.origins(origins.len()).iter().zip(origins.chunks(2)) {
            let second = pair.get(1).copied().unwrap_or(0);
            word.store(
                u64::from(pair[0]) | (u64::from(second) << 32),
                Ordering::Relaxed,
            );
        }
    }

    /// Reads the state of the search from shared memory.
    fn read_state(&self, reached: &mut Bits, pending: &mut Bits, origins: &mut [u32]) {
        let count = reached.words().len();
        let marked = self.words(self.header.marked, count);
        let outside = self.words(self.header.outside, count);
        for index in 0..count {
            let marked = marked[index].load(Ordering::Relaxed) & self.allocated(index);
            // Regions that were reached before remain so, whatever the shared words contain.
            reached.words_mut()[index] |= marked;
            let outside = outside[index].swap(0, Ordering::Relaxed);
            pending.words_mut()[index] = outside & reached.words()[index];
        }
        for (word, pair) in self
            .origins(origins.len())
            .iter()
            .zip(origins.chunks_mut(2))
        {
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
        match self.header.origins {
            0 => &[],
            table => self.words(table, count.div_ceil(2)),
        }
    }
}

impl<'a> Plan<'a> {
    fn of(heap: &'a Heap, in_place: &'a InPlace, traced: bool, ranges: usize) -> Option<Self> {
        let first = heap.extents().first()?;
        let last = heap.extents().last()?;
        let low = (first.start >> LEAF_BITS) << LEAF_BITS;
        let mut plan = Self {
            heap,
            in_place,
            classes: Vec::with_capacity(heap.extents().len()),
            slab_classes: Vec::new(),
            header: Header {
                shift: in_place.shift,
                low,
                span: end_of(last).checked_sub(low)?,
                extent_count: heap.extents().len() as u64,
                range_count: ranges as u64,
                queue_capacity: queue_capacity(heap.extents().len() as u64),
                ..Header::default()
            },
            leaves: Vec::new(),
            words: FIRST_TABLE,
        };
        plan.find_classes()?;
        let bits = u64::from(heap.regions()).div_ceil(64);
        plan.header.leaf_table = plan.allocate_table((plan.header.span >> LEAF_BITS) + 1);
        plan.header.slab_classes = plan.allocate_table(2 * plan.slab_classes.len() as u64);
        plan.header.extents = plan.allocate_table(3 * plan.header.extent_count);
        plan.header.marked = plan.allocate_table(bits);
        plan.header.pending = plan.allocate_table(bits);
        plan.header.outside = plan.allocate_table(bits);
        if traced {
            plan.header.origins = plan.allocate_table(u64::from(heap.regions()).div_ceil(2));
        }
        plan.header.ranges = plan.allocate_table(3 * ranges as u64);
        plan.header.queue = plan.allocate_table(2 * plan.header.queue_capacity);
        plan.find_leaves()?;
        Some(plan)
    }

    /// Allocates a table of this many words.
    fn allocate_table(&mut self, words: u64) -> u64 {
        let start = self.words;
        self.words += words.next_multiple_of(8);
        start
    }

    /// Determines the slab class of each extent. Returns `None` if an extent is unusual.
    fn find_classes(&mut self) -> Option<()> {
        let mut numbers: HashMap<(u64, u64), u16> = HashMap::new();
        let mut parts = Cursor::new(&self.in_place.parts);
        let mut previous_end = 0;
        for extent in self.heap.extents() {
            let start = extent.start;
            let end = end_of(extent);
            // Extents must consist of whole words, and be in the order of their addresses.
            if start % 8 != 0 || extent.size % 8 != 0 || start < previous_end || end >> 48 != 0 {
                return None;
            }
            previous_end = end;
            if extent.count == 1 {
                self.classes.push(SINGLE_REGION as u16);
                continue;
            }
            // A page's index in its slab has 8 bits.
            if start % PAGE != 0 || end - start > 256 * PAGE {
                return None;
            }
            let is_sampled = u64::from(self.heap.has_headers(extent));
            let is_partial = u64::from(!parts.contains(start..end));
            let flags = (is_sampled * SlabClass::SAMPLED) | (is_partial * SlabClass::PARTIAL);
            let shape = SlabClass::shape(extent.size, extent.count, flags);
            let next = self.slab_classes.len();
            let number = *numbers.entry((extent.inverse(), shape)).or_insert_with(|| {
                self.slab_classes.push(SlabClass {
                    inverse: extent.inverse(),
                    shape,
                });
                next as u16 + 1
            });
            if next >= MAX_CLASSES {
                return None;
            }
            self.classes.push(number);
        }
        Some(())
    }

    /// Allocates the leaves for all parts of the address space that have extents. Returns `None` if
    /// there are too many for the heap's size, as in a forged heap that is meant to exhaust memory.
    fn find_leaves(&mut self) -> Option<()> {
        let present =
            length_of(&self.in_place.parts).saturating_add(length_of(&self.in_place.remote_only));
        for extent in self.heap.extents() {
            let first = (extent.start - self.header.low) >> LEAF_BITS;
            let last = (end_of(extent) - 1 - self.header.low) >> LEAF_BITS;
            let next = self.leaves.last().map_or(0, |(number, _)| number + 1);
            for number in first.max(next)..=last {
                self.leaves.push((number, self.words));
                self.words += LEAF;
                if self.leaves.len() as u64 * LEAF * 8
                    > BASE_LEAF_BYTES + present / HEAP_PER_LEAF_BYTE
                {
                    return None;
                }
            }
        }
        Some(())
    }

    fn write(&self, words: &[AtomicU64], ranges: &[(Range<u64>, u32)]) {
        let put = |index: u64, word: u64| {
            if let Some(slot) = words.get(index as usize) {
                slot.store(word, Ordering::Relaxed);
            }
        };
        for (index, word) in (0..).zip(self.header.words()) {
            put(index, word);
        }
        for (number, leaf) in &self.leaves {
            put(self.header.leaf_table + number, *leaf);
        }
        for (index, class) in (0..).zip(&self.slab_classes) {
            put(self.header.slab_classes + 2 * index, class.inverse);
            put(self.header.slab_classes + 2 * index + 1, class.shape);
        }
        for (index, (range, origin)) in (0..).zip(ranges) {
            let entry = self.header.ranges + 3 * index;
            put(entry, range.start);
            put(entry + 1, range.end);
            put(entry + 2, u64::from(*origin));
        }
        for (index, extent) in (0..).zip(self.heap.extents()) {
            let entry = self.header.extents + 3 * index;
            let headers = u64::from(self.heap.has_headers(extent)) * HEADERS;
            put(entry, extent.start);
            put(entry + 1, extent.size | headers);
            put(
                entry + 2,
                u64::from(extent.first) | (u64::from(extent.count) << 32),
            );
        }
        self.write_pages(put);
    }

    fn write_pages(&self, put: impl Fn(u64, u64)) {
        let mut in_place = Cursor::new(&self.in_place.parts);
        let mut outside = Cursor::new(&self.in_place.remote_only);
        let mut leaves = self.leaves.iter().copied();
        let mut leaf = leaves.next().unwrap_or_default();
        for ((index, extent), class) in (0..).zip(self.heap.extents()).zip(&self.classes) {
            let number = if extent.count == 1 {
                index
            } else {
                extent.first
            };
            let first_page = extent.start & !(PAGE - 1);
            let pages = (first_page..end_of(extent)).step_by(PAGE as usize);
            for (page_index, address) in (0..).zip(pages) {
                let offset = address - self.header.low;
                while leaf.0 < offset >> LEAF_BITS {
                    leaf = leaves.next().unwrap_or((u64::MAX, 0));
                }
                let page = match *class {
                    class if u64::from(class) == SINGLE_REGION => {
                        Page::new(number, 0, SINGLE_REGION)
                    }
                    class => Page::new(number, page_index, class.into()),
                };
                let range = address..address + PAGE;
                let in_place_flag = u64::from(in_place.contains(range.clone())) * Page::IN_PLACE;
                let outside_flag = u64::from(outside.overlaps(range)) * Page::OUTSIDE;
                put(
                    leaf.1 + (offset >> PAGE_BITS) % LEAF,
                    page.0 | in_place_flag | outside_flag,
                );
            }
        }
    }
}

/// Returns the capacity of the queue for this many extents, a power of two.
fn queue_capacity(extents: u64) -> u64 {
    let [min, max] = QUEUE_CAPACITY;
    (extents / EXTENTS_PER_ENTRY)
        .clamp(min, max)
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

    /// Returns the first range that ends after `address`, which must not decrease between calls.
    fn next(&mut self, address: u64) -> Option<&Range<u64>> {
        while self.0.first().is_some_and(|range| range.end <= address) {
            self.0 = &self.0[1..];
        }
        self.0.first()
    }

    /// Returns true if one range contains all of `range`.
    fn contains(&mut self, range: Range<u64>) -> bool {
        let found = self.next(range.start);
        found.is_some_and(|found| found.start <= range.start && range.end <= found.end)
    }

    /// Returns true if one range overlaps `range`.
    fn overlaps(&mut self, range: Range<u64>) -> bool {
        let found = self.next(range.start);
        found.is_some_and(|found| found.start < range.end)
    }
}

#[cfg(test)]
mod tests;
