//! gperftools' `filter_in_thread`: a function of the program that chooses samples. It runs in the
//! handler of the timers' signal, in the thread that was interrupted, as gperftools' does.

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How long a filter that runs is waited for, in milliseconds.
const PATIENCE: u32 = 1000;

type Function = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The function, and what it is called with.
#[derive(Clone, Copy)]
pub struct Filter {
    /// Not null only if it is a function of this type.
    pub function: Function,
    /// The program's.
    pub argument: *mut c_void,
}

static FUNCTION: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static ARGUMENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// How many threads may be in the function.
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// Makes this one choose samples from now on, or none. Then no thread is in the one before, unless
/// it takes a second. Changes `errno`.
pub fn install(filter: Option<Filter>) {
    // Who sees the new function must see its argument.
    FUNCTION.store(null_mut(), Ordering::SeqCst);
    for _ in 0..PATIENCE {
        if INSIDE.load(Ordering::SeqCst) == 0 {
            break;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // SAFETY: reads the timespec, which lives; writes nothing.
        unsafe { libc::nanosleep(&pause, null_mut()) };
    }
    if let Some(filter) = filter {
        ARGUMENT.store(filter.argument, Ordering::SeqCst);
        FUNCTION.store(filter.function as *mut c_void, Ordering::SeqCst);
    }
}

/// A forked child has neither its parent's filter nor its threads.
pub fn forget() {
    FUNCTION.store(null_mut(), Ordering::SeqCst);
    INSIDE.store(0, Ordering::SeqCst);
}

/// Whether the sample that the calling thread takes of itself is wanted. In the signal's handler.
pub fn lets_pass() -> bool {
    if FUNCTION.load(Ordering::Relaxed).is_null() {
        return true;
    }
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let function = FUNCTION.load(Ordering::SeqCst);
    let argument = ARGUMENT.load(Ordering::SeqCst);
    // SAFETY: null, or the function that the program gave for this; it is not taken away before
    // this thread is out of it.
    let passes = match unsafe { transmute::<*mut c_void, Option<Function>>(function) } {
        // SAFETY: the program's function, with its argument, in a signal's handler as it promised
        // to be fit for.
        Some(function) => unsafe { function(argument) != 0 },
        None => true,
    };
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    passes
}
