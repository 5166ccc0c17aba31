//! Finds thread caches (`tcache_structs.h`): jemalloc's own allocations with pointers to free
//! objects.
//!
//! A slot of a cache keeps the address of the object that was last taken from it. Stale words on a
//! stack may point to caches, so that even lost objects would be reached through them.

use super::Globals;
use super::layout::ADDRESS_BITS;
use crate::memory::{Memory, word_of};

/// Number of bytes at the start of an arena that are searched for the head of its list of caches,
/// which follows statistics for all size classes.
const ARENA_BYTES: usize = 32 << 10;
/// Maximum number of arenas in which the list is searched until one has caches.
const MAX_TRIED_ARENAS: usize = 16;
/// Maximum number of caches: more than any process has threads.
const MAX_CACHES: usize = 1 << 17;
/// Offset in bytes of the first array in `tcache_slow_t`. The arrays together have four bytes for
/// each class of small objects.
const ARRAYS_OFFSET: u64 = 76;
/// Number of classes of small objects with pages of 4 KiB. Each doubling of the page size adds
/// four.
const SMALL_CLASSES: u64 = 36;

/// Returns the addresses of the allocations that contain caches' slots.
pub fn find(memory: &dyn Memory, globals: &Globals, arenas: &[u64]) -> Vec<u64> {
    let reader = Reader {
        memory,
        slots_offset: slots_offset(globals.page),
    };
    let mut tried = arenas.iter().take(MAX_TRIED_ARENAS);
    let Some(list_offset) = tried.find_map(|arena| reader.list_offset(*arena)) else {
        return Vec::new();
    };
    let mut caches = Vec::new();
    for arena in arenas {
        let head = arena.wrapping_add(list_offset);
        reader.follow(memory.word(head).unwrap_or(0), &mut caches);
    }
    caches.sort_unstable();
    caches.dedup();
    caches
}

/// Returns the offset in `tcache_slow_t` of the pointer to the slots.
fn slots_offset(page: u64) -> u64 {
    let classes = SMALL_CLASSES + 4 * u64::from(page.trailing_zeros().saturating_sub(12));
    (ARRAYS_OFFSET + 4 * classes).next_multiple_of(8)
}

struct Reader<'a> {
    memory: &'a dyn Memory,
    slots_offset: u64,
}

impl Reader<'_> {
    /// Returns the offset in an arena of the head of its list of caches, if the list is not empty.
    fn list_offset(&self, arena: u64) -> Option<u64> {
        let mut bytes = vec![0; ARENA_BYTES];
        let length = self.memory.read(arena, &mut bytes);
        let words = bytes[..length].chunks_exact(8).map(word_of);
        let head = words
            .zip((0..).step_by(8))
            .find(|(word, _)| self.cache(*word).is_some());
        head.map(|(_, offset)| offset)
    }

    /// Returns the next cache in the list, and the address of this one's slots, if there is a cache
    /// at this address: its `tcache_t` must point back to it.
    fn cache(&self, at: u64) -> Option<(u64, u64)> {
        if at == 0 || !at.is_multiple_of(8) || at >> ADDRESS_BITS != 0 {
            return None;
        }
        let mut pair = [0; 16];
        if self.memory.read(at + self.slots_offset, &mut pair) < pair.len() {
            return None;
        }
        let slots = word_of(&pair);
        let tcache = word_of(&pair[8..]);
        if tcache == 0 || self.memory.word(tcache) != Some(at) {
            return None;
        }
        Some((self.memory.word(at)?, slots))
    }

    /// Follows a circular list, starting at one of its caches.
    fn follow(&self, first: u64, caches: &mut Vec<u64>) {
        let mut at = first;
        while caches.len() < MAX_CACHES
            && let Some((next, slots)) = self.cache(at)
        {
            caches.push(slots);
            at = next;
            if at == first {
                return;
            }
        }
    }
}
