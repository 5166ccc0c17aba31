//! Reads environment variables, even before libc is initialised, when the environment is only on
//! the initial stack.

use crate::arch::glibc_function;
use crate::sys::{self, Pages};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::pattern;

unsafe extern "C" {
    /// Reserved alias of `environ`, which a program may define itself. If the executable has a copy
    /// relocation for the variable, libc uses the copy as `environ` and `__environ`, but not as
    /// `_environ`.
    #[link_name = "__environ"]
    static environ: *const *const c_char;
}

/// Maximum length of the executable's path; its last part is the name.
const PATH_BYTES: usize = 4096;
/// Variable with patterns of the programs that are profiled; if it is not set, all are.
const ONLY: &[u8] = b"MEM_PROFILER_ONLY=";

/// True once libc is initialised. A null `environ` then means that the environment is empty.
static LIBC_HAS_STARTED: AtomicBool = AtomicBool::new(false);

/// Records that libc is initialised. Called by the constructor.
pub fn record_libc_start() {
    LIBC_HAS_STARTED.store(true, Ordering::Relaxed);
}

/// Returns true if an entry `NAME=value` passes the test.
pub fn any(test: impl Fn(&[u8]) -> bool) -> bool {
    entries().any(test)
}

/// Returns the value of a variable. `None` if the process may not trust its environment
/// (set-user-ID).
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: only reads the auxiliary vector.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    entries().find_map(|entry| entry.strip_prefix(name.to_bytes())?.strip_prefix(b"="))
}

/// Returns true if a variable has a value other than the empty string and 0.
pub fn is_set(name: &CStr) -> bool {
    variable(name).is_some_and(|value| !value.is_empty() && value != b"0")
}

/// Returns a variable's value as a number above zero, with an optional suffix K, M or G (powers of
/// 1024).
pub fn number(name: &CStr) -> Option<u64> {
    let text = variable(name)?;
    let (digits, shift) = match text.last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let mut value = 0u64;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    if digits.is_empty() {
        return None;
    }
    let value = value.checked_mul(1 << shift)?;
    (value > 0).then_some(value)
}

/// Sets the highest bit of the first byte of a variable's value, as a mark for child processes.
pub fn mark(name: &CStr) {
    let prefix = name.to_bytes();
    let is_named = |entry: &*const c_char| {
        // SAFETY: an entry of the environment is a terminated string.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        text.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(b"="))
    };
    let Some(entry) = pointers().find(is_named) else {
        return;
    };
    // SAFETY: the byte after `=` exists: if the value is empty, it is the terminating zero. The
    // environment is writable memory of the process, and no reference to it exists here.
    unsafe {
        let first = entry.cast_mut().cast::<u8>().add(prefix.len() + 1);
        first.write(first.read() | 0x80);
    }
}

fn entries() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: an entry of the environment is a terminated string, which stays.
    pointers().map(|entry| unsafe { CStr::from_ptr(entry) }.to_bytes())
}

/// Returns all entries. Calls no function of the loader or the C library.
fn pointers() -> impl Iterator<Item = *const c_char> {
    // SAFETY: libc keeps `environ` null or a null-terminated list of strings.
    let list = unsafe { environ };
    let mut entry = if !list.is_null() || LIBC_HAS_STARTED.load(Ordering::Relaxed) {
        list
    } else {
        command_line().map_or(null(), |(count, arguments)| {
            // SAFETY: the environment follows the arguments and their terminating null pointer.
            unsafe { arguments.add(count as usize + 1) }
        })
    };
    core::iter::from_fn(move || {
        // SAFETY: null, or an entry of the list that is not past its end.
        unsafe {
            if entry.is_null() || (*entry).is_null() {
                return None;
            }
            let current = *entry;
            entry = entry.add(1);
            Some(current)
        }
    })
}

