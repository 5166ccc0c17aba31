//! Reads the list of objects and memory that the program itself has declared, from the agent's
//! memory (`agent/src/exemptions.rs`).

use std::mem::{offset_of, size_of};
use std::ops::Range;

use reachability::lost;
use reachability::{Heap, Memory};
use shm_protocol::layout::{EXEMPT_OBJECT, EXEMPT_REGION, Exemption};

/// Maximum number of entries; the agent's list has the same capacity.
const MAX_ENTRIES: u64 = 1 << 16;

/// Maximum length of a text, in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Returns the range of the list. Must be excluded from the search: it contains addresses of
/// objects, and is not the program's memory.
pub fn memory(memory: &dyn Memory, descriptor: u64) -> Option<Range<u64>> {
    let entries = memory
        .word(descriptor)
        .filter(|at| descriptor != 0 && *at != 0)?;
    Some(entries..entries.saturating_add(MAX_ENTRIES * size_of::<Exemption>() as u64))
}

/// Declarations of the program.
#[derive(Debug, Default)]
pub struct Exemptions {
    /// Addresses within objects that are not leaks.
    pub objects: Vec<u64>,
    /// Memory that may contain pointers.
    pub regions: Vec<Range<u64>>,
}

/// Reads the list. `descriptor` is the address of its descriptor in the agent, or 0 if there is
/// none.
pub fn read(memory: &dyn Memory, heap: &Heap, descriptor: u64) -> Exemptions {
    let mut found = Exemptions::default();
    for Entry { kind, at, extent } in entries(memory, descriptor) {
        match kind {
            EXEMPT_OBJECT if is_unchanged(memory, heap, at, extent as u32) => {
                found.objects.push(at);
            }
            EXEMPT_REGION => found.regions.push(at..at.saturating_add(extent)),
            _ => {}
        }
    }
    found
}

/// Returns the first text of this kind, truncated to a limit.
pub fn text(memory: &dyn Memory, descriptor: u64, kind: u64) -> Option<Vec<u8>> {
    let mut all = entries(memory, descriptor).into_iter();
    let Entry { at, extent, .. } = all.find(|entry| entry.kind == kind)?;
    let mut bytes = vec![0; extent.min(MAX_TEXT_BYTES) as usize];
    let read = memory.read(at, &mut bytes);
    bytes.truncate(read);
    Some(bytes)
}

/// Entry of the list.
struct Entry {
    kind: u64,
    /// Address of the object, region or text.
    at: u64,
    /// Size in bytes; for an object, the tick of the declaration.
    extent: u64,
}

/// Reads all entries of the list.
fn entries(memory: &dyn Memory, descriptor: u64) -> Vec<Entry> {
    let [list, count] = [0, 8].map(|offset| memory.word(descriptor.wrapping_add(offset)));
    let list = list.filter(|list| descriptor != 0 && *list != 0);
    let Some((list, count)) = list.zip(count) else {
        return Vec::new();
    };
    const SIZE: usize = size_of::<Exemption>();
    let mut bytes = vec![0; SIZE * count.min(MAX_ENTRIES) as usize];
    memory.gather(&[(list, bytes.len())], &mut bytes);
    let entry = |entry: &[u8]| {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        Entry {
            kind: word(offset_of!(Exemption, kind)),
            at: word(offset_of!(Exemption, at)),
            extent: word(offset_of!(Exemption, extent)),
        }
    };
    bytes.chunks_exact(SIZE).map(entry).collect()
}

/// Returns false if the object at `at` was allocated after the declaration at `tick`. Birth times
/// of unsampled objects are unknown; they count as unchanged.
fn is_unchanged(memory: &dyn Memory, heap: &Heap, at: u64, tick: u32) -> bool {
    let Some((_, region)) = heap.find(at) else {
        return false;
    };
    let object = lost::sampled_object(memory, heap, region);
    object.is_none_or(|object| tick.wrapping_sub(object.born) as i32 >= 0)
}
