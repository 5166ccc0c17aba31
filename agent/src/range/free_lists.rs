//! Free lists of one thread: small blocks of the range, in front of jemalloc's own thread cache.
//!
//! A call of jemalloc with an explicit arena and cache takes some 120 instructions, because both
//! are looked up by index; a free list takes ten. The block that was freed last is used first,
//! because it is likely to be in the processor's cache. Blocks are linked through their first word,
//! where a sampled object has its header.
//!
//! jemalloc's per-thread counters `thread.allocated` and `thread.deallocated` count the usable size
//! of each object, as they would without the agent.
//!
//! A thread that frees more blocks of a size than it allocates passes batches of them on
//! ([`transfer`]).
//!
//! Limits: blocks of up to 512 bytes; [`MAX_BYTES`] per thread, released when the thread exits; and
//! 32 KiB of each size in the transfer cache.
//!
//! [`transfer`]: super::transfer

// Decision 16: free lists of a thread.
use super::transfer::{Transfer, batch_blocks};
use super::{Flags, OutsideRange};
use crate::arch;
use crate::backend::jemalloc;
use crate::object::Layout;
use core::ffi::{CStr, c_void};
use core::mem::size_of;
use core::ptr::{NonNull, null_mut};

/// Granularity of sizes in bytes.
const STEP: usize = 16;
/// Number of sizes: blocks of up to 512 bytes, including the header.
const BINS: usize = 32;
/// Maximum size of a thread's free lists in bytes.
const MAX_BYTES: usize = 128 << 10;

/// Transfer caches, by size.
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static TRANSFERS: [Transfer; BINS] = [const { Transfer::new() }; BINS];
/// Number of frees of a size between two attempts to pass a batch on.
const PASS_EVERY: u16 = 8;

struct FreeBlock {
    next: *mut FreeBlock,
}

/// One of jemalloc's two counters of a thread's bytes. In memory, a limit follows it. jemalloc
/// itself must count an allocation or a free that reaches the limit, because it then has work to
/// do.
struct ByteCounter(*mut [u64; 2]);

impl ByteCounter {
    fn new(name: &CStr) -> Self {
        let mut at: *mut c_void = null_mut();
        let mut len = size_of::<*mut c_void>();
        // SAFETY: jemalloc writes a pointer of ours.
        unsafe { jemalloc::mallctl(name.as_ptr(), (&raw mut at).cast(), &mut len, null_mut(), 0) };
        Self(at.cast())
    }

    /// Adds `bytes`. Returns false if jemalloc must do so.
    #[inline]
    fn add(&self, bytes: usize) -> bool {
        // SAFETY: null, or two words of jemalloc for the calling thread, valid until it exits.
        let Some([count, limit]) = (unsafe { self.0.as_mut() }) else {
            return true;
        };
        let sum = *count + bytes as u64;
        // A limit of 0 means that jemalloc checks the counter in each of its calls, as in a thread
        // that only frees.
        if sum >= *limit && *limit != 0 {
            return false;
        }
        *count = sum;
        true
    }

    /// Calls `work`, which calls jemalloc, and makes the counter grow by `bytes` instead of by what
    /// jemalloc counts.
    fn count_instead<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        let counter: *mut u64 = self.0.cast();
        if counter.is_null() {
            return work();
        }
        // SAFETY: words of jemalloc for the calling thread. No reference is held while jemalloc
        // changes them.
        unsafe {
            let before = *counter;
            let result = work();
            *counter = before + bytes as u64;
            result
        }
    }
}

/// Free lists of one thread, one for each size.
pub struct FreeLists {
    flags: Flags,
    /// Number of bytes that still fit into the lists. Negative after batches of other threads were
    /// taken.
    room: isize,
    /// True if jemalloc's cache has not been used since it was last flushed.
    is_flushed: bool,
    allocated: ByteCounter,
    deallocated: ByteCounter,
    /// Block that was freed last, for each size.
    heads: [*mut FreeBlock; BINS],
    /// Number of blocks, for each size.
    counts: [u16; BINS],
}

impl FreeLists {
    /// Creates empty lists in front of a new cache of jemalloc, for the calling thread.
    #[cold]
    #[inline(never)]
    pub fn new() -> Self {
        Self {
            flags: Flags::with_new_cache(),
            room: MAX_BYTES as isize,
            is_flushed: false,
            allocated: ByteCounter::new(c"thread.allocatedp"),
            deallocated: ByteCounter::new(c"thread.deallocatedp"),
            heads: [null_mut(); BINS],
            counts: [0; BINS],
        }
    }

    /// Takes a batch that another thread has passed on. Returns false if there is none.
    #[cold]
    fn take_batch(&mut self, bin: usize) -> bool {
        let Self { heads, counts, .. } = self;
        let count = TRANSFERS[bin].take(|block| {
            let block: *mut FreeBlock = block.cast();
            // SAFETY: a free block of at least 16 bytes that `pass_on` stored, and that now is this
            // thread's.
            unsafe { (*block).next = heads[bin] };
            heads[bin] = block;
        });
        counts[bin] += count as u16;
        self.room -= (count * (bin + 1) * STEP) as isize;
        count > 0
    }

    /// Returns true if there is room for a block. If necessary, makes room by passing a batch on.
    #[inline]
    fn has_room(&mut self, bin: usize) -> bool {
        let size = ((bin + 1) * STEP) as isize;
        if self.room < size && self.counts[bin] > 0 {
            self.pass_on(bin);
        }
        self.room >= size
    }

