//! The page that tells copies of the process apart, however they were made: the kernel empties it
//! in every copy.

use super::{LIFE, OWN};
use crate::sys::{self, PAGE};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The page that the kernel empties in every copy; null on kernels before 4.14, where only
/// `fork` itself tells.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// Values of the page, besides [`WIPED`].
const OURS: u32 = 1;
const LEAVING: u32 = 2;
const WIPED: u32 = 0;

/// Makes the mark. At start-up.
pub fn start() {
    let page = sys::map_private(PAGE);
    if page.is_null() {
        return;
    }
    // SAFETY: the page just mapped, which nobody else knows.
    if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } == 0 {
        let mark: *mut AtomicU32 = page.cast();
        MARK.store(mark, Ordering::Relaxed);
    }
}

/// The page that tells copies apart.
pub fn page() -> Option<*mut c_void> {
    let mark = MARK.load(Ordering::Relaxed);
    (!mark.is_null()).then(|| mark.cast())
}

fn mark() -> Option<&'static AtomicU32> {
    // SAFETY: null, or the page that `start` mapped and nobody unmaps.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }
}

/// Whether this process is a copy that has yet to leave its parent's segment. Three loads.
/// Copies of a child that waits share nothing with it.
#[inline]
pub fn is_copy() -> bool {
    LIFE.load(Ordering::Acquire) == OWN
        && mark().is_some_and(|mark| mark.load(Ordering::Relaxed) != OURS)
}

/// Marks this process as the one that the segment in view is of.
pub(super) fn sign() {
    if let Some(mark) = mark() {
        mark.store(OURS, Ordering::Release);
    }
}

/// Lets one thread of a copy that `fork`'s handlers did not see take it out of its parent's
/// segment; whether the calling thread is that one.
pub fn claim_leaving() -> bool {
    mark().is_some_and(|mark| {
        let taken = mark.compare_exchange(WIPED, LEAVING, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    })
}
