//! Keeps jemalloc working when memory is exhausted or limited.
//!
//! jemalloc assigns a thread an arena at its first allocation, and creates a new arena while there
//! are few. If there is no memory for a new arena, it assigns none and the thread crashes. Here
//! such a thread gets the arena that the fewest threads use. Its allocations fail only if that
//! arena has no memory left, in the way that malloc(3) describes. A thread without memory for its
//! cache works without a cache.
//!
//! jemalloc looks up a new arena by its index after creating it. So the existing arena is entered
//! in jemalloc's table a second time, under the new index. This entry is removed as soon as the
//! thread has its arena; otherwise, the arena would be locked twice before a fork.
//!
//! Before a request fails, unused memory of all arenas is returned to the system. In a process with
//! little memory, jemalloc also unmaps large pieces instead of keeping their addresses.
//!
//! The build script makes the linker redirect jemalloc's calls to these functions.

use crate::backend::jemalloc::{ARENAS, AUTOMATIC_ARENAS, Arena, MAX_FIT, RETAIN, threads_of};
use crate::{arch, keeping, range, renewal, sys};
use core::arch::global_asm;
use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

// Hides these functions, so that they are not exported.
global_asm!(
    ".hidden __wrap__rjem_je_arena_new",
    ".hidden __wrap__rjem_je_arena_nthreads_inc",
    ".hidden __wrap__rjem_je_extent_dalloc_mmap",
    ".hidden __wrap__rjem_je_pa_alloc",
    ".hidden __wrap__rjem_je_te_event_trigger",
);

unsafe extern "C" {
    fn __real__rjem_je_arena_new(
        thread: *mut c_void,
        index: c_uint,
        config: *const c_void,
    ) -> *mut Arena;
    fn __real__rjem_je_pa_alloc(
        thread: *mut c_void,
        shard: *mut c_void,
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
    fn __real__rjem_je_te_event_trigger(thread: *mut c_void, context: *mut c_void);
}

/// Index under which an existing arena is entered a second time. Written with jemalloc's lock on
/// the arenas held.
static SECOND_INDEX: AtomicU32 = AtomicU32::new(0);
/// Thread pointer of the thread that is being assigned the arena at [`SECOND_INDEX`]; 0 if there is
/// none.
static THREAD_BEING_ASSIGNED: AtomicU64 = AtomicU64::new(0);

/// Largest request, in bytes, for which unused memory is returned before it fails.
const MAX_RETRIED_BYTES: usize = 4 << 30;

/// Allocates pages from an arena's page allocator (`pa_shard_t`). Called without jemalloc's locks.
/// If there is no memory, returns the unused memory of all arenas to the system, and tries again:
/// the unused memory may have another size or belong to another arena.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_pa_alloc(
    thread: *mut c_void,
    shard: *mut c_void,
    bytes: usize,
    align: usize,
    slab: bool,
    class: c_uint,
    zero: bool,
    guarded: bool,
    deferred: *mut bool,
) -> *mut c_void {
    // Large requests have a separate function, so that small requests have a small frame: a signal
    // handler may allocate on a stack that is barely large enough for jemalloc.
    let allocate = if bytes >= keeping::DEFAULT_LIMIT {
        allocate_large
    } else {
        allocate
    };
    // SAFETY: the caller's arguments.
    unsafe {
        allocate(
            thread, shard, bytes, align, slab, class, zero, guarded, deferred,
        )
    }
}

/// Allocates pages. If no kept memory was large enough, returns to the system what the arena has
/// kept.
#[cold]
unsafe extern "C" fn allocate_large(
    thread: *mut c_void,
    shard: *mut c_void,
    bytes: usize,
    align: usize,
    slab: bool,
    class: c_uint,
    zero: bool,
    guarded: bool,
    deferred: *mut bool,
) -> *mut c_void {
    // SAFETY: the caller's arguments, and the descriptor of the extent that they gave.
    unsafe {
        let extent = allocate(
            thread, shard, bytes, align, slab, class, zero, guarded, deferred,
        );
        if !extent.is_null() {
            keeping::return_kept_memory(thread, extent.cast());
        }
        extent
    }
}

/// Allocates pages of any size.
#[inline(always)]
unsafe extern "C" fn allocate(
    thread: *mut c_void,
    shard: *mut c_void,
    bytes: usize,
    align: usize,
    slab: bool,
    class: c_uint,
    zero: bool,
    guarded: bool,
    deferred: *mut bool,
) -> *mut c_void {
    let allocate_once = || {
        // SAFETY: passes jemalloc's arguments on to its own function. Nobody uses the new extent
        // yet.
        unsafe {
            let extent = __real__rjem_je_pa_alloc(
                thread, shard, bytes, align, slab, class, zero, guarded, deferred,
            );
            if !extent.is_null() {
                renewal::mark(extent, bytes, align, slab);
                keeping::record_allocated(bytes);
            }
            extent
        }
    };
    keeping::handle_request(thread, bytes);
    let extent = allocate_once();
    if !extent.is_null() || bytes > MAX_RETRIED_BYTES || is_in_range(shard) {
        return extent;
    }
    keeping::return_unused(thread);
    allocate_once()
}

