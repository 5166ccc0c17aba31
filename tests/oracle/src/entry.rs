//! The entry points.

use crate::arch::with_registers;
use crate::thread;
use libc::{c_int, c_void};
use std::arch::naked_asm;
use std::cell::Cell;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use unwind::Registers;

mod to {
    use super::*;

    with_registers!(malloc, super::malloc_called);
    with_registers!(calloc, super::calloc_called);
    with_registers!(realloc, super::realloc_called);
}

/// C11 7.22.3.4.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    naked_asm!("jmp {}", sym to::malloc)
}

/// C11 7.22.3.3.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn calloc(n: usize, size: usize) -> *mut c_void {
    naked_asm!("jmp {}", sym to::calloc)
}

/// C11 7.22.3.5.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    naked_asm!("jmp {}", sym to::realloc)
}

/// The functions behind ours.
struct Next {
    name: &'static std::ffi::CStr,
    address: AtomicPtr<c_void>,
}

static MALLOC: Next = Next::named(c"malloc");
static CALLOC: Next = Next::named(c"calloc");
static REALLOC: Next = Next::named(c"realloc");
static DLCLOSE: Next = Next::named(c"dlclose");

thread_local! {
    static RESOLVING: Cell<bool> = const { Cell::new(false) };
}

impl Next {
    const fn named(name: &'static std::ffi::CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// Returns the function's address, or null while this thread is looking it up: the loader
    /// copes with failing allocations then.
    fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() || RESOLVING.replace(true) {
            return known;
        }
        // SAFETY: a terminated name.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        RESOLVING.set(false);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the next function of a name as one of type `$function`; `$none` without one.
macro_rules! call_next {
    ($next:ident($($arg:ident: $type:ty),*) -> $out:ty, else $none:expr) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $out;
        // SAFETY: null or the function of this name and type.
        let next = unsafe { transmute::<*mut c_void, Option<Function>>($next.address()) };
        match next {
            // SAFETY: the C contract, passed on.
            Some(next) => unsafe { next($($arg),*) },
            None => $none,
        }
    }};
}

unsafe extern "C" fn malloc_called(
    size: usize,
    _: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    thread::allocated(registers);
    call_next!(MALLOC(size: usize) -> *mut c_void, else null_mut())
}

unsafe extern "C" fn calloc_called(
    n: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    thread::allocated(registers);
    call_next!(CALLOC(n: usize, size: usize) -> *mut c_void, else null_mut())
}

unsafe extern "C" fn realloc_called(
    p: *mut c_void,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    thread::allocated(registers);
    call_next!(REALLOC(p: *mut c_void, size: usize) -> *mut c_void, else null_mut())
}

/// POSIX.1-2024. Afterwards, addresses may belong to other code than before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let result = call_next!(DLCLOSE(handle: *mut c_void) -> c_int, else -1);
    crate::module::look_for_changes();
    result
}
