//! Thread caches (`tcache_structs.h`): allocations that contain pointers to free objects, none of
//! which is the program's.
//!
//! A slot of a cache keeps the address of the object that was last taken from it. Stale words on a
//! stack lead to caches, so what they point to would be reached, whether lost or not.

use super::Globals;
use super::layout::ADDRESS_BITS;
use crate::memory::{Memory, word_of};

/// Number of bytes at the start of an arena that contain its list of caches, after statistics for
/// all size classes.
const ARENA_BYTES: usize = 32 << 10;
/// Maximum number of arenas in which the list is searched until one has caches.
const MAX_TRIED_ARENAS: usize = 16;
/// Maximum number of caches: more threads than a machine has.
const MAX_CACHES: usize = 1 << 17;
/// Size in bytes of `tcache_slow_t` up to its arrays: links of a list, links of a second list with
/// its arena, the arena, a number, a time, three numbers. Then there are four bytes for each class
/// of small objects.
const COUNTS: u64 = 76;
/// Number of classes of small objects with pages of 4 KiB. With pages twice as large, there are
/// four more.
const SMALL_CLASSES: u64 = 36;

/// Returns the addresses of the allocations that contain caches' slots.
pub fn find(memory: &dyn Memory, globals: &Globals, arenas: &[u64]) -> Vec<u64> {
    let reader = Reader {
        memory,
        slots: slots(globals.page),
    };
    let mut place = None;
    let tried = arenas.iter().take(MAX_TRIED_ARENAS);
    for arena in tried {
        place = place.or_else(|| reader.place(*arena));
    }
    let mut caches = Vec::new();
    for arena in arenas.iter().filter(|_| place.is_some()) {
        let head = arena.wrapping_add(place.unwrap_or_default());
        reader.follow(memory.word(head).unwrap_or(0), &mut caches);
    }
    caches.sort_unstable();
    caches.dedup();
    caches
}

/// Returns the offset in `tcache_slow_t` of the pointer to the slots.
fn slots(page: u64) -> u64 {
    let classes = SMALL_CLASSES + 4 * u64::from(page.trailing_zeros().saturating_sub(12));
    (COUNTS + 4 * classes).next_multiple_of(8)
}

struct Reader<'a> {
    memory: &'a dyn Memory,
    slots: u64,
}

impl Reader<'_> {
    /// Returns the offset of an arena's list, if that is not empty.
    fn place(&self, arena: u64) -> Option<u64> {
        let mut bytes = vec![0; ARENA_BYTES];
        let got = self.memory.read(arena, &mut bytes);
        let words = bytes[..got].chunks_exact(8).map(word_of);
        let at = words
            .zip((0..).step_by(8))
            .find(|(word, _)| self.cache(*word).is_some());
        at.map(|(_, at)| at)
    }

    /// Returns the next cache in the list and the slots, if there is a cache at this address: its
    /// parts must point back to it.
    fn cache(&self, at: u64) -> Option<(u64, u64)> {
        if at == 0 || !at.is_multiple_of(8) || at >> ADDRESS_BITS != 0 {
            return None;
        }
        let mut pair = [0; 16];
        let read = self.memory.read(at + self.slots, &mut pair);
        let (slots, fast) = (word_of(&pair), word_of(&pair[8..]));
        let is_one = read == pair.len() && fast != 0 && self.memory.word(fast) == Some(at);
        Some((self.memory.word(at)?, slots)).filter(|_| is_one)
    }

    /// Follows a circular list from one of its caches on.
    fn follow(&self, first: u64, caches: &mut Vec<u64>) {
        let mut at = first;
        while let Some((next, slots)) = self.cache(at).filter(|_| caches.len() < MAX_CACHES) {
            caches.push(slots);
            at = next;
            if at == first {
                return;
            }
        }
    }
}
