//! LeakSanitizer's functions for programs that call them (`sanitizer/lsan_interface.h`), and
//! functions that sanitizers expect.
//!
//! A check is made while a session runs; without one, nothing is known. If a sanitizer is in the
//! process, calls are passed to it.

use super::gperftools::{change_ignoring, ignore, is_others};
use crate::arch::glibc_function;
use crate::checks::{self, Style};
use crate::{exemptions, exit, hooks, scratch, session, symbol_table};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Defines a function, which calls the next library's of the same name where the program keeps its
/// allocator and somebody has it.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// That of LeakSanitizer's function.
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $out)? {
            const NAME: &CStr = match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            };
            if is_others() {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let next = theirs(&NEXT, NAME);
                if !next.is_null() {
                    // SAFETY: the name is that of a function of this type.
                    return unsafe {
                        let next: unsafe extern "C" fn($($type),*) $(-> $out)? =
                            core::mem::transmute(next);
                        next($($arg),*)
                    };
                }
            }
            $body
        }
    )*};
}

exports! {
    /// What this thread allocates from now on is not a leak.
    fn __lsan_disable() { change_ignoring(1) }
    /// Takes one [`__lsan_disable`] back.
    fn __lsan_enable() { change_ignoring(-1) }
    /// The object, and what only it holds, is not a leak.
    fn __lsan_ignore_object(object: *const c_void) { ignore(object) }
    /// Memory that may hold pointers.
    fn __lsan_register_root_region(at: *const c_void, bytes: usize) {
        // If that cannot be recorded, what only it points to is reported as lost.
        let _ = exemptions::add_region(at.addr() as u64, bytes as u64);
    }
    /// Takes it back: same address, same size.
    fn __lsan_unregister_root_region(at: *const c_void, bytes: usize) {
        exemptions::remove_region(at.addr() as u64, bytes as u64)
    }
    /// Checks now, and ends the program with 23, or what its options say, if it has leaks. None is made
    /// at exit afterwards.
    fn __lsan_do_leak_check() {
        if let Some(code @ 1..) = check() {
            // SAFETY: ends the process, as LeakSanitizer does, without its exit handlers.
            unsafe { libc::_exit(code) }
        }
        checks::cancel();
        exit::let_exit_unchecked();
    }
    /// Checks now: 1 if there are leaks.
    fn __lsan_do_recoverable_leak_check() -> c_int { c_int::from(check().is_some()) }
}

/// The sanitizer's own function, null if there is none; looked up once. Sanitizers call these while
/// they start, and within `dlsym`.
fn theirs(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let function = known.load(Ordering::Relaxed);
    if !function.is_null() {
        return function;
    }
    let starts = [
        glibc_function!("__lsan_init"),
        glibc_function!("__asan_init"),
        glibc_function!("__hwasan_init"),
    ];
    let beside = |start: usize| {
        // SAFETY: a sanitizer's library is never unloaded.
        unsafe { symbol_table::function_beside(start as *const c_void, name) }
    };
    let starts = starts.into_iter().filter(|start| *start != 0);
    let found = starts.map(beside).find(|found| !found.is_null());
    let found = found.unwrap_or(null_mut());
    known.store(found, Ordering::Relaxed);
    found
}

/// If there are leaks, as far as is known, the code to end the program with.
fn check() -> Option<c_int> {
    let is_off = is_others() || session::control().epoch(Ordering::Relaxed) == 0;
    if is_off || hooks::is_turned_off() {
        return None;
    }
    scratch::clear_stack();
    look()
}

/// The same, with a frame of its own.
#[inline(never)]
fn look() -> Option<c_int> {
    let found = checks::check(c"LeakSanitizer", Style::Sanitizer, b"");
    found
        .filter(|found| found.objects > 0)
        .map(|found| found.code)
}

/// Options that AddressSanitizer asks of the program, which may define this itself. It refuses to
/// start where a library lies before its own in the loader's list, as every preloaded one
/// does: those could keep its functions from being called. This one hands all on to it.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
