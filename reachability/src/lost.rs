//! Lost objects: sampled objects that were not reached from the roots.

use crate::heap::{Extent, Heap};
use crate::mark::{self, Marks, content_of};
use crate::memory::Memory;
use crate::object::{self, Content, HEADER, Sampled};
use crate::pointers::Pointers;

/// Maximum size in bytes of a slab that is read at once.
const MAX_SLAB_BYTES: usize = 1 << 20;

/// Maximum number of objects of each kind that are listed, which take up to 3 GiB.
const MAX_LISTED: usize = 1 << 26;

/// Lost object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    /// Region that contains it.
    pub region: u32,
    /// Sampled object.
    pub object: Sampled,
}

/// Memory that is allocated and was not reached.
#[derive(Debug, Default)]
pub struct Found {
    /// Sampled objects that were not reached, by address.
    pub lost: Vec<Lost>,
    /// Other regions that were not reached: allocated according to jemalloc, but not of a sampled
    /// object.
    pub unknown: Vec<u32>,
    /// Number of regions that are in neither list, because there are too many.
    pub left_out: u64,
    /// Number of regions of sampled objects that were not reached and have no valid header.
    pub unclear: u64,
}

impl Found {
    /// Treats some of the lost objects, given by index, as roots. Neither they nor what they lead
    /// to is lost any more. `marks` are those with which they were found.
    pub fn excuse(
        &mut self,
        memory: &dyn Memory,
        heap: &Heap,
        pointers: &Pointers,
        marks: &mut Marks,
        excused: &[u32],
    ) {
        let excused = excused.iter().filter_map(|i| self.lost.get(*i as usize));
        let regions = excused.map(|lost| lost.region);
        mark::extend(memory, heap, pointers, marks, regions);
        self.lost.retain(|lost| !marks.has(lost.region));
        self.unknown.retain(|region| !marks.has(*region));
    }
}

/// Finds memory that was not reached and satisfies `wanted`.
pub fn find(
    memory: &dyn Memory,
    heap: &Heap,
    marks: &Marks,
    wanted: impl FnMut(&Sampled) -> bool,
) -> Found {
    find_if(memory, heap, |region| !marks.has(region), wanted)
}

/// Finds sampled objects that satisfy `wanted` in the regions that `chosen` selects.
pub fn find_if(
    memory: &dyn Memory,
    heap: &Heap,
    chosen: impl Fn(u32) -> bool,
    mut wanted: impl FnMut(&Sampled) -> bool,
) -> Found {
    let mut found = Found::default();
    let mut unreached = Vec::new();
    for extent in heap.extents() {
        unreached.clear();
        let regions = extent.regions();
        unreached.extend(regions.filter(|region| heap.is_allocated(*region) && chosen(*region)));
        if unreached.is_empty() {
            continue;
        }
        let room = MAX_LISTED - found.lost.len().max(found.unknown.len());
        if unreached.len() > room {
            found.left_out += unreached.len() as u64;
            continue;
        }
        if !heap.is_sampled(extent) {
            found.unknown.extend(&unreached);
            continue;
        }
        let Found { lost, unclear, .. } = &mut found;
        let mut add = |region: u32, content: Content| match content {
            Content::Object(object) if wanted(&object) => lost.push(Lost { region, object }),
            Content::Unknown => *unclear += 1,
            Content::Object(_) | Content::Nothing => {}
        };
        let Some(bytes) = slab(memory, extent) else {
            for &region in &unreached {
                add(region, heap.look_at(memory, region));
            }
            continue;
        };
        let entries = heap.entries(memory, extent);
        for &region in &unreached {
            let index = (region - extent.first) as usize;
            let offset = index * extent.size as usize;
            let base = extent.start + offset as u64;
            let entry = entries.get(index);
            let full = entry.and_then(|entry| object::in_table(base, extent.size, *entry));
            let part = bytes.get(offset..offset + extent.size as usize);
            let before = || match part {
                Some(part) => content_of(base, part),
                None => Content::Nothing,
            };
            add(region, full.map_or_else(before, Content::Object));
        }
    }
    found
}

/// Returns the regions of sampled objects that do not start after a plain header, and the objects'
/// offsets there.
#[must_use]
pub fn starts(memory: &dyn Memory, heap: &Heap) -> Vec<(u32, u64)> {
    let all = find_if(memory, heap, |_| true, |_| true).lost;
    let start = |lost: &Lost| {
        let (base, _) = heap.region(lost.region)?;
        lost.object.at.checked_sub(base)
    };
    let starts = all.iter().filter_map(|l| Some((l.region, start(l)?)));
    starts.filter(|(_, start)| *start != HEADER).collect()
}

/// Returns the sampled object in a region.
#[must_use]
pub fn sampled(memory: &dyn Memory, heap: &Heap, region: u32) -> Option<Sampled> {
    heap.sampled_at(memory, region)
}

/// Reads an extent with several regions.
fn slab(memory: &dyn Memory, extent: &Extent) -> Option<Vec<u8>> {
    let len = extent.size as usize * extent.count as usize;
    if extent.count == 1 || len > MAX_SLAB_BYTES {
        return None;
    }
    let mut bytes = vec![0; len];
    memory.gather(&[(extent.start, len)], &mut bytes);
    Some(bytes)
}

#[cfg(test)]
mod tests;
