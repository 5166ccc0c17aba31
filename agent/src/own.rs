//! List of the memory that the agent maps for itself. A leak check from outside does not search
//! this memory for pointers: the agent's tables are full of numbers that look like addresses of
//! objects. Reports on resident memory distinguish it from the program's mappings.

use crate::sys;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use shm_protocol::layout::OwnMapping;

/// Maximum number of listed mappings. Further ones are searched like the program's.
pub const CAPACITY: usize = 64;

static LIST: [OwnMapping; CAPACITY] = [const {
    OwnMapping {
        start: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    }
}; CAPACITY];

/// Returns the address of the list.
pub fn list_address() -> *const OwnMapping {
    LIST.as_ptr()
}

/// Maps private memory like [`sys::map_unlocked`], and lists it. Returns null if that fails.
pub fn map(bytes: usize) -> *mut c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let at = sys::map_unlocked(null_mut(), bytes, access);
    if !at.is_null() {
        add_to_list(at, bytes);
    }
    at
}

/// Lists a mapping that is never unmapped, or is unmapped by [`unmap`].
pub fn add_to_list(at: *mut c_void, bytes: usize) {
    let start = at.addr() as u64;
    let free = LIST.iter().find(|entry| {
        entry
            .start
            .compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    });
    if let Some(entry) = free {
        entry.bytes.store(bytes as u64, Ordering::Relaxed);
    }
}

/// Unmaps memory that [`map`] returned, and removes it from the list.
///
/// # Safety
/// Nobody uses the mapping any more, and `bytes` is its size.
pub unsafe fn unmap(at: *mut c_void, bytes: usize) {
    let start = at.addr() as u64;
    let is_same = |entry: &&OwnMapping| entry.start.load(Ordering::Relaxed) == start;
    if let Some(entry) = LIST.iter().find(is_same) {
        entry.bytes.store(0, Ordering::Relaxed);
        entry.start.store(0, Ordering::Relaxed);
    }
    // SAFETY: a mapping of this size that nobody uses.
    unsafe { libc::munmap(at, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(at: *mut c_void) -> Option<u64> {
        let start = at.addr() as u64;
        let entry = LIST
            .iter()
            .find(|e| e.start.load(Ordering::Relaxed) == start)?;
        Some(entry.bytes.load(Ordering::Relaxed))
    }

    /// One test, because all tests share the list.
    #[test]
    fn mappings_are_listed_while_entries_are_free() {
        let first = map(5000);
        let second = map(100_000);
        assert_eq!((listed(first), listed(second)), (Some(5000), Some(100_000)));
        // SAFETY: mapped above, and used by nobody.
        unsafe { unmap(first, 5000) };
        assert_eq!((listed(first), listed(second)), (None, Some(100_000)));
        let more: std::vec::Vec<_> = (0..CAPACITY + 3).map(|_| map(4096)).collect();
        assert!(more.iter().all(|at| !at.is_null()));
        assert!(more.iter().any(|at| listed(*at).is_none()));
        for at in more {
            // SAFETY: mapped above, and used by nobody.
            unsafe { unmap(at, 4096) };
            assert_eq!(listed(at), None);
        }
        // SAFETY: mapped above, and used by nobody.
        unsafe { unmap(second, 100_000) };
        assert_eq!(listed(second), None);
    }
}
