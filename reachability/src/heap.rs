//! All objects of a heap: maps any address to the object that contains it.
//!
//! Each piece of memory that jemalloc hands out is a *region*, known by a number: regions of an
//! extent are numbered consecutively, extents in the order of their addresses.

use std::ops::Range;

use crate::bits::Bits;
use crate::jemalloc::{Content, Map};
use crate::pages::Pages;

/// Most regions: beyond, extents are left out. Their numbers take 32 bits.
const MOST_REGIONS: usize = u32::MAX as usize - 1;

/// Memory that holds objects of one size.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Where its first region begins.
    pub start: u64,
    /// Size of each region.
    pub size: u64,
    /// Number of the first region.
    pub first: u32,
    /// Number of regions.
    pub count: u32,
    /// 2^[`INVERSE_BITS`] by `size`, and up to 1 more, which takes the place of a division: exact for
    /// distances below 2^20, since these times an error of at most 1 are less than 2^40 by `size`.
    inverse: u64,
}

pub(crate) const INVERSE_BITS: u32 = 40;
/// Most bytes of an extent with several regions.
const MOST_SLAB: u64 = 1 << 20;

impl Extent {
    /// The index of the region that `address` lies in.
    #[inline]
    fn index(&self, address: u64) -> Option<u32> {
        let distance = address.checked_sub(self.start)?;
        let index = match self.count {
            1 => u64::from(distance >= self.size),
            _ if distance >= MOST_SLAB => return None,
            _ => (distance * self.inverse) >> INVERSE_BITS,
        };
        (index < u64::from(self.count)).then_some(index as u32)
    }

    /// What an address's distance is multiplied by to get its region, in 2^[`INVERSE_BITS`]ths.
    pub(crate) fn inverse(&self) -> u64 {
        self.inverse
    }

    /// Numbers of its regions.
    #[must_use]
    pub fn regions(&self) -> Range<u32> {
        self.first..self.first + self.count
    }
}

/// The objects of a heap.
#[derive(Debug, Default)]
pub struct Heap {
    extents: Vec<Extent>,
    pages: Pages,
    /// Indexes of the extents of one region, by address.
    large: Vec<u32>,
    /// Regions that are allocated, as far as jemalloc tells.
    allocated: Bits,
    regions: u32,
    /// What jemalloc manages, objects or not: by address, none overlap.
    own: Vec<Range<u64>>,
    /// The range of sampled objects.
    sampled: Range<u64>,
    /// Extents that had no place here.
    left_out: usize,
}

impl Heap {
    /// Of jemalloc's map, and the range that sampled objects lie in, which may be empty.
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
            let room = MOST_REGIONS - heap.regions as usize;
            let is_slab = matches!(extent.content, Content::Slab(..));
            let fits = !is_slab || extent.pages.end - extent.pages.start <= MOST_SLAB;
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
                    let free = map.free.get(*bits..).unwrap_or_default();
                    let bit = |index: usize| free.get(index / 64).map(|w| w >> (index % 64) & 1);
                    for index in (0..count as usize).filter(|index| bit(*index) == Some(0)) {
                        heap.allocated.set(first + index);
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
        // Allocated, but not by the program, and what they hold is nobody's.
        let caches: Vec<_> = map.caches.iter().filter_map(|at| heap.find(*at)).collect();
        for (_, region) in caches {
            heap.allocated.clear(region as usize);
        }
        let extents = map.extents.iter().map(|extent| extent.pages.clone());
        heap.own = joined(extents.chain(map.metadata.iter().cloned()).collect());
        heap
    }

    /// Number of regions.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// Extents with objects, by address.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Extents whose objects are not known: damaged, or too many.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The extent and the region that `address` lies in, if that is allocated.
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
        let (first, last) = (*self.large.first()?, *self.large.last()?);
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

    /// The extent that a region belongs to.
    #[must_use]
    pub fn extent_of(&self, region: u32) -> Option<&Extent> {
        let after = self
            .extents
            .partition_point(|extent| extent.first <= region);
        self.extents.get(after.checked_sub(1)?)
    }

    /// Where a region begins, and its size.
    #[must_use]
    pub fn region(&self, region: u32) -> Option<(u64, u64)> {
        let extent = self.extent_of(region)?;
        let index = u64::from(region.checked_sub(extent.first)?);
        Some((extent.start + index * extent.size, extent.size))
    }

    /// Whether a region is allocated, as far as jemalloc tells.
    #[must_use]
    pub fn is_allocated(&self, region: u32) -> bool {
        self.allocated.get(region as usize)
    }

    /// Regions that are allocated, as far as jemalloc tells.
    pub(crate) fn allocated(&self) -> &Bits {
        &self.allocated
    }

    /// Whether sampled objects lie in an extent, each with a header.
    #[inline]
    #[must_use]
    pub fn is_sampled(&self, extent: &Extent) -> bool {
        self.sampled.contains(&extent.start)
    }

    /// The parts of `range` that jemalloc does not manage.
    #[must_use]
    pub fn outside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        let mut start = range.start;
        let first = self.own.partition_point(|own| own.end <= range.start);
        for own in self.own[first..].iter().take_while(|o| o.start < range.end) {
            if own.start > start {
                rest.push(start..own.start);
            }
            start = start.max(own.end);
        }
        if start < range.end {
            rest.push(start..range.end);
        }
        rest
    }
}

/// Sorted, with those that touch or overlap as one.
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
