//! The objects of a heap: maps any address to the object that contains it.
//!
//! Each piece of memory that jemalloc hands out is a *region*, identified by a number. Regions of
//! an extent are numbered consecutively, and extents in the order of their addresses.

use std::ops::Range;

use crate::bits::Bits;
use crate::jemalloc::{Content, Map};
use crate::memory::Memory;
use crate::object::{self, Sampled};
use crate::pages::Pages;

/// Maximum number of regions, whose numbers have 32 bits. Extents beyond it are omitted.
const MAX_REGIONS: usize = u32::MAX as usize - 1;

/// Memory that contains objects of one size.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Address of the first region.
    pub start: u64,
    /// Size of each region in bytes.
    pub size: u64,
    /// Number of the first region.
    pub first: u32,
    /// Number of regions.
    pub count: u32,
    /// 2^[`INVERSE_BITS`] / `size`, rounded up: replaces a division by a multiplication. The result
    /// is exact for distances below 2^20, because a distance times the rounding error is then less
    /// than 2^40 / `size`.
    inverse: u64,
}

pub(crate) const INVERSE_BITS: u32 = 40;
/// Number of entries of the header table per read.
const ENTRIES_PER_READ: usize = 4096;
/// Maximum size in bytes of an extent with several regions.
const MAX_SLAB_BYTES: u64 = 1 << 20;

impl Extent {
    /// Returns the index of the region that contains `address`.
    #[inline]
    fn index(&self, address: u64) -> Option<u32> {
        let distance = address.checked_sub(self.start)?;
        let index = match self.count {
            1 => u64::from(distance >= self.size),
            _ if distance >= MAX_SLAB_BYTES => return None,
            _ => (distance * self.inverse) >> INVERSE_BITS,
        };
        (index < u64::from(self.count)).then_some(index as u32)
    }

    /// Returns the inverse of `size`, in units of 2^-[`INVERSE_BITS`].
    pub(crate) fn inverse(&self) -> u64 {
        self.inverse
    }

    /// Returns the address of one of its regions.
    #[must_use]
    pub fn begin_of(&self, region: u32) -> u64 {
        self.start + u64::from(region - self.first) * self.size
    }

    /// Returns the numbers of its regions.
    #[must_use]
    pub fn regions(&self) -> Range<u32> {
        self.first..self.first + self.count
    }
}

/// Contents of the two places where the header of a region's object may be.
struct HeaderCandidates {
    /// Entry in the header table.
    entry: [u8; 16],
    /// First bytes of the region.
    start: [u8; 16],
}

/// Objects of a heap.
#[derive(Debug, Default)]
pub struct Heap {
    extents: Vec<Extent>,
    pages: Pages,
    /// Indices of the extents with a single region, by address.
    large: Vec<u32>,
    /// Regions that are allocated according to jemalloc.
    allocated: Bits,
    regions: u32,
    /// Memory that jemalloc manages, with or without objects, and the header table. Sorted by
    /// address, without overlap.
    managed: Vec<Range<u64>>,
    /// Range of sampled objects.
    sampled: Range<u64>,
    /// Number of extents that were omitted.
    left_out: usize,
}

