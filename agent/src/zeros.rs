//! Data of jemalloc's that are zero when it is initialised, and are not cleared again.
//!
//! Its first arena has six sets of extents (`eset_t`) of 10 KB, whose initial values are zeros. So
//! are those of memory that was just mapped. Writing them takes a page fault and a page of memory
//! for each 4 KiB, in every process: jemalloc's start-up took 12 more of both.
//!
//! jemalloc itself relies on new memory for one of their fields (`npages`), which nothing sets.
//!
//! The build script makes the linker redirect jemalloc's calls to this function.

// Decision 90: what a start touches.
use crate::backend::jemalloc::{INIT_STATE, INITIALISED};
use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

// Not exported.
global_asm!(".hidden __wrap__rjem_je_eset_init");

unsafe extern "C" {
    fn __real__rjem_je_eset_init(set: *mut c_void, state: c_int);
}

/// Initialises a set of extents. jemalloc reads its state, the only value that is not zero, in
/// builds with assertions alone.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_eset_init(set: *mut c_void, state: c_int) {
    // SAFETY: an `int` of jemalloc's, which only its initialisation writes.
    let is_initialised = unsafe { &INIT_STATE }.load(Ordering::Relaxed) == INITIALISED;
    // Until then, all of jemalloc's memory comes from mappings that it has just made. Later arenas
    // may have hooks of the program's, whose memory may not be new.
    if is_initialised {
        // SAFETY: passes jemalloc's arguments on unchanged.
        unsafe { __real__rjem_je_eset_init(set, state) };
    }
}
