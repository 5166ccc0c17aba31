//! Decides how much freed memory jemalloc keeps for reuse.
//!
//! jemalloc returns freed memory by decay, which only advances when the program allocates: a
//! process that frees memory and then does little would keep it. So adjacent free pages are
//! returned immediately when they amount to [`DEFAULT_LIMIT`], and the arena for objects of at
//! least that size keeps nothing. This is jemalloc's default, too.
//!
//! A program that uses a buffer of such a size over and over would fault in all of its pages each
//! time. glibc keeps such a buffer from the second use on, up to 32 MiB. So does this module: when
//! memory of that size is requested after as much has been returned, the arena for large objects
//! begins to keep freed memory, and to return it by decay like other arenas, or when none of it
//! fits a request.
//!
//! Free pages that are not adjacent, or lie in different mappings, stay below that limit. So all
//! unused memory is also returned when the heap has shrunk to half of its size, as glibc returns
//! the end of its heap. A heap that grows again within [`REGROWTH_NS`] has to fault its pages in
//! again. So from then on, at first for a second and each time for twice as long, memory is kept
//! for up to [`REGROWTH_NS`] when the heap shrinks; then the next allocation or free returns it. A
//! program that sleeps makes no such calls, so heaps of more than [`MAX_KEPT_BYTES`] are not kept.
//! Memory of objects of at most 128 bytes is always kept for [`REGROWTH_NS`], as in glibc's fast
//! bins: a program that builds large lists and trees over and over would otherwise fault in their
//! pages each time.
//!
//! An arena decays when it is used. The arena of sampled objects is not used between sessions, so
//! its decay advances with requests to the other arenas.

// Decision 72: what large objects leave is kept from their second use on.
use crate::backend::jemalloc::{
    ARENAS, Arena, DECAY_MS, DIRTY, LARGE_ARENA, MAX_ARENAS, OVERSIZE_THRESHOLD, decay, set_decay,
};
use crate::backend::{extent_hooks, extent_map};
use crate::{range, seccomp};
use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use shm_protocol::clock;

/// Minimum size of adjacent free pages that are returned immediately, in bytes: the default of
/// jemalloc's option `oversize_threshold`.
pub const DEFAULT_LIMIT: usize = 8 << 20;
/// Like [`DEFAULT_LIMIT`], in the arenas for large and for sampled objects. More than an object of
/// 32 MiB with its padding.
const LARGE_LIMIT: usize = 40 << 20;
/// Number of requests for pages, to any arena, between two steps of decay in the arenas for large
/// and for sampled objects.
const DECAY_EVERY: u32 = 64;

/// Largest number of bytes that were returned at once.
static MAX_RETURNED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// True once the arena for large objects keeps freed memory.
static LARGE_ARENA_KEEPS: AtomicBool = AtomicBool::new(false);
/// Number of requests for pages while the arena for large or for sampled objects needs steps of
/// decay.
static REQUESTS: AtomicU32 = AtomicU32::new(0);

/// Minimum number of bytes by which the heap must have shrunk for its unused memory to be returned.
const MIN_SHRINKAGE: usize = DEFAULT_LIMIT;
/// Maximum size in bytes of a heap whose memory is kept when it shrinks: about as much as a program
/// that then sleeps keeps for good. The same as glibc's maximum for the end of its heap.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Time within which a heap must grow again for memory to be kept from then on; also the maximum
/// time for which it is kept after the heap has shrunk. In ns.
const REGROWTH_NS: u64 = 10_000_000_000;
/// Minimum and maximum length of a period in which memory is kept when the heap shrinks, in ns.
const MIN_KEPT_NS: u64 = 1_000_000_000;
const MAX_KEPT_NS: u64 = 600_000_000_000;

/// Bytes of the pages that jemalloc has in use.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Bytes of slabs of tiny objects that were freed since the heap had last shrunk.
static FREED_TINY: AtomicUsize = AtomicUsize::new(0);
/// Maximum of [`IN_USE`] since the heap had last shrunk.
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Value of [`PEAK`] when the heap had last shrunk; 0 if it has grown again since.
static PEAK_BEFORE: AtomicUsize = AtomicUsize::new(0);
/// Time when the heap had last shrunk, in ns of the monotonic clock.
static SHRUNK_NS: AtomicU64 = AtomicU64::new(0);
/// Time when the memory that is now kept is to be returned, in ns of the monotonic clock; 0: none
/// is kept.
static DUE_NS: AtomicU64 = AtomicU64::new(0);
/// End of the period in which memory is kept when the heap shrinks, in ns of the monotonic clock.
static KEPT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Length of the next such period, in ns.
static KEPT_NS: AtomicU64 = AtomicU64::new(MIN_KEPT_NS);

