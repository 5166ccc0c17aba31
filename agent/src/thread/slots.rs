//! Where threads' memory is: slots in a few reservations.
//!
//! A process may have 65,530 mappings (`vm.max_map_count`), of which each of its threads takes two for
//! its stack. So threads' memory is no mapping each: address space is reserved for many of them at once,
//! as much again as there is, and slots are opened from the start of a reservation on. The opened ones
//! are one mapping, the others another.

use crate::{seccomp, sys};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Maximum number of reservations: 32,320 slots.
const RESERVATIONS: usize = 512;
/// Base-2 logarithm of the number of slots in a large reservation.
const LARGE_LOG: usize = 6;
/// Granularity of slots: no machine has larger pages.
const PAGE: usize = 64 << 10;

/// Address space for a number of slots.
struct Reservation {
    /// Null: none yet.
    start: AtomicPtr<u8>,
    /// Bits of slots that nobody uses.
    free: AtomicU64,
    /// Bits of slots that may be written.
    open: AtomicU64,
}

static ALL: [Reservation; RESERVATIONS] = [const {
    Reservation {
        start: AtomicPtr::new(null_mut()),
        free: AtomicU64::new(0),
        open: AtomicU64::new(0),
    }
}; RESERVATIONS];

/// Bytes that are reserved.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A slot that the caller has taken.
#[derive(Clone, Copy)]
pub struct Slot {
    reservation: u16,
    index: u8,
}

/// Takes a slot of so many bytes, always the same number, and returns its address. Nothing more is reserved
/// than `most` bytes, except for the first slot. `None`: there is no memory, or all slots are taken.
/// Changes `errno`.
pub fn take(bytes: usize, most: usize) -> Option<(Slot, *mut c_void)> {
    let bytes = bytes.next_multiple_of(PAGE);
    for (number, reservation) in ALL.iter().enumerate() {
        let is_new = reservation.start.load(Ordering::Acquire).is_null();
        if is_new && !reserve(number, bytes, most) {
            return None;
        }
        if let Some(index) = reservation.claim() {
            let slot = Slot {
                reservation: number as u16,
                index,
            };
            let Some(at) = reservation.open(index, bytes) else {
                slot.release();
                return None;
            };
            return Some((slot, at));
        }
    }
    None
}

/// Gives a slot back, with its memory at `at`.
///
/// # Safety
/// The slot that [`take`] returned with that address and number of bytes. Nobody uses it.
pub unsafe fn give_back(slot: Slot, at: *mut c_void, bytes: usize) {
    // Memory that the program has locked stays.
    if !seccomp::is_installed() {
        // SAFETY: the caller's: private memory without contents that anybody needs.
        unsafe { libc::madvise(at, bytes.next_multiple_of(PAGE), libc::MADV_DONTNEED) };
    }
    slot.release();
}

impl Slot {
    fn release(self) {
        let reservation = &ALL[usize::from(self.reservation)];
        reservation
            .free
            .fetch_or(1 << self.index, Ordering::Release);
    }
}

impl Reservation {
    /// The first free slot.
    fn claim(&self) -> Option<u8> {
        let mut free = self.free.load(Ordering::Relaxed);
        while free != 0 {
            let index = free.trailing_zeros();
            let before = self.free.fetch_and(!(1 << index), Ordering::Acquire);
            if before >> index & 1 == 1 {
                return Some(index as u8);
            }
            free = before & !(1 << index);
        }
        None
    }

    /// Makes a slot's memory writable; its address.
    fn open(&self, index: u8, bytes: usize) -> Option<*mut c_void> {
        let offset = usize::from(index) * bytes;
        let at = self
            .start
            .load(Ordering::Acquire)
            .wrapping_add(offset)
            .cast();
        if self.open.load(Ordering::Relaxed) >> index & 1 == 0 {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a slot of ours, which the caller has claimed.
            if unsafe { libc::mprotect(at, bytes, access) } != 0 {
                return None;
            }
            self.open.fetch_or(1 << index, Ordering::Relaxed);
        }
        Some(at)
    }
}

/// Number of slots of a reservation: of each of the first ones as many as all before have, and one at least.
fn count(number: usize) -> usize {
    1 << number.saturating_sub(1).min(LARGE_LOG)
}

/// Makes a reservation, unless another thread makes it. Whether there is one now.
#[cold]
fn reserve(number: usize, bytes: usize, most: usize) -> bool {
    let mut slots = 0;
    let more = |taken: usize| {
        let left = most.saturating_sub(taken) / bytes;
        slots = count(number).min(left.max(usize::from(taken == 0)));
        (slots != 0).then_some(taken + slots * bytes)
    };
    let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    if taken.is_err() {
        return false;
    }
    let start = sys::map_unlocked(null_mut(), slots * bytes, libc::PROT_NONE);
    let reservation = &ALL[number];
    let place = &reservation.start;
    let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
    let is_made = !start.is_null()
        && place
            .compare_exchange(null_mut(), start.cast(), order, failed)
            .is_ok();
    if is_made {
        // A thread touches a few pages of its slot: no huge ones.
        if !seccomp::is_installed() {
            // SAFETY: a mapping of ours, of which only the kind of pages changes.
            unsafe { libc::madvise(start, slots * bytes, libc::MADV_NOHUGEPAGE) };
        }
        let all = u64::MAX >> (u64::BITS as usize - slots);
        reservation.free.fetch_or(all, Ordering::Release);
        return true;
    }
    TAKEN.fetch_sub(slots * bytes, Ordering::Relaxed);
    if !start.is_null() {
        // SAFETY: the mapping made above, which nobody knows.
        unsafe { libc::munmap(start, slots * bytes) };
    }
    !start.is_null()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn slots_are_distinct_few_mappings_and_used_again() {
        const BYTES: usize = 100_000;
        let take = || take(BYTES, usize::MAX).expect("a slot");
        let all: std::vec::Vec<_> = (0..1000).map(|_| take()).collect();
        let places: BTreeSet<_> = all.iter().map(|(_, at)| at.addr()).collect();
        assert_eq!(places.len(), all.len());
        let step = BYTES.next_multiple_of(PAGE);
        let gaps = places.iter().zip(places.iter().skip(1));
        assert!(gaps.clone().all(|(at, next)| next - at >= step));
        let apart = gaps.filter(|(at, next)| *next - *at > step).count();
        assert!(apart < 30, "{apart} reservations");
        for (_, at) in &all {
            // SAFETY: a slot of this size, which is this test's.
            unsafe { at.cast::<u8>().write_bytes(7, BYTES) };
        }
        let (slot, at) = all[500];
        // SAFETY: as it was taken.
        unsafe { give_back(slot, at, BYTES) };
        let (_, again) = take();
        assert_eq!(again, at);
        // SAFETY: the slot is this test's.
        assert_eq!(unsafe { again.cast::<u8>().read() }, 0);
    }
}
