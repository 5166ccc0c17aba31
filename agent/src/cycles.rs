//! Processor's cycle counter, if the process may read it.
//!
//! After `prctl(PR_SET_TSC, PR_TSC_SIGSEGV)`, reading the counter would kill the program; the
//! agent's `prctl` notices that call. A program that inherits the restriction does not get as far
//! as our code, because the C library's loader reads the counter.

use crate::arch;
use core::sync::atomic::{AtomicBool, Ordering};

/// True once the counter must not be read.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Records that the counter must not be read any more.
#[cold]
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Returns true if the counter must not be read.
#[inline]
pub fn is_forbidden() -> bool {
    FORBIDDEN.load(Ordering::Relaxed)
}

/// Returns the counter, which has a constant rate; `None` if it must not be read.
#[inline]
pub fn read() -> Option<u64> {
    (!is_forbidden()).then(arch::cycles)
}