/// Runs jemalloc's periodic work, each time that a thread has allocated or freed 64 KiB. Also
/// returns memory that was kept for long enough, because the program may never request pages again.
/// Called without jemalloc's locks.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_te_event_trigger(thread: *mut c_void, context: *mut c_void) {
    // SAFETY: called with the caller's arguments.
    unsafe { __real__rjem_je_te_event_trigger(thread, context) };
    keeping::return_if_due(thread);
}

/// Returns true if a page allocator belongs to the arena of sampled objects, which may be full
/// although there is memory.
fn is_in_range(shard: *const c_void) -> bool {
    /// Upper bound of the size of an arena's data, which lie in a block of 2 MiB.
    const MAX_ARENA_BYTES: usize = 1 << 20;
    let Some(arena) = range::arena().and_then(keeping::arena_of) else {
        return false;
    };
    (shard.addr()).wrapping_sub(arena.addr()) < MAX_ARENA_BYTES
}

/// Minimum size of memory whose addresses are released, in bytes. Does not apply to large objects
/// that glibc would unmap. Each release may split a mapping, and a process may only have a limited
/// number of mappings (`vm.max_map_count`).
const MIN_RELEASED_BYTES: usize = 1 << 20;

/// Unmaps memory that jemalloc does not need. Returns true if its addresses are kept instead.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_extent_dalloc_mmap(at: *mut c_void, bytes: usize) -> bool {
    let is_kept = bytes < MIN_RELEASED_BYTES && !renewal::is_renewing();
    // SAFETY: passes jemalloc's arguments on to its own function.
    is_kept || unsafe { __real__rjem_je_extent_dalloc_mmap(at, bytes) }
}

/// Makes jemalloc release addresses together with their memory, and use any unused memory before
/// requesting more. Addresses that are kept already are not released.
#[cold]
pub fn save_memory() {
    // SAFETY: jemalloc's variables of these types, which it reads whenever it needs or returns
    // memory.
    let (retain, max_fit) = unsafe { (&RETAIN, &MAX_FIT) };
    retain.store(false, Ordering::Relaxed);
    max_fit.store(usize::BITS as usize, Ordering::Relaxed);
}

/// Creates an arena. Called with jemalloc's lock on the arenas held.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_arena_new(
    thread: *mut c_void,
    index: c_uint,
    config: *const c_void,
) -> *mut Arena {
    let saved = sys::errno();
    // SAFETY: passes jemalloc's arguments on to its own function.
    let make = || unsafe { __real__rjem_je_arena_new(thread, index, config) };
    let arena = keeping::with_limit(index, make);
    // SAFETY: an `unsigned` of jemalloc, written while the process has one thread.
    let automatic = unsafe { AUTOMATIC_ARENAS.load(Ordering::Relaxed) };
    if !arena.is_null() || index == 0 {
        return arena;
    }
    if index >= automatic {
        // The arena for large objects, or one that was requested explicitly.
        keeping::return_unused(thread);
        return keeping::with_limit(index, make);
    }
    sys::set_errno(saved);
    remove_second_entry();
    let Some(other) = least_used(automatic) else {
        return null_mut();
    };
    SECOND_INDEX.store(index, Ordering::Relaxed);
    THREAD_BEING_ASSIGNED.store(arch::thread_pointer(), Ordering::Relaxed);
    store_arena(index, other);
    other
}

/// Counts a thread that was assigned an arena.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_arena_nthreads_inc(arena: *mut Arena, internal: bool) {
    if THREAD_BEING_ASSIGNED.load(Ordering::Relaxed) == arch::thread_pointer() {
        remove_second_entry();
    }
    // SAFETY: passes jemalloc's arguments on to its own function.
    unsafe { __real__rjem_je_arena_nthreads_inc(arena, internal) }
}

/// Returns the arena that the fewest threads use, among the first `automatic` ones.
fn least_used(automatic: c_uint) -> Option<*mut Arena> {
    let arenas = (0..automatic).filter_map(keeping::arena_of);
    // SAFETY: an existing arena, which is never destroyed.
    arenas.min_by_key(|arena| unsafe { threads_of(*arena, false) })
}

/// Stores an arena in jemalloc's table.
fn store_arena(index: c_uint, arena: *mut Arena) {
    // SAFETY: jemalloc's table; the index is below the number of arenas in it.
    unsafe { &ARENAS[index as usize] }.store(arena, Ordering::Release);
}

/// Removes the arena from the index where it was entered a second time.
fn remove_second_entry() {
    if THREAD_BEING_ASSIGNED.load(Ordering::Relaxed) != 0 {
        store_arena(SECOND_INDEX.load(Ordering::Relaxed), null_mut());
        THREAD_BEING_ASSIGNED.store(0, Ordering::Relaxed);
    }
}
