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
//! What one arena holds unused is returned to the system before a request of another one fails.
//!
//! Where the process's memory is limited, jemalloc gives addresses back, in large pieces.
//!
//! The build script makes the linker lead jemalloc's calls here.

use crate::{arch, keeping, range, sys};
use core::arch::global_asm;
use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

// Ours alone: they are not exported.
global_asm!(
    ".hidden __wrap__rjem_je_arena_new",
    ".hidden __wrap__rjem_je_arena_nthreads_inc",
    ".hidden __wrap__rjem_je_extent_dalloc_mmap",
    ".hidden __wrap__rjem_je_pa_alloc",
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
    /// Logarithm of how many times larger than a request the unused memory may be that is divided for it,
    /// jemalloc's option of that name.
    #[link_name = "_rjem_je_opt_lg_extent_max_active_fit"]
    static MAX_FIT: AtomicUsize;
    /// Returns what an arena does not use to the system: everything, if the last argument is true.
    #[link_name = "_rjem_je_arena_decay"]
    pub fn decay(thread: *mut c_void, arena: *mut Arena, is_background: bool, all: bool);
    fn __real__rjem_je_pa_alloc(
        thread: *mut c_void,
        part: *mut c_void,
        bytes: usize,
        align: usize,
        slab: bool,
        class: c_uint,
        zero: bool,
        guarded: bool,
        deferred: *mut bool,
    ) -> *mut c_void;
    fn __real__rjem_je_extent_dalloc_mmap(at: *mut c_void, bytes: usize) -> bool;
    fn __real__rjem_je_arena_nthreads_inc(arena: *mut Arena, internal: bool);
}

/// Index under which an existing arena is entered as well. Written with jemalloc's lock on the arenas
/// held.
static INDEX: AtomicU32 = AtomicU32::new(0);
/// Thread pointer of the thread that is being assigned this arena; 0: none is.
static THREAD: AtomicU64 = AtomicU64::new(0);

/// Requests above this are refused without further ado.
const MAX_RETRIED: usize = 4 << 30;

/// Takes memory for objects from a part of an arena, where jemalloc holds no lock. If there is none,
/// returns what all arenas hold unused, which is not of the right size or another arena's, and tries again.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_pa_alloc(
    thread: *mut c_void,
    part: *mut c_void,
    bytes: usize,
    align: usize,
    slab: bool,
    class: c_uint,
    zero: bool,
    guarded: bool,
    deferred: *mut bool,
) -> *mut c_void {
    let take = || {
        // SAFETY: the caller's arguments.
        unsafe {
            __real__rjem_je_pa_alloc(
                thread, part, bytes, align, slab, class, zero, guarded, deferred,
            )
        }
    };
    keeping::note_request(thread, bytes);
    let taken = take();
    if !taken.is_null() || bytes > MAX_RETRIED || is_in_range(part) {
        return taken;
    }
    return_unused(thread);
    take()
}

/// Whether a part is one of the arena of sampled objects, whose memory is limited for other reasons.
fn is_in_range(part: *const c_void) -> bool {
    /// More than an arena takes, in a block of its own of 2 MiB.
    const ARENA: usize = 1 << 20;
    let Some(arena) = range::arena().and_then(arena_of) else {
        return false;
    };
    (part.addr()).wrapping_sub(arena.addr()) < ARENA
}

#[cold]
fn return_unused(thread: *mut c_void) {
    for index in 0..MAX_ARENAS as c_uint {
        if let Some(arena) = arena_of(index) {
            // SAFETY: an arena, none of whose locks this thread holds.
            unsafe { decay(thread, arena, false, true) };
        }
    }
}

/// The arena of an index, if it is made.
pub fn arena_of(index: c_uint) -> Option<*mut Arena> {
    // SAFETY: jemalloc's table of arenas, which it reads and writes as such words.
    let arena = unsafe { ARENAS.get(index as usize) }?.load(Ordering::Acquire);
    (!arena.is_null()).then_some(arena)
}

/// Smallest piece of memory whose addresses are given back: each one may divide a mapping into two, of
/// which a process has a limited number (`vm.max_map_count`).
const MIN_GIVEN_BACK: usize = 1 << 20;

/// Unmaps memory that jemalloc does not need; returns true if its addresses are kept instead.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_extent_dalloc_mmap(at: *mut c_void, bytes: usize) -> bool {
    // SAFETY: the caller's arguments.
    bytes < MIN_GIVEN_BACK || unsafe { __real__rjem_je_extent_dalloc_mmap(at, bytes) }
}

/// From now on, addresses are given back with their memory, and any unused memory is used before more is
/// requested from the system. What is kept already stays, and is used.
#[cold]
pub fn save_memory() {
    // SAFETY: jemalloc's, of these types, which it reads each time that it looks for memory or returns some.
    let (retain, max_fit) = unsafe { (&RETAIN, &MAX_FIT) };
    retain.store(false, Ordering::Relaxed);
    max_fit.store(usize::BITS as usize, Ordering::Relaxed);
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
    let make = || unsafe { __real__rjem_je_arena_new(thread, index, config) };
    let made = keeping::with_limit(index, make);
    // SAFETY: an `unsigned` of jemalloc's, written before there are threads.
    let assigned = unsafe { ASSIGNED.load(Ordering::Relaxed) };
    if !made.is_null() || index == 0 {
        return made;
    }
    if index >= assigned {
        // The one of the largest objects, or one that was requested by itself.
        return_unused(thread);
        return keeping::with_limit(index, make);
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
    let arenas = (0..assigned).filter_map(arena_of);
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
