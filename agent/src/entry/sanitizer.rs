//! LeakSanitizer's functions for programs that call them (`sanitizer/lsan_interface.h`), and
//! functions that sanitizers call.
//!
//! A check needs a running session; without one, it finds nothing. If a sanitizer is in the
//! process, calls are passed on to it.

use super::gperftools::{change_ignoring, ignore, is_passed_on};
use crate::arch::glibc_function;
use crate::checks::{self, Style};
use crate::{exemptions, exit, hooks, scratch, session, symbol_table};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Defines functions. If the program keeps its allocator and a sanitizer has the function, the call
/// is passed on.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// See LeakSanitizer's function.
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $out)? {
            const NAME: &CStr = match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            };
            if is_passed_on() {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let next = sanitizer_function(&NEXT, NAME);
                if !next.is_null() {
                    // SAFETY: a function with this name has this type. It gets the program's
                    // arguments unchanged.
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
    /// Exempts objects that this thread allocates from now on from leak reports.
    fn __lsan_disable() { change_ignoring(1) }
    /// Ends the effect of one [`__lsan_disable`].
    fn __lsan_enable() { change_ignoring(-1) }
    /// Exempts an object, and everything that only it points to, from leak reports.
    fn __lsan_ignore_object(object: *const c_void) { ignore(object) }
    /// Adds memory that may hold pointers to the roots.
    fn __lsan_register_root_region(at: *const c_void, bytes: usize) {
        // If that cannot be recorded, what only it points to is reported as lost.
        let _ = exemptions::add_region(at.addr() as u64, bytes as u64);
    }
    /// Removes a root region, which must have been registered with the same address and size.
    fn __lsan_unregister_root_region(at: *const c_void, bytes: usize) {
        exemptions::remove_region(at.addr() as u64, bytes as u64)
    }
    /// Checks now. If there are leaks, ends the program with status 23, or the one that its options
    /// name. Otherwise there is no check at exit.
    fn __lsan_do_leak_check() {
        if let Some(code @ 1..) = check() {
            // SAFETY: ends the process, as LeakSanitizer does, without its exit handlers.
            unsafe { libc::_exit(code) }
        }
        checks::cancel();
        exit::cancel_check();
    }
    /// Checks now. Returns 1 if there are leaks.
    fn __lsan_do_recoverable_leak_check() -> c_int { c_int::from(check().is_some()) }
}

scratch::on_clear_stack!(
    /// Entry of [`__lsan_do_leak_check`].
    do_leak_check_on_clear_stack,
    __lsan_do_leak_check,
    if may_check
);
scratch::on_clear_stack!(
    /// Entry of [`__lsan_do_recoverable_leak_check`].
    do_recoverable_leak_check_on_clear_stack,
    __lsan_do_recoverable_leak_check,
    if may_check
);

/// Returns the sanitizer's own function, or null. Looked up once, without `dlsym`: sanitizers call
/// these functions while they start, and within `dlsym`.
fn sanitizer_function(cached: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let function = cached.load(Ordering::Relaxed);
    if !function.is_null() {
        return function;
    }
    let starts = [
        glibc_function!("__lsan_init"),
        glibc_function!("__asan_init"),
        glibc_function!("__hwasan_init"),
    ];
    let function_near = |start: usize| {
        // SAFETY: a sanitizer's library is never unloaded.
        unsafe { symbol_table::function_in_library_of(start as *const c_void, name) }
    };
    let loaded = starts.into_iter().filter(|start| *start != 0);
    let mut functions = loaded.map(function_near);
    let found = functions
        .find(|found| !found.is_null())
        .unwrap_or(null_mut());
    cached.store(found, Ordering::Relaxed);
    found
}

/// Returns true if a check that the program requests is made.
extern "C" fn may_check() -> bool {
    let is_off = is_passed_on() || session::control().epoch(Ordering::Relaxed) == 0;
    !is_off && !hooks::is_turned_off()
}

/// Checks for leaks. Returns the exit status for the program, or `None` if no leak was found.
fn check() -> Option<c_int> {
    if !may_check() {
        return None;
    }
    let found = checks::check(c"LeakSanitizer", Style::Sanitizer, b"");
    found
        .filter(|found| found.objects > 0)
        .map(|found| found.code)
}

/// Default options of AddressSanitizer, which the program may define instead. AddressSanitizer
/// refuses to start if a library precedes its own in the loader's list, as every preloaded one
/// does: such a library could intercept its functions. The agent passes all calls on to it.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