impl Heap {
    /// Builds the heap from jemalloc's map and the range of sampled objects, which may be empty.
    #[must_use]
    pub fn of(map: &Map, sampled: Range<u64>) -> Self {
        let mut heap = Self {
            sampled,
            left_out: map.damaged,
            ..Self::default()
        };
        for extent in &map.extents {
            let (start, size, count) = match &extent.content {
                Content::Unused => continue,
                Content::Large(at, usable) => (*at, *usable, 1),
                Content::Slab(usable, _) => {
                    let bytes = extent.pages.end - extent.pages.start;
                    (extent.pages.start, *usable, bytes / usable.max(&1))
                }
            };
            let room = MAX_REGIONS - heap.regions as usize;
            let is_slab = matches!(extent.content, Content::Slab(..));
            let fits = !is_slab || extent.pages.end - extent.pages.start <= MAX_SLAB_BYTES;
            if !fits || size == 0 || count == 0 || count as usize > room {
                heap.left_out += 1;
                continue;
            }
            let number = heap.extents.len() as u32;
            let first = heap.regions as usize;
            heap.allocated.grow(first + count as usize);
            match &extent.content {
                Content::Slab(_, bits) => {
                    if !heap.pages.enter(extent.pages.clone(), number) {
                        heap.left_out += 1;
                        continue;
                    }
                    // A set bit marks a free region.
                    let free = map.free.get(*bits..).unwrap_or_default();
                    for (index, word) in (0..count as usize).step_by(64).zip(free) {
                        for bit in 0..64.min(count as usize - index) {
                            if (word >> bit) & 1 == 0 {
                                heap.allocated.set(first + index + bit);
                            }
                        }
                    }
                }
                _ => {
                    heap.large.push(number);
                    heap.allocated.set(first);
                }
            }
            heap.extents.push(Extent {
                start,
                size,
                first: heap.regions,
                count: count as u32,
                inverse: (1 << INVERSE_BITS) / size + 1,
            });
            heap.regions += count as u32;
        }
        // jemalloc allocates thread caches as regions, too. They are not the program's objects, and
        // contain no pointers of the program.
        let caches: Vec<_> = map.caches.iter().filter_map(|at| heap.find(*at)).collect();
        for (_, region) in caches {
            heap.allocated.clear(region as usize);
        }
        let extents = map.extents.iter().map(|extent| extent.pages.clone());
        let metadata = map.metadata.iter().cloned();
        let table = object::table(&heap.sampled);
        let table = (!table.is_empty()).then_some(table);
        heap.managed = joined(extents.chain(metadata).chain(table).collect());
        heap
    }

    /// Clears the allocation bits of freed sampled objects that had their headers in the table. A
    /// copy that searches its own memory does not look there. Must be called before any search;
    /// otherwise all of these objects count as live.
    pub fn check_table(&mut self, memory: &dyn Memory) {
        let extents = self.extents.iter().filter(|extent| self.uses_table(extent));
        let regions: Vec<u32> = extents
            .flat_map(Extent::regions)
            .filter(|region| self.is_allocated(*region))
            .collect();
        for batch in regions.chunks(ENTRIES_PER_READ) {
            let bounds = batch.iter().filter_map(|region| self.region(*region));
            let bounds: Vec<(u64, u64)> = bounds.collect();
            let candidates = self.read_headers(memory, bounds.iter().map(|(base, _)| *base));
            for ((region, (base, size)), candidate) in batch.iter().zip(bounds).zip(candidates) {
                let HeaderCandidates { entry, start } = candidate;
                let header = |offset| (offset == 0).then_some(start);
                let is_alive = object::in_table(base, size, entry).is_some()
                    || object::find(base, size, header).is_some()
                    || self.sampled_at(memory, *region).is_some();
                if !is_alive {
                    self.allocated.clear(*region as usize);
                }
            }
        }
    }

    /// Reads both places where the header may be, for each of the regions at `bases`.
    fn read_headers(
        &self,
        memory: &dyn Memory,
        bases: impl Iterator<Item = u64>,
    ) -> Vec<HeaderCandidates> {
        let addresses = bases.flat_map(|base| [object::entry(&self.sampled, base), base]);
        let wanted: Vec<(u64, usize)> = addresses.map(|address| (address, 16)).collect();
        let mut bytes = vec![0; wanted.len() * 16];
        memory.gather(&wanted, &mut bytes);
        let (parts, _) = bytes.as_chunks::<16>();
        let (pairs, _) = parts.as_chunks();
        let candidates = pairs
            .iter()
            .map(|&[entry, start]| HeaderCandidates { entry, start });
        candidates.collect()
    }

    /// Returns the table entries for an extent's regions, if they may have headers there.
    pub(crate) fn entries(&self, memory: &dyn Memory, extent: &Extent) -> Vec<[u8; 16]> {
        if !self.uses_table(extent) {
            return Vec::new();
        }
        let bases = extent.regions().map(|region| extent.begin_of(region));
        let candidates = self.read_headers(memory, bases).into_iter();
        candidates.map(|candidate| candidate.entry).collect()
    }

    /// Returns the sampled object in a region, by its header.
    pub(crate) fn sampled_at(&self, memory: &dyn Memory, region: u32) -> Option<Sampled> {
        self.content(memory, region).object()
    }

