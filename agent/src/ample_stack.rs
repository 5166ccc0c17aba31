//! Calls functions on a stack of their own: at start-up if the program's is small, and in forked
//! children.
//!
//! A program may run with a small stack (`ulimit -s 16`), part of which its arguments and
//! environment take. jemalloc's initialisation alone needs 11 KiB of stack, once; reading files at
//! start-up needs up to 7 KiB.

use crate::arch::on_own_stack;
use crate::sys;
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Minimum `RLIMIT_STACK`, in bytes, for using the main thread's own stack.
const MIN_STACK_LIMIT: u64 = 256 << 10;
/// Size of our own stack in bytes.
const STACK_BYTES: usize = 128 << 10;

/// Address of our own stack; null while there is none.
static STACK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Calls a function, on a stack of our own if the thread's may be small. Must be called by the main
/// thread, before there is another one. Keeps `errno`.
pub fn call(function: extern "C" fn()) {
    // Must come before any other call of the C library.
    crate::c_library::resolve();
    let saved = sys::errno();
    if sys::limit(libc::RLIMIT_STACK) >= MIN_STACK_LIMIT || !call_on_own_stack(function) {
        function();
    }
    sys::set_errno(saved);
}

/// Returns true if the calling thread is on our own stack. Must not be called while another thread
/// may be on it.
pub fn is_on_own_stack() -> bool {
    !STACK.load(Ordering::Relaxed).is_null()
}

/// Calls a function on a stack of our own. Must be called by one thread at a time. Returns false,
/// without having called it, if there is no memory for the stack or the calling thread is on it
/// already.
pub fn call_on_own_stack(function: extern "C" fn()) -> bool {
    if is_on_own_stack() {
        return false;
    }
    let stack = sys::map_private(STACK_BYTES);
    if stack.is_null() {
        return false;
    }
    STACK.store(stack, Ordering::Relaxed);
    // SAFETY: `on_stack` passes its second and third argument to `end` and `work` unchanged, and
    // does nothing else with them.
    unsafe { on_stack(0, (function as *mut c_void).cast(), null_mut()) };
    STACK.store(null_mut(), Ordering::Relaxed);
    // SAFETY: mapped above, and nobody uses it any more.
    unsafe { libc::munmap(stack, STACK_BYTES) };
    true
}

on_own_stack! {
    /// Calls the function whose address is its second argument, on our own stack.
    on_stack, end, work
}

/// Returns the end of our own stack.
unsafe extern "C" fn end(_: *const libc::siginfo_t, _: *const c_void) -> *mut u8 {
    // SAFETY: one past the end of the mapping, which is page-aligned.
    unsafe { STACK.load(Ordering::Relaxed).cast::<u8>().add(STACK_BYTES) }
}

/// Calls `function`.
///
/// # Safety
/// `function` is the address of a function without arguments.
unsafe extern "C" fn work(function: *const libc::siginfo_t, _: *const c_void) {
    // SAFETY: the address of a function of this type.
    let function = unsafe { transmute::<*const libc::siginfo_t, extern "C" fn()>(function) };
    function();
}
