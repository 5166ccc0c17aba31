//! Transparent huge pages.

use crate::{seccomp, sys};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

/// jemalloc's `system_thp_mode_always`.
const ALWAYS: u32 = 1;

unsafe extern "C" {
    /// Mode of transparent huge pages, which jemalloc reads from the system before it maps memory.
    #[link_name = "_rjem_je_init_system_thp_mode"]
    static MODE: AtomicU32;
}

/// Excludes memory from huge pages where the system gives them to every mapping: the first byte
/// written would make 2 MiB resident. In other modes, nothing is to be done. A mapping that is
/// refused stays as it is, and no call is made once a seccomp filter is installed. Keeps `errno`.
pub fn exclude(at: *mut c_void, bytes: usize) {
    // SAFETY: jemalloc's, an `int` written while the process has one thread.
    if unsafe { &MODE }.load(Ordering::Relaxed) != ALWAYS || seccomp::is_installed() {
        return;
    }
    let saved = sys::errno();
    // SAFETY: the caller's mapping, of which only the kind of pages changes.
    unsafe {
        libc::syscall(
            libc::SYS_madvise,
            at,
            bytes,
            libc::MADV_NOHUGEPAGE as core::ffi::c_long,
        )
    };
    sys::set_errno(saved);
}
