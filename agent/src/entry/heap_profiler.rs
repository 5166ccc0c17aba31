//! gperftools' heap profiler for programs that call it (`gperftools/heap-profiler.h`): a session of
//! this process that its controller starts, dumps and stops.
//!
//! Unlike gperftools', it writes dumps only on request, unless `HEAPPROFILE` is set, and uses a
//! session that is already running. Every allocation is sampled unless `MEM_PROFILER_INTERVAL` says
//! otherwise.

use super::gperftools::exports;
use crate::heap_watch;
use crate::request::{self, Answer};
use crate::{session, sys};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

/// Maximum length of the prefix of dump names, with its terminating zero.
const PREFIX_CAPACITY: usize = 1024;
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static PREFIX_BYTES: [AtomicU8; PREFIX_CAPACITY] = [const { AtomicU8::new(0) }; PREFIX_CAPACITY];
/// Number of dumps since the prefix was set.
static DUMPS: AtomicU32 = AtomicU32::new(0);
/// True once the agent is initialised, and the controller can find it.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// True if a session was requested before then.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

exports! {
    /// Begins a session. Its dumps are named PREFIX.0001.heap and so on.
    "HeapProfilerStart"
    fn start(prefix: *const c_char) -> () {
        // SAFETY: null or a terminated string.
        unsafe { begin(prefix) }
    } else {}
    /// Ends the session. Its profile can no longer be dumped.
    "HeapProfilerStop"
    fn stop() -> () {
        if is_sampling() {
            let _ = ask(&[c"stop"]);
        }
    } else {}
    /// Writes a dump now.
    "HeapProfilerDump"
    fn dump(reason: *const c_char) -> () {
        // SAFETY: a terminated string.
        let reason = (!reason.is_null()).then(|| unsafe { CStr::from_ptr(reason) });
        write(reason.unwrap_or_default());
    } else {}
    /// Returns true if a session runs.
    "IsHeapProfilerRunning"
    fn is_running() -> c_int { c_int::from(is_sampling()) } else { 0 }
    /// Returns the dump as a string from `malloc`; empty without a session, null if memory runs
    /// out.
    "GetHeapProfile"
    fn profile() -> *mut c_char { dump_text() } else { null_mut() }
}

pub(super) fn is_sampling() -> bool {
    session::control().epoch(Ordering::Relaxed) != 0
}

/// Begins a session, or remembers to do so once the agent is initialised.
///
/// # Safety
/// `prefix` is null or a terminated string.
unsafe fn begin(prefix: *const c_char) {
    if prefix.is_null() {
        return;
    }
    // SAFETY: a terminated string.
    if !set_prefix(unsafe { CStr::from_ptr(prefix) }) || is_sampling() {
        return;
    }
    if HAS_BEGUN.load(Ordering::Relaxed) {
        begin_session();
    } else {
        IS_WANTED.store(true, Ordering::Relaxed);
    }
}

/// Allows sessions from now on. Returns true if one was requested before (tcmalloc's constructor
/// does so for `HEAPPROFILE`).
pub(super) fn allow_sessions() -> bool {
    HAS_BEGUN.store(true, Ordering::Relaxed);
    IS_WANTED.load(Ordering::Relaxed)
}

/// Sets the prefix of dump names. Returns false if it is too long.
pub(super) fn set_prefix(prefix: &CStr) -> bool {
    let prefix = prefix.to_bytes_with_nul();
    if prefix.len() > PREFIX_CAPACITY {
        return false;
    }
    for (stored, byte) in PREFIX_BYTES.iter().zip(prefix) {
        stored.store(*byte, Ordering::Relaxed);
    }
    DUMPS.store(0, Ordering::Relaxed);
    true
}

/// Returns the prefix of dump names; empty if there is none.
pub(super) fn prefix() -> sys::Text<{ PREFIX_CAPACITY + 32 }> {
    let mut prefix = sys::Text::new();
    for stored in &PREFIX_BYTES {
        match stored.load(Ordering::Relaxed) {
            0 => break,
            byte => prefix.push(&[byte]),
        }
    }
    prefix
}

/// Returns true if a prefix is set.
pub(super) fn has_prefix() -> bool {
    PREFIX_BYTES[0].load(Ordering::Relaxed) != 0
}

/// Begins a session. Keeps `errno`.
pub(super) fn begin_session() {
    if ask(&[c"start"]).is_some() {
        session::mark_as_own();
    }
}

/// Writes a dump if a session runs and a prefix is set. Keeps `errno`.
pub(super) fn write(reason: &CStr) {
    if heap_watch::is_watching() {
        return heap_watch::write(reason);
    }
    let mut name = prefix();
    if !is_sampling() || name.as_c_str().unwrap_or_default().is_empty() {
        return;
    }
    let number = DUMPS.fetch_add(1, Ordering::Relaxed) + 1;
    name.push(b".");
    let digits = number.checked_ilog10().unwrap_or(0) as usize;
    name.push(&b"000"[digits.min(3)..]);
    name.push_number(u64::from(number));
    name.push(b".heap");
    let mut why = sys::Text::<256>::new();
    why.push(reason.to_bytes());
    let name = name.as_c_str().unwrap_or_default();
    let why = why.as_c_str().unwrap_or_default();
    let _ = ask(&[c"dump", c"--file", name, c"--reason", why]);
}

/// Returns the dump as a string from `malloc`.
fn dump_text() -> *mut c_char {
    let mut answer = is_sampling().then(|| ask(&[c"text"])).flatten();
    let bytes = answer.as_mut().map_or(&mut [][..], |answer| answer.bytes());
    // SAFETY: `malloc` takes any size.
    let copy: *mut u8 = unsafe { super::malloc(bytes.len() + 1) }.cast();
    if !copy.is_null() {
        // SAFETY: newly allocated, with room for the text and its terminating zero.
        unsafe {
            copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            copy.add(bytes.len()).write(0);
        }
    }
    copy.cast()
}

/// Runs a command of the controller. Complains if that fails. Keeps `errno`.
fn ask(arguments: &[&CStr]) -> Option<Answer> {
    request::run_action(c"self-profile", arguments, "no heap profile")
}
