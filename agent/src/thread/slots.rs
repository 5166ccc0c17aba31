//! Slots for per-thread memory, in a few large reservations.
//!
//! A process may have 65,530 mappings (`vm.max_map_count`), and each of its threads already takes
//! two for its stack. So threads do not get a mapping each: address space is reserved for many
//! threads at once (doubling the total each time), and slots are made accessible from the start of
//! a reservation on. The accessible slots form one mapping, the others a second one.

use crate::{own, seccomp, sys};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Maximum number of reservations: 32,320 slots.
const RESERVATIONS: usize = 512;
/// log2 of the number of slots in a large reservation.
const LARGE_LOG: usize = 6;
/// Granularity of slots, in bytes: no machine has larger pages.
const PAGE: usize = 64 << 10;

/// Header of a reservation, in a page before its slots. Never unmapped.
struct Reservation {
    next: AtomicPtr<Reservation>,
    /// Bit set of the unused slots.
    free: AtomicU64,
}

/// First reservation; null before there is one.
static FIRST: AtomicPtr<Reservation> = AtomicPtr::new(null_mut());
/// Total size of all reservations in bytes.
static RESERVED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Slot that one thread has taken.
#[derive(Clone, Copy)]
pub struct Slot {
    reservation: &'static Reservation,
    index: u8,
}

/// Takes a slot of `bytes` bytes (the same number in all calls). Returns it with its address. At
/// most `max_bytes` are reserved in total, except that the first slot is always reserved. Returns
/// `None` if there is no memory, or if all slots are taken. Changes `errno`.
pub fn take(bytes: usize, max_bytes: usize) -> Option<(Slot, *mut c_void)> {
    let bytes = bytes.next_multiple_of(PAGE);
    let mut next = &FIRST;
    for number in 0..RESERVATIONS {
        // SAFETY: null, or the header of a reservation, which is never unmapped.
        let existing = unsafe { next.load(Ordering::Acquire).as_ref() };
        let reservation = match existing {
            Some(reservation) => reservation,
            None => reserve(next, number, bytes, max_bytes)?,
        };
        if let Some(index) = reservation.claim() {
            let slot = Slot { reservation, index };
            let offset = PAGE + usize::from(index) * bytes;
            let start = (&raw const *reservation).cast::<u8>().cast_mut();
            let at = start.wrapping_add(offset).cast();
            // SAFETY: the slot that this thread has just claimed.
            if !unsafe { allow_writing(at, bytes) } {
                slot.release();
                return None;
            }
            return Some((slot, at));
        }
        next = &reservation.next;
    }
    None
}

/// Releases a slot and its memory at `at`.
///
/// # Safety
/// [`take`] returned the slot with this address for this number of bytes, and nobody uses it any
/// more.
pub unsafe fn give_back(slot: Slot, at: *mut c_void, bytes: usize) {
    // If the program has locked its memory, the pages stay resident.
    if !seccomp::is_installed() {
        // SAFETY: private memory of the slot, whose contents nobody needs any more.
        unsafe { libc::madvise(at, bytes.next_multiple_of(PAGE), libc::MADV_DONTNEED) };
    }
    slot.release();
}

/// Makes pages of a reservation writable.
///
/// # Safety
/// The pages belong to a reservation, and no other thread uses them yet.
unsafe fn allow_writing(at: *mut c_void, bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: pages of ours that no other thread uses yet.
    unsafe { libc::mprotect(at, bytes, access) == 0 }
}

impl Slot {
    fn release(self) {
        let free = &self.reservation.free;
        free.fetch_or(1 << self.index, Ordering::Release);
    }
}

impl Reservation {
    /// Takes the first unused slot.
    fn claim(&self) -> Option<u8> {
        let mut free = self.free.load(Ordering::Relaxed);
        while free != 0 {
            let index = free.trailing_zeros();
            let before = self.free.fetch_and(!(1 << index), Ordering::Acquire);
            if (before >> index) & 1 == 1 {
                return Some(index as u8);
            }
            free = before & !(1 << index);
        }
        None
    }
}

/// Returns the number of slots in a reservation. The first reservations double the total number of
/// slots each. Later ones have a fixed size.
fn slot_count(number: usize) -> usize {
    1 << number.saturating_sub(1).min(LARGE_LOG)
}

/// Makes a reservation, unless another thread does so first. Returns `None` if there is no memory.
#[cold]
fn reserve(
    next: &AtomicPtr<Reservation>,
    number: usize,
    bytes: usize,
    max_bytes: usize,
) -> Option<&'static Reservation> {
    let mut slots = 0;
    let add_reservation = |reserved: usize| {
        let left = max_bytes.saturating_sub(reserved + PAGE) / bytes;
        slots = slot_count(number).min(left.max(usize::from(reserved == 0)));
        (slots != 0).then_some(reserved + PAGE + slots * bytes)
    };
    RESERVED_BYTES
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, add_reservation)
        .ok()?;
    let size = PAGE + slots * bytes;
    let start = sys::map_unlocked(null_mut(), size, libc::PROT_NONE);
    let give_up = || {
        RESERVED_BYTES.fetch_sub(size, Ordering::Relaxed);
        if !start.is_null() {
            // SAFETY: mapped above, and no other thread has its address.
            unsafe { libc::munmap(start, size) };
        }
    };
    // SAFETY: the header of the new reservation, whose address no other thread has.
    if start.is_null() || !unsafe { allow_writing(start, PAGE) } {
        give_up();
        return None;
    }
    if !seccomp::is_installed() {
        // No huge pages: a thread touches a few pages of its slot.
        // SAFETY: mapped above; only the kind of its pages changes.
        unsafe { libc::madvise(start, size, libc::MADV_NOHUGEPAGE) };
    }
    let new: *mut Reservation = start.cast();
    // SAFETY: a writable page that no other thread uses yet.
    unsafe {
        new.write(Reservation {
            next: AtomicPtr::new(null_mut()),
            free: AtomicU64::new(u64::MAX >> (u64::BITS as usize - slots)),
        });
    }
    let found = match next.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            own::add_to_list(start, size);
            new
        }
        Err(others) => {
            give_up();
            others
        }
    };
    // SAFETY: the header of a reservation, which is never unmapped.
    unsafe { found.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn slots_are_distinct_and_reused_and_take_few_mappings() {
        const BYTES: usize = 100_000;
        let take = || take(BYTES, usize::MAX).expect("a slot");
        let all: std::vec::Vec<_> = (0..1000).map(|_| take()).collect();
        let addresses: BTreeSet<_> = all.iter().map(|(_, at)| at.addr()).collect();
        assert_eq!(addresses.len(), all.len());
        let step = BYTES.next_multiple_of(PAGE);
        let gaps = addresses.iter().zip(addresses.iter().skip(1));
        assert!(gaps.clone().all(|(at, next)| next - at >= step));
        let wide_gaps = gaps.filter(|(at, next)| *next - *at > step).count();
        assert!(wide_gaps < 30, "{wide_gaps} reservations");
        for (_, at) in &all {
            // SAFETY: a slot of this size, which is this test's.
            unsafe { at.cast::<u8>().write_bytes(7, BYTES) };
        }
        let (slot, at) = all[500];
        // SAFETY: the slot was taken with this address and size, and nobody uses it any more.
        unsafe { give_back(slot, at, BYTES) };
        let (_, again) = take();
        assert_eq!(again, at);
        // SAFETY: the slot is this test's.
        assert_eq!(unsafe { again.cast::<u8>().read() }, 0);
    }
}
