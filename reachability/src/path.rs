//! Chains of pointers from a root to an object, which show what holds it.

use std::ops::Range;

use crate::heap::Heap;
use crate::mark::{Marks, Origin};
use crate::memory::{self, Memory};
use crate::pointers::PointerRules;

/// Maximum number of steps of a chain. Longer chains are not returned.
pub const MAX_STEPS: usize = 100_000;
const READ_BYTES: usize = 1 << 20;

/// Step of a chain: an object that contains a pointer to the next step's object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of the region (see [`Heap`]) that contains the object.
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
    /// Objects from the root to the requested one.
    pub steps: Vec<Step>,
}

/// Returns the chain by which the object in a region was reached. Returns `None` if it was not
/// reached or origins were not recorded.
#[must_use]
pub fn chain_to(
    memory: &dyn Memory,
    heap: &Heap,
    rules: &PointerRules,
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
        let offset = next.and_then(|next| find_pointer(memory, heap, rules, at..at + size, *next));
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
    rules: &PointerRules,
    range: Range<u64>,
    region: u32,
) -> Option<u64> {
    let bytes = range
        .end
        .saturating_sub(range.start)
        .clamp(16, READ_BYTES as u64);
    let mut buffer = vec![0; (bytes as usize).next_multiple_of(8)];
    let mut found = None;
    let alignment = rules.alignment();
    memory::scan_while(memory, range, alignment, &mut buffer, |at, bytes| {
        rules.each(heap, bytes, |offset, _, target| {
            if target == region && found.is_none() {
                found = Some(at + offset as u64);
            }
        });
        found.is_none()
    });
    found
}
