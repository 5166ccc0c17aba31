//! A stack of its own for work at start-up, where the program's is small, and in forked children.
//!
//! A program may run with little stack (`ulimit -s 16`), of which its arguments and environment take a part.
//! jemalloc's initialisation alone needs 11 KiB of stack, once; reading files at start-up needs up to 7.

use crate::arch::on_own_stack;
use crate::sys;
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Limits of the first thread's stack from which on there is room on it.
const ENOUGH: u64 = 256 << 10;
/// Bytes of the stack that is made.
const BYTES: usize = 128 << 10;

/// The stack, while it exists.
static STACK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Calls a function, on a stack of its own if the thread's may be small. By the first thread, before
/// there is another one. Keeps `errno`.
pub fn call(function: extern "C" fn()) {
    // Nothing else of the C library is called before.
    crate::c_library::resolve();
    let saved = sys::errno();
    if sys::limit(libc::RLIMIT_STACK) >= ENOUGH || !call_apart(function) {
        function();
    }
    sys::set_errno(saved);
}

/// Calls a function on a stack of its own. By one thread at a time. Returns false, and has not called it, if
/// there is no memory for the stack, or the calling thread is on it.
pub fn call_apart(function: extern "C" fn()) -> bool {
    if !STACK.load(Ordering::Relaxed).is_null() {
        return false;
    }
    let stack = sys::map_private(BYTES);
    if stack.is_null() {
        return false;
    }
    STACK.store(stack, Ordering::Relaxed);
    // SAFETY: the function as `work` takes it; the handler uses its arguments for nothing else.
    unsafe { on_stack(0, (function as *mut c_void).cast(), null_mut()) };
    STACK.store(null_mut(), Ordering::Relaxed);
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { libc::munmap(stack, BYTES) };
    true
}

on_own_stack! {
    /// Calls the function whose address is the second argument.
    on_stack, end, work
}

/// The end of the stack that was made.
unsafe extern "C" fn end(_: *const libc::siginfo_t, _: *const c_void) -> *mut u8 {
    // SAFETY: one past the mapping, whose end is aligned as a page is.
    unsafe { STACK.load(Ordering::Relaxed).cast::<u8>().add(BYTES) }
}

/// # Safety
/// `function` is one that takes nothing.
unsafe extern "C" fn work(function: *const libc::siginfo_t, _: *const c_void) {
    // SAFETY: the caller's.
    let function = unsafe { transmute::<*const libc::siginfo_t, extern "C" fn()>(function) };
    function();
}