/// Returns the program's arguments where the kernel put them, at the end of the main thread's
/// stack. The environment follows them. Returns `None` with C libraries other than glibc, which do
/// not export the address. Only valid before libc is initialised: programs overwrite their
/// arguments later.
pub fn command_line() -> Option<(c_int, *const *const c_char)> {
    let end = glibc_function!("__libc_stack_end") as *const *const usize;
    // SAFETY: null, or the loader's `void *__libc_stack_end`, which it sets before it loads this
    // library.
    let start = unsafe { *end.as_ref()? };
    // SAFETY: the kernel put the number of arguments there, followed by the arguments (System V
    // ABI, "Process Initialization").
    (!start.is_null()).then(|| unsafe { (*start as c_int, start.add(1).cast()) })
}

/// Variable with the libraries that the loader preloads.
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Variables that make a process load the agent, or start sampling.
const OUR_VARIABLES: [&[u8]; 4] = [
    PRELOAD,
    b"MEM_PROFILER_START=",
    b"MEM_PROFILER_LEAK_CHECK=",
    b"HEAPCHECK=",
];

/// Returns an environment for a program that is not to be profiled, as pointers with a terminating
/// null pointer. Returns `None` if memory ran out.
pub fn without_ours() -> Option<Pages> {
    // SAFETY: libc is initialised, so `environ` is null or a null-terminated list of strings. A
    // concurrent change would race with any reader of `environ` (environ(7)), not only with this
    // one.
    unsafe {
        let list = environ;
        let mut count = 0;
        while !list.is_null() && !(*list.add(count)).is_null() {
            count += 1;
        }
        let mut pages = Pages::new((count + 1) * size_of::<*const c_char>())?;
        let kept = pages.array::<*const c_char>();
        let mut len = 0;
        for index in 0..count {
            let entry = *list.add(index);
            let bytes = CStr::from_ptr(entry).to_bytes();
            if !OUR_VARIABLES.iter().any(|name| bytes.starts_with(name)) {
                kept[len] = entry;
                len += 1;
            }
        }
        Some(pages)
    }
}

/// Returns true if `MEM_PROFILER_ONLY` names programs, but not this one, or if a tool checks the C
/// library's allocator.
pub fn leaves_us_out() -> bool {
    any(|entry| {
        let patterns = entry.strip_prefix(ONLY).unwrap_or_default();
        (!patterns.is_empty() && !names_us(patterns)) || loads_allocator_checker(entry)
    })
}

/// Returns true if an entry of the environment preloads a tool that works with the C library's
/// `malloc` alone:
///
/// - Valgrind's tools replace it. They would not see ours, and their leak check would read each
///   page that the segment reserves.
/// - glibc's `libc_malloc_debug.so` (2.34 and later: `mtrace`, `mcheck`, `MALLOC_CHECK_`) reads the
///   headers of glibc's objects before those that it gets from `__libc_malloc`.
fn loads_allocator_checker(entry: &[u8]) -> bool {
    /// Libraries of tools, as in `vgpreload_memcheck-amd64-linux.so`. All tools load `core`.
    const TOOL: &[u8] = b"vgpreload_";
    const CORE: &[u8] = b"vgpreload_core";
    const GLIBCS: &[u8] = b"libc_malloc_debug.so";
    let libraries = entry.strip_prefix(PRELOAD).unwrap_or_default();
    let mut names = libraries
        .split(|byte| b": ".contains(byte))
        .filter_map(|path| path.rsplit(|byte| *byte == b'/').next());
    names
        .any(|name| name.starts_with(GLIBCS) || (name.starts_with(TOOL) && !name.starts_with(CORE)))
}

/// Returns true if a pattern matches the name of the executable, or the kernel's name of the
/// process, which for a script is the script's name. The controller's `-p` uses the same names.
/// Keeps `errno`.
fn names_us(patterns: &[u8]) -> bool {
    let saved = sys::errno();
    let mut path = [0u8; PATH_BYTES];
    let len = sys::read_link(c"/proc/self/exe", &mut path);
    let name = path[..len].rsplit(|byte| *byte == b'/').next();
    let mut comm = [0u8; 64];
    let comm = sys::read_file(c"/proc/self/comm", &mut comm);
    let comm = comm.strip_suffix(b"\n").unwrap_or(comm);
    sys::set_errno(saved);
    pattern::any_covers(patterns, name.unwrap_or_default()) || pattern::any_covers(patterns, comm)
}
