//! The transfer cache, as tcmalloc calls it: blocks that one thread has freed on their way to another
//! that allocates.
//!
//! Where one thread allocates what another frees, the free lists of one are always empty and those of
//! the other always full, so that each object would take a call of jemalloc on either side, and its
//! lock. Here a whole batch changes hands at once. It names its blocks in an array, not by their first
//! words: the thread that takes them need not wait for memory that another processor has.
//!
//! Nobody ever waits: a slot that another thread is using is skipped.

// Decision 55: blocks that another thread frees.
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of blocks of a batch. All places together are mapped in an idle process, too.
const MAX_BLOCKS: usize = 48;
/// Maximum number of bytes of a batch.
const BYTES: usize = 4 << 10;
/// Batches of each size.
const PLACES: usize = 8;

const EMPTY: u32 = 0;
/// A thread is at it. One that a fork has cut off stays so in the child.
const BUSY: u32 = u32::MAX;

/// Room for a batch.
type Place = UnsafeCell<[*mut u8; MAX_BLOCKS]>;

/// The batches on their way, for blocks of one size.
#[repr(C, align(64))]
pub struct Transfer {
    /// Number of blocks in each place, or [`BUSY`]; in one cache line.
    states: [AtomicU32; PLACES],
    places: [Place; PLACES],
}

// SAFETY: a place is used by the one thread that has made its state `BUSY`.
unsafe impl Sync for Transfer {}

impl Transfer {
    /// None.
    pub const fn none() -> Self {
        Self {
            states: [const { AtomicU32::new(EMPTY) }; PLACES],
            places: [const { UnsafeCell::new([null_mut(); MAX_BLOCKS]) }; PLACES],
        }
    }

    /// Puts a batch of blocks here that `next` gives, as many as [`batch`] says at most; whether there
    /// was room.
    pub fn put(&self, count: usize, mut next: impl FnMut() -> *mut u8) -> bool {
        let Some((index, _)) = self.claim(|state| state == EMPTY) else {
            return false;
        };
        // SAFETY: claimed by this thread.
        let blocks = unsafe { &mut *self.places[index].get() };
        for block in blocks.iter_mut().take(count) {
            *block = next();
        }
        self.states[index].store(count.min(MAX_BLOCKS) as u32, Ordering::Release);
        true
    }

    /// Takes a batch, if there is one, and gives its blocks to `each`; how many.
    pub fn take(&self, mut each: impl FnMut(*mut u8)) -> usize {
        let Some((index, count)) = self.claim(|state| state != EMPTY) else {
            return 0;
        };
        // SAFETY: claimed by this thread.
        let blocks = unsafe { &*self.places[index].get() };
        for block in blocks.iter().take(count) {
            each(*block);
        }
        self.states[index].store(EMPTY, Ordering::Release);
        count.min(MAX_BLOCKS)
    }

    /// Makes a place the caller's whose state is as wanted; its index and number of blocks.
    fn claim(&self, wanted: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        self.states.iter().enumerate().find_map(|(index, place)| {
            let state = place.load(Ordering::Relaxed);
            let claimed = state != BUSY
                && wanted(state)
                && place
                    .compare_exchange(state, BUSY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            claimed.then_some((index, state as usize))
        })
    }
}

/// Blocks of `size` bytes in a batch.
pub const fn batch(size: usize) -> usize {
    let count = BYTES / size;
    if count < MAX_BLOCKS {
        count
    } else {
        MAX_BLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::without_provenance_mut;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn batches_have_a_bounded_size() {
        assert_eq!((batch(16), batch(512)), (MAX_BLOCKS, 8));
    }

    #[test]
    fn what_is_put_is_taken_once() {
        let transfer = Transfer::none();
        assert_eq!(transfer.take(|_| panic!("there is nothing")), 0);
        let mut at = 0;
        let mut next = || {
            at += 16;
            without_provenance_mut(at)
        };
        for _ in 0..PLACES {
            assert!(transfer.put(3, &mut next));
        }
        assert!(!transfer.put(3, || panic!("there is no room")));
        let mut taken = std::vec::Vec::new();
        while transfer.take(|block| taken.push(block.addr())) == 3 {}
        let all: std::vec::Vec<usize> = (1..=3 * PLACES).map(|i| 16 * i).collect();
        assert_eq!(taken, all);
    }

    /// Threads that put and take at once neither lose a block nor get one twice.
    #[test]
    fn threads_exchange_every_block_once() {
        const BLOCKS: u64 = 200_000;
        let transfer = Transfer::none();
        let (given, got) = (AtomicU64::new(0), AtomicU64::new(0));
        let (sum, wanted) = (AtomicU64::new(0), BLOCKS * (BLOCKS + 1) / 2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let first = given.fetch_add(10, Ordering::Relaxed);
                        if first >= BLOCKS {
                            break;
                        }
                        let mut at = first;
                        while !transfer.put(10, || {
                            at += 1;
                            without_provenance_mut(at as usize)
                        }) {
                            std::thread::yield_now();
                        }
                    }
                });
                scope.spawn(|| {
                    while got.load(Ordering::Relaxed) < BLOCKS {
                        let count = transfer.take(|block| {
                            sum.fetch_add(block.addr() as u64, Ordering::Relaxed);
                        });
                        got.fetch_add(count as u64, Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                });
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), wanted);
        assert_eq!(got.load(Ordering::Relaxed), BLOCKS);
    }
}
