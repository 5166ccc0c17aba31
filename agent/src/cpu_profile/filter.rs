//! gperftools' `filter_in_thread`: a function of the program that selects samples. Like
//! gperftools', it is called in the timers' signal handler, in the thread that was interrupted.

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Maximum wait for threads that are in a filter, in milliseconds.
const FILTER_TIMEOUT_MS: u32 = 1000;

type Function = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Filter function with its argument.
#[derive(Clone, Copy)]
pub struct Filter {
    /// Function of the program.
    pub function: Function,
    /// Argument for the function.
    pub argument: *mut c_void,
}

static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static ARGUMENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// Number of threads that may be in the function.
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// Replaces the filter. Afterwards no thread is in the old one, unless it stays for more than
/// [`FILTER_TIMEOUT_MS`]. Changes `errno`.
pub fn install(filter: Option<Filter>) {
    // Cleared first: a thread that sees the new function must see its argument, too.
    FUNCTION.store(null_mut(), Ordering::SeqCst);
    for _ in 0..FILTER_TIMEOUT_MS {
        if INSIDE.load(Ordering::SeqCst) == 0 {
            break;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // SAFETY: only reads a `timespec` of ours.
        unsafe { libc::nanosleep(&pause, null_mut()) };
    }
    if let Some(filter) = filter {
        ARGUMENT.store(filter.argument, Ordering::SeqCst);
        FUNCTION.store(filter.function as *mut c_void, Ordering::SeqCst);
    }
}

/// Forgets the parent's filter and threads, in a forked child.
pub fn forget() {
    FUNCTION.store(null_mut(), Ordering::SeqCst);
    INSIDE.store(0, Ordering::SeqCst);
}

/// Returns true if the calling thread's sample is wanted. Called in the signal handler.
pub fn wants_sample() -> bool {
    if FUNCTION.load(Ordering::Relaxed).is_null() {
        return true;
    }
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let function = FUNCTION.load(Ordering::SeqCst);
    let argument = ARGUMENT.load(Ordering::SeqCst);
    // SAFETY: null, or the function that the program gave for this purpose. `install` waits until
    // this thread has left it.
    let passes = match unsafe { transmute::<*mut c_void, Option<Function>>(function) } {
        // SAFETY: the program's function with its argument, which may be called in a signal handler
        // by gperftools' interface.
        Some(function) => unsafe { function(argument) != 0 },
        None => true,
    };
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    passes
}
