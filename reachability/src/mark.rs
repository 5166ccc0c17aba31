//! Following pointers from the roots.

use std::collections::VecDeque;
use std::ops::Range;

use crate::bits::Bits;
use crate::heap::{Extent, Heap};
use crate::inside::Tables;
use crate::memory::{self, Memory};
use crate::object::{self, Content};
use crate::pointers::Pointers;

mod batch;

use batch::Batch;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// As many bytes as are read in the time that one more piece takes: a slab is read as a whole if
/// that is faster.
const GAP: u64 = 16 << 10;
/// A slab with less than one in this many regions to read waits until there is nothing else.
const DENSE: u32 = 4;
/// Maximum number of extents whose objects are read in one call.
const GROUP: usize = 256;

/// Where to begin, and how to look.
#[derive(Clone, Debug)]
pub struct Roots<'a> {
    /// Words that are at hand, such as registers, each with the number of its root. What ranges
    /// lead to, too, is theirs.
    pub words: &'a [(u64, u32)],
    /// Ranges to read, each with the number of its root: what several lead to is the first one's.
    pub ranges: &'a [(Range<u64>, u32)],
    /// What counts as a pointer.
    pub pointers: &'a Pointers,
    /// Whether to remember what led to each object.
    pub trace: bool,
}

/// What is reached.
#[derive(Debug, Default)]
pub struct Marks {
    reached: Bits,
    /// For each region what led to it, if that was requested.
    from: Vec<u32>,
    /// Bytes of objects and ranges that were read.
    pub scanned: u64,
}

/// What led to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The root of this number.
    Root(u32),
    /// The region of this number.
    Region(u32),
}

const UNKNOWN: u32 = u32::MAX;
const ROOT: u32 = 1 << 31;

impl Marks {
    /// Nothing is reached.
    #[must_use]
    pub fn none(heap: &Heap) -> Self {
        Self {
            reached: Bits::new(heap.regions() as usize),
            ..Self::default()
        }
    }

    /// Nothing is reached. `trace`: what leads to each region will be remembered.
    fn to(heap: &Heap, trace: bool) -> Self {
        Self {
            // Regions above 2^31 cannot be distinguished from roots.
            from: match trace && heap.regions() < ROOT {
                true => vec![UNKNOWN; heap.regions() as usize],
                false => Vec::new(),
            },
            ..Self::none(heap)
        }
    }

    /// Whether a region was reached.
    #[must_use]
    pub fn has(&self, region: u32) -> bool {
        self.reached.get(region as usize)
    }

    /// What led to a region first, if that was requested and it was reached.
    #[must_use]
    pub fn origin(&self, region: u32) -> Option<Origin> {
        match *self.from.get(region as usize)? {
            UNKNOWN => None,
            root if root & ROOT != 0 => Some(Origin::Root(root & !ROOT)),
            region => Some(Origin::Region(region)),
        }
    }
}

/// Reaches all that the roots lead to.
pub fn mark(memory: &dyn Memory, heap: &Heap, roots: &Roots<'_>) -> Marks {
    mark_there(memory, heap, roots).unwrap_or_else(|| {
        let mut flood = Flood::of(memory, heap, roots.pointers, Marks::to(heap, roots.trace));
        let mut buffer = vec![0; CHUNK];
        for (range, root) in roots.ranges {
            flood.read_range(range.clone(), ROOT | root, &mut buffer);
        }
        flood.spread(&mut buffer);
        for &(word, root) in roots.words {
            flood.meet(word, ROOT | root);
        }
        flood.spread(&mut buffer);
        flood.marks
    })
}

/// The same, where the memory is; `None` if that does not work.
fn mark_there(memory: &dyn Memory, heap: &Heap, roots: &Roots<'_>) -> Option<Marks> {
    if !roots.pointers.are_plain() {
        return None;
    }
    let mut flood = Flood::of(memory, heap, roots.pointers, Marks::to(heap, roots.trace));
    let is_traced = !flood.marks.from.is_empty();
    // What is searched there is searched after all others, which would change what led to what.
    let (large, rest) = match is_traced {
        true => (Vec::new(), roots.ranges.to_vec()),
        false => memory::split(memory, roots.ranges),
    };
    let tables = Tables::new(memory, heap, is_traced, &large)?;
    let mut buffer = vec![0; CHUNK];
    for (range, root) in rest {
        flood.read_range(range, ROOT | root, &mut buffer);
    }
    if is_traced {
        flood.spread_there(&tables, &mut buffer)?;
    }
    for &(word, root) in roots.words {
        flood.meet(word, ROOT | root);
    }
    flood.spread_there(&tables, &mut buffer)?;
    Some(flood.marks)
}

