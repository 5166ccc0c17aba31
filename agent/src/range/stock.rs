//! A thread's stock of small pieces of the range, before jemalloc's own thread cache.
//!
//! A call of jemalloc that names arena and cache costs some 120 instructions, as both are
//! looked up by number; this costs ten. Pieces come back in the order last in, first out,
//! so that the memory is likely in the processor's cache. They are chained through their
//! first word, where a live piece has its header.
//!
//! Limits: pieces of up to 512 bytes, [`ROOM`] bytes a thread, given back when the thread
//! ends.

use super::Flags;
use core::ptr::null_mut;

/// Sizes are multiples of this.
const STEP: usize = 16;
/// How many sizes: pieces of up to 512 bytes, header included.
const BINS: usize = 32;
/// Most bytes that wait in a stock.
const ROOM: usize = 128 << 10;

struct Piece {
    next: *mut Piece,
}

/// See above.
pub struct Stock {
    flags: Flags,
    /// How many more bytes may come in.
    room: usize,
    /// Of each size, the last piece that came in.
    heads: [*mut Piece; BINS],
}

impl Stock {
    /// An empty one over a new cache of jemalloc's.
    #[cold]
    #[inline(never)]
    pub fn new() -> Self {
        Self {
            flags: Flags::with_new_cache(),
            room: ROOM,
            heads: [null_mut(); BINS],
        }
    }

    /// Memory in the range, or null when it is exhausted. `size` counts the header.
    ///
    /// # Safety
    /// [`super::ready`] was true; `size` is not 0 and `align` a power of two.
    #[inline]
    pub unsafe fn alloc(&mut self, size: usize, align: usize, zero: bool) -> *mut u8 {
        if align > STEP {
            // SAFETY: the caller's.
            return unsafe { super::alloc(size, align, zero, self.flags) };
        }
        let size = size.next_multiple_of(STEP);
        let waiting = self.heads.get_mut(size / STEP - 1);
        let Some(head) = waiting.filter(|head| !head.is_null()) else {
            // SAFETY: the caller's.
            return unsafe { super::alloc(size, align, zero, self.flags) };
        };
        let piece = *head;
        // SAFETY: pieces of a size are ours, at least as large as that, and were chained
        // by `free`.
        unsafe {
            *head = (*piece).next;
            self.room += size;
            if zero {
                piece.cast::<u8>().write_bytes(0, size);
            }
        }
        piece.cast()
    }

    /// Takes memory back that was allocated, or last resized, with this `size` and aligned
    /// as objects are, in whatever thread.
    ///
    /// # Safety
    /// `base` came from [`alloc`](Self::alloc) or [`super::alloc`] and is not used again.
    #[inline]
    pub unsafe fn free(&mut self, base: *mut u8, size: usize) {
        let size = size.next_multiple_of(STEP);
        match self.heads.get_mut(size / STEP - 1) {
            Some(head) if self.room >= size => {
                let piece: *mut Piece = base.cast();
                // SAFETY: the caller's memory, 16 bytes at least, and nobody else's now.
                unsafe { (*piece).next = *head };
                *head = piece;
                self.room -= size;
            }
            // SAFETY: the caller's.
            _ => unsafe { super::free(base, self.flags) },
        }
    }

    /// Gives everything back.
    #[cold]
    pub fn clear(&mut self) {
        for head in &mut self.heads {
            while !head.is_null() {
                let piece = *head;
                // SAFETY: chained by `free`, which was given it.
                unsafe {
                    *head = (*piece).next;
                    super::free(piece.cast(), self.flags);
                }
            }
        }
        self.room = ROOM;
        self.flags.destroy_cache();
    }
}
