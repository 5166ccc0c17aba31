//! Lost objects: sampled objects that were not reached from the roots.

use crate::heap::{Extent, Heap};
use crate::mark::{self, Marks, content_of};
use crate::memory::Memory;
use crate::object::{self, Content, HEADER, Sampled};
use crate::pointers::PointerRules;

/// Maximum size in bytes of a slab that is read with one call.
const MAX_SLAB_BYTES: usize = 1 << 20;

/// Maximum length of each list of an [`Unreached`]. Both together take up to 3 GiB.
const MAX_LISTED: usize = 1 << 26;

/// A lost object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    /// Region that contains it.
    pub region: u32,
    /// Sampled object.
    pub object: Sampled,
}

/// Memory that is allocated and was not reached.
#[derive(Debug, Default)]
pub struct Unreached {
    /// Sampled objects that were not reached, by address.
    pub lost: Vec<Lost>,
    /// Other regions that were not reached: allocated according to jemalloc, but outside the range
    /// of sampled objects.
    pub unknown: Vec<u32>,
    /// Number of unreached regions that are in neither list because there are too many.
    pub left_out: u64,
    /// Number of regions of sampled objects that were not reached and have no valid header.
    pub unclear: u64,
}

impl Unreached {
    /// Treats some of the lost objects, given by index, as roots: neither they nor the objects that
    /// they lead to are lost any more. `marks` are those with which the objects were found.
    pub fn excuse(
        &mut self,
        memory: &dyn Memory,
        heap: &Heap,
        pointers: &PointerRules,
        marks: &mut Marks,
        excused: &[u32],
    ) {
        let objects = excused
            .iter()
            .filter_map(|index| self.lost.get(*index as usize));
        let regions = objects.map(|lost| lost.region);
        mark::extend(memory, heap, pointers, marks, regions);
        self.lost.retain(|lost| !marks.has(lost.region));
        self.unknown.retain(|region| !marks.has(*region));
    }
}

/// Finds memory that was not reached. Of the sampled objects, only those that satisfy `wanted` are
/// listed.
pub fn find(
    memory: &dyn Memory,
    heap: &Heap,
    marks: &Marks,
    wanted: impl FnMut(&Sampled) -> bool,
) -> Unreached {
    find_if(memory, heap, |region| !marks.has(region), wanted)
}

/// Finds sampled objects that satisfy `wanted`, and unknown memory, in the regions that satisfy
/// `is_searched`.
pub fn find_if(
    memory: &dyn Memory,
    heap: &Heap,
    is_searched: impl Fn(u32) -> bool,
    mut wanted: impl FnMut(&Sampled) -> bool,
) -> Unreached {
    let mut found = Unreached::default();
    let mut searched = Vec::new();
    for extent in heap.extents() {
        searched.clear();
        let regions = extent.regions();
        searched
            .extend(regions.filter(|region| heap.is_allocated(*region) && is_searched(*region)));
        if searched.is_empty() {
            continue;
        }
        let room = MAX_LISTED - found.lost.len().max(found.unknown.len());
        if searched.len() > room {
            found.left_out += searched.len() as u64;
            continue;
        }
        if !heap.is_sampled(extent) {
            found.unknown.extend(&searched);
            continue;
        }
        let Unreached { lost, unclear, .. } = &mut found;
        let mut add = |region: u32, content: Content| match content {
            Content::Object(object) if wanted(&object) => lost.push(Lost { region, object }),
            Content::Unknown => *unclear += 1,
            Content::Object(_) | Content::Nothing => {}
        };
        let Some(bytes) = slab(memory, extent) else {
            for &region in &searched {
                add(region, heap.content(memory, region));
            }
            continue;
        };
        let entries = heap.entries(memory, extent);
        for &region in &searched {
            let index = (region - extent.first) as usize;
            let offset = index * extent.size as usize;
            let base = extent.start + offset as u64;
            if let Some(entry) = entries.get(index)
                && let Some(object) = object::in_table(base, extent.size, *entry)
            {
                add(region, Content::Object(object));
            } else if let Some(contents) = bytes.get(offset..offset + extent.size as usize) {
                add(region, content_of(base, contents));
            }
        }
    }
    found
}

/// Returns the regions whose sampled objects are not at the usual offset, [`HEADER`], with the
/// objects' offsets.
#[must_use]
pub fn starts(memory: &dyn Memory, heap: &Heap) -> Vec<(u32, u64)> {
    let objects = find_if(memory, heap, |_| true, |_| true).lost;
    let start = |lost: &Lost| {
        let (base, _) = heap.region(lost.region)?;
        lost.object.at.checked_sub(base)
    };
    let starts = objects
        .iter()
        .filter_map(|lost| Some((lost.region, start(lost)?)));
    starts.filter(|(_, start)| *start != HEADER).collect()
}

/// Returns the sampled object in a region.
#[must_use]
pub fn sampled_object(memory: &dyn Memory, heap: &Heap, region: u32) -> Option<Sampled> {
    heap.sampled_at(memory, region)
}

/// Reads an extent with several regions. Returns `None` for other extents, and for large ones.
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
