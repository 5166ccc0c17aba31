//! Leak checks that the program itself requests: through gperftools' `HEAPCHECK` and at its exit,
//! or by calls (`entry/gperftools.rs`, `entry/sanitizer.rs`).
//!
//! The controller makes the check and prints the report; this module decides whether one is made,
//! and remembers what was lost before.

use crate::backend;
use crate::environment::variable;
use crate::hooks;
use crate::request::{self, Answer, Failure};
use crate::sys::{self, Text};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// No check but those that a program requests by LeakSanitizer's functions.
const OFF: u8 = 0;
/// At exit as well.
const WHOLE: u8 = 1;
/// Only those that the program requests.
const LOCAL: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(OFF);
/// Whether the environment requested it, not the controller that started the program.
static BY_VARIABLE: AtomicBool = AtomicBool::new(false);
/// Whether no check is made at exit, since the program said so or has had it.
static CANCELLED: AtomicBool = AtomicBool::new(false);

/// Longest name of a mode or a check that is passed on.
const NAME: usize = 256;

/// What gperftools calls the check of the whole program.
pub const WHOLE_PROGRAM: &CStr = c"_main_";

/// Reads the environment, at start-up. Whether every allocation is to be sampled from now on. Where
/// the program keeps its allocator, objects are not known: its own checker is left to it.
pub fn start() -> bool {
    if backend::is_system() {
        return false;
    }
    let asked = |name| variable(name).filter(|value| !value.is_empty() && *value != b"0");
    let mode = match (asked(c"HEAPCHECK"), asked(c"MEM_PROFILER_LEAK_CHECK")) {
        (_, Some(_)) => WHOLE,
        (Some(b"local"), None) => LOCAL,
        (Some(_), None) => WHOLE,
        (None, None) => OFF,
    };
    let by_variable = asked(c"MEM_PROFILER_LEAK_CHECK").is_none() && mode != OFF;
    MODE.store(mode, Ordering::Relaxed);
    BY_VARIABLE.store(by_variable, Ordering::Relaxed);
    by_variable
}

/// Whether one of gperftools' variables says yes.
fn is_on(name: &CStr) -> bool {
    let first = variable(name).map(|value| value.first().copied());
    matches!(first, Some(None | Some(b't' | b'T' | b'y' | b'Y' | b'1')))
}

/// Whether gperftools' checks are made.
pub fn is_active() -> bool {
    MODE.load(Ordering::Relaxed) != OFF
}

/// Whether the whole program is checked.
pub fn is_whole() -> bool {
    MODE.load(Ordering::Relaxed) == WHOLE
}

/// Whether the program is checked at exit only because of a variable, so its profile is not wanted.
fn is_by_variable() -> bool {
    BY_VARIABLE.load(Ordering::Relaxed)
}

/// No check at exit.
pub fn cancel() {
    CANCELLED.store(true, Ordering::Relaxed);
}

/// Whether a check at exit is still to be made.
fn is_pending() -> bool {
    is_whole() && !CANCELLED.load(Ordering::Relaxed)
}

/// `HeapCleaner`'s functions, which free what is not to be reported.
const MOST_CLEANERS: usize = 256;
static CLEANERS: [AtomicPtr<c_void>; MOST_CLEANERS] =
    [const { AtomicPtr::new(null_mut()) }; MOST_CLEANERS];
static CLEANER_COUNT: AtomicU32 = AtomicU32::new(0);

/// Adds a function to run before the whole program is checked.
pub fn add_cleaner(function: extern "C" fn()) {
    let index = CLEANER_COUNT.fetch_add(1, Ordering::Relaxed) as usize;
    if let Some(place) = CLEANERS.get(index) {
        place.store(function as *mut c_void, Ordering::Release);
    }
}

/// Runs them, the first one first.
pub fn clean() {
    for place in &CLEANERS {
        let function = place.swap(null_mut(), Ordering::Acquire);
        if !function.is_null() {
            // SAFETY: only functions of this type are stored here.
            let function: extern "C" fn() = unsafe { core::mem::transmute(function) };
            function();
        }
    }
}

/// What a check found.
pub struct Found {
    /// Bytes that are lost, and were not before.
    pub bytes: u64,
    /// Objects.
    pub objects: u64,
    /// What LeakSanitizer's check ends the program with; 0: it continues.
    pub code: c_int,
    /// Losses to compare a later check with.
    losses: Answer,
}

impl Found {
    /// What is lost by now, for a later check to leave out.
    pub fn losses(&mut self) -> &[u8] {
        let all = self.losses.bytes();
        let first = all.iter().position(|byte| *byte == b'\n');
        &all[first.map_or(all.len(), |at| at + 1)..]
    }
}

/// The kinds of checks, for which messages differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Style {
    /// gperftools' lines.
    Gperftools,
    /// LeakSanitizer's last line.
    Sanitizer,
    /// Nothing: a look at what is lost already.
    Silent,
}

/// Checks this process. `before`: what an earlier check found, which is not reported again. `None`:
/// no check could be made, and the reason was reported. Keeps `errno`.
pub fn check(name: &CStr, style: Style, before: &[u8]) -> Option<Found> {
    let saved = sys::errno();
    hooks::tell();
    let mut pid = Text::<16>::new();
    pid.push_number(u64::from(sys::pid()));
    let mut mode = Text::<NAME>::new();
    mode.push(variable(c"HEAPCHECK").unwrap_or_default());
    let mut shown = Text::<NAME>::new();
    shown.push(name.to_bytes());
    let style_name = match style {
        Style::Gperftools => c"gperftools",
        Style::Sanitizer => c"sanitizer",
        Style::Silent => c"silent",
    };
    let arguments = [
        c"self-check",
        c"--pid",
        pid.as_c_str().unwrap_or_default(),
        c"--mode",
        mode.as_c_str().unwrap_or_default(),
        c"--name",
        shown.as_c_str().unwrap_or_default(),
        c"--style",
        style_name,
        c"--socket",
    ];
    let found = request::ask(&arguments, before).and_then(|mut answer| {
        let [bytes, objects, code] = numbers(answer.bytes()).ok_or(Failure::Silent)?;
        Ok(Found {
            bytes,
            objects,
            code: code as c_int,
            losses: answer,
        })
    });
    let found = match found {
        Ok(found) => Some(found),
        Err(failure) => {
            request::complain("no leak check", failure);
            None
        }
    };
    sys::set_errno(saved);
    found
}

/// The numbers of an answer's first line: `lost BYTES OBJECTS CODE`.
fn numbers(answer: &[u8]) -> Option<[u64; 3]> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let mut words = line.strip_prefix(b"lost ")?.split(|byte| *byte == b' ');
    let mut number = || -> Option<u64> {
        let text = core::str::from_utf8(words.next()?).ok()?;
        text.parse().ok()
    };
    Some([number()?, number()?, number()?])
}

/// At the program's exit: checks it where a variable requested that. The exit code to end with
/// instead of the program's own.
pub fn at_exit() -> Option<c_int> {
    if !is_by_variable() || !is_pending() || hooks::is_turned_off() {
        return None;
    }
    clean();
    let found = check(WHOLE_PROGRAM, Style::Gperftools, b"")?;
    if found.objects > 0 && is_on(c"HEAP_CHECK_IDENTIFY_LEAKS") {
        // As gperftools does, so that the objects can be examined in a core file.
        // SAFETY: writes out the C library's buffers, and ends the process.
        unsafe {
            libc::fflush(null_mut());
            libc::abort()
        }
    }
    (found.objects > 0).then_some(1)
}
