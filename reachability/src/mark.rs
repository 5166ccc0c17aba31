//! Marking: follows pointers from the roots.

use std::collections::VecDeque;
use std::ops::Range;

use crate::bits::Bits;
use crate::heap::{Extent, Heap};
use crate::inside::Tables;
use crate::memory::{self, Memory};
use crate::object::{self, Content};
use crate::pointers::PointerRules;

mod batch;

use batch::Batch;

/// Number of bytes per read.
const READ_BYTES: usize = 1 << 20;
/// Number of bytes that can be read in the time that one additional piece takes. A slab is read as
/// a whole if that is faster.
const MAX_GAP_BYTES: u64 = 16 << 10;
/// A slab is deferred until there is nothing else to read if less than one in this many of its
/// regions is pending.
const MIN_DENSITY: u32 = 4;
/// Maximum number of extents whose objects are read in one call.
const EXTENTS_PER_CALL: usize = 256;

/// Roots, and rules of the search.
#[derive(Clone, Debug)]
pub struct Roots<'a> {
    /// Words that were already read, such as registers, each with the number of its root. They are
    /// the origins only of objects that no range leads to.
    pub words: &'a [(u64, u32)],
    /// Ranges to read, each with the number of its root. The origin of an object that several
    /// ranges point to is the first one.
    pub ranges: &'a [(Range<u64>, u32)],
    /// Rules for pointers.
    pub pointers: &'a PointerRules,
    /// True to record the origin of each object.
    pub trace: bool,
}

/// Set of reached regions.
#[derive(Debug, Default)]
pub struct Marks {
    reached: Bits,
    /// Origin of each region; empty if not recorded.
    origins: Vec<u32>,
    /// Number of bytes of objects and ranges that were read.
    pub scanned: u64,
}

/// Origin of an object: what pointed to it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Root with this number.
    Root(u32),
    /// Region with this number.
    Region(u32),
}

/// Value of a region's origin if it is not recorded.
const UNKNOWN: u32 = u32::MAX;
/// Flag of an origin that is a root.
const ROOT: u32 = 1 << 31;

impl Marks {
    /// Creates an empty set, without origins.
    #[must_use]
    pub fn empty(heap: &Heap) -> Self {
        Self {
            reached: Bits::new(heap.regions() as usize),
            ..Self::default()
        }
    }

    /// Creates an empty set, which records origins if `trace`.
    fn with_origins_if(heap: &Heap, trace: bool) -> Self {
        Self {
            // Region numbers from 2^31 up could not be distinguished from roots.
            origins: if trace && heap.regions() < ROOT {
                vec![UNKNOWN; heap.regions() as usize]
            } else {
                Vec::new()
            },
            ..Self::empty(heap)
        }
    }

    /// Returns true if a region was reached.
    #[must_use]
    pub fn has(&self, region: u32) -> bool {
        self.reached.get(region as usize)
    }

    /// Returns the origin of a region, if it was reached and origins were recorded.
    #[must_use]
    pub fn origin(&self, region: u32) -> Option<Origin> {
        match *self.origins.get(region as usize)? {
            UNKNOWN => None,
            root if root & ROOT != 0 => Some(Origin::Root(root & !ROOT)),
            region => Some(Origin::Region(region)),
        }
    }
}

/// Returns the regions that the roots lead to.
pub fn mark(memory: &dyn Memory, heap: &Heap, roots: &Roots<'_>) -> Marks {
    mark_in_place(memory, heap, roots).unwrap_or_else(|| {
        let mut search = Search::of(
            memory,
            heap,
            roots.pointers,
            Marks::with_origins_if(heap, roots.trace),
        );
        let mut buffer = vec![0; READ_BYTES];
        for (range, root) in roots.ranges {
            search.read_range(range.clone(), ROOT | root, &mut buffer);
        }
        search.spread(&mut buffer);
        for &(word, root) in roots.words {
            search.follow(word, ROOT | root);
        }
        search.spread(&mut buffer);
        search.marks
    })
}

/// Marks objects by letting a copy of the process search its own memory (see [`crate::inside`]).
/// Returns `None` if that is not possible.
fn mark_in_place(memory: &dyn Memory, heap: &Heap, roots: &Roots<'_>) -> Option<Marks> {
    if !roots.pointers.are_plain() {
        return None;
    }
    let mut search = Search::of(
        memory,
        heap,
        roots.pointers,
        Marks::with_origins_if(heap, roots.trace),
    );
    let is_traced = !search.marks.origins.is_empty();
    // The copy searches its ranges last, so objects would get other origins. If origins are
    // recorded, all ranges are read from outside.
    let (large, rest) = if is_traced {
        (Vec::new(), roots.ranges.to_vec())
    } else {
        memory::split_in_place(memory, roots.ranges)
    };
    let tables = Tables::new(memory, heap, is_traced, &large)?;
    let mut buffer = vec![0; READ_BYTES];
    for (range, root) in rest {
        search.read_range(range, ROOT | root, &mut buffer);
    }
    if is_traced {
        search.spread_in_place(&tables, &mut buffer)?;
    }
    for &(word, root) in roots.words {
        search.follow(word, ROOT | root);
    }
    search.spread_in_place(&tables, &mut buffer)?;
    Some(search.marks)
}

