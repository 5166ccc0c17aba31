//! The page that distinguishes copies of the process, however they were made: the kernel empties it
//! in every copy.

use super::LIFE;
use crate::own;
use crate::sys::PAGE;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use shm_protocol::owner::Mark;

/// The page that the kernel empties in every copy; null on kernels before 4.14, where only
/// `fork` itself shows.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static MARK: AtomicPtr<Mark> = AtomicPtr::new(null_mut());

/// Makes the mark. At start-up.
pub fn start() {
    let page = own::map(PAGE);
    if page.is_null() {
        return;
    }
    // SAFETY: the page just mapped, which nobody else knows.
    if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } == 0 {
        let mark: *mut Mark = page.cast();
        MARK.store(mark, Ordering::Relaxed);
    }
}

/// The page that distinguishes copies.
pub fn page() -> Option<*mut c_void> {
    let mark = MARK.load(Ordering::Relaxed);
    (!mark.is_null()).then(|| mark.cast())
}

/// The word in it.
#[inline]
pub(super) fn mark() -> Option<&'static Mark> {
    // SAFETY: null, or the page that `start` mapped and nobody unmaps; any bytes are a mark.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }
}

/// Whether this process is a copy that has yet to leave its parent's segment.
#[inline]
pub fn is_copy() -> bool {
    LIFE.is_copy(mark)
}

/// Makes one thread of a copy that `fork`'s handlers did not see take it out of its parent's
/// segment; whether the calling thread is that one.
pub fn claim_leaving() -> bool {
    LIFE.claim_leaving(mark())
}
