//! `pthread_create`, by which a session of CPU time learns of new threads at once: one that never
//! allocates, while all others wait, would not be noticed.
//!
//! Without such a session the call is passed on unchanged.

use crate::arch::starting_thread;
use crate::sys::next_symbol;
use crate::{cpu, timers};
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What a thread runs.
type Routine = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut c_void, *const c_void, Option<Routine>, *mut c_void) -> c_int;

/// The C library's function; null where that has no threads.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds it. At start-up; a library with threads may be loaded later.
pub fn find_next() {
    REAL.store(next_symbol(c"pthread_create"), Ordering::Relaxed);
}

fn real() -> Option<Create> {
    let mut found = REAL.load(Ordering::Relaxed);
    if found.is_null() {
        find_next();
        found = REAL.load(Ordering::Relaxed);
    }
    // SAFETY: null, or the C library's function of this type.
    unsafe { transmute::<*mut c_void, Option<Create>>(found) }
}

/// A thread that is about to begin: what it runs, and its argument.
struct Beginning {
    /// 0: free; 1: about to be filled in.
    routine: AtomicUsize,
    argument: AtomicPtr<c_void>,
}

/// Threads that are about to begin at a time. Beyond, they are seen a little later.
static BEGINNINGS: [Beginning; 64] = [const {
    Beginning {
        routine: AtomicUsize::new(0),
        argument: AtomicPtr::new(null_mut()),
    }
}; 64];

impl Beginning {
    fn of(routine: Routine, argument: *mut c_void) -> Option<&'static Self> {
        let claim = |beginning: &&Self| {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let claimed = beginning.routine.compare_exchange(0, 1, order.0, order.1);
            claimed.is_ok()
        };
        let claimed = BEGINNINGS.iter().find(claim)?;
        claimed.argument.store(argument, Ordering::Relaxed);
        claimed.routine.store(routine as usize, Ordering::Release);
        Some(claimed)
    }

    fn free(&self) {
        self.routine.store(0, Ordering::Release);
    }
}

/// pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: Option<Routine>,
    argument: *mut c_void,
) -> c_int {
    let Some(real) = real() else {
        return libc::EAGAIN;
    };
    let beginning = match (timers::session(), routine) {
        (0, _) | (_, None) => None,
        (_, Some(routine)) => Beginning::of(routine, argument),
    };
    let Some(beginning) = beginning else {
        // SAFETY: the caller's arguments.
        return unsafe { real(thread, attributes, routine, argument) };
    };
    let place = (&raw const *beginning).cast_mut().cast();
    // SAFETY: the caller's arguments, except for the routine, which then continues with the
    // caller's.
    let result = unsafe { real(thread, attributes, Some(begin), place) };
    if result != 0 {
        beginning.free();
    }
    result
}

starting_thread! {
    /// What such a thread runs first.
    begin, arrive
}

/// Gives the thread its timer; what it is to run, and the argument.
///
/// # Safety
/// `place` is a claimed [`Beginning`], and `to` has room for two words.
unsafe extern "C" fn arrive(place: *const Beginning, to: *mut [usize; 2]) {
    // SAFETY: the caller's.
    unsafe {
        let beginning = &*place;
        let routine = beginning.routine.load(Ordering::Acquire);
        let argument = beginning.argument.load(Ordering::Relaxed);
        to.write([routine, argument as usize]);
        beginning.free();
    }
    cpu::thread_begins();
}
