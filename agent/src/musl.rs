//! Detects musl, with which the agent loads but does nothing.
//!
//! musl's loader treats every `libc.so.6` as itself. So it loads a library that was linked with
//! glibc, and terminates the program if a function is missing. Functions that only glibc has are
//! therefore weak references; a null one shows that the C library is musl ([`crate::backend`]).

// Decision 33: with musl the agent disables itself.
use crate::arch::glibc_function;
use crate::symbol_table;
use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute;

/// glibc's `dlvsym`.
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Returns true if the process's C library is musl.
pub fn is_here() -> bool {
    dlvsym().is_none()
}

/// Returns glibc's `dlvsym`; `None` with musl.
pub fn dlvsym() -> Option<Dlvsym> {
    let at = glibc_function!("dlvsym");
    // SAFETY: null, or the address of the function of this name.
    unsafe { transmute::<usize, Option<Dlvsym>>(at) }
}

/// Returns the address of a function of the C library, or null. Looked up in the library's own
/// tables, because this is how `dlsym` itself is found.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the C library is never unloaded.
    unsafe { symbol_table::function_beside(libc::getpid as *const c_void, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_glibc_its_functions_are_there() {
        assert!(!is_here());
    }
}
