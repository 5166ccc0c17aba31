//! What the program itself says is no leak, as the agent lists it (`agent/src/exemptions.rs`).

use std::mem::{offset_of, size_of};
use std::ops::Range;

use reachability::lost;
use reachability::{Heap, Memory};
use shm_protocol::layout::{EXEMPT_OBJECT, EXEMPT_REGION, Exemption};

/// Most entries that are looked at; the agent has room for as many.
const MOST: u64 = 1 << 16;

/// Where the list is: it holds addresses of objects, and must not be taken for the program's.
pub fn memory(memory: &dyn Memory, place: u64) -> Option<Range<u64>> {
    let entries = memory.word(place).filter(|at| place != 0 && *at != 0)?;
    Some(entries..entries.saturating_add(MOST * size_of::<Exemption>() as u64))
}

/// What is listed.
#[derive(Debug, Default)]
pub struct Exemptions {
    /// Addresses in objects that are no leaks.
    pub objects: Vec<u64>,
    /// Memory that may hold pointers.
    pub regions: Vec<Range<u64>>,
}

/// Reads the list, `place` being where the agent says that it is.
pub fn read(memory: &dyn Memory, heap: &Heap, place: u64) -> Exemptions {
    let mut found = Exemptions::default();
    let [entries, count] = [0, 8].map(|offset| memory.word(place.wrapping_add(offset)));
    let (Some(entries), Some(count)) = (entries.filter(|_| place != 0), count) else {
        return found;
    };
    if entries == 0 {
        return found;
    }
    const SIZE: usize = size_of::<Exemption>();
    let mut bytes = vec![0; SIZE * count.min(MOST) as usize];
    memory.gather(&[(entries, bytes.len())], &mut bytes);
    for entry in bytes.chunks_exact(SIZE) {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        let at = word(offset_of!(Exemption, at));
        let extent = word(offset_of!(Exemption, extent));
        match word(offset_of!(Exemption, kind)) {
            EXEMPT_OBJECT if is_same(memory, heap, at, extent as u32) => found.objects.push(at),
            EXEMPT_REGION => found.regions.push(at..at.saturating_add(extent)),
            _ => {}
        }
    }
    found
}

/// Whether the object at an address was there when the program spoke of it, and is no later one. Of
/// objects that are not sampled that is not known: they are taken for the same.
fn is_same(memory: &dyn Memory, heap: &Heap, at: u64, tick: u32) -> bool {
    let Some((_, region)) = heap.find(at) else {
        return false;
    };
    let object = lost::sampled(memory, heap, region);
    object.is_none_or(|object| tick.wrapping_sub(object.born) as i32 >= 0)
}
