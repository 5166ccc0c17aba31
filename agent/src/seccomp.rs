//! What is known of seccomp filters, without asking the kernel again.
//!
//! A filter may kill the process for a system call that its program never makes, and asking
//! whether there is a filter is such a call. So the state at start-up is read from /proc
//! while that is still safe (the loader has just opened files too), and filters that come
//! later pass through this library: `prctl` and `syscall` are its own entry points.
//!
//! Limit: a filter that is installed with a system call instruction of the program's own is
//! not seen. The controller compares `/proc/PID/status` as well before it starts a session.

use crate::session::read_file;
use core::ffi::{CStr, c_uint, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use tikv_jemalloc_sys as jemalloc;

/// Nothing is known: taken for a filter.
const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
/// There was one when the program started; everything that is done at start-up passed it.
const INHERITED: u8 = 2;
/// The program has installed one.
const INSTALLED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// What `/proc/self/status` said at start-up: mode, and number of filters.
static MODE: AtomicU32 = AtomicU32::new(0);
static FILTERS: AtomicU32 = AtomicU32::new(0);

/// Reads the state at start-up.
pub fn start() {
    let mut buffer = [0u8; 4096];
    let text = read_file(c"/proc/self/status", &mut buffer);
    let field = |name: &[u8]| {
        let line = text
            .split(|byte| *byte == b'\n')
            .find_map(|line| line.strip_prefix(name))?;
        core::str::from_utf8(line.trim_ascii()).ok()?.parse().ok()
    };
    let mode = field(b"Seccomp:");
    MODE.store(mode.unwrap_or(0), Ordering::Relaxed);
    FILTERS.store(field(b"Seccomp_filters:").unwrap_or(0), Ordering::Relaxed);
    let state = match mode {
        // A kernel without seccomp has no such line, and no filters.
        None if !text.is_empty() => ABSENT,
        Some(0) => ABSENT,
        _ => INHERITED,
    };
    let _ = STATE.compare_exchange(UNKNOWN, state, Ordering::Relaxed, Ordering::Relaxed);
}

/// Mode and number of filters at start-up, as `/proc/PID/status` has them.
pub fn at_start() -> (u32, u32) {
    (
        MODE.load(Ordering::Relaxed),
        FILTERS.load(Ordering::Relaxed),
    )
}

/// Whether no filter is known to be there: system calls beyond an allocator's own may be
/// made.
pub fn is_absent() -> bool {
    STATE.load(Ordering::Relaxed) == ABSENT
}

/// Whether the program has put itself under a filter, which may forbid what was possible at
/// start-up.
pub fn is_installed() -> bool {
    STATE.load(Ordering::Relaxed) == INSTALLED
}

/// Notes that a filter is about to be installed, and lets jemalloc keep its freed pages: it
/// gives them back with `madvise`, which a program that was tried with the C library's
/// allocator alone may not have allowed itself.
#[cold]
pub extern "C" fn note_installation() {
    if STATE.swap(INSTALLED, Ordering::Relaxed) == INSTALLED || crate::backend::is_system() {
        return;
    }
    let saved = crate::sample::errno();
    for name in [c"arenas.dirty_decay_ms", c"arenas.muzzy_decay_ms"] {
        set_never(name);
    }
    let mut arenas: c_uint = 0;
    let mut len = size_of::<c_uint>();
    // SAFETY: jemalloc writes a c_uint.
    unsafe {
        let at = (&raw mut arenas).cast();
        jemalloc::mallctl(c"arenas.narenas".as_ptr(), at, &mut len, null_mut(), 0);
    }
    for arena in 0..arenas {
        for ending in [&b".dirty_decay_ms"[..], b".muzzy_decay_ms"] {
            let mut name = crate::session::Text::<64>::new();
            name.push(b"arena.");
            name.push_number(u64::from(arena));
            name.push(ending);
            if let Some(name) = name.as_c_str() {
                set_never(name);
            }
        }
    }
    crate::sample::set_errno(saved);
}

/// Sets a decay time to "never". An arena that was not made yet refuses, and takes the
/// default when it is.
fn set_never(name: &CStr) {
    let mut never: isize = -1;
    let at: *mut c_void = (&raw mut never).cast();
    // SAFETY: jemalloc reads an ssize_t.
    unsafe {
        jemalloc::mallctl(
            name.as_ptr(),
            null_mut(),
            null_mut(),
            at,
            size_of::<isize>(),
        )
    };
}
