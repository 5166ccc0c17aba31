//! gperftools' heap profiler for programs that call it (`gperftools/heap-profiler.h`): a session of
//! this process, started, dumped and stopped by its controller.
//!
//! It differs from gperftools' in that dumps are written only on request, and that a session that
//! is already running is used. Every allocation is sampled unless `MEM_PROFILER_INTERVAL` says
//! otherwise.

use super::gperftools::exports;
use crate::controller::{self, Answer};
use crate::{session, sys};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Longest prefix of dumps' names, with its terminator.
const PREFIX: usize = 1024;
static PREFIX_BYTES: [AtomicU8; PREFIX] = [const { AtomicU8::new(0) }; PREFIX];
/// Dumps since the start.
static DUMPS: AtomicU32 = AtomicU32::new(0);

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
        unsafe { write(reason) }
    } else {}
    /// Whether a session runs.
    "IsHeapProfilerRunning"
    fn is_running() -> c_int { c_int::from(runs()) } else { 0 }
    /// The dump as text, from `malloc`; empty without a session. Null: there is no memory.
    "GetHeapProfile"
    fn profile() -> *mut c_char { text() } else { null_mut() }
}

fn runs() -> bool {
    session::control().epoch.load(Ordering::Relaxed) != 0
}

/// # Safety
/// Terminated text, or null.
unsafe fn begin(prefix: *const c_char) {
    if prefix.is_null() {
        return;
    }
    // SAFETY: the caller's.
    let prefix = unsafe { CStr::from_ptr(prefix) }.to_bytes_with_nul();
    if prefix.len() > PREFIX {
        return;
    }
    for (place, byte) in PREFIX_BYTES.iter().zip(prefix) {
        place.store(*byte, Ordering::Relaxed);
    }
    DUMPS.store(0, Ordering::Relaxed);
    if !runs() && ask(&[c"start"]).is_some() {
        session::take_for_own();
    }
}

/// # Safety
/// Terminated text, or null.
unsafe fn write(reason: *const c_char) {
    let mut name = sys::Text::<{ PREFIX + 32 }>::new();
    for place in &PREFIX_BYTES {
        match place.load(Ordering::Relaxed) {
            0 => break,
            byte => name.push(&[byte]),
        }
    }
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
    if !reason.is_null() {
        // SAFETY: the caller's.
        why.push(unsafe { CStr::from_ptr(reason) }.to_bytes());
    }
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
    controller::act(c"self-profile", what, "no heap profile")
}
