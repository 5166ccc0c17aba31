//! glibc's heap statistics (`mallinfo` and so on), answered from our allocator. glibc's own heap is
//! empty, and programs that monitor themselves would see nothing.

use crate::arch::on_aligned_stack;
use crate::backend::{is_inactive, is_system};
use crate::stats::Usage;
use crate::sys::{self, Uncancelled};
use crate::{range, sample, stats};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;

/// `struct mallinfo2` of glibc's malloc.h. `struct mallinfo` has the same fields as `int`s. All
/// fields are bytes, except for the counts of blocks.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Info<T> {
    arena: T,
    ordblks: T,
    smblks: T,
    hblks: T,
    hblkhd: T,
    usmblks: T,
    fsmblks: T,
    uordblks: T,
    fordblks: T,
    keepcost: T,
}

on_aligned_stack! {
    /// glibc: malloc.h. `arena` is the memory that jemalloc has from the system, `uordblks` the
    /// part of it in use, `fordblks` the rest, and `keepcost` the part that `malloc_trim` would
    /// release. Large blocks are not counted separately.
    pub fn mallinfo2() -> Info<usize>, info
}

unsafe extern "C" fn info() -> Info<usize> {
    let next = system_function(c"mallinfo2").map_or_else(Info::default, |found| {
        // SAFETY: the C library's function of this type, by malloc.h.
        unsafe { transmute::<*mut c_void, extern "C" fn() -> Info<usize>>(found)() }
    });
    let own = our_usage();
    Info {
        arena: next.arena.saturating_add(own.resident),
        uordblks: next.uordblks.saturating_add(own.allocated),
        fordblks: next.fordblks.saturating_add(own.free()),
        keepcost: next.keepcost.saturating_add(own.dirty),
        ..next
    }
}

on_aligned_stack! {
    /// glibc: malloc.h. Like [`mallinfo2`], limited to the range of `int`.
    #[unsafe(no_mangle)]
    pub fn mallinfo() -> Info<c_int>, small_info
}

unsafe extern "C" fn small_info() -> Info<c_int> {
    let next = system_function(c"mallinfo").map_or_else(Info::default, |found| {
        // SAFETY: the C library's function of this type, by malloc.h.
        unsafe { transmute::<*mut c_void, extern "C" fn() -> Info<c_int>>(found)() }
    });
    let own = our_usage();
    let sum = |next: c_int, own| next.saturating_add(c_int::try_from(own).unwrap_or(c_int::MAX));
    Info {
        arena: sum(next.arena, own.resident),
        uordblks: sum(next.uordblks, own.allocated),
        fordblks: sum(next.fordblks, own.free()),
        keepcost: sum(next.keepcost, own.dirty),
        ..next
    }
}

/// glibc: malloc.h. Writes the statistics to a stream as XML. Returns `EINVAL` if `options` is not
/// 0.
///
/// # Safety
/// `stream` is an open `FILE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut c_void) -> c_int {
    if let Some(found) = system_function(c"malloc_info") {
        type Function = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
        // SAFETY: the C library's function of this type, by malloc.h; `stream` is an open `FILE`.
        return unsafe { transmute::<*mut c_void, Function>(found)(options, stream) };
    }
    if options != 0 {
        return libc::EINVAL;
    }
    let own = our_usage();
    // SAFETY: `stream` is an open `FILE`, and the arguments have the types that the format names.
    unsafe {
        fprintf(
            stream,
            c"<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n\
              <total type=\"rest\" count=\"0\" size=\"%zu\"/>\n\
              <system type=\"current\" size=\"%zu\"/>\n\
              <aspace type=\"total\" size=\"%zu\"/>\n</heap>\n\
              <total type=\"rest\" count=\"0\" size=\"%zu\"/>\n\
              <system type=\"current\" size=\"%zu\"/>\n\
              <aspace type=\"total\" size=\"%zu\"/>\n</malloc>\n"
                .as_ptr(),
            own.free(),
            own.resident,
            own.mapped,
            own.free(),
            own.resident,
            own.mapped,
        );
    }
    0
}

/// glibc: malloc.h. Writes a short summary to the standard error stream.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    if let Some(found) = system_function(c"malloc_stats") {
        // SAFETY: the C library's function of this type, by malloc.h.
        return unsafe { transmute::<*mut c_void, extern "C" fn()>(found)() };
    }
    let own = our_usage();
    // `malloc_stats` is not a cancellation point in glibc either.
    let _uncancelled = Uncancelled::begin();
    // SAFETY: the C library's stream, and arguments of the types that the format names.
    unsafe {
        fprintf(
            stderr,
            c"Total (incl. mmap):\nsystem bytes     = %10zu\nin use bytes     = %10zu\n".as_ptr(),
            own.resident,
            own.allocated,
        );
    }
}

unsafe extern "C" {
    static stderr: *mut c_void;
    fn fprintf(stream: *mut c_void, format: *const c_char, ...) -> c_int;
}

/// Returns a function of the program's own allocator, if it keeps that.
fn system_function(name: &CStr) -> Option<*mut c_void> {
    let keeps_own = is_system() || is_inactive();
    let found = keeps_own.then(|| sys::next_symbol(name));
    found.filter(|found| !found.is_null())
}

/// Returns jemalloc's usage; zeros if the program keeps its own allocator and nothing was sampled.
fn our_usage() -> Usage {
    if is_inactive() || (is_system() && range::reserved() == 0) {
        return Usage::default();
    }
    let saved = sys::errno();
    let usage = sample::without_sampling(stats::usage);
    sys::set_errno(saved);
    usage
}
