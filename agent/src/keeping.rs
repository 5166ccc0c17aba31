//! How much freed memory jemalloc keeps for reuse.
//!
//! A process that frees memory and then does little keeps what jemalloc has not returned by then: its decay
//! takes place when the program allocates. So neighbouring free pages are returned at once when they amount to
//! [`USUAL_LIMIT`], as jemalloc does by default, whose arena for objects from that size on keeps nothing.
//!
//! A program that uses a buffer of such a size over and over would fault in all its pages each time. glibc
//! keeps such a buffer from the second use on, up to 32 MiB. So does this module: when memory of that size is
//! requested after as much has been returned, the arena of large objects begins to keep what is freed, and to
//! return it by decay as other arenas do.
//!
//! An arena decays as it is used. The arena of sampled objects is not used between sessions, so its decay
//! advances with requests to the other arenas.

// Decision 72: what large objects leave is kept from their second use on.
use crate::exhaustion::{arena_of, decay};
use crate::range;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicU32, AtomicUsize, Ordering};

/// Bytes of free neighbouring pages that are returned at once, jemalloc's option `oversize_threshold`.
pub const USUAL_LIMIT: usize = 8 << 20;
/// Bytes of free neighbouring pages that are returned at once in the arena of large objects and in that of
/// sampled ones. Larger than an object of 32 MiB with its padding.
const LARGE_LIMIT: usize = 40 << 20;
/// Requests for pages, from any arena, between two steps of decay in the arenas of large and of sampled objects.
const DECAY_EVERY: u32 = 64;
/// jemalloc's `extent_state_dirty`.
const DIRTY: c_int = 1;

unsafe extern "C" {
    /// Index of the arena of large objects; 0 while jemalloc starts.
    #[link_name = "_rjem_je_huge_arena_ind"]
    static LARGE_ARENA: AtomicU32;
    /// Limit for arenas that are made from now on. Read with jemalloc's lock on the arenas held.
    #[link_name = "_rjem_je_oversize_threshold"]
    static LIMIT: AtomicUsize;
    #[link_name = "_rjem_je_opt_dirty_decay_ms"]
    static DECAY_MS: AtomicIsize;
    #[link_name = "_rjem_je_arena_decay_ms_set"]
    fn set_decay(thread: *mut c_void, arena: *mut c_void, state: c_int, ms: isize) -> bool;
}

/// Largest piece of memory that was returned.
static RETURNED: AtomicUsize = AtomicUsize::new(0);
/// Whether the arena of large objects keeps what is freed.
static KEEPS: AtomicBool = AtomicBool::new(false);
static REQUESTS: AtomicU32 = AtomicU32::new(0);

/// Makes an arena. Called with jemalloc's lock on the arenas held.
pub fn with_limit<T>(index: c_uint, make: impl FnOnce() -> T) -> T {
    // SAFETY: jemalloc's, of these types; nobody else reads the limit while the lock is held.
    let (large_arena, limit) = unsafe { (&LARGE_ARENA, &LIMIT) };
    let usual = limit.load(Ordering::Relaxed);
    let first = large_arena.load(Ordering::Relaxed);
    // Those before it are for all sizes. Not where the user has set another limit.
    if first == 0 || index < first || usual != USUAL_LIMIT {
        return make();
    }
    limit.store(LARGE_LIMIT, Ordering::Relaxed);
    let made = make();
    limit.store(usual, Ordering::Relaxed);
    made
}

/// Notes that memory is returned to the system.
pub fn note_return(bytes: usize) {
    if bytes >= USUAL_LIMIT {
        RETURNED.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// Notes a request for pages from any arena. The calling thread holds none of jemalloc's locks.
pub fn note_request(thread: *mut c_void, bytes: usize) {
    let keeps = KEEPS.load(Ordering::Relaxed);
    let sampled = range::arena();
    if (keeps || sampled.is_some())
        && REQUESTS
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(DECAY_EVERY)
    {
        let large = if keeps { large_arena() } else { None };
        for arena in [large, sampled.and_then(arena_of)].into_iter().flatten() {
            // SAFETY: an arena, none of whose locks this thread holds.
            unsafe { decay(thread, arena, false, false) };
        }
    }
    if keeps {
        return;
    }
    if (USUAL_LIMIT..LARGE_LIMIT).contains(&bytes) && bytes <= RETURNED.load(Ordering::Relaxed) {
        begin_to_keep(thread);
    }
}

fn large_arena() -> Option<*mut c_void> {
    // SAFETY: jemalloc's, of this type.
    let index = unsafe { &LARGE_ARENA }.load(Ordering::Relaxed);
    if index == 0 { None } else { arena_of(index) }
}

#[cold]
fn begin_to_keep(thread: *mut c_void) {
    // SAFETY: jemalloc's, of these types, which do not change once it runs.
    let (limit, ms) = unsafe { (&LIMIT, &DECAY_MS) };
    let is_usual = limit.load(Ordering::Relaxed) == USUAL_LIMIT;
    let Some(arena) = large_arena().filter(|_| is_usual) else {
        return;
    };
    if !KEEPS.swap(true, Ordering::Relaxed) {
        // SAFETY: an arena, none of whose locks this thread holds, and a time that jemalloc accepts.
        unsafe { set_decay(thread, arena, DIRTY, ms.load(Ordering::Relaxed)) };
    }
}
