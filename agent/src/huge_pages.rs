//! Keeps mappings from getting transparent huge pages.

use crate::backend::jemalloc::HUGE_PAGE_MODE;
use crate::{seccomp, sys};
use core::ffi::c_void;
use core::sync::atomic::Ordering;

/// jemalloc's `system_thp_mode_always`.
const ALWAYS: u32 = 1;

/// Minimum size of mappings that may get huge pages if the system gives them to every mapping, in
/// bytes. The more jemalloc has mapped, the larger its mappings are: 16 MiB at some 80 MiB, to
/// which one partly used huge page adds little.
const LARGE_BYTES: usize = 16 << 20;

/// [Excludes](exclude) a mapping of jemalloc from huge pages, unless it is large.
pub fn exclude_unless_large(at: *mut c_void, bytes: usize) {
    if bytes < LARGE_BYTES {
        exclude(at, bytes);
    }
}

/// Excludes a mapping from huge pages if the system gives them to every mapping: the first write
/// would make 2 MiB resident. Does nothing in other modes, or if a seccomp filter is installed. A
/// failure is ignored. Keeps `errno`.
pub fn exclude(at: *mut c_void, bytes: usize) {
    // SAFETY: an `int` of jemalloc, written while the process has one thread.
    if unsafe { &HUGE_PAGE_MODE }.load(Ordering::Relaxed) != ALWAYS || seccomp::is_installed() {
        return;
    }
    let saved = sys::errno();
    // SAFETY: this advice changes only the kind of pages, never contents; the kernel refuses
    // addresses that are not mapped.
    unsafe {
        sys::syscall(
            libc::SYS_madvise,
            at,
            bytes,
            libc::MADV_NOHUGEPAGE as core::ffi::c_long,
        )
    };
    sys::set_errno(saved);
}
