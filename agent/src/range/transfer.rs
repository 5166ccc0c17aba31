//! Transfer cache (as in tcmalloc): batches of blocks on their way from threads that free to
//! threads that allocate.
//!
//! If one thread allocates what another one frees, the free lists of the first are always empty and
//! those of the second always full: each object would take a call of jemalloc, with its lock, on
//! either side. Here a whole batch changes hands in one step. Its blocks are in an array and not
//! linked through their first words, so that the thread that takes them need not wait for memory in
//! another processor's cache.
//!
//! Nobody ever waits: a slot that another thread is using is skipped.

// Decision 55: blocks that another thread frees.
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of blocks in a batch. It is small because even an idle process maps the memory
/// for all batches.
const MAX_BLOCKS: usize = 36;
/// Maximum size of a batch in bytes.
const MAX_BATCH_BYTES: usize = 4 << 10;
/// Number of slots for batches, for each block size.
const SLOTS: usize = 8;

/// State of a slot without a batch.
const EMPTY: u32 = 0;
/// State of a slot that a thread is using. If the process forks meanwhile, the slot stays busy in
/// the child forever.
const BUSY: u32 = u32::MAX;

/// Memory of one slot, for a batch.
type Slot = UnsafeCell<[*mut u8; MAX_BLOCKS]>;

/// Batches of blocks of one size.
#[repr(C, align(64))]
pub struct Transfer {
    /// Number of blocks in each batch, or [`BUSY`]. All in one cache line.
    states: [AtomicU32; SLOTS],
    slots: [Slot; SLOTS],
}

// SAFETY: a batch is accessed only by the thread that has set its state to `BUSY`.
unsafe impl Sync for Transfer {}

impl Transfer {
    /// Creates a cache without batches.
    pub const fn new() -> Self {
        Self {
            states: [const { AtomicU32::new(EMPTY) }; SLOTS],
            slots: [const { UnsafeCell::new([null_mut(); MAX_BLOCKS]) }; SLOTS],
        }
    }

    /// Stores a batch of `count` blocks, which `next` returns. Returns false, without calling it,
    /// if there is no free slot. `count` is at most [`batch_blocks`].
    pub fn put(&self, count: usize, mut next: impl FnMut() -> *mut u8) -> bool {
        let Some((index, _)) = self.claim(|state| state == EMPTY) else {
            return false;
        };
        // SAFETY: claimed by this thread.
        let blocks = unsafe { &mut *self.slots[index].get() };
        for block in blocks.iter_mut().take(count) {
            *block = next();
        }
        self.states[index].store(count.min(MAX_BLOCKS) as u32, Ordering::Release);
        true
    }

    /// Takes a batch, if there is one, and passes its blocks to `each`. Returns their number.
    pub fn take(&self, mut each: impl FnMut(*mut u8)) -> usize {
        let Some((index, count)) = self.claim(|state| state != EMPTY) else {
            return 0;
        };
        // SAFETY: claimed by this thread.
        let blocks = unsafe { &*self.slots[index].get() };
        for block in blocks.iter().take(count) {
            each(*block);
        }
        self.states[index].store(EMPTY, Ordering::Release);
        count.min(MAX_BLOCKS)
    }

    /// Claims a slot with a wanted state. Returns its index and its number of blocks.
    fn claim(&self, wanted: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        self.states.iter().enumerate().find_map(|(index, slot)| {
            let state = slot.load(Ordering::Relaxed);
            let claimed = state != BUSY
                && wanted(state)
                && slot
                    .compare_exchange(state, BUSY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            claimed.then_some((index, state as usize))
        })
    }
}

/// Returns the number of blocks of `size` bytes in a batch.
pub const fn batch_blocks(size: usize) -> usize {
    let count = MAX_BATCH_BYTES / size;
    if count < MAX_BLOCKS {
        count
    } else {
        MAX_BLOCKS
    }
}

#[cfg(test)]
mod tests;