/// Records that pages are in use.
#[inline]
pub fn record_allocated(bytes: usize) {
    let now = IN_USE
        .fetch_add(bytes, Ordering::Relaxed)
        .wrapping_add(bytes);
    if now > PEAK.load(Ordering::Relaxed) {
        PEAK.store(now, Ordering::Relaxed);
        let before = PEAK_BEFORE.load(Ordering::Relaxed);
        if before != 0 && now >= before / 4 * 3 {
            record_regrowth();
        }
    }
}

/// Records that the heap has grown again after it had shrunk.
#[cold]
fn record_regrowth() {
    PEAK_BEFORE.store(0, Ordering::Relaxed);
    if DUE_NS.swap(0, Ordering::Relaxed) != 0 {
        // The memory had not been returned yet.
        return;
    }
    let now = clock::now_ns();
    if now.saturating_sub(SHRUNK_NS.load(Ordering::Relaxed)) > REGROWTH_NS {
        KEPT_NS.store(MIN_KEPT_NS, Ordering::Relaxed);
        return;
    }
    let kept = KEPT_NS.load(Ordering::Relaxed);
    KEPT_UNTIL_NS.store(now + kept, Ordering::Relaxed);
    KEPT_NS.store((2 * kept).min(MAX_KEPT_NS), Ordering::Relaxed);
}

/// Records that pages are not in use any more. Returns true if the heap has shrunk so much that its
/// unused memory should be returned ([`return_after_shrinkage`]).
#[inline]
pub fn record_freed(bytes: usize) -> bool {
    let now = IN_USE
        .fetch_sub(bytes, Ordering::Relaxed)
        .wrapping_sub(bytes);
    let peak = PEAK.load(Ordering::Relaxed);
    peak.saturating_sub(now) >= MIN_SHRINKAGE
        && now <= peak / 2
        && DUE_NS.load(Ordering::Relaxed) == 0
}

/// Records that a slab of objects of at most 128 bytes was freed.
pub fn record_freed_tiny(bytes: usize) {
    FREED_TINY.fetch_add(bytes, Ordering::Relaxed);
}

