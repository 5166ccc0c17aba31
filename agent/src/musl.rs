//! Detects musl, where the agent loads but does nothing.
//!
//! musl's loader treats every `libc.so.6` as itself. So it loads a library that was linked with
//! glibc, and terminates the program if a function is missing. References to what only glibc has
//! are therefore weak; a null one shows that the C library is musl ([`crate::backend`]).

// Decision 33: with musl the agent disables itself.
use crate::arch::glibc_function;
use crate::symbol_table;
use core::ffi::{CStr, c_void};

/// Returns true if the process's C library is musl: it lacks the variable by which debuggers find
/// glibc's modules.
pub fn is_here() -> bool {
    glibc_function!("_r_debug") == 0
}

/// Returns the address of a function of the C library, or null. Looked up in the library's own
/// tables, because this is how `dlsym` itself is found.
pub fn function(name: &CStr) -> *mut c_void {
    // A function that the linker does not redirect to one of the agent's.
    let anchor = libc::__errno_location as *const c_void;
    // SAFETY: the C library is never unloaded.
    unsafe { symbol_table::function_in_library_of(anchor, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_is_not_taken_for_musl() {
        assert!(!is_here());
    }
}
