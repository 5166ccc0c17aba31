//! The caches of free objects that threads have (`tcache_structs.h`): objects of the heap
//! themselves, but nothing in them is a pointer of the program's.
//!
//! A slot of such a cache keeps the address of what was taken from it last. Stale words on a stack
//! lead to caches, so what they hold would be reached, lost or not.

use super::Globals;
use super::layout::ADDRESS_BITS;
use crate::memory::{Memory, word_of};

/// An arena's list of caches lies in these first bytes of it, after figures for all size classes.
const ARENA: usize = 32 << 10;
/// Arenas in which the list is looked for until one has caches.
const TRIED: usize = 16;
/// Caches, at most: more threads than a machine has.
const MOST: usize = 1 << 17;
/// For `tcache_slow_t`: a list's links, a second list's with what that is of, the arena, a number,
/// a time, three numbers; then four bytes for each class of small objects.
const COUNTS: u64 = 76;
/// Classes of small objects with pages of 4 KiB; with pages twice as large there are four more.
const SMALL: u64 = 36;

/// The addresses of the allocations that hold caches' slots.
pub fn find(memory: &dyn Memory, globals: &Globals, arenas: &[u64]) -> Vec<u64> {
    let reader = Reader {
        memory,
        slots: slots(globals.page),
    };
    let mut place = None;
    let tried = arenas.iter().take(TRIED);
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

/// Where in `tcache_slow_t` the address of the slots is.
fn slots(page: u64) -> u64 {
    let classes = SMALL + 4 * u64::from(page.trailing_zeros().saturating_sub(12));
    (COUNTS + 4 * classes).next_multiple_of(8)
}

struct Reader<'a> {
    memory: &'a dyn Memory,
    slots: u64,
}

impl Reader<'_> {
    /// Where in an arena its list is, if that is not empty.
    fn place(&self, arena: u64) -> Option<u64> {
        let mut bytes = vec![0; ARENA];
        let got = self.memory.read(arena, &mut bytes);
        let words = bytes[..got].chunks_exact(8).map(word_of);
        let at = words
            .zip((0..).step_by(8))
            .find(|(word, _)| self.cache(*word).is_some());
        at.map(|(_, at)| at)
    }

    /// The next of a list, and the slots, if there is a cache at this address: what belongs to it
    /// points back.
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

    /// Goes round a list from one of its caches on.
    fn follow(&self, first: u64, caches: &mut Vec<u64>) {
        let mut at = first;
        while let Some((next, slots)) = self.cache(at).filter(|_| caches.len() < MOST) {
            caches.push(slots);
            at = next;
            if at == first {
                return;
            }
        }
    }
}