/// Continues from regions that nothing led to: they are reached, and all that they lead to.
pub fn extend(
    memory: &dyn Memory,
    heap: &Heap,
    pointers: &Pointers,
    marks: &mut Marks,
    regions: impl Iterator<Item = u32>,
) {
    let mut flood = Flood::of(memory, heap, pointers, std::mem::take(marks));
    for region in regions.filter(|region| *region < heap.regions()) {
        let after = heap.extents().partition_point(|e| e.first <= region);
        if let Some(extent) = after.checked_sub(1) {
            flood.reach(extent as u32, region, UNKNOWN);
        }
    }
    flood.spread(&mut vec![0; CHUNK]);
    *marks = flood.marks;
}

/// The regions that words in some ranges point to, without following them further.
pub fn targets(memory: &dyn Memory, heap: &Heap, ranges: &[Range<u64>]) -> Bits {
    let mut targets = Bits::new(heap.regions() as usize);
    let mut buffer = vec![0; CHUNK];
    let pointers = Pointers::default();
    for range in ranges {
        memory::scan(memory, range.clone(), 8, &mut buffer, |_, bytes| {
            pointers.each(heap, bytes, |_, _, region| {
                targets.set(region as usize);
            });
        });
    }
    targets
}

struct Flood<'a> {
    memory: &'a dyn Memory,
    heap: &'a Heap,
    pointers: &'a Pointers,
    marks: Marks,
    /// Regions that are reached and not read yet.
    pending: Bits,
    /// Extents that are in the queue, or being read.
    waits: Bits,
    /// Extents with objects that pointed to others in the same one, as in a list.
    clings: Bits,
    queue: VecDeque<u32>,
    /// Those of which little is to be read, until there is nothing else to do: they may have more
    /// by then.
    later: VecDeque<u32>,
}

impl<'a> Flood<'a> {
    fn of(memory: &'a dyn Memory, heap: &'a Heap, pointers: &'a Pointers, marks: Marks) -> Self {
        Self {
            memory,
            heap,
            pointers,
            marks,
            pending: Bits::new(heap.regions() as usize),
            waits: Bits::new(heap.extents().len()),
            clings: Bits::new(heap.extents().len()),
            queue: VecDeque::new(),
            later: VecDeque::new(),
        }
    }

    /// Reaches a region.
    #[inline]
    fn reach(&mut self, extent: u32, region: u32, from: u32) {
        if self.marks.reached.set(region as usize) {
            return;
        }
        if let Some(origin) = self.marks.from.get_mut(region as usize) {
            *origin = from;
        }
        self.pending.set(region as usize);
        if !self.waits.set(extent as usize) {
            self.queue.push_back(extent);
        }
    }

    /// Reaches what a word points to.
    fn meet(&mut self, word: u64, from: u32) {
        if let Some((extent, region)) = self.pointers.find(self.heap, word) {
            self.reach(extent, region, from);
        }
    }

    fn meet_all(&mut self, bytes: &[u8], from: u32) {
        self.marks.scanned += bytes.len() as u64;
        let (heap, pointers) = (self.heap, self.pointers);
        pointers.each(heap, bytes, |_, extent, region| {
            self.reach(extent, region, from);
        });
    }

    fn read_range(&mut self, range: Range<u64>, from: u32, buffer: &mut [u8]) {
        let alignment = self.pointers.alignment();
        memory::scan(self.memory, range, alignment, buffer, |_, bytes| {
            self.meet_all(bytes, from);
        });
    }

    /// Has what is pending searched where the memory is, and reads the rest. `None` if that
    /// failed.
    fn spread_there(&mut self, tables: &Tables<'_>, buffer: &mut [u8]) -> Option<()> {
        self.queue.clear();
        self.waits = Bits::new(self.heap.extents().len());
        let (marks, pending) = (&mut self.marks, &mut self.pending);
        let scanned = tables.spread(&mut marks.reached, pending, &mut marks.from)?;
        marks.scanned = marks.scanned.saturating_add(scanned);
        for (number, extent) in (0..).zip(self.heap.extents()) {
            let (first, end) = (extent.first as usize, extent.regions().end as usize);
            if self.pending.ones(first, end).next().is_some() {
                self.waits.set(number as usize);
                self.queue.push_back(number);
            }
        }
        self.spread(buffer);
        Some(())
    }

    /// Reads what is pending until nothing is.
    fn spread(&mut self, buffer: &mut [u8]) {
        let mut batch = Batch::default();
        loop {
            let Some(&number) = self.queue.front() else {
                let few = self.later.len().min(GROUP);
                if few == 0 {
                    break;
                }
                self.queue.extend(self.later.drain(..few));
                self.fill(&mut batch, buffer.len(), true);
                self.finish(&mut batch, buffer);
                continue;
            };
            let extent = &self.heap.extents()[number as usize];
            if extent.count == 1 && extent.size as usize > buffer.len() / 4 {
                self.queue.pop_front();
                self.read_large(extent, buffer);
                self.waits.clear(number as usize);
                continue;
            }
            self.fill(&mut batch, buffer.len(), false);
            self.finish(&mut batch, buffer);
        }
    }

    fn finish(&mut self, batch: &mut Batch, buffer: &mut [u8]) {
        batch.join();
        self.read_batch(batch, buffer);
        for number in &batch.extents {
            self.leave(*number);
        }
    }