/// Marks these regions, which were not reached, and everything that they lead to.
pub fn extend(
    memory: &dyn Memory,
    heap: &Heap,
    pointers: &PointerRules,
    marks: &mut Marks,
    regions: impl Iterator<Item = u32>,
) {
    let mut search = Search::of(memory, heap, pointers, std::mem::take(marks));
    for region in regions.filter(|region| *region < heap.regions()) {
        let after = heap
            .extents()
            .partition_point(|extent| extent.first <= region);
        if let Some(extent) = after.checked_sub(1) {
            search.reach(extent as u32, region, UNKNOWN);
        }
    }
    search.spread(&mut vec![0; READ_BYTES]);
    *marks = search.marks;
}

/// Returns the regions that words in some ranges point to, without following them further.
pub fn targets(memory: &dyn Memory, heap: &Heap, ranges: &[Range<u64>]) -> Bits {
    let mut targets = Bits::new(heap.regions() as usize);
    let mut buffer = vec![0; READ_BYTES];
    let pointers = PointerRules::default();
    for range in ranges {
        memory::scan(memory, range.clone(), 8, &mut buffer, |_, bytes| {
            pointers.each(heap, bytes, |_, _, region| {
                targets.set(region as usize);
            });
        });
    }
    targets
}

/// A search that is under way.
struct Search<'a> {
    memory: &'a dyn Memory,
    heap: &'a Heap,
    pointers: &'a PointerRules,
    marks: Marks,
    /// Regions that are reached and not read yet.
    pending: Bits,
    /// Extents that are in the queue, deferred, or being read.
    queued: Bits,
    /// Extents with objects that pointed to others in the same extent, as in a linked list.
    linked: Bits,
    queue: VecDeque<u32>,
    /// Extents with few pending regions. They are read when the queue is empty, and may have more
    /// pending regions by then.
    deferred: VecDeque<u32>,
}

impl<'a> Search<'a> {
    fn of(
        memory: &'a dyn Memory,
        heap: &'a Heap,
        pointers: &'a PointerRules,
        marks: Marks,
    ) -> Self {
        Self {
            memory,
            heap,
            pointers,
            marks,
            pending: Bits::new(heap.regions() as usize),
            queued: Bits::new(heap.extents().len()),
            linked: Bits::new(heap.extents().len()),
            queue: VecDeque::new(),
            deferred: VecDeque::new(),
        }
    }

    /// Marks a region.
    #[inline]
    fn reach(&mut self, extent: u32, region: u32, origin: u32) {
        if self.marks.reached.set(region as usize) {
            return;
        }
        if let Some(known) = self.marks.origins.get_mut(region as usize) {
            *known = origin;
        }
        self.pending.set(region as usize);
        if !self.queued.set(extent as usize) {
            self.queue.push_back(extent);
        }
    }

    /// Marks what a word points to.
    fn follow(&mut self, word: u64, origin: u32) {
        if let Some((extent, region)) = self.pointers.find(self.heap, word) {
            self.reach(extent, region, origin);
        }
    }

    /// Marks what the words of some memory point to.
    fn follow_all(&mut self, bytes: &[u8], origin: u32) {
        self.marks.scanned += bytes.len() as u64;
        let heap = self.heap;
        let pointers = self.pointers;
        pointers.each(heap, bytes, |_, extent, region| {
            self.reach(extent, region, origin);
        });
    }

    fn read_range(&mut self, range: Range<u64>, origin: u32, buffer: &mut [u8]) {
        let alignment = self.pointers.alignment();
        memory::scan(self.memory, range, alignment, buffer, |_, bytes| {
            self.follow_all(bytes, origin);
        });
    }

    /// Searches the pending regions in place, and reads those that must be read from outside.
    /// Returns `None` if the search in place failed.
    fn spread_in_place(&mut self, tables: &Tables<'_>, buffer: &mut [u8]) -> Option<()> {
        self.queue.clear();
        self.queued = Bits::new(self.heap.extents().len());
        let marks = &mut self.marks;
        let pending = &mut self.pending;
        let scanned = tables.spread(&mut marks.reached, pending, &mut marks.origins)?;
        marks.scanned = marks.scanned.saturating_add(scanned);
        for (number, extent) in (0..).zip(self.heap.extents()) {
            if self.has_pending(extent) {
                self.queued.set(number as usize);
                self.queue.push_back(number);
            }
        }
        self.spread(buffer);
        Some(())
    }

