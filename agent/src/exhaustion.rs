//! Arenas of jemalloc for threads that start when memory is exhausted.
//!
//! At its first allocation a thread is assigned an arena of jemalloc, a new one while there are few. If
//! there is no memory for a new one, jemalloc assigns none and the thread crashes. Here it is assigned
//! the arena that the fewest threads use; allocations then fail only if that arena has no memory left,
//! and do so as malloc(3) says. A thread that has no memory for its cache works without one.
//!
//! jemalloc looks up the new arena by its index after making it. So the existing arena is entered under
//! that index until it is assigned. Entered twice for longer, it would be locked twice before a fork.
//!
//! Where the process's memory is limited, jemalloc gives addresses back, in large pieces.
//!
//! The build script makes the linker lead jemalloc's calls here.

use crate::{arch, sys};
use core::arch::global_asm;
use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

// Ours alone: they are not exported.
global_asm!(
    ".hidden __wrap__rjem_je_arena_new",
    ".hidden __wrap__rjem_je_arena_nthreads_inc",
    ".hidden __wrap__rjem_je_extent_dalloc_mmap",
);

/// An `arena_t`.
type Arena = c_void;
/// `MALLOCX_ARENA_LIMIT`.
const MAX_ARENAS: usize = (1 << 12) - 1;

unsafe extern "C" {
    #[link_name = "_rjem_je_arenas"]
    static ARENAS: [AtomicPtr<Arena>; MAX_ARENAS];
    /// Arenas that jemalloc assigns threads to, of which some may not be made yet.
    #[link_name = "_rjem_je_narenas_auto"]
    static ASSIGNED: AtomicU32;
    #[link_name = "_rjem_je_arena_nthreads_get"]
    fn threads_of(arena: *mut Arena, internal: bool) -> c_uint;
    /// Whether addresses are kept when their memory is returned, jemalloc's option `retain`.
    #[link_name = "_rjem_je_opt_retain"]
    static RETAIN: AtomicBool;
    fn __real__rjem_je_arena_new(
        thread: *mut c_void,
        index: c_uint,
        config: *const c_void,
    ) -> *mut Arena;
    fn __real__rjem_je_extent_dalloc_mmap(at: *mut c_void, bytes: usize) -> bool;
    fn __real__rjem_je_arena_nthreads_inc(arena: *mut Arena, internal: bool);
}

/// Index under which an existing arena is entered as well. Written with jemalloc's lock on the arenas
/// held.
static INDEX: AtomicU32 = AtomicU32::new(0);
/// Thread pointer of the thread that is being assigned this arena; 0: none is.
static THREAD: AtomicU64 = AtomicU64::new(0);

/// Smallest piece of memory whose addresses are given back: each one may divide a mapping into two, of
/// which a process has a limited number (`vm.max_map_count`).
const MIN_GIVEN_BACK: usize = 1 << 20;

/// Unmaps memory that jemalloc does not need; returns true if its addresses are kept instead.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_extent_dalloc_mmap(at: *mut c_void, bytes: usize) -> bool {
    // SAFETY: the caller's arguments.
    bytes < MIN_GIVEN_BACK || unsafe { __real__rjem_je_extent_dalloc_mmap(at, bytes) }
}

/// From now on, addresses are given back with their memory. What is kept already stays, and is used.
#[cold]
pub fn give_back_addresses() {
    // SAFETY: a `bool` of jemalloc's, which it reads each time that it decides what to do with an extent.
    unsafe { &RETAIN }.store(false, Ordering::Relaxed);
}

/// Makes an arena. Called with jemalloc's lock on the arenas held.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_arena_new(
    thread: *mut c_void,
    index: c_uint,
    config: *const c_void,
) -> *mut Arena {
    let saved = sys::errno();
    // SAFETY: the caller's arguments.
    let made = unsafe { __real__rjem_je_arena_new(thread, index, config) };
    // SAFETY: an `unsigned` of jemalloc's, written before there are threads.
    let assigned = unsafe { ASSIGNED.load(Ordering::Relaxed) };
    if !made.is_null() || index == 0 || index >= assigned {
        return made;
    }
    sys::set_errno(saved);
    take_back();
    let Some(other) = least_used(assigned) else {
        return null_mut();
    };
    INDEX.store(index, Ordering::Relaxed);
    THREAD.store(arch::thread_pointer(), Ordering::Relaxed);
    enter(index, other);
    other
}

/// Counts a thread that is assigned an arena.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_arena_nthreads_inc(arena: *mut Arena, internal: bool) {
    if THREAD.load(Ordering::Relaxed) == arch::thread_pointer() {
        take_back();
    }
    // SAFETY: the caller's arguments.
    unsafe { __real__rjem_je_arena_nthreads_inc(arena, internal) }
}

/// The arena that the fewest threads use.
fn least_used(assigned: c_uint) -> Option<*mut Arena> {
    let arenas = (0..assigned).filter_map(|index| {
        // SAFETY: jemalloc's table of arenas, which it reads and writes as such words.
        let arena = unsafe { &ARENAS[index as usize] }.load(Ordering::Acquire);
        (!arena.is_null()).then_some(arena)
    });
    // SAFETY: an arena, which stays for as long as the process runs.
    arenas.min_by_key(|arena| unsafe { threads_of(*arena, false) })
}

fn enter(index: c_uint, arena: *mut Arena) {
    // SAFETY: jemalloc's table; the index is below the number of arenas that are assigned.
    unsafe { &ARENAS[index as usize] }.store(arena, Ordering::Release);
}

/// Removes the arena from the place in which it is not itself.
fn take_back() {
    if THREAD.load(Ordering::Relaxed) != 0 {
        enter(INDEX.load(Ordering::Relaxed), null_mut());
        THREAD.store(0, Ordering::Relaxed);
    }
}
