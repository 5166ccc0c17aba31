//! Ends of the stacks on which threads start: beyond them, nothing may be read.

use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering};
use unwind::stack::Ends;

/// Values of the fields of [`Ends`]; zero or [`DEFAULT_SLACK`] while not known.
static FIRST: AtomicU64 = AtomicU64::new(0);
static FIRST_THREAD: AtomicU64 = AtomicU64::new(0);
static THREAD_SLACK: AtomicU64 = AtomicU64::new(DEFAULT_SLACK);

/// Value instead of [`thread_slack`] if the C library does not say how much of a thread's stack it
/// uses itself: less than the smallest stack (`PTHREAD_STACK_MIN`, 16 KiB) minus a thread
/// descriptor.
const DEFAULT_SLACK: u64 = 8192;
/// Lower bound of the size of a thread descriptor, which lies beyond the thread pointer (x86-64).
const MIN_DESCRIPTOR_BYTES: u64 = 1024;

/// Reads the ends from the loader's variables. Called at start-up, in the main thread.
pub fn find() {
    FIRST_THREAD.store(crate::arch::thread_pointer(), Ordering::Relaxed);
    let end = sys::symbol(c"__libc_stack_end");
    if !end.is_null() {
        // SAFETY: `void *__libc_stack_end`, which the loader exports since GLIBC_2.2.5 and sets
        // before it runs any code of ours.
        FIRST.store(unsafe { end.cast::<u64>().read() }, Ordering::Relaxed);
    }
    if let Some(slack) = thread_slack() {
        THREAD_SLACK.store(slack, Ordering::Relaxed);
    }
}

/// Returns the ends that were found.
pub fn recorded() -> Ends {
    Ends {
        first: FIRST.load(Ordering::Relaxed),
        first_thread: FIRST_THREAD.load(Ordering::Relaxed),
        thread_slack: THREAD_SLACK.load(Ordering::Relaxed),
    }
}

/// Returns the minimum distance from a thread pointer to the lowest address of its stack. On
/// x86-64, thread-local storage lies between both, and every stack has at least 2 KiB in addition
/// to that.
#[cfg(target_arch = "x86_64")]
fn thread_slack() -> Option<u64> {
    let found = sys::symbol(c"_dl_get_tls_static_info");
    // SAFETY: null, or the loader's function of this type, which the C library calls for its own
    // threads.
    let get_info: Option<unsafe extern "C" fn(*mut usize, *mut usize)> =
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, _>(found) };
    let get_info = get_info?;
    let mut size = 0usize;
    let mut align = 0usize;
    // SAFETY: two words of ours to write.
    unsafe { get_info(&mut size, &mut align) };
    (size as u64).checked_sub(MIN_DESCRIPTOR_BYTES)
}

/// Returns the minimum distance from a thread pointer to the lowest address of its stack: on
/// aarch64, the size of a thread descriptor and more.
#[cfg(target_arch = "aarch64")]
fn thread_slack() -> Option<u64> {
    Some(3 * MIN_DESCRIPTOR_BYTES)
}
