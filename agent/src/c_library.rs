//! Addresses of the C library's functions, from its own symbol tables.
//!
//! A program may define functions called `open`, `read` or `kill`, as the C standard allows, and
//! another preloaded library may replace any function to intercept its calls. The loader would bind
//! the agent's calls to these, in the middle of an allocation. glibc's own `malloc` calls nothing
//! through a symbol that others can define, and neither do the agent and its jemalloc: the linker
//! redirects each such name (`names.rs`) to a jump through [`TABLE`].
//!
//! Before [`resolve`], and if it finds no C library that it knows, an entry points to what the
//! loader bound.

// Decision 65: the C library is called by addresses from its own tables.
use crate::arch::{hidden_jump, ifunc_target};
use crate::symbol_table::{Exported, Library};
use core::ffi::{CStr, c_char, c_void};
use core::mem::size_of;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Function of the C library.
#[repr(C)]
pub struct Function {
    /// Address; must be the first field, because a jump reads it.
    address: AtomicPtr<c_void>,
    name: &'static CStr,
}

impl Function {
    const fn new(name: &'static CStr, bound: unsafe extern "C" fn()) -> Self {
        Self {
            address: AtomicPtr::new(bound as *mut c_void),
            name,
        }
    }
}

/// Function that some C libraries lack.
struct Optional {
    name: &'static CStr,
    /// Address; null if it is missing, and before [`resolve`].
    address: AtomicPtr<c_void>,
}

impl Optional {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(null_mut()),
        }
    }
}

/// Returns the offset of an entry of [`TABLE`], in bytes.
const fn offset_of(index: usize) -> usize {
    index * size_of::<Function>()
}

include!(concat!(env!("OUT_DIR"), "/c_library.rs"));

/// The loader's `struct r_debug` (`link.h`).
#[repr(C)]
struct Debug {
    version: i32,
    first: *const LinkMap,
}

/// The loader's `struct link_map` (`link.h`).
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
    dynamic: *const [u64; 2],
    next: *const LinkMap,
}

/// Upper bound of the number of modules that a program is linked with.
const MAX_MODULES: usize = 1 << 16;

/// Name of glibc (`DT_SONAME`).
const GLIBC: &CStr = c"libc.so.6";
/// Names of glibc's other parts before 2.34. Later versions have empty libraries by these names.
const PARTS: [&CStr; 2] = [c"libpthread.so.0", c"libdl.so.2"];

/// Index of the C library itself in the result of [`libraries`], after its parts.
const C_LIBRARY: usize = PARTS.len();

/// True if the C library that the agent is bound to is in the loader's list of the program's
/// modules.
static IS_SHARED: AtomicBool = AtomicBool::new(true);

/// Returns true if the agent uses the program's C library. It has another one if it was loaded into
/// another namespace than the program: as an auditor (`LD_AUDIT`), or by `dlmopen`.
pub fn is_shared_with_program() -> bool {
    resolve();
    IS_SHARED.load(Ordering::Relaxed)
}

/// Finds all functions, once. Called at the first allocation of the process, which has one thread.
/// Calls no function of the C library before its address is found.
pub fn resolve() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Ordering::Relaxed) {
        return;
    }
    DONE.store(true, Ordering::Relaxed);
    let libraries = libraries();
    IS_SHARED.store(libraries[C_LIBRARY].is_some(), Ordering::Relaxed);
    for function in &TABLE {
        let mut candidates = libraries.iter().flatten();
        // SAFETY: the C library and its parts are never unloaded, and are relocated: they come last
        // in the loading order, and the loader relocates in reverse.
        let found = candidates.find_map(|library| unsafe { library.function(function.name) });
        if let Some(symbol) = found {
            function.address.store(address(symbol), Ordering::Relaxed);
        }
    }
    for entry in &LOOKED_UP {
        let mut candidates = libraries.iter().flatten();
        // SAFETY: the C library and its parts are never unloaded, and are relocated.
        let found = candidates.find_map(|library| unsafe { library.function(entry.name) });
        entry
            .address
            .store(found.map_or(null_mut(), address), Ordering::Relaxed);
    }
}

/// Returns the address of a function in [`LOOKED_UP`]; null if the C library does not have it.
pub fn optional_function(name: &CStr) -> *mut c_void {
    let entry = LOOKED_UP.iter().find(|entry| entry.name == name);
    entry.map_or(null_mut(), |entry| entry.address.load(Ordering::Relaxed))
}

/// Returns the address of a function, calling its resolver if necessary.
fn address(symbol: Exported) -> *mut c_void {
    if !symbol.is_indirect {
        return symbol.address as *mut c_void;
    }
    // SAFETY: the resolver of a function that a relocated library exports.
    unsafe { ifunc_target(symbol.address) }
}

/// Returns the loaded parts of the C library, then the C library itself.
fn libraries() -> [Option<Library>; PARTS.len() + 1] {
    let mut libraries = [None; PARTS.len() + 1];
    let mut module = first_module();
    for _ in 0..MAX_MODULES {
        // SAFETY: the pointer is null or that of an entry of the loader's list. Only the loader
        // changes the list, and the process has one thread.
        let Some(map) = (unsafe { module.as_ref() }) else {
            break;
        };
        module = map.next;
        // SAFETY: the dynamic section of a loaded module.
        let Some(library) = (unsafe { Library::from_dynamic_section(map.bias, map.dynamic) })
        else {
            continue;
        };
        // SAFETY: the tables of a loaded module.
        unsafe {
            if let Some(part) = PARTS.iter().position(|part| library.is_called(part)) {
                libraries[part] = Some(library);
            } else if library.is_called(GLIBC) || defines_errno(&library) {
                libraries[C_LIBRARY] = Some(library);
            }
        }
    }
    libraries
}

/// Returns true if the process's `errno` belongs to this library: the agent's call of
/// `__errno_location`, a name that no other library may define, leads to it.
///
/// # Safety
/// The library is loaded.
unsafe fn defines_errno(library: &Library) -> bool {
    let address = libc::__errno_location as *const () as u64;
    // SAFETY: the library is loaded.
    let symbol = unsafe { library.function(c"__errno_location") };
    symbol.is_some_and(|symbol| symbol.address == address)
}

/// Returns the first module of the loader's list; null if the loader is not known.
fn first_module() -> *const LinkMap {
    let glibc_debug = crate::arch::glibc_function!("_r_debug") as *const Debug;
    let musl_debug = crate::arch::glibc_function!("_dl_debug_addr") as *const *const Debug;
    // SAFETY: null, or the loader's own structure: both names are reserved for C libraries.
    unsafe {
        let debug = match musl_debug.as_ref() {
            Some(debug) if glibc_debug.is_null() => *debug,
            _ => glibc_debug,
        };
        debug.as_ref().map_or(null(), |debug| debug.first)
    }
}
