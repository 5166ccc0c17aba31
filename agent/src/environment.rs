//! The environment, also for allocations made before libc has started, when it is only on the stack.

use crate::arch::glibc_function;
use crate::sys::{self, Pages};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::pattern;

unsafe extern "C" {
    /// The name that is reserved for it: a program may define `environ` for itself. libc uses the
    /// copy that an executable has of this variable, under both names, but not of `_environ`.
    #[link_name = "__environ"]
    static environ: *const *const c_char;
}

/// Longest path of an executable; the name is its last part.
const PATH_BYTES: usize = 4096;
const ONLY: &[u8] = b"MEM_PROFILER_ONLY=";

/// Whether a null `environ` is an empty environment: the program has cleared it.
static LIBC_HAS_STARTED: AtomicBool = AtomicBool::new(false);

/// Notes that libc has started. In the constructor.
pub fn libc_has_started() {
    LIBC_HAS_STARTED.store(true, Ordering::Relaxed);
}

/// Whether an entry `NAME=value` passes the test.
pub fn any(test: impl Fn(&[u8]) -> bool) -> bool {
    entries().any(test)
}

/// Value of a variable, where the process may trust its environment.
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: it only looks into the vector that the kernel left above the stack.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    entries().find_map(|entry| entry.strip_prefix(name.to_bytes())?.strip_prefix(b"="))
}

/// Whether a variable says neither nothing nor 0.
pub fn is_set(name: &CStr) -> bool {
    variable(name).is_some_and(|value| !value.is_empty() && value != b"0")
}

/// A variable's value as a number above zero, with an optional K, M or G (1024s).
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
    (!digits.is_empty())
        .then_some(value.checked_mul(1 << shift)?)
        .filter(|v| *v > 0)
}

/// Sets the highest bit of a variable's first byte, for the programs that this one starts.
pub fn mark(name: &CStr) {
    let prefix = name.to_bytes();
    let is_it = |entry: &*const c_char| {
        // SAFETY: an entry, which is a string.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        text.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(b"="))
    };
    let Some(entry) = pointers().find(is_it) else {
        return;
    };
    // SAFETY: the byte behind the `=`, which is the terminator at the latest. The process's own memory
    // may be written; the pointer is the environment's, no reference's.
    unsafe {
        let first = entry.cast_mut().cast::<u8>().add(prefix.len() + 1);
        first.write(first.read() | 0x80);
    }
}

fn entries() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: an entry, which is a string that stays.
    pointers().map(|entry| unsafe { CStr::from_ptr(entry) }.to_bytes())
}

/// All entries. The loader's functions are not called, nor the C library's.
fn pointers() -> impl Iterator<Item = *const c_char> {
    // SAFETY: libc keeps `environ` null or a null-terminated list of strings.
    let mut entry = match unsafe { environ } {
        set if !set.is_null() || LIBC_HAS_STARTED.load(Ordering::Relaxed) => set,
        _ => command_line().map_or(null(), |(count, arguments)| {
            // SAFETY: the environment follows the arguments and the null pointer after them.
            unsafe { arguments.add(count as usize + 1) }
        }),
    };
    core::iter::from_fn(move || {
        // SAFETY: null, or an entry of the list that is not past its end.
        unsafe {
            if entry.is_null() || (*entry).is_null() {
                return None;
            }
            let found = *entry;
            entry = entry.add(1);
            Some(found)
        }
    })
}

/// The program's arguments as the kernel put them on the stack of the first thread, the environment
/// behind them. `None` with a C library other than glibc, which has no name for that place. Only
/// before libc has started: programs write over them later.
pub fn command_line() -> Option<(c_int, *const *const c_char)> {
    let end = glibc_function!("__libc_stack_end") as *const *const usize;
    // SAFETY: null, or `void *__libc_stack_end` of the loader, which sets it before it loads us.
    let start = unsafe { *end.as_ref()? };
    // SAFETY: the loader stores where the kernel put the number of arguments; they follow it (System
    // V ABI, "Process Initialization").
    (!start.is_null()).then(|| unsafe { (*start as c_int, start.add(1).cast()) })
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
