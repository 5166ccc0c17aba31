//! Where the totals of a session's CPU time are counted.

use crate::{session, sys, timers};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use shm_protocol::cpu::CpuTotals;

/// What the session counts.
static TOTALS: AtomicPtr<CpuTotals> = AtomicPtr::new(null_mut());

/// From now on these are counted in.
pub fn set(totals: &'static CpuTotals) {
    TOTALS.store((&raw const *totals).cast_mut(), Ordering::Release);
}

/// Those of the last session that there was.
pub fn get() -> Option<&'static CpuTotals> {
    // SAFETY: null, or a bank's, whose mapping stays as long as this process does; a child forgets
    // it before its own session.
    unsafe { TOTALS.load(Ordering::Acquire).as_ref() }
}

/// Notes what the process has used so far. A process that is reaped has no clock any more, and
/// its parent may be faster than the controller. When a thread or the process ends. Nothing in a
/// process that shares its parent's memory, or has a copy of it that it has not left: its clock is
/// another one.
pub fn note_clock() {
    if timers::session() == 0 {
        return;
    }
    let saved = sys::errno();
    if let Some(totals) = get().filter(|_| session::is_owners()) {
        let now = timers::process_clock();
        totals.process_ns.fetch_max(now, Ordering::Relaxed);
    }
    sys::set_errno(saved);
}
