//! `prctl` and `syscall`, through which programs install seccomp filters.
//!
//! Both make the system call with the caller's arguments, as the C library's do, and note a
//! filter beforehand: see [`crate::seccomp`]. They may be called before this library's
//! constructor has run, so they need nothing of the C library but `errno`.

use crate::arch::{noting_prctl, noting_syscall};
use crate::seccomp::note_installation;
use core::arch::naked_asm;
use core::ffi::{c_int, c_long};

/// `PR_SET_SECCOMP` of linux/prctl.h.
const PR_SET_SECCOMP: usize = 22;

noting_prctl! {
    /// prctl(2).
    prctl, PR_SET_SECCOMP, note_installation, fail
}

noting_syscall! {
    /// syscall(2).
    syscall, PR_SET_SECCOMP, note_installation, fail
}

/// The C library's way to fail: `errno` is the negated result.
extern "C" fn fail(result: c_long) -> c_long {
    crate::sys::set_errno(-result as c_int);
    -1
}
