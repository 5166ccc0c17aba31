//! gperftools' heap profiler for programs that call it (`gperftools/heap-profiler.h`): a session of
//! this process, started, dumped and stopped by its controller.
//!
//! It differs from gperftools' in that dumps are written only on request, and that a session that
//! is already running is used. Every allocation is sampled unless `MEM_PROFILER_INTERVAL` says
//! otherwise.

use super::gperftools::exports;
use crate::request::{self, Answer};
use crate::{session, sys};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

/// Longest prefix of dumps' names, with its terminator.
const PREFIX: usize = 1024;
static PREFIX_BYTES: [AtomicU8; PREFIX] = [const { AtomicU8::new(0) }; PREFIX];
/// Dumps since the start.
static DUMPS: AtomicU32 = AtomicU32::new(0);
/// Whether the agent is initialised, so that the controller finds it.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether a session was requested before.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

exports! {
    /// Begins a session, whose dumps are called PREFIX.0001.heap and so on.
    "HeapProfilerStart"
    fn start(prefix: *const c_char) -> () {
        // SAFETY: the caller's terminated text, or null.
        unsafe { begin(prefix) }
    } else {}
    /// Ends the session. What it has counted can no longer be dumped.
    "HeapProfilerStop"
    fn stop() -> () {
        if runs() {
            let _ = ask(&[c"stop"]);
        }
    } else {}
    /// Writes a dump now.
    "HeapProfilerDump"
    fn dump(reason: *const c_char) -> () {
        // SAFETY: the caller's terminated text, or null.
        let reason = (!reason.is_null()).then(|| unsafe { CStr::from_ptr(reason) });
        write(reason.unwrap_or_default());
    } else {}
    /// Whether a session runs.
    "IsHeapProfilerRunning"
    fn is_running() -> c_int { c_int::from(runs()) } else { 0 }
    /// The dump as text, from `malloc`; empty without a session. Null: there is no memory.
    "GetHeapProfile"
    fn profile() -> *mut c_char { text() } else { null_mut() }
}

pub(super) fn runs() -> bool {
    session::control().epoch(Ordering::Relaxed) != 0
}

/// # Safety
/// Terminated text, or null.
unsafe fn begin(prefix: *const c_char) {
    if prefix.is_null() {
        return;
    }
    // SAFETY: the caller's.
    if !set_prefix(unsafe { CStr::from_ptr(prefix) }) || runs() {
        return;
    }
    if HAS_BEGUN.load(Ordering::Relaxed) {
        sample();
    } else {
        IS_WANTED.store(true, Ordering::Relaxed);
    }
}

/// From now on sessions can be started. Returns whether one was requested before, as tcmalloc's
/// constructor does for `HEAPPROFILE`.
pub(super) fn begin_sessions() -> bool {
    HAS_BEGUN.store(true, Ordering::Relaxed);
    IS_WANTED.load(Ordering::Relaxed)
}

/// Makes this the prefix of dumps' names. Returns false if it is too long.
pub(super) fn set_prefix(prefix: &CStr) -> bool {
    let prefix = prefix.to_bytes_with_nul();
    if prefix.len() > PREFIX {
        return false;
    }
    for (place, byte) in PREFIX_BYTES.iter().zip(prefix) {
        place.store(*byte, Ordering::Relaxed);
    }
    DUMPS.store(0, Ordering::Relaxed);
    true
}

/// The prefix of dumps' names; empty: there is none.
pub(super) fn prefix() -> sys::Text<{ PREFIX + 32 }> {
    let mut prefix = sys::Text::new();
    for place in &PREFIX_BYTES {
        match place.load(Ordering::Relaxed) {
            0 => break,
            byte => prefix.push(&[byte]),
        }
    }
    prefix
}

/// Whether dumps have a name.
pub(super) fn has_prefix() -> bool {
    PREFIX_BYTES[0].load(Ordering::Relaxed) != 0
}

/// Begins a session. Keeps `errno`.
pub(super) fn sample() {
    if ask(&[c"start"]).is_some() {
        session::take_for_own();
    }
}

/// Writes a dump if a session runs, and dumps have a name. Keeps `errno`.
pub(super) fn write(reason: &CStr) {
    let mut name = prefix();
    if !runs() || name.as_c_str().unwrap_or_default().is_empty() {
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

fn text() -> *mut c_char {
    let mut answer = runs().then(|| ask(&[c"text"])).flatten();
    let bytes = answer.as_mut().map_or(&mut [][..], |answer| answer.bytes());
    // SAFETY: takes any size.
    let copy: *mut u8 = unsafe { super::malloc(bytes.len() + 1) }.cast();
    if !copy.is_null() {
        // SAFETY: just allocated with room for the text and its end.
        unsafe {
            copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            copy.add(bytes.len()).write(0);
        }
    }
    copy.cast()
}

/// Makes the controller do it; says so if it cannot. Keeps `errno`.
fn ask(what: &[&CStr]) -> Option<Answer> {
    request::act(c"self-profile", what, "no heap profile")
}
