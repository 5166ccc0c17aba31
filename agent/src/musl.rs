//! The C library musl, with which the agent loads but does nothing.
//!
//! musl's loader treats every `libc.so.6` as itself, so it loads a library that was linked with
//! glibc, and terminates the program if a function is missing. Functions that only glibc has are
//! therefore weak references here; a null one shows which C library it is. The agent then stands
//! aside ([`crate::backend`]).

// Decision 33: with musl the agent disables itself.
use crate::arch::glibc_function;
use crate::symbol_table;
use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute;

/// glibc's `dlvsym`.
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Whether this is the process's C library.
pub fn is_here() -> bool {
    dlvsym().is_none()
}

/// `None` with musl.
pub fn dlvsym() -> Option<Dlvsym> {
    let at = glibc_function!("dlvsym");
    // SAFETY: null, or the function of this name.
    unsafe { transmute::<usize, Option<Dlvsym>>(at) }
}

/// Address of a function of the C library: looked up in its own tables, since `dlsym`, which
/// would say it, is the one that is looked for. Null if there is none.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a C library stays loaded.
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
