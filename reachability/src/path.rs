//! Chains of pointers from a root to an object, which show what holds it.

use std::ops::Range;

use crate::heap::Heap;
use crate::mark::{Marks, Origin};
use crate::memory::{self, Memory};
use crate::pointers::Pointers;

/// Maximum number of steps of a chain. Longer chains are not returned.
pub const MAX_STEPS: usize = 100_000;
const READ_BYTES: usize = 1 << 20;

/// Step of a chain: an object that contains a pointer to the next step's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Region that contains the memory.
    pub region: u32,
    /// Address.
    pub at: u64,
    /// Size in bytes.
    pub size: u64,
    /// Offset of the pointer to the next step; `None` in the last step.
    pub offset: Option<u64>,
}

/// Chain of pointers that starts at a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Number of the root.
    pub root: u32,
    /// Objects; the requested one is last.
    pub steps: Vec<Step>,
}

/// Returns the chain by which a region was reached. Returns `None` if it was not reached or origins
/// were not recorded.
#[must_use]
pub fn chain_to(
    memory: &dyn Memory,
    heap: &Heap,
    pointers: &Pointers,
    marks: &Marks,
    region: u32,
) -> Option<Path> {
    let mut regions = vec![region];
    let root = loop {
        match marks.origin(*regions.last()?)? {
            Origin::Root(root) => break root,
            Origin::Region(from) if regions.len() < MAX_STEPS => regions.push(from),
            Origin::Region(_) => return None,
        }
    };
    regions.reverse();
    let mut steps = Vec::with_capacity(regions.len());
    for (index, &region) in regions.iter().enumerate() {
        let (at, size) = heap.region(region)?;
        let next = regions.get(index + 1);
        let offset =
            next.and_then(|next| find_pointer(memory, heap, pointers, at..at + size, *next));
        steps.push(Step {
            region,
            at,
            size,
            offset: offset.map(|address| address - at),
        });
    }
    Some(Path { root, steps })
}

/// Returns the address of the first pointer in `range` to a region.
#[must_use]
pub fn find_pointer(
    memory: &dyn Memory,
    heap: &Heap,
    pointers: &Pointers,
    range: Range<u64>,
    region: u32,
) -> Option<u64> {
    let bytes = range
        .end
        .saturating_sub(range.start)
        .clamp(16, READ_BYTES as u64);
    let mut buffer = vec![0; (bytes as usize).next_multiple_of(8)];
    let mut found = None;
    let alignment = pointers.alignment();
    memory::scan_while(memory, range, alignment, &mut buffer, |at, bytes| {
        pointers.each(heap, bytes, |offset, _, target| {
            if target == region && found.is_none() {
                found = Some(at + offset as u64);
            }
        });
        found.is_none()
    });
    found
}
