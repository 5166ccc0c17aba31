//! Delays unloading while other threads read the memory of modules.
//!
//! `dlclose` is announced, waits until no thread reads, and then calls the loader's. Reading takes
//! microseconds. A reader that has not left after a second is stuck: in a signal handler, in a
//! debugger, or in a thread that this one has stopped. A signal handler that interrupted a reader
//! of its own thread cannot wait either. In these cases the library stays loaded, which POSIX
//! allows, until the next `dlclose` that need not wait.

use super::find_unloaded;
use crate::{arch, backend, sys};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use shm_protocol::clock;
use unwind::readers::Readers;

static READERS: Readers = Readers::new();

/// Maximum wait for readers to leave, in ns.
const READER_TIMEOUT_NS: u64 = 1_000_000_000;
/// Maximum wait after an earlier wait has timed out, in ns.
const STUCK_READER_TIMEOUT_NS: u64 = 10_000_000;

/// Runs `work`, which reads the memory of modules or the loader's data for them. No `dlclose` of
/// the program unloads anything while it runs. Returns `None`, without running `work`, if something
/// is being unloaded.
pub fn reading<R>(work: impl FnOnce() -> R) -> Option<R> {
    let inside = READERS.enter()?;
    let local = arch::local();
    // SAFETY: the word is the thread's own. It is set inside and reset before leaving, so a signal
    // handler that sees it knows that this thread is inside.
    let before = unsafe { (*local).reading };
    // SAFETY: the word is the thread's own.
    unsafe { (*local).reading = 1 };
    let result = work();
    // SAFETY: the word is the thread's own. It is restored, because this may be a nested call.
    unsafe { (*local).reading = before };
    drop(inside);
    Some(result)
}

/// Forgets the parent's other threads in a forked child, where their reading and unloading would
/// never end. This thread may itself have forked in a signal handler that interrupted its reading.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub unsafe extern "C" fn in_child() {
    // SAFETY: the word is the thread's own.
    let is_reading = unsafe { (*arch::local()).reading } != 0;
    READERS.reset_after_fork(is_reading);
    if !is_reading {
        super::listing::release_in_child();
    }
    if STUCK.load(Ordering::Relaxed) {
        STUCK.store(false, Ordering::Relaxed);
    }
}

/// The loader's `dlclose`, looked up at start-up.
static DLCLOSE: AtomicUsize = AtomicUsize::new(0);

type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Looks up the loader's `dlclose`. Must not be called within an allocation.
pub fn find() -> usize {
    let real = crate::sys::next_symbol(c"dlclose") as usize;
    DLCLOSE.store(real, Ordering::Relaxed);
    real
}

/// Calls the loader's `dlclose` when no thread reads, then looks for modules that were unloaded.
///
/// # Safety
/// `handle` is valid for dlclose(3).
pub unsafe fn close(handle: *mut c_void) -> c_int {
    let real = match DLCLOSE.load(Ordering::Relaxed) {
        0 => find(),
        address => address,
    };
    if real == 0 {
        return -1;
    }
    // SAFETY: the loader's function of this type.
    let real: Close = unsafe { core::mem::transmute(real) };
    if backend::is_left_out() {
        // SAFETY: a valid handle.
        return unsafe { real(handle) };
    }
    // SAFETY: the word is the thread's own.
    if unsafe { (*arch::local()).reading } != 0 {
        postpone(handle);
        return 0;
    }
    READERS.announce();
    let result = if wait_for_readers() {
        // SAFETY: no reader is inside, and the handle is valid.
        unsafe {
            close_postponed(real);
            real(handle)
        }
    } else {
        postpone(handle);
        0
    };
    find_unloaded();
    super::listing::forget_unloaded();
    READERS.end();
    result
}

/// True after a wait has timed out, until readers have been seen to leave.
static STUCK: AtomicBool = AtomicBool::new(false);

/// Waits until no reader is inside. Returns false after the time-out.
fn wait_for_readers() -> bool {
    for _ in 0..100 {
        if !READERS.has_readers() {
            STUCK.store(false, Ordering::Relaxed);
            return true;
        }
        core::hint::spin_loop();
    }
    let timeout = if STUCK.load(Ordering::Relaxed) {
        STUCK_READER_TIMEOUT_NS
    } else {
        READER_TIMEOUT_NS
    };
    let end = clock::now_ns() + timeout;
    while READERS.has_readers() {
        if clock::now_ns() >= end {
            STUCK.store(true, Ordering::Relaxed);
            return false;
        }
        wait_briefly();
    }
    STUCK.store(false, Ordering::Relaxed);
    true
}

/// Waits for a millisecond. Does not wait if the number of readers has just changed.
fn wait_briefly() {
    let word = READERS.count();
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let saved = crate::sys::errno();
    // SAFETY: the word is a static of ours. Nobody wakes this futex; the wait times out.
    unsafe {
        let seen = word.load(Ordering::Relaxed);
        sys::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            seen,
            &raw const time,
        );
    }
    crate::sys::set_errno(saved);
}

/// Handles whose `dlclose` was postponed. If all entries are in use, further libraries stay loaded.
static POSTPONED: [AtomicPtr<c_void>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

fn postpone(handle: *mut c_void) {
    let claim = |slot: &AtomicPtr<c_void>| {
        slot.compare_exchange(null_mut(), handle, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    };
    // Without a free entry the library stays loaded.
    let _ = POSTPONED.iter().any(claim);
}

/// Closes the handles whose `dlclose` was postponed.
///
/// # Safety
/// Unloading is announced, no reader is inside, and `real` is the loader's `dlclose`.
unsafe fn close_postponed(real: Close) {
    for slot in &POSTPONED {
        if slot.load(Ordering::Relaxed).is_null() {
            continue;
        }
        let handle = slot.swap(null_mut(), Ordering::Acquire);
        if !handle.is_null() {
            // SAFETY: a handle that the program has closed and no longer uses.
            unsafe { real(handle) };
        }
    }
}
