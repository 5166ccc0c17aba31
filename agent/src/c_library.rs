//! The C library's functions, by addresses from the C library's own tables.
//!
//! A program may have functions of its own called `open`, `read` or `kill`, as the C standard
//! allows, and a library preloaded beside the agent may replace any function to watch its calls.
//! The loader would lead the agent's calls to these, in the middle of an allocation. glibc's own
//! `malloc` calls nothing through a name that others can define, and neither do the agent and the
//! jemalloc in it: the linker leads each such name (`names.rs`) to a jump through [`TABLE`].
//!
//! Until [`resolve`] has run, and where it finds no C library that it knows, an entry leads to what
//! the loader chose.

// Decision 65: the C library is called by addresses from its own tables.
use crate::arch::{ifunc_target, jump_through_table};
use crate::symbol_table::{Exported, Library};
use core::ffi::{CStr, c_char, c_void};
use core::mem::size_of;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A function of the C library.
#[repr(C)]
pub struct Function {
    /// Where it is; read by a jump, so this comes first.
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

/// A function that may be missing.
struct Optional {
    name: &'static CStr,
    /// Null if it is missing, or until [`resolve`] has run.
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

/// Bytes from one entry of the table to the next.
const STRIDE: usize = size_of::<Function>();

include!(concat!(env!("OUT_DIR"), "/c_library.rs"));

/// What the loader keeps for debuggers (`link.h`).
#[repr(C)]
struct Debug {
    version: i32,
    first: *const LinkMap,
}

/// A loaded module in the loader's list (`link.h`).
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
    dynamic: *const [u64; 2],
    next: *const LinkMap,
}

/// More modules than a program is linked with.
const MAX_MODULES: usize = 4096;

/// glibc's own name.
const GLIBC: &CStr = c"libc.so.6";
/// Parts of the C library before glibc 2.34; later ones are empty.
const PARTS: [&CStr; 2] = [c"libpthread.so.0", c"libdl.so.2"];

/// Finds all functions, once. At the first allocation of the process, which has one thread; calls
/// nothing that is not found yet.
pub fn resolve() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    let libraries = libraries();
    for function in &TABLE {
        let mut known = libraries.iter().flatten();
        // SAFETY: the C library and its parts stay loaded, and have been relocated: they come last
        // in the order of loading, and the loader relocates in the reverse order.
        let found = known.find_map(|library| unsafe { library.function(function.name) });
        if let Some(symbol) = found {
            function.address.store(address(symbol), Ordering::Relaxed);
        }
    }
    for entry in &LOOKED_UP {
        let mut known = libraries.iter().flatten();
        // SAFETY: as above.
        let found = known.find_map(|library| unsafe { library.function(entry.name) });
        entry
            .address
            .store(found.map_or(null_mut(), address), Ordering::Relaxed);
    }
}

/// Address of a function in [`LOOKED_UP`]; null if the C library has none of this name.
pub fn looked_up(name: &CStr) -> *mut c_void {
    let entry = LOOKED_UP.iter().find(|entry| entry.name == name);
    entry.map_or(null_mut(), |entry| entry.address.load(Ordering::Relaxed))
}

fn address(symbol: Exported) -> *mut c_void {
    if !symbol.is_indirect {
        return symbol.address as *mut c_void;
    }
    // SAFETY: the resolver of a function that a relocated library exports.
    unsafe { ifunc_target(symbol.address) }
}

/// The parts of the C library that are loaded, then the C library itself.
fn libraries() -> [Option<Library>; 3] {
    let mut found = [None; 3];
    let mut module = first_module();
    for _ in 0..MAX_MODULES {
        // SAFETY: null, or an entry of the loader's list, which only the loader changes: on the
        // process's one thread, which is here.
        let Some(map) = (unsafe { module.as_ref() }) else {
            break;
        };
        module = map.next;
        // SAFETY: the module's dynamic section, which is loaded.
        let Some(library) = (unsafe { Library::of(map.bias, map.dynamic) }) else {
            continue;
        };
        // SAFETY: as above, and its tables of names and symbols.
        unsafe {
            if let Some(part) = PARTS.iter().position(|part| library.is_called(part)) {
                found[part] = Some(library);
            } else if library.is_called(GLIBC) || defines_errno(&library) {
                found[2] = Some(library);
            }
        }
    }
    found
}

/// Whether the process's `errno` is this library's: its function has a name that nobody else may
/// define.
///
/// # Safety
/// The library is loaded.
unsafe fn defines_errno(library: &Library) -> bool {
    let known = libc::__errno_location as *const () as u64;
    // SAFETY: the caller's.
    let found = unsafe { library.function(c"__errno_location") };
    found.is_some_and(|symbol| symbol.address == known)
}

/// The first module of the loader's list; null if the loader keeps none that is known.
fn first_module() -> *const LinkMap {
    let of_glibc = crate::arch::glibc_function!("_r_debug") as *const Debug;
    let of_musl = crate::arch::glibc_function!("_dl_debug_addr") as *const *const Debug;
    // SAFETY: null, or the loader's own structure: the C libraries' names are reserved for them.
    unsafe {
        let debug = match of_musl.as_ref() {
            Some(debug) if of_glibc.is_null() => *debug,
            _ => of_glibc,
        };
        debug.as_ref().map_or(null(), |debug| debug.first)
    }
}
