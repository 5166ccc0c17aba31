//! Zeroes memory without writing to pages that nobody has written to.
//!
//! jemalloc zeroes the stacks of a thread's cache when the thread starts: 64 KiB if it is built for
//! pages of 64 KiB, as on aarch64, most of which no thread ever uses. New memory is zero already,
//! and reading it makes no page resident.
//!
//! jemalloc also zeroes the six sets of extents (`eset_t`) of its first arena, 10 KB each, whose
//! memory was just mapped: 12 page faults and pages in every process. jemalloc relies on this
//! memory being new in any case: nothing sets one of the fields, `npages`.
//!
//! The build script makes the linker redirect jemalloc's calls to these functions.

// Decision 90: what a start touches.
#[cfg(not(test))]
use crate::backend::jemalloc::{INIT_STATE, INITIALISED};
use core::slice;
#[cfg(not(test))]
use core::{
    ffi::{c_int, c_void},
    sync::atomic::Ordering,
};

// Not exported.
#[cfg(not(test))]
core::arch::global_asm!(
    ".hidden __wrap__rjem_je_arena_palloc",
    ".hidden __wrap__rjem_je_eset_init"
);

#[cfg(not(test))]
unsafe extern "C" {
    fn __real__rjem_je_eset_init(set: *mut c_void, state: c_int);
    fn __real__rjem_je_arena_palloc(
        thread: *mut c_void,
        arena: *mut c_void,
        size: usize,
        align: usize,
        zero: bool,
        is_small: bool,
        cache: *mut c_void,
    ) -> *mut c_void;
}

/// Size in bytes of the units that are zeroed if one of their bytes is not zero: the smallest page.
const UNIT: usize = 4096;

/// Replaces jemalloc's `arena_palloc`, which allocates an aligned object. jemalloc zeroes an object
/// of a small size class by writing to all of it. For a large object, it knows whether the memory
/// is new.
#[cfg(not(test))]
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_arena_palloc(
    thread: *mut c_void,
    arena: *mut c_void,
    size: usize,
    align: usize,
    zero: bool,
    is_small: bool,
    cache: *mut c_void,
) -> *mut c_void {
    let must_clear = zero && is_small && size > UNIT;
    let zero = zero && !must_clear;
    // SAFETY: passes jemalloc's arguments on to its own function.
    let object =
        unsafe { __real__rjem_je_arena_palloc(thread, arena, size, align, zero, is_small, cache) };
    if must_clear && !object.is_null() {
        // SAFETY: a new object, whose address no other thread has. Its size is a multiple of eight,
        // like all size classes above eight bytes.
        unsafe { clear(object.cast(), size / size_of::<u64>()) };
    }
    object
}

/// Initialises a set of extents. Only builds of jemalloc with assertions read the set's state, the
/// only value that is not zero.
#[cfg(not(test))]
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_eset_init(set: *mut c_void, state: c_int) {
    // SAFETY: an `int` of jemalloc's, which only its initialisation writes.
    let is_initialised = unsafe { &INIT_STATE }.load(Ordering::Relaxed) == INITIALISED;
    // Before initialisation ends, all of jemalloc's memory is newly mapped. Later arenas may have
    // the program's hooks, which may return memory that is not zero.
    if is_initialised {
        // SAFETY: passes jemalloc's arguments on unchanged.
        unsafe { __real__rjem_je_eset_init(set, state) };
    }
}

/// Zeroes words. Does not write to a [`UNIT`] that is all zeros.
///
/// # Safety
/// The words are mapped, and only the caller's.
unsafe fn clear(words: *mut u64, count: usize) {
    // SAFETY: the words are the caller's, and any bytes are an integer.
    let words = unsafe { slice::from_raw_parts_mut(words, count) };
    for unit in words.chunks_mut(UNIT / size_of::<u64>()) {
        if unit.iter().any(|word| *word != 0) {
            unit.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, ptr};

    /// Kilobytes of memory that a mapping has of its own.
    fn own_kib(start: *const u64) -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").expect("maps");
        let head = format!("{:x}-", start.addr());
        let mapping = maps
            .lines()
            .skip_while(|line| !line.starts_with(&head))
            .find_map(|line| line.strip_prefix("Anonymous:"))
            .expect("a mapping of ours");
        mapping
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .expect("a number")
    }

    #[test]
    fn what_is_zero_is_not_written_to() {
        const BYTES: usize = 64 << 10;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // Inaccessible pages around it keep the kernel from joining it with others.
        // SAFETY: new mappings.
        let words = unsafe {
            let around = libc::mmap(ptr::null_mut(), 3 * BYTES, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(around, libc::MAP_FAILED);
            let place = around.byte_add(BYTES);
            assert_eq!(libc::mprotect(place, BYTES, access), 0);
            libc::madvise(place, BYTES, libc::MADV_NOHUGEPAGE);
            place.cast::<u64>()
        };
        let count = BYTES / size_of::<u64>();
        // SAFETY: the mapping is ours.
        unsafe { clear(words, count) };
        assert_eq!(own_kib(words), 0);
        for index in [0, 511, 1024, count - 1] {
            // SAFETY: as above.
            unsafe { words.add(index).write(7) };
        }
        let touched = own_kib(words);
        // SAFETY: as above.
        let is_zero = unsafe {
            clear(words, count);
            slice::from_raw_parts(words, count)
                .iter()
                .all(|word| *word == 0)
        };
        assert!(is_zero);
        assert_eq!(own_kib(words), touched);
    }
}