    /// Passes a batch on to threads that need blocks.
    #[cold]
    fn pass_on(&mut self, bin: usize) {
        let size = (bin + 1) * STEP;
        let count = batch_blocks(size).min(usize::from(self.counts[bin]));
        let Self { heads, counts, .. } = self;
        let is_stored = TRANSFERS[bin].put(count, || {
            let block = heads[bin];
            // SAFETY: the list has at least `count` blocks.
            heads[bin] = unsafe { (*block).next };
            block.cast()
        });
        if is_stored {
            counts[bin] -= count as u16;
            self.room += (count * size) as isize;
        }
    }

    /// Allocates memory in the range for an object.
    ///
    /// # Safety
    /// There is a range ([`super::is_ready`]), and `align` is a power of two.
    #[inline]
    pub unsafe fn alloc(
        &mut self,
        layout: Layout,
        align: usize,
    ) -> Result<NonNull<u8>, OutsideRange> {
        let Layout { offset, usable } = layout;
        let size = (usable + offset).next_multiple_of(STEP);
        let bin = size / STEP - 1;
        if align <= STEP
            && bin < BINS
            && (!self.heads[bin].is_null() || self.take_batch(bin))
            && let Some(first) = NonNull::new(self.heads[bin])
            && self.allocated.add(usable)
        {
            let block = first.as_ptr();
            // SAFETY: `free` put the block into this list: it has the list's size, and nobody else
            // uses it.
            let next = unsafe { (*block).next };
            // The next object's header will be written to the next block, whose link is read first.
            arch::prefetch(next);
            self.heads[bin] = next;
            self.counts[bin] -= 1;
            self.room += size as isize;
            return Ok(first.cast());
        }
        self.is_flushed = false;
        self.allocated.count_instead(usable, || {
            // SAFETY: there is a range, and the size is not 0.
            unsafe { super::alloc(size, align, false, self.flags) }
        })
    }

    /// Like [`alloc`](Self::alloc), for a large object that has grown and may grow again.
    ///
    /// # Safety
    /// See [`alloc`](Self::alloc). In addition, the layout has at least [`MIN_BYTES`] usable bytes.
    ///
    /// [`MIN_BYTES`]: crate::backend::growth::MIN_BYTES
    #[cold]
    pub unsafe fn alloc_with_room(
        &mut self,
        layout: Layout,
        align: usize,
    ) -> Result<NonNull<u8>, OutsideRange> {
        let Layout { offset, usable } = layout;
        self.is_flushed = false;
        self.allocated.count_instead(usable, || {
            // SAFETY: there is a range, and the size is at least `MIN_BYTES`.
            unsafe { super::alloc_with_room(usable + offset, align, self.flags) }
        })
    }

    /// Frees memory that any thread has allocated, or last resized, for an object of this layout.
    ///
    /// # Safety
    /// [`alloc`](Self::alloc) or [`super::alloc`] returned `base`, which nobody uses any more.
    #[inline]
    pub unsafe fn free(&mut self, base: *mut u8, layout: Layout) {
        let Layout { offset, usable } = layout;
        let size = (usable + offset).next_multiple_of(STEP);
        let bin = size / STEP - 1;
        if bin < BINS && self.has_room(bin) && self.deallocated.add(usable) {
            let block: *mut FreeBlock = base.cast();
            // SAFETY: at least 16 bytes of memory, which nobody else uses.
            unsafe { (*block).next = self.heads[bin] };
            self.heads[bin] = block;
            self.room -= size as isize;
            self.counts[bin] += 1;
            let count = self.counts[bin];
            if count.is_multiple_of(PASS_EVERY) && usize::from(count) >= batch_blocks(size) * 3 / 2
            {
                self.pass_on(bin);
            }
            return;
        }
        self.is_flushed = false;
        self.deallocated.count_instead(usable, || {
            // SAFETY: memory of the range that nobody uses any more.
            unsafe { super::free(base, self.flags) }
        });
    }

    /// Frees an object's memory without keeping it for reuse. Also empties the lists and jemalloc's
    /// cache.
    ///
    /// # Safety
    /// See [`free`](Self::free).
    #[cold]
    pub unsafe fn free_and_flush(&mut self, base: *mut u8, layout: Layout) {
        if self.room != MAX_BYTES as isize || !self.is_flushed {
            self.empty();
            self.flags.flush_cache();
            self.is_flushed = true;
        }
        // SAFETY: memory of the range that nobody uses any more.
        self.deallocated.count_instead(layout.usable, || unsafe {
            super::free(base, Flags::uncached());
        });
    }

    /// Frees the blocks of all lists.
    fn empty(&mut self) {
        let Self {
            flags,
            heads,
            deallocated,
            ..
        } = self;
        deallocated.count_instead(0, || {
            for head in heads {
                while !head.is_null() {
                    let block = *head;
                    // SAFETY: `free` put the block into this list.
                    unsafe {
                        *head = (*block).next;
                        super::free(block.cast(), *flags);
                    }
                }
            }
        });
        self.room = MAX_BYTES as isize;
        self.counts = [0; BINS];
    }

    /// Frees all blocks and jemalloc's cache.
    #[cold]
    pub fn clear(&mut self) {
        self.empty();
        self.flags.destroy_cache();
    }
}

#[cfg(test)]
mod tests;
