//! What the agent's readers find around them.

use shm_protocol::Bank;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A session: its number, and the bank that is written to.
pub struct Epoch {
    /// Its number.
    pub session: u64,
    /// Its bank.
    pub bank: Bank<'static>,
}

/// All of the part for code objects has memory.
pub fn reserve_codes(epoch: &Epoch, bytes: usize) -> bool {
    epoch.bank.codes.reserve(bytes);
    epoch.bank.codes.reserved() >= bytes
}

/// Runs what reads modules' memory: none of it goes.
pub fn reading<R>(work: impl FnOnce() -> R) -> Option<R> {
    Some(work())
}

/// New memory, zeroed.
pub fn map(bytes: usize) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is asked for, so nothing that is mapped is replaced.
    let at = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
    match at == libc::MAP_FAILED {
        true => null_mut(),
        false => at,
    }
}

/// Unmaps what [`map`] returned.
///
/// # Safety
/// Nobody uses it any more.
pub unsafe fn unmap(at: *mut c_void, bytes: usize) {
    // SAFETY: the caller's.
    unsafe { libc::munmap(at, bytes) };
}

/// Its memory stays mapped, as the embedded allocator's does.
pub fn is_system() -> bool {
    false
}