    /// Reads pending regions, and those that they lead to, until none is left.
    fn spread(&mut self, buffer: &mut [u8]) {
        let mut batch = Batch::default();
        loop {
            let Some(&number) = self.queue.front() else {
                let count = self.deferred.len().min(EXTENTS_PER_CALL);
                if count == 0 {
                    break;
                }
                self.queue.extend(self.deferred.drain(..count));
                self.fill(&mut batch, buffer.len(), true);
                self.process(&mut batch, buffer);
                continue;
            };
            let extent = &self.heap.extents()[number as usize];
            if extent.count == 1 && extent.size as usize > buffer.len() / 4 {
                self.queue.pop_front();
                self.read_large(extent, buffer);
                self.queued.clear(number as usize);
                continue;
            }
            self.fill(&mut batch, buffer.len(), false);
            self.process(&mut batch, buffer);
        }
    }

    /// Reads a batch and marks what it points to.
    fn process(&mut self, batch: &mut Batch, buffer: &mut [u8]) {
        batch.join();
        self.read_batch(batch, buffer);
        for number in &batch.extents {
            self.finish_extent(*number);
        }
    }

    /// Fills a batch with extents from the queue, up to `max_bytes`. Extents with few pending
    /// regions are deferred unless `includes_sparse`.
    fn fill(&mut self, batch: &mut Batch, max_bytes: usize, includes_sparse: bool) {
        batch.clear();
        for _ in 0..EXTENTS_PER_CALL {
            let Some(&number) = self.queue.front() else {
                return;
            };
            let extent = &self.heap.extents()[number as usize];
            let bytes = extent.size * u64::from(extent.count);
            if batch.bytes as u64 + bytes > max_bytes as u64 {
                return;
            }
            self.queue.pop_front();
            self.add_pending(number, batch, includes_sparse);
        }
    }

    /// Adds the pieces to read for an extent's pending regions, or defers the extent.
    fn add_pending(&mut self, number: u32, batch: &mut Batch, includes_sparse: bool) {
        let extent = &self.heap.extents()[number as usize];
        let first = batch.regions.len();
        self.find_pending(extent, &mut batch.regions);
        let pending = batch.regions.len() - first;
        let bytes = extent.size * u64::from(extent.count);
        let is_linked = self.linked.get(number as usize);
        if !includes_sparse
            && !is_linked
            && (pending as u32).saturating_mul(MIN_DENSITY) < extent.count
        {
            batch.regions.truncate(first);
            self.deferred.push_back(number);
            return;
        }
        batch.extents.push(number);
        for region in &batch.regions[first..] {
            self.pending.clear(*region as usize);
        }
        let is_dense = is_linked || pending as u64 * MAX_GAP_BYTES >= bytes;
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

    /// Returns an extent's pending regions.
    fn pending_of(&self, extent: &Extent) -> impl Iterator<Item = usize> {
        let regions = extent.regions();
        self.pending
            .ones(regions.start as usize, regions.end as usize)
    }

    fn has_pending(&self, extent: &Extent) -> bool {
        self.pending_of(extent).next().is_some()
    }

    fn find_pending(&self, extent: &Extent, regions: &mut Vec<u32>) {
        regions.extend(self.pending_of(extent).map(|region| region as u32));
    }

    /// Finishes reading an extent. Queues it again if regions in it have become pending while it
    /// was read.
    fn finish_extent(&mut self, number: u32) {
        self.queued.clear(number as usize);
        if self.has_pending(&self.heap.extents()[number as usize]) {
            self.queued.set(number as usize);
            self.queue.push_back(number);
        }
    }

    fn read_large(&mut self, extent: &Extent, buffer: &mut [u8]) {
        self.pending.clear(extent.first as usize);
        let start = extent.start;
        let end = start + extent.size;
        // If a reached object has no valid header, the program has overwritten it, so it counts as
        // alive.
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
            let (bytes, after) = rest.split_at(piece.len);
            rest = after;
            let extent = &self.heap.extents()[piece.extent as usize];
            self.read_regions(
                extent,
                piece.at,
                bytes,
                &batch.regions[piece.regions.clone()],
            );
            if !piece.is_whole {
                if extent.count > 1 && self.has_pending(extent) {
                    self.linked.set(piece.extent as usize);
                }
                continue;
            }
            // New pending regions of the same extent have been read already.
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

    /// Marks what some regions point to. `bytes` is the memory at `at`, which contains the regions.
    fn read_regions(&mut self, extent: &Extent, at: u64, bytes: &[u8], regions: &[u32]) {
        let has_headers = self.heap.has_headers(extent);
        for &region in regions {
            let begin = extent.begin_of(region);
            let offset = (begin - at) as usize;
            let contents = &bytes[offset..offset + extent.size as usize];
            if !has_headers || content_of(begin, contents) != Content::Nothing {
                self.follow_all(contents, region);
            }
        }
    }
}

/// Returns the content of a region of sampled objects whose memory has been read.
pub(crate) fn content_of(base: u64, bytes: &[u8]) -> Content {
    object::content(base, bytes.len() as u64, |offset| {
        let offset = usize::try_from(offset).ok()?;
        bytes.get(offset..offset.checked_add(16)?)?.try_into().ok()
    })
}

#[cfg(test)]
mod tests;
