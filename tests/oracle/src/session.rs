//! Begin and end of comparisons.

use crate::report;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static RUNNING: AtomicBool = AtomicBool::new(false);
static COMPARE_EVERY: AtomicU32 = AtomicU32::new(1);

/// Returns true if allocations are to be compared now.
pub fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed)
}

/// Returns the mean number of allocations between comparisons.
pub fn every() -> u32 {
    COMPARE_EVERY.load(Ordering::Relaxed)
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if std::env::var_os(report::OUT).is_none() {
        return;
    }
    let every = std::env::var("UNWIND_ORACLE_EVERY").map(|text| text.parse());
    COMPARE_EVERY.store(
        every.unwrap_or(Ok(1)).unwrap_or(1u32).max(1),
        Ordering::Relaxed,
    );
    // SAFETY: functions that live as long as the process.
    unsafe {
        libc::atexit(finish);
        libc::pthread_atfork(None, None, Some(stop));
    }
    RUNNING.store(true, Ordering::Relaxed);
}

extern "C" fn finish() {
    if RUNNING.swap(false, Ordering::Relaxed) {
        report::write();
    }
}

/// Stops comparing in the child of a fork: its locks may be held by threads that it lacks.
unsafe extern "C" fn stop() {
    RUNNING.store(false, Ordering::Relaxed);
}
