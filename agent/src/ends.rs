//! Ends of the stacks that threads start on.

use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering};
use unwind::stack::Ends;

/// See [`Ends`].
static FIRST: AtomicU64 = AtomicU64::new(0);
static FIRST_THREAD: AtomicU64 = AtomicU64::new(0);
static THREAD_SLACK: AtomicU64 = AtomicU64::new(UNKNOWN_SLACK);

/// Used where the C library does not say how much of a thread's stack it uses itself: less than
/// the smallest stack (`PTHREAD_STACK_MIN`, 16 KiB) without the thread's descriptor on it.
const UNKNOWN_SLACK: u64 = 8192;
/// A thread's descriptor is larger, and lies beyond the thread pointer (x86-64).
const LEAST_DESCRIPTOR: u64 = 1024;

/// Looks them up, in the loader's own variables. At start-up, in the first thread.
pub fn find() {
    FIRST_THREAD.store(crate::arch::thread_pointer(), Ordering::Relaxed);
    let end = sys::symbol(c"__libc_stack_end");
    if !end.is_null() {
        // SAFETY: `void *__libc_stack_end`, exported by the loader since GLIBC_2.2.5 and set
        // before any code of ours runs.
        FIRST.store(unsafe { end.cast::<u64>().read() }, Ordering::Relaxed);
    }
    if let Some(slack) = thread_slack() {
        THREAD_SLACK.store(slack, Ordering::Relaxed);
    }
}

/// The ends that were found.
pub fn known() -> Ends {
    Ends {
        first: FIRST.load(Ordering::Relaxed),
        first_thread: FIRST_THREAD.load(Ordering::Relaxed),
        thread_slack: THREAD_SLACK.load(Ordering::Relaxed),
    }
}

/// On x86-64 thread-local storage lies between the stack and the thread pointer, and no
/// stack has less than 2 KiB in addition to that.
#[cfg(target_arch = "x86_64")]
fn thread_slack() -> Option<u64> {
    let found = sys::symbol(c"_dl_get_tls_static_info");
    // SAFETY: null, or the loader's function of this type, which the C library's own threads call.
    let ask: Option<unsafe extern "C" fn(*mut usize, *mut usize)> =
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, _>(found) };
    let ask = ask?;
    let (mut size, mut align) = (0usize, 0usize);
    // SAFETY: two words to write.
    unsafe { ask(&mut size, &mut align) };
    (size as u64).checked_sub(LEAST_DESCRIPTOR)
}

/// On aarch64 the thread's descriptor alone does.
#[cfg(target_arch = "aarch64")]
fn thread_slack() -> Option<u64> {
    Some(3 * LEAST_DESCRIPTOR)
}
