//! The processor's cycle counter, where the process may read it: a program that forbids this to
//! itself with `prctl(PR_SET_TSC)` (`prctl` is one of our entry points) is killed by the
//! instruction. One that inherits the restriction does not get as far as our code: the C library's
//! loader reads the counter.

use crate::arch;
use core::sync::atomic::{AtomicBool, Ordering};

static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Notes that the counter must not be read any more.
#[cold]
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Cycles at a constant rate; `None` where they may not be read.
#[inline]
pub fn read() -> Option<u64> {
    (!FORBIDDEN.load(Ordering::Relaxed)).then(arch::cycles)
}
