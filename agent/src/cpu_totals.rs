//! Totals of CPU time in the bank of the current session.

use crate::{session, sys, timers};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use shm_protocol::cpu::CpuTotals;

/// Totals of the last session that sampled CPU time; null before the first.
static TOTALS: AtomicPtr<CpuTotals> = AtomicPtr::new(null_mut());

/// Sets the totals of a new session.
pub fn set(totals: &'static CpuTotals) {
    TOTALS.store((&raw const *totals).cast_mut(), Ordering::Release);
}

/// Returns the totals of the last session that sampled CPU time.
pub fn get() -> Option<&'static CpuTotals> {
    // SAFETY: null, or in a bank whose mapping stays as long as this process. A forked child
    // forgets them before its own session.
    unsafe { TOTALS.load(Ordering::Acquire).as_ref() }
}

/// Records the CPU time of the process so far, when a thread or the process exits. A process that
/// was reaped has no clock any more, and its parent may reap it before the controller reads the
/// clock. Does nothing in a process that shares its parent's memory or still uses its parent's
/// segment: its clock is not the session's.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn record_clock() {
    if timers::session() != 0 {
        record_clock_of_session();
    }
}

#[cold]
fn record_clock_of_session() {
    let saved = sys::errno();
    if session::is_owner()
        && let Some(totals) = get()
    {
        let now = timers::process_clock();
        totals.process_ns.fetch_max(now, Ordering::Relaxed);
    }
    sys::set_errno(saved);
}