/// Resets the peak to the current size of the heap, because the earlier peak counted a part of it
/// twice.
#[cold]
pub fn forget_peak() {
    PEAK.store(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Returns the unused memory of all arenas, now or, if the program needed such memory again soon,
/// later ([`return_if_due`]). The calling thread holds none of jemalloc's locks.
#[cold]
pub fn return_after_shrinkage(thread: *mut c_void) {
    // SAFETY: jemalloc's variable has this type.
    let is_never_returned = unsafe { &DECAY_MS }.load(Ordering::Relaxed) < 0;
    let now = IN_USE.load(Ordering::Relaxed);
    // Memory is returned again when the heap has halved once more. Another thread may run this at
    // the same time.
    let peak = PEAK.swap(now, Ordering::Relaxed);
    if peak / 2 < now || is_never_returned || seccomp::is_installed() {
        return;
    }
    let time = clock::now_ns();
    PEAK_BEFORE.store(peak, Ordering::Relaxed);
    SHRUNK_NS.store(time, Ordering::Relaxed);
    let until = KEPT_UNTIL_NS.load(Ordering::Relaxed);
    let is_tiny = FREED_TINY.swap(0, Ordering::Relaxed) >= (peak - now) / 2;
    if is_tiny {
        DUE_NS.store(time + REGROWTH_NS, Ordering::Relaxed);
    } else if time < until && peak <= MAX_KEPT_BYTES {
        DUE_NS.store(until.min(time + REGROWTH_NS), Ordering::Relaxed);
    } else {
        return_unused(thread);
    }
}

/// Returns memory that was kept and has not been needed in time. The calling thread holds none of
/// jemalloc's locks.
#[inline]
pub fn return_if_due(thread: *mut c_void) {
    let due = DUE_NS.load(Ordering::Relaxed);
    if due != 0 {
        return_kept(thread, due);
    }
}

/// Returns memory that is kept until `due`, if that has passed and no other thread does so.
#[cold]
fn return_kept(thread: *mut c_void, due: u64) {
    let is_mine = || {
        DUE_NS
            .compare_exchange(due, 0, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    };
    if clock::now_ns() >= due && is_mine() && !seccomp::is_installed() {
        PEAK.store(IN_USE.load(Ordering::Relaxed), Ordering::Relaxed);
        return_unused(thread);
    }
}

/// Returns the unused memory of all arenas to the system, except those with hooks that the program
/// installed, which may expect to be called when the program uses the arena.
#[cold]
pub fn return_unused(thread: *mut c_void) {
    for index in 0..MAX_ARENAS as c_uint {
        let Some(arena) = arena_of(index) else {
            continue;
        };
        // SAFETY: an existing arena, and this thread holds none of its locks.
        unsafe {
            if !extent_hooks::has_custom_hooks(arena) {
                decay(thread, arena, false, true);
            }
        }
    }
}

/// Returns the arena with index `index`, if it exists.
pub fn arena_of(index: c_uint) -> Option<*mut Arena> {
    // SAFETY: jemalloc's table of arenas, which it accesses as atomics of this type.
    let arena = unsafe { ARENAS.get(index as usize) }?.load(Ordering::Acquire);
    (!arena.is_null()).then_some(arena)
}

/// Creates an arena by calling `make`, with the right limit. Called with jemalloc's lock on the
/// arenas held.
pub fn with_limit<T>(index: c_uint, make: impl FnOnce() -> T) -> T {
    // SAFETY: jemalloc's variables of these types. Nobody else reads the limit while the lock is
    // held.
    let (large_arena, limit) = unsafe { (&LARGE_ARENA, &OVERSIZE_THRESHOLD) };
    let usual = limit.load(Ordering::Relaxed);
    let first = large_arena.load(Ordering::Relaxed);
    // Arenas before it are for all sizes. A limit that the user has set is not changed.
    if first == 0 || index < first || usual != DEFAULT_LIMIT {
        return make();
    }
    limit.store(LARGE_LIMIT, Ordering::Relaxed);
    let made = make();
    limit.store(usual, Ordering::Relaxed);
    made
}

/// Records that memory was returned to the system.
pub fn record_return(bytes: usize) {
    if bytes >= DEFAULT_LIMIT {
        MAX_RETURNED_BYTES.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// Handles a request for pages to any arena. The calling thread holds none of jemalloc's locks.
pub fn handle_request(thread: *mut c_void, bytes: usize) {
    let keeps = LARGE_ARENA_KEEPS.load(Ordering::Relaxed);
    let sampled = range::arena();
    if (keeps || sampled.is_some())
        && REQUESTS
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(DECAY_EVERY)
    {
        let large = if keeps { large_arena() } else { None };
        for arena in [large, sampled.and_then(arena_of)].into_iter().flatten() {
            // SAFETY: an existing arena, and this thread holds none of its locks.
            unsafe { decay(thread, arena, false, false) };
        }
    }
    if keeps {
        return;
    }
    if (DEFAULT_LIMIT..LARGE_LIMIT).contains(&bytes)
        && bytes <= MAX_RETURNED_BYTES.load(Ordering::Relaxed)
    {
        begin_to_keep(thread);
    }
}

/// Returns to the system what the arena of a large extent keeps, if the extent's pages are new:
/// then no kept memory was large enough for it. Otherwise, a program that uses ever larger buffers
/// would keep all the old ones. The calling thread holds none of jemalloc's locks.
///
/// # Safety
/// `extent` is the descriptor of an extent that the thread has just allocated.
pub unsafe fn return_kept_memory(thread: *mut c_void, extent: *const u64) {
    // SAFETY: the caller's extent, and jemalloc's variable, which has this type.
    let (origin, large) = unsafe { (extent_map::origin(extent), &LARGE_ARENA) };
    let keeps =
        origin.arena == large.load(Ordering::Relaxed) && LARGE_ARENA_KEEPS.load(Ordering::Relaxed);
    if origin.is_new
        && !seccomp::is_installed()
        && (keeps || range::arena() == Some(origin.arena))
        && let Some(arena) = arena_of(origin.arena)
    {
        // SAFETY: an existing arena, and this thread holds none of its locks.
        unsafe { decay(thread, arena, false, true) };
    }
}

/// Returns the arena for large objects, if it exists.
fn large_arena() -> Option<*mut c_void> {
    // SAFETY: jemalloc's variable has this type.
    let index = unsafe { &LARGE_ARENA }.load(Ordering::Relaxed);
    if index == 0 { None } else { arena_of(index) }
}

/// Makes the arena for large objects keep freed memory.
#[cold]
fn begin_to_keep(thread: *mut c_void) {
    // SAFETY: jemalloc's variables have these types, and are constant once it is initialised.
    let (limit, decay_ms) = unsafe { (&OVERSIZE_THRESHOLD, &DECAY_MS) };
    let is_usual = limit.load(Ordering::Relaxed) == DEFAULT_LIMIT;
    if !is_usual {
        return;
    }
    let Some(arena) = large_arena() else {
        return;
    };
    if !LARGE_ARENA_KEEPS.swap(true, Ordering::Relaxed) {
        // SAFETY: an existing arena, none of whose locks this thread holds, and a time that
        // jemalloc accepts.
        unsafe { set_decay(thread, arena, DIRTY, decay_ms.load(Ordering::Relaxed)) };
    }
}
