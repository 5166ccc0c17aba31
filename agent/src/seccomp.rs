//! Seccomp filters of the process, known without asking the kernel again.
//!
//! A filter may kill the process for a system call that its program never makes, and asking whether
//! there is a filter is such a call. So the state at start-up is read from /proc while that is
//! still safe (the loader has just opened files too), and filters that are installed later pass
//! through this library: `prctl` and `syscall` are its own entry points.
//!
//! Limit: a filter that is installed with a system call instruction of the program's own is not
//! seen. The controller also compares `/proc/PID/status` before it starts a session.

// Decision 22: system calls after start-up.
use crate::definitions;
use crate::environment::variable;
use crate::sys::{self, read_file};
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use unwind::probe;

/// Nothing is known: treated as a filter.
const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
/// There was one when the program started; everything that is done at start-up passed it.
const INHERITED: u8 = 2;
/// The program has installed one.
const INSTALLED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Mode and number of filters in `/proc/self/status` at start-up.
static MODE: AtomicU32 = AtomicU32::new(0);
static FILTERS: AtomicU32 = AtomicU32::new(0);

/// Whether those filters are known to let pass what timers need, see [`lets_timers_pass`].
static LETS_TIMERS_PASS: AtomicBool = AtomicBool::new(false);

/// glibc's `__libc_single_threaded`, which is 0 from the first `pthread_create` on; null: there is none
/// (before 2.32).
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
    let tried = variable(c"MEM_PROFILER_FILTERS");
    let tried = tried.and_then(|text| core::str::from_utf8(text).ok()?.trim().parse().ok());
    // Filters are only ever added: as many of them are the same ones.
    let all_tried = filters != 0 && tried == Some(filters);
    LETS_TIMERS_PASS.store(all_tried, Ordering::Relaxed);
    let state = match mode {
        // A kernel without seccomp has no such line, and no filters.
        None if !text.is_empty() => ABSENT,
        Some(0) => ABSENT,
        _ => INHERITED,
    };
    let _ = STATE.compare_exchange(UNKNOWN, state, Ordering::Relaxed, Ordering::Relaxed);
}

/// Looks up glibc's `__libc_single_threaded`. A look-up that fails would leave a message for the program's
/// first `dlerror`, so the loader is asked only for what the symbol tables have.
fn find_single_threaded() -> *mut c_void {
    const NAME: &CStr = c"__libc_single_threaded";
    if definitions::can_tell() && definitions::is_defined_by_others(NAME) {
        sys::next_symbol(NAME)
    } else {
        null_mut()
    }
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

/// Whether the system calls that timers and their signals need may be made: there is no filter, or
/// those that the program has inherited are as many as `MEM_PROFILER_FILTERS` says that let them
/// pass. The controller sets it for what it starts, once it has tried them under its own filters,
/// which it passes on; users set it who know the filter of their containers.
pub fn lets_timers_pass() -> bool {
    match STATE.load(Ordering::Relaxed) {
        ABSENT => true,
        INHERITED => LETS_TIMERS_PASS.load(Ordering::Relaxed),
        _ => false,
    }
}

/// Whether the program has put itself under a filter, which may forbid what was possible at
/// start-up.
pub fn is_installed() -> bool {
    STATE.load(Ordering::Relaxed) == INSTALLED
}

/// Notes that a filter is about to be installed. Safe in a signal handler that interrupted
/// an allocation.
#[cold]
pub fn note_installation() {
    STATE.store(INSTALLED, Ordering::Relaxed);
    sys::note_filter();
    if is_single_threaded() {
        // The C library's `malloc` makes no `futex` call either.
        probe::forbid();
    }
}

/// Whether the process is known to have had one thread only.
fn is_single_threaded() -> bool {
    let flag: *const AtomicU8 = SINGLE_THREADED.load(Ordering::Relaxed).cast();
    // SAFETY: null, or the C library's variable of one byte, which is there as long as the process.
    unsafe { flag.as_ref() }.is_some_and(|flag| flag.load(Ordering::Relaxed) != 0)
}
