//! The search where the memory is: in a copy of the process, which does the work itself.
//!
//! Reading a page of another process takes the kernel longer than searching it. So what is known of
//! the heap is laid out in memory that the copy shares ([`Tables`]), and the copy searches its own
//! memory ([`work`]). What it cannot read there, or anything unusual, is left to [`crate::mark`].
//!
//! The result is trusted only as far as the memory itself, which also belongs to the other process:
//! whatever the words are, only regions that exist and are allocated are accepted, and no more
//! bytes can have been searched than there are.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bits::Bits;
use crate::heap::{Extent, Heap};
use crate::memory::{Here, Memory, Place};

mod layout;
mod work;

use layout::{HEADERS, Header, Kind, LEAF, LEAF_BITS, ONE, PAGE, PAGE_BITS, Page};

/// Words of the header, and more.
const FIRST: u64 = 64;
/// Regions to search next, at least and at most; of more there is a bit each. Small heaps of tests
/// are to fill it, too.
const QUEUE: [u64; 2] = [if cfg!(test) { work::RUN } else { 1 << 15 }, 1 << 22];
/// For a large heap as many as a part of its extents: to go through the bits of all takes so long.
const PART_QUEUED: u64 = 8;
/// Kinds of slabs, at most: real heaps have a few dozen.
const MOST_KINDS: usize = 1 << 12;
/// Bytes of leaves that any heap may have; of most of them a small part is used.
const LEAVES: u64 = 64 << 20;
/// More than that only in this proportion to its memory.
const PART: u64 = 32;

/// A heap as the work sees it.
pub struct Tables<'a> {
    heap: &'a Heap,
    place: Box<dyn Place + 'a>,
    header: Header,
    /// Bytes that can be searched, each of them once.
    most: u64,
}

/// What is to be laid out.
struct Plan<'a> {
    heap: &'a Heap,
    here: &'a Here,
    /// The kind of each extent.
    kinds: Vec<u16>,
    shapes: Vec<Kind>,
    header: Header,
    /// Where each leaf is.
    leaves: Vec<(u64, u64)>,
    words: u64,
}

impl<'a> Tables<'a> {
    /// Lays them out where the memory is, if that can be. `traced`: whether what led to each region
    /// is noted. `ranges`: to be searched, besides what is pending, each with what to note.
    pub fn new(
        memory: &'a dyn Memory,
        heap: &'a Heap,
        traced: bool,
        ranges: &[(Range<u64>, u32)],
    ) -> Option<Self> {
        let here = memory.here()?;
        let plan = Plan::of(heap, &here, (traced, ranges.len()))?;
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

    /// This many words of a table.
    fn words(&self, table: u64, count: usize) -> &[AtomicU64] {
        &self.place.words()[table as usize..][..count]
    }

    /// Searches what is pending, and all that it leads to. Afterwards what is pending is reached,
    /// and must be searched elsewhere. Gives the bytes that were searched. `None`: it failed, and what
    /// was reached before is not known any more. `from`: what led to each region, or empty.
    pub fn spread(&self, reached: &mut Bits, pending: &mut Bits, from: &mut [u32]) -> Option<u64> {
        self.put(reached, pending, from);
        let words = self.place.words();
        // It counts from there on.
        words[0].store(0, Ordering::Relaxed);
        if !self.place.run(self.most) {
            return None;
        }
        let scanned = words[0].load(Ordering::Relaxed);
        self.get(reached, pending, from);
        (scanned <= self.most).then_some(scanned)
    }

    /// Tells what has been reached.
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

    /// Takes over what has been reached since.
    fn get(&self, reached: &mut Bits, pending: &mut Bits, from: &mut [u32]) {
        let count = reached.words().len();
        let taken = self.words(self.header.taken, count);
        let foreign = self.words(self.header.foreign, count);
        for index in 0..count {
            let now = taken[index].load(Ordering::Relaxed) & self.allocated(index);
            // What was reached remains so.
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

    /// Which of 64 regions are allocated.
    fn allocated(&self, index: usize) -> u64 {
        let words = self.heap.allocated().words();
        words.get(index).copied().unwrap_or(0)
    }

    /// What led to each of this many regions, two to a word; none if that is not noted.
    fn origins(&self, count: usize) -> &[AtomicU64] {
        match self.header.from {
            0 => &[],
            table => self.words(table, count.div_ceil(2)),
        }
    }
}

impl<'a> Plan<'a> {
    fn of(heap: &'a Heap, here: &'a Here, (traced, ranges): (bool, usize)) -> Option<Self> {
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
            words: FIRST,
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

    /// Room for a table of this many words.
    fn table(&mut self, words: u64) -> u64 {
        let start = self.words;
        self.words += words.next_multiple_of(8);
        start
    }

    /// Which kind each extent is of; `None`: there is something unusual.
    fn find_kinds(&mut self) -> Option<()> {
        let mut numbers: HashMap<(u64, u64), u16> = HashMap::new();
        let mut parts = Cursor::new(&self.here.parts);
        let mut end = 0;
        for extent in self.heap.extents() {
            let (start, stop) = (extent.start, end_of(extent));
            // Whole words, in the order of their addresses.
            if start % 8 != 0 || extent.size % 8 != 0 || start < end || stop >> 48 != 0 {
                return None;
            }
            end = stop;
            if extent.count == 1 {
                self.kinds.push(ONE as u16);
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
            if next >= MOST_KINDS {
                return None;
            }
            self.kinds.push(number);
        }
        Some(())
    }

    /// Room for the leaves of all parts of the addresses that have extents. `None`: for the memory
    /// that there is, those are too many, as in a forged heap that is meant to exhaust ours.
    fn find_leaves(&mut self) -> Option<()> {
        let present = length_of(&self.here.parts).saturating_add(length_of(&self.here.others));
        for extent in self.heap.extents() {
            let first = (extent.start - self.header.low) >> LEAF_BITS;
            let last = (end_of(extent) - 1 - self.header.low) >> LEAF_BITS;
            let next = self.leaves.last().map_or(0, |(number, _)| number + 1);
            for number in first.max(next)..=last {
                self.leaves.push((number, self.words));
                self.words += LEAF;
                if self.leaves.len() as u64 * LEAF * 8 > LEAVES + present / PART {
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
                    kind if u64::from(kind) == ONE => Page::new(number, 0, ONE),
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

/// Room of the queue for this many extents, a power of two.
fn queue_room(extents: u64) -> u64 {
    let [least, most] = QUEUE;
    (extents / PART_QUEUED)
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

/// Goes through ranges by address.
struct Cursor<'a>(&'a [Range<u64>]);

impl<'a> Cursor<'a> {
    fn new(ranges: &'a [Range<u64>]) -> Self {
        Self(ranges)
    }

    /// The first range that ends behind `at`, which never gets smaller.
    fn next(&mut self, at: u64) -> Option<&Range<u64>> {
        while self.0.first().is_some_and(|range| range.end <= at) {
            self.0 = &self.0[1..];
        }
        self.0.first()
    }

    /// Whether one holds all of `range`.
    fn hold(&mut self, range: Range<u64>) -> bool {
        let found = self.next(range.start);
        found.is_some_and(|found| found.start <= range.start && range.end <= found.end)
    }

    /// Whether one holds some of `range`.
    fn touch(&mut self, range: Range<u64>) -> bool {
        let found = self.next(range.start);
        found.is_some_and(|found| found.start < range.end)
    }
}

#[cfg(test)]
mod tests;
