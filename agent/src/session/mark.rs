//! Page that the kernel clears in every copy of the process, so that a copy detects that it is one,
//! however it was made (`fork`, `clone`, a raw system call).

use super::SEGMENT_STATE;
use crate::own;
use crate::sys::PAGE;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use shm_protocol::owner::Mark;

/// Page with the mark; null before Linux 4.14, where only `fork` itself is detected.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static MARK: AtomicPtr<Mark> = AtomicPtr::new(null_mut());

/// Maps the page at start-up.
pub fn start() {
    let page = own::map(PAGE);
    if page.is_null() {
        return;
    }
    // SAFETY: just mapped, and nobody else has its address.
    if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } == 0 {
        let mark: *mut Mark = page.cast();
        MARK.store(mark, Ordering::Relaxed);
    }
}

/// Returns the page, or `None` if the kernel does not support it.
pub fn page() -> Option<*mut c_void> {
    let mark = MARK.load(Ordering::Relaxed);
    (!mark.is_null()).then(|| mark.cast())
}

/// Returns the mark in the page.
#[inline]
pub(super) fn mark() -> Option<&'static Mark> {
    // SAFETY: the pointer is null or that of a page that is never unmapped, in which any bytes are
    // a valid mark.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }
}

/// Returns true in a copy that has not left its parent's segment yet.
#[inline]
pub fn is_copy() -> bool {
    SEGMENT_STATE.is_copy(mark)
}

/// Claims the task of leaving the parent's segment, in a copy that was made without `fork`'s
/// handlers. Returns true for exactly one thread.
pub fn claim_leaving() -> bool {
    SEGMENT_STATE.claim_leaving(mark())
}
