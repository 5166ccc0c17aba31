//! The environment for allocations made before libc has started, when `secure_getenv` does not have
//! it yet.

use crate::sys::{self, Pages};
use core::ffi::{CStr, c_char};
use shm_protocol::pattern;

unsafe extern "C" {
    /// The name that is reserved for it: a program may define `environ` for itself.
    #[link_name = "_environ"]
    static environ: *const *const c_char;
}

/// Largest `/proc/self/environ` that is searched when `environ` is not set up yet. On the stack of
/// the process's first thread, at its start.
const ENVIRON_BYTES: usize = 32 << 10;
/// Longest path of an executable; the name is its last part.
const PATH_BYTES: usize = 4096;
const ONLY: &[u8] = b"MEM_PROFILER_ONLY=";

/// Whether an entry `NAME=value` passes the test.
pub fn any(test: impl Fn(&[u8]) -> bool) -> bool {
    // SAFETY: the loader keeps `environ` null or a null-terminated list of strings.
    unsafe {
        let mut entry = environ;
        if entry.is_null() {
            return file_has(test);
        }
        while !(*entry).is_null() {
            if test(CStr::from_ptr(*entry).to_bytes()) {
                return true;
            }
            entry = entry.add(1);
        }
    }
    false
}

/// Variables that make the agent what it is in this process.
const OURS: [&[u8]; 4] = [
    b"LD_PRELOAD=",
    b"MEM_PROFILER_START=",
    b"MEM_PROFILER_LEAK_CHECK=",
    b"HEAPCHECK=",
];

/// The environment for a program that is not to be profiled: pointers, the last one null. `None`:
/// there is no memory for them.
pub fn without_ours() -> Option<Pages> {
    // SAFETY: libc has started, so `environ` is null or a null-terminated list of strings; a
    // thread that changes it meanwhile breaks the rule of every reader (environ(7)).
    unsafe {
        let all = environ;
        let mut count = 0;
        while !all.is_null() && !(*all.add(count)).is_null() {
            count += 1;
        }
        let mut pages = Pages::new((count + 1) * size_of::<*const c_char>())?;
        let kept = pages.array::<*const c_char>();
        let mut len = 0;
        for index in 0..count {
            let entry = *all.add(index);
            let bytes = CStr::from_ptr(entry).to_bytes();
            if !OURS.iter().any(|name| bytes.starts_with(name)) {
                kept[len] = entry;
                len += 1;
            }
        }
        Some(pages)
    }
}

#[cold]
#[inline(never)]
fn file_has(test: impl Fn(&[u8]) -> bool) -> bool {
    let mut buffer = [0u8; ENVIRON_BYTES];
    let text = sys::read_file(c"/proc/self/environ", &mut buffer);
    text.split(|byte| *byte == 0).any(test)
}

/// Whether `MEM_PROFILER_ONLY` names other programs and not this one.
pub fn leaves_us_out() -> bool {
    any(|entry| {
        let patterns = entry.strip_prefix(ONLY).unwrap_or_default();
        !patterns.is_empty() && !names_us(patterns)
    })
}

/// By the name of the executable, or what the kernel calls the process, which for a script is the
/// script's name: as the controller's `-p` does. Keeps `errno`.
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