    /// Takes extents from the queue, as many as there is room for. `all`: also those of which
    /// little is to be read.
    fn fill(&mut self, batch: &mut Batch, room: usize, all: bool) {
        batch.clear();
        for _ in 0..GROUP {
            let Some(&number) = self.queue.front() else {
                return;
            };
            let extent = &self.heap.extents()[number as usize];
            let bytes = extent.size * u64::from(extent.count);
            if batch.bytes as u64 + bytes > room as u64 {
                return;
            }
            self.queue.pop_front();
            self.take(number, batch, all);
        }
    }

    /// Adds the pieces to read for an extent's pending regions.
    fn take(&mut self, number: u32, batch: &mut Batch, all: bool) {
        let extent = &self.heap.extents()[number as usize];
        let first = batch.regions.len();
        self.find_pending(extent, &mut batch.regions);
        let pending = batch.regions.len() - first;
        let bytes = extent.size * u64::from(extent.count);
        let clings = self.clings.get(number as usize);
        if !all && !clings && (pending as u32).saturating_mul(DENSE) < extent.count {
            batch.regions.truncate(first);
            self.later.push_back(number);
            return;
        }
        batch.extents.push(number);
        for region in &batch.regions[first..] {
            self.pending.clear(*region as usize);
        }
        let is_dense = clings || pending as u64 * GAP >= bytes;
        if extent.count > 1 && is_dense && pending > 0 {
            let regions = first..batch.regions.len();
            batch.add(extent.start, bytes as usize, number, regions, true);
        } else {
            for index in first..batch.regions.len() {
                let at = extent.begin_of(batch.regions[index]);
                batch.add(at, extent.size as usize, number, index..index + 1, false);
            }
        }
    }

    fn find_pending(&self, extent: &Extent, regions: &mut Vec<u32>) {
        let (first, end) = (extent.first as usize, extent.regions().end as usize);
        regions.extend(self.pending.ones(first, end).map(|region| region as u32));
    }

    /// An extent has been read. It may have met more in itself, or others in it, meanwhile.
    fn leave(&mut self, number: u32) {
        let regions = self.heap.extents()[number as usize].regions();
        let (first, end) = (regions.start as usize, regions.end as usize);
        self.waits.clear(number as usize);
        if self.pending.ones(first, end).next().is_some() {
            self.waits.set(number as usize);
            self.queue.push_back(number);
        }
    }

    fn read_large(&mut self, extent: &Extent, buffer: &mut [u8]) {
        self.pending.clear(extent.first as usize);
        let (start, end) = (extent.start, extent.start + extent.size);
        // Reached, and without a header that makes sense: the program has overwritten it.
        let is_alive = || self.heap.content_at(self.memory, extent.first) != Content::Nothing;
        if self.heap.has_headers(extent) && !is_alive() {
            return;
        }
        self.read_range(start..end, extent.first, buffer);
    }

    fn read_batch(&mut self, batch: &Batch, buffer: &mut [u8]) {
        let buffer = &mut buffer[..batch.bytes];
        self.memory.gather(&batch.wanted, buffer);
        let mut rest = &*buffer;
        let mut more = Vec::new();
        for piece in &batch.pieces {
            let (bytes, others) = rest.split_at(piece.len);
            rest = others;
            let extent = &self.heap.extents()[piece.extent as usize];
            self.read_regions(
                extent,
                piece.at,
                bytes,
                &batch.regions[piece.regions.clone()],
            );
            if !piece.is_whole {
                let (first, end) = (extent.first as usize, extent.regions().end as usize);
                if extent.count > 1 && self.pending.ones(first, end).next().is_some() {
                    self.clings.set(piece.extent as usize);
                }
                continue;
            }
            // What it points to in itself is at hand.
            loop {
                more.clear();
                self.find_pending(extent, &mut more);
                if more.is_empty() {
                    break;
                }
                for region in &more {
                    self.pending.clear(*region as usize);
                }
                self.read_regions(extent, piece.at, bytes, &more);
            }
        }
    }

    /// Meets what some regions point to, whose bytes are among those at `at`.
    fn read_regions(&mut self, extent: &Extent, at: u64, bytes: &[u8], regions: &[u32]) {
        let has_headers = self.heap.has_headers(extent);
        for &region in regions {
            let begin = extent.begin_of(region);
            let offset = (begin - at) as usize;
            let own = &bytes[offset..offset + extent.size as usize];
            if !has_headers || content_of(begin, own) != Content::Nothing {
                self.meet_all(own, region);
            }
        }
    }
}

/// What is in memory that has been read.
pub(crate) fn content_of(base: u64, bytes: &[u8]) -> Content {
    object::look(base, bytes.len() as u64, |offset| {
        let offset = usize::try_from(offset).ok()?;
        bytes.get(offset..offset.checked_add(16)?)?.try_into().ok()
    })
}

#[cfg(test)]
mod tests;
