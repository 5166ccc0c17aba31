//! `sigaction`, `signal` and `sigaltstack`.
//!
//! A program that wants the signal of a CPU session's timers gets it, and the session switches to
//! another one. The bounds of the thread's alternate signal stack are recorded, because it may be
//! too small for a sample. Otherwise, calls are passed on unchanged.

use crate::arch::glibc_function;
use crate::c_library;
use crate::sys::{self, next_symbol, set_errno};
use crate::{arch, cpu, on_signal};
use core::ffi::{CStr, c_int, c_void};
use core::mem::{transmute, zeroed};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

type Action = unsafe extern "C" fn(c_int, *const c_void, *mut c_void) -> c_int;
type Alternate = unsafe extern "C" fn(*const libc::stack_t, *mut libc::stack_t) -> c_int;
type Simple = unsafe extern "C" fn(c_int, usize) -> usize;

/// Next definitions of these functions (`RTLD_NEXT`); null before they are looked up.
static SIGACTION: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static SIGNAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static SIGALTSTACK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up the functions, at start-up.
pub fn find_next() {
    SIGACTION.store(next_symbol(c"sigaction"), Ordering::Relaxed);
    SIGNAL.store(next_symbol(c"signal"), Ordering::Relaxed);
    SIGALTSTACK.store(next_symbol(c"sigaltstack"), Ordering::Relaxed);
}

/// Returns the next definition of the function `name`. Before start-up, returns the C library's
/// definition: `early` if it is not 0, which saves a lookup.
fn next_definition(cached: &AtomicPtr<c_void>, early: usize, name: &CStr) -> *mut c_void {
    match cached.load(Ordering::Relaxed) {
        next if !next.is_null() => next,
        _ if early != 0 => core::ptr::with_exposed_provenance_mut(early),
        _ => next_symbol(name),
    }
}

/// sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    number: c_int,
    action: *const c_void,
    old: *mut c_void,
) -> c_int {
    if !action.is_null() {
        cpu::give_way(number);
    }
    let real = next_definition(&SIGACTION, glibc_function!("__sigaction"), c"sigaction");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<Action>>(real) } {
        // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
        Some(real) => unsafe {
            let result = real(number, action, old);
            if result == 0 {
                hide_agent_handler(old.cast());
            }
            result
        },
        None => {
            set_errno(libc::ENOSYS);
            -1
        }
    }
}

/// Reports the default action in place of a handler that the agent installed (see [`on_signal`]):
/// some programs refuse to run if a signal that they want is in use.
///
/// # Safety
/// `old` is null or an action that the C library has filled.
unsafe fn hide_agent_handler(old: *mut libc::sigaction) {
    // SAFETY: null or a valid action.
    if let Some(old) = unsafe { old.as_mut() }
        && on_signal::is_ours(old.sa_sigaction)
    {
        old.sa_sigaction = libc::SIG_DFL;
        old.sa_flags = 0;
        // SAFETY: the field is a set that may be overwritten.
        unsafe { libc::sigemptyset(&mut old.sa_mask) };
    }
}

/// signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: usize) -> usize {
    cpu::give_way(number);
    let real = next_definition(
        &SIGNAL,
        c_library::optional_function(c"signal").addr(),
        c"signal",
    );
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<Simple>>(real) } {
        // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
        Some(real) => match unsafe { real(number, handler) } {
            old if on_signal::is_ours(old) => libc::SIG_DFL,
            old => old,
        },
        None => {
            set_errno(libc::ENOSYS);
            libc::SIG_ERR
        }
    }
}

/// Returns the alternate stack that a successful `call` with `new` and `old` has set; `None` if it
/// has set none, or if that is not known. Asks the kernel if `new` and `old` overlap, because `new`
/// is then overwritten.
fn installed_stack(
    new: *const libc::stack_t,
    old: *mut libc::stack_t,
    call: impl Fn(*const libc::stack_t, *mut libc::stack_t) -> c_int,
) -> Option<libc::stack_t> {
    if new.is_null() {
        return None;
    }
    if new.addr().abs_diff(old.addr()) >= size_of::<libc::stack_t>() {
        // SAFETY: the kernel has read it just now.
        return Some(unsafe { *new });
    }
    // SAFETY: zeros are a valid `stack_t`.
    let mut current: libc::stack_t = unsafe { zeroed() };
    match call(null(), &mut current) {
        0 => Some(current),
        _ => None,
    }
}

/// sigaltstack(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    let real = SIGALTSTACK.load(Ordering::Relaxed);
    let call = |new: *const libc::stack_t, old: *mut libc::stack_t| {
        // SAFETY: null, or the C library's function of this type.
        match unsafe { transmute::<*mut c_void, Option<Alternate>>(real) } {
            // SAFETY: the kernel checks both pointers.
            Some(real) => unsafe { real(new, old) },
            // SAFETY: the kernel checks both pointers.
            None => unsafe { sys::syscall(libc::SYS_sigaltstack, new, old) as c_int },
        }
    };
    let result = call(new, old);
    // `new` is read only after success: the kernel has refused an unreadable address (`EFAULT`).
    if result == 0
        && let Some(stack) = installed_stack(new, old, call)
        && arch::has_thread_block()
    {
        let start = stack.ss_sp.addr() as u64;
        let (start, end) = match stack.ss_flags & libc::SS_DISABLE {
            0 => (start, start.saturating_add(stack.ss_size as u64)),
            _ => (0, 0),
        };
        // A signal handler that runs before both stores may misjudge how much of its stack is left.
        // SAFETY: the calling thread's own words.
        unsafe {
            let local = arch::local();
            (*local).signal_stack = start;
            (*local).signal_stack_end = end;
        }
    }
    result
}
