//! Unloading, while other threads may be reading the memory of modules.
//!
//! `dlclose` is announced, waits until no thread reads, and then calls the loader's. Reading takes
//! microseconds. A reader that has not left in a second is stuck: in a signal handler, behind a
//! debugger, or in a thread that this one has stopped. A handler that interrupted a reader of its
//! own thread does not wait either. In these cases, the library stays loaded, which POSIX allows,
//! until the next `dlclose` that need not wait.

use super::look_for_changes;
use crate::{arch, backend};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use shm_protocol::clock;
use unwind::readers::Readers;

static READERS: Readers = Readers::new();

/// Longest wait for readers to leave, and the one after a wait without success.
const PATIENCE_NS: u64 = 1_000_000_000;
const LITTLE_PATIENCE_NS: u64 = 10_000_000;

/// Runs what reads modules' memory or the loader's words for them: nothing of it is unloaded
/// meanwhile by a `dlclose` of the program. `None`: something is being unloaded just now.
pub fn reading<R>(work: impl FnOnce() -> R) -> Option<R> {
    let inside = READERS.enter()?;
    let local = arch::local();
    // SAFETY: the thread's own word. Set inside, and reset before leaving: a handler that
    // sees it knows that this thread is inside.
    let before = unsafe { (*local).reading };
    // SAFETY: as above.
    unsafe { (*local).reading = 1 };
    let result = work();
    // SAFETY: as above. It may be inside of another reading.
    unsafe { (*local).reading = before };
    drop(inside);
    Some(result)
}

/// In a forked child: other threads are not there to leave, or to end what they announced.
/// This one may have forked in a signal handler that interrupted its reading.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub unsafe extern "C" fn in_child() {
    // SAFETY: the thread's own word.
    let is_reading = unsafe { (*arch::local()).reading } != 0;
    READERS.forget_others(is_reading);
    if !is_reading {
        super::listing::forget_others();
    }
    if STUCK.load(Ordering::Relaxed) {
        STUCK.store(false, Ordering::Relaxed);
    }
}

/// The loader's `dlclose`, looked up at start-up.
static DLCLOSE: AtomicUsize = AtomicUsize::new(0);

type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Looks it up; outside any allocation.
pub fn find() -> usize {
    let real = crate::sys::next_symbol(c"dlclose") as usize;
    DLCLOSE.store(real, Ordering::Relaxed);
    real
}

/// Calls the loader's `dlclose` when no thread reads, then looks for what is gone.
///
/// # Safety
/// That of dlclose(3).
pub unsafe fn close(handle: *mut c_void) -> c_int {
    let real = match DLCLOSE.load(Ordering::Relaxed) {
        0 => find(),
        known => known,
    };
    if real == 0 {
        return -1;
    }
    // SAFETY: the loader's function of this type.
    let real: Close = unsafe { core::mem::transmute(real) };
    if backend::is_left_out() {
        // SAFETY: the caller's.
        return unsafe { real(handle) };
    }
    // SAFETY: the thread's own word.
    if unsafe { (*arch::local()).reading } != 0 {
        put_off(handle);
        return 0;
    }
    READERS.announce();
    let result = if all_left() {
        // SAFETY: the caller's, now or when it was put off.
        unsafe {
            close_late(real);
            real(handle)
        }
    } else {
        put_off(handle);
        0
    };
    look_for_changes();
    super::listing::forget_gone();
    READERS.end();
    result
}

/// Whether a wait has failed since readers were last seen to have left.
static STUCK: AtomicBool = AtomicBool::new(false);

/// Waits until no reader is inside; `false`: one does not leave.
fn all_left() -> bool {
    for _ in 0..100 {
        if !READERS.is_inside() {
            STUCK.store(false, Ordering::Relaxed);
            return true;
        }
        core::hint::spin_loop();
    }
    let patience = match STUCK.load(Ordering::Relaxed) {
        true => LITTLE_PATIENCE_NS,
        false => PATIENCE_NS,
    };
    let end = clock::now_ns() + patience;
    while READERS.is_inside() {
        if clock::now_ns() >= end {
            STUCK.store(true, Ordering::Relaxed);
            return false;
        }
        rest();
    }
    STUCK.store(false, Ordering::Relaxed);
    true
}

/// Waits a millisecond, or until the number of readers is another one than now.
fn rest() {
    let word = READERS.inside();
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let saved = crate::sys::errno();
    // SAFETY: a word of our own; nobody wakes us, the time does.
    unsafe {
        let seen = word.load(Ordering::Relaxed);
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            seen,
            &raw const time,
        );
    }
    crate::sys::set_errno(saved);
}

/// Libraries that were to be closed when that could not be. Beyond, they stay.
static LATE: [AtomicPtr<c_void>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

fn put_off(handle: *mut c_void) {
    let put = |slot: &AtomicPtr<c_void>| {
        slot.compare_exchange(null_mut(), handle, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    };
    // Without a free slot it merely stays loaded.
    let _ = LATE.iter().any(put);
}

/// Closes what was put off.
///
/// # Safety
/// No reader is inside, and this is announced; `real` is the loader's `dlclose`.
unsafe fn close_late(real: Close) {
    for slot in &LATE {
        if slot.load(Ordering::Relaxed).is_null() {
            continue;
        }
        let handle = slot.swap(null_mut(), Ordering::Acquire);
        if !handle.is_null() {
            // SAFETY: the program's own handle, which it has closed and no longer uses.
            unsafe { real(handle) };
        }
    }
}
