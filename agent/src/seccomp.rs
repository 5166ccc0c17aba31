//! Seccomp filters of the process, tracked without system calls that could violate them.
//!
//! A filter may kill the process for a system call that its program never makes, and the call that
//! asks whether there is a filter is one of those. So the state at start-up is read from `/proc`
//! while that is still safe (the loader has just opened files, too), and filters that are installed
//! later pass through this library, which exports `prctl` and `syscall`.
//!
//! Limit: a filter that the program installs by a system call instruction of its own is not
//! detected. The controller also compares `/proc/PID/status` before it starts a session.

// Decision 22: system calls after start-up.
use crate::definitions::{self, Name};
use crate::environment::variable;
use crate::sys::{self, read_file};
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use unwind::probe;

/// State before [`start`], treated like a filter.
const UNKNOWN: u8 = 0;
/// State without a filter.
const ABSENT: u8 = 1;
/// State of a program that started with a filter, which allowed everything that is done at
/// start-up.
const INHERITED: u8 = 2;
/// State after the program has installed a filter.
const INSTALLED: u8 = 3;

/// One of the constants above.
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Seccomp mode in `/proc/self/status` at start-up.
static MODE: AtomicU32 = AtomicU32::new(0);
/// Number of filters in `/proc/self/status` at start-up.
static FILTERS: AtomicU32 = AtomicU32::new(0);

/// True if the filters at start-up are known to allow what timers need (see [`allows_timers`]).
static ALLOWS_TIMERS: AtomicBool = AtomicBool::new(false);

/// glibc's `__libc_single_threaded`, which is 0 from the first `pthread_create` on; null before
/// 2.32.
static SINGLE_THREADED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Reads the state at start-up.
pub fn start() {
    SINGLE_THREADED.store(find_single_threaded(), Ordering::Relaxed);
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
    let filters = field(b"Seccomp_filters:").unwrap_or(0);
    FILTERS.store(filters, Ordering::Relaxed);
    let checked = variable(c"MEM_PROFILER_FILTERS");
    let checked = checked.and_then(|text| core::str::from_utf8(text).ok()?.trim().parse().ok());
    // Filters are never removed: if their number is the same, they are the same filters.
    let are_checked = filters != 0 && checked == Some(filters);
    ALLOWS_TIMERS.store(are_checked, Ordering::Relaxed);
    let state = match mode {
        // A kernel without seccomp has no such line.
        None if !text.is_empty() => ABSENT,
        Some(0) => ABSENT,
        _ => INHERITED,
    };
    let _ = STATE.compare_exchange(UNKNOWN, state, Ordering::Relaxed, Ordering::Relaxed);
}

/// Looks up glibc's `__libc_single_threaded`. A failing lookup would leave a message for the
/// program's first `dlerror`, so `dlsym` is called only if a symbol table has the symbol.
fn find_single_threaded() -> *mut c_void {
    const NAME: &CStr = c"__libc_single_threaded";
    if definitions::can_examine() && definitions::is_defined_by_others(Name::new(NAME)) {
        sys::next_symbol(NAME)
    } else {
        null_mut()
    }
}

/// Returns the mode and the number of filters at start-up, as in `/proc/PID/status`.
pub fn at_start() -> (u32, u32) {
    (
        MODE.load(Ordering::Relaxed),
        FILTERS.load(Ordering::Relaxed),
    )
}

/// Returns true if it is known that there is no filter: then system calls beyond those of an
/// allocator are allowed.
pub fn is_absent() -> bool {
    STATE.load(Ordering::Relaxed) == ABSENT
}

/// Returns true if the system calls that timers and their signals need are allowed: there is no
/// filter, or the number of inherited filters is that in `MEM_PROFILER_FILTERS`. The controller
/// sets that variable for programs that it starts, once it has checked the calls under its own
/// filters, which they inherit. Users who know the filter of their containers may set it, too.
pub fn allows_timers() -> bool {
    match STATE.load(Ordering::Relaxed) {
        ABSENT => true,
        INHERITED => ALLOWS_TIMERS.load(Ordering::Relaxed),
        _ => false,
    }
}

/// Returns true if the program has installed a filter, which may forbid what was allowed at
/// start-up.
pub fn is_installed() -> bool {
    STATE.load(Ordering::Relaxed) == INSTALLED
}

/// Records that a filter is about to be installed. Safe in a signal handler that interrupted an
/// allocation.
#[cold]
pub fn record_installation() {
    STATE.store(INSTALLED, Ordering::Relaxed);
    sys::record_filter();
    if is_single_threaded() {
        // The probe makes a `futex` call. The C library's `malloc` makes none in a process with one
        // thread, so the filter may not allow it.
        probe::forbid();
    }
}

/// Returns true if the process is known to have one thread.
fn is_single_threaded() -> bool {
    let flag: *const AtomicU8 = SINGLE_THREADED.load(Ordering::Relaxed).cast();
    // SAFETY: the pointer is null or that of the C library's variable of one byte, which exists as
    // long as the process.
    unsafe { flag.as_ref() }.is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
}
