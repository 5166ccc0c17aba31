//! What the program itself says is not a leak, as the agent lists it (`agent/src/exemptions.rs`).

use std::mem::{offset_of, size_of};
use std::ops::Range;

use reachability::lost;
use reachability::{Heap, Memory};
use shm_protocol::layout::{EXEMPT_OBJECT, EXEMPT_REGION, Exemption};

/// Maximum number of entries that are examined; the agent has room for as many.
const MOST: u64 = 1 << 16;

/// Maximum number of bytes of a text.
const MOST_TEXT: u64 = 1 << 20;

/// Where the list is: it contains addresses of objects, and must not be mistaken for the program's
/// memory.
pub fn memory(memory: &dyn Memory, place: u64) -> Option<Range<u64>> {
    let entries = memory.word(place).filter(|at| place != 0 && *at != 0)?;
    Some(entries..entries.saturating_add(MOST * size_of::<Exemption>() as u64))
}

/// What is listed.
#[derive(Debug, Default)]
pub struct Exemptions {
    /// Addresses in objects that are not leaks.
    pub objects: Vec<u64>,
    /// Memory that may hold pointers.
    pub regions: Vec<Range<u64>>,
}

/// Reads the list, `place` being where the agent says that it is.
pub fn read(memory: &dyn Memory, heap: &Heap, place: u64) -> Exemptions {
    let mut found = Exemptions::default();
    for (kind, at, extent) in entries(memory, place) {
        match kind {
            EXEMPT_OBJECT if is_same(memory, heap, at, extent as u32) => found.objects.push(at),
            EXEMPT_REGION => found.regions.push(at..at.saturating_add(extent)),
            _ => {}
        }
    }
    found
}

/// The first text of a kind that the program has stated, up to a limit.
pub fn text(memory: &dyn Memory, place: u64, kind: u64) -> Option<Vec<u8>> {
    let mut all = entries(memory, place).into_iter();
    let (_, at, extent) = all.find(|entry| entry.0 == kind)?;
    let mut bytes = vec![0; extent.min(MOST_TEXT) as usize];
    let read = memory.read(at, &mut bytes);
    bytes.truncate(read);
    Some(bytes)
}

/// The list: kind, address, extent.
fn entries(memory: &dyn Memory, place: u64) -> Vec<(u64, u64, u64)> {
    let [list, count] = [0, 8].map(|offset| memory.word(place.wrapping_add(offset)));
    let list = list.filter(|list| place != 0 && *list != 0);
    let Some((list, count)) = list.zip(count) else {
        return Vec::new();
    };
    const SIZE: usize = size_of::<Exemption>();
    let mut bytes = vec![0; SIZE * count.min(MOST) as usize];
    memory.gather(&[(list, bytes.len())], &mut bytes);
    let entry = |entry: &[u8]| {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        (
            word(offset_of!(Exemption, kind)),
            word(offset_of!(Exemption, at)),
            word(offset_of!(Exemption, extent)),
        )
    };
    bytes.chunks_exact(SIZE).map(entry).collect()
}

/// Whether the object at an address was there when the program spoke of it, and is not a later one.
/// Of objects that are not sampled that is not known: they are treated as the same.
fn is_same(memory: &dyn Memory, heap: &Heap, at: u64, tick: u32) -> bool {
    let Some((_, region)) = heap.find(at) else {
        return false;
    };
    let object = lost::sampled(memory, heap, region);
    object.is_none_or(|object| tick.wrapping_sub(object.born) as i32 >= 0)
}