    /// Returns the content of a region of sampled objects.
    pub(crate) fn content(&self, memory: &dyn Memory, region: u32) -> object::Content {
        let Some(extent) = self.extent_of(region).filter(|e| self.is_sampled(e)) else {
            return object::Content::Nothing;
        };
        if self.uses_table(extent) {
            let base = extent.begin_of(region);
            let mut entry = [0; 16];
            let at = object::entry(&self.sampled, base);
            if memory.read(at, &mut entry) == 16
                && let Some(object) = object::in_table(base, extent.size, entry)
            {
                return object::Content::Object(object);
            }
        }
        self.content_at(memory, region)
    }

    /// Returns the content of a region whose objects have their headers before them.
    pub(crate) fn content_at(&self, memory: &dyn Memory, region: u32) -> object::Content {
        let Some(extent) = self.extent_of(region).filter(|e| self.is_sampled(e)) else {
            return object::Content::Nothing;
        };
        let base = extent.begin_of(region);
        object::content(base, extent.size, |offset| {
            let mut bytes = [0; 16];
            (memory.read(base + offset, &mut bytes) == 16).then_some(bytes)
        })
    }

    /// Returns the number of regions.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Returns the extents with objects, by address.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns the number of extents that were omitted because they are damaged or too many.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns the extent and the region that contain `address`, if the region is allocated.
    #[inline]
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u32, u32)> {
        let extent = match self.pages.find(address) {
            Some(extent) => extent,
            None => self.find_large(address)?,
        };
        let found = self.extents.get(extent as usize)?;
        let region = found.first + found.index(address)?;
        self.allocated
            .get(region as usize)
            .then_some((extent, region))
    }

    #[inline]
    fn find_large(&self, address: u64) -> Option<u32> {
        let first = *self.large.first()?;
        let last = *self.large.last()?;
        let end = |extent: &Extent| extent.start + extent.size;
        if address < self.extents[first as usize].start
            || address >= end(&self.extents[last as usize])
        {
            return None;
        }
        let after = self
            .large
            .partition_point(|extent| self.extents[*extent as usize].start <= address);
        self.large.get(after.checked_sub(1)?).copied()
    }

    /// Returns the extent that a region belongs to.
    #[must_use]
    pub fn extent_of(&self, region: u32) -> Option<&Extent> {
        let after = self
            .extents
            .partition_point(|extent| extent.first <= region);
        self.extents.get(after.checked_sub(1)?)
    }

    /// Returns the address and the size of a region.
    #[must_use]
    pub fn region(&self, region: u32) -> Option<(u64, u64)> {
        let extent = self.extent_of(region)?;
        let index = u64::from(region.checked_sub(extent.first)?);
        Some((extent.start + index * extent.size, extent.size))
    }

    /// Returns true if a region is allocated according to jemalloc.
    #[must_use]
    pub fn is_allocated(&self, region: u32) -> bool {
        self.allocated.get(region as usize)
    }

    /// Returns the bits of regions that are allocated according to jemalloc.
    pub(crate) fn allocated(&self) -> &Bits {
        &self.allocated
    }

    /// Returns true if an extent contains sampled objects, each with a header.
    #[inline]
    #[must_use]
    pub fn is_sampled(&self, extent: &Extent) -> bool {
        self.sampled.contains(&extent.start)
    }

    /// Returns true if sampled objects in an extent may have their headers in the table.
    #[inline]
    pub(crate) fn uses_table(&self, extent: &Extent) -> bool {
        object::may_be_in_table(extent.size) && self.is_sampled(extent)
    }

    /// Returns true if an extent contains sampled objects with their headers in the regions, not in
    /// the table.
    #[inline]
    pub(crate) fn has_headers(&self, extent: &Extent) -> bool {
        self.is_sampled(extent) && !object::may_be_in_table(extent.size)
    }

    /// Returns the parts of `range` that are neither jemalloc's nor the agent's.
    #[must_use]
    pub fn outside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        let mut start = range.start;
        let first = self
            .managed
            .partition_point(|managed| managed.end <= range.start);
        for managed in self.managed[first..]
            .iter()
            .take_while(|managed| managed.start < range.end)
        {
            if managed.start > start {
                rest.push(start..managed.start);
            }
            start = start.max(managed.end);
        }
        if start < range.end {
            rest.push(start..range.end);
        }
        rest
    }
}

/// Sorts ranges and joins those that touch or overlap.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
