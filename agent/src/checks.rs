//! Leak checks that the program itself requests: by gperftools' `HEAPCHECK`, at its exit, or by
//! calls (`entry/gperftools.rs`, `entry/sanitizer.rs`).
//!
//! The controller makes the check and prints the report. This module decides whether a check
//! is made, requests it, and returns its result.

use crate::backend;
use crate::environment::variable;
use crate::hooks;
use crate::request::{self, Answer, Failure};
use crate::sys::{self, Text};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// Mode: only checks that the program requests through LeakSanitizer's functions.
const OFF: u8 = 0;
/// Mode: in addition, a check of the whole program at its exit.
const WHOLE: u8 = 1;
/// Mode: only checks that the program requests, including those through gperftools' functions.
const LOCAL: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(OFF);
/// True if the environment requested checks, and not the controller that started the program.
static BY_VARIABLE: AtomicBool = AtomicBool::new(false);
/// True if there is no check at exit, because the program has cancelled it or made one.
static CANCELLED: AtomicBool = AtomicBool::new(false);

/// Maximum length of the name of a mode or a check, in bytes, that is passed to the controller.
const NAME_BYTES: usize = 256;

/// gperftools' name for the check of the whole program.
pub const WHOLE_PROGRAM: &CStr = c"_main_";

/// Reads the environment, at start-up. Returns true if every allocation is to be sampled from now
/// on. Makes no check if the program keeps its own allocator, whose objects are unknown to the
/// agent.
pub fn start() -> bool {
    if backend::is_system() {
        return false;
    }
    let setting = |name| variable(name).filter(|value| !value.is_empty() && *value != b"0");
    let mode = match (setting(c"HEAPCHECK"), setting(c"MEM_PROFILER_LEAK_CHECK")) {
        (_, Some(_)) => WHOLE,
        (Some(b"local"), None) => LOCAL,
        (Some(_), None) => WHOLE,
        (None, None) => OFF,
    };
    let by_variable = setting(c"MEM_PROFILER_LEAK_CHECK").is_none() && mode != OFF;
    MODE.store(mode, Ordering::Relaxed);
    BY_VARIABLE.store(by_variable, Ordering::Relaxed);
    by_variable
}

/// Returns true if one of gperftools' boolean variables is set.
fn is_set_to_true(name: &CStr) -> bool {
    let first = variable(name).map(|value| value.first().copied());
    matches!(first, Some(None | Some(b't' | b'T' | b'y' | b'Y' | b'1')))
}

/// Returns true if gperftools' checks are enabled.
pub fn is_active() -> bool {
    MODE.load(Ordering::Relaxed) != OFF
}

/// Returns true if the whole program is checked.
pub fn is_whole() -> bool {
    MODE.load(Ordering::Relaxed) == WHOLE
}

/// Returns true if `HEAPCHECK` requested the checks, not the controller.
fn is_by_variable() -> bool {
    BY_VARIABLE.load(Ordering::Relaxed)
}

/// Cancels the check at exit.
pub fn cancel() {
    CANCELLED.store(true, Ordering::Relaxed);
}

/// Returns true if a check at exit is still to be made.
fn is_pending() -> bool {
    is_whole() && !CANCELLED.load(Ordering::Relaxed)
}

/// Maximum number of functions of `HeapCleaner`.
const MAX_CLEANERS: usize = 256;
/// Functions of `HeapCleaner`, which free objects that are not to be reported.
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static CLEANERS: [AtomicPtr<c_void>; MAX_CLEANERS] =
    [const { AtomicPtr::new(null_mut()) }; MAX_CLEANERS];
static CLEANER_COUNT: AtomicU32 = AtomicU32::new(0);

/// Adds a function that is called before the whole program is checked.
pub fn add_cleaner(function: extern "C" fn()) {
    let index = CLEANER_COUNT.fetch_add(1, Ordering::Relaxed) as usize;
    if let Some(slot) = CLEANERS.get(index) {
        slot.store(function as *mut c_void, Ordering::Release);
    }
}

/// Calls the added functions in the order in which they were added.
pub fn run_cleaners() {
    for slot in &CLEANERS {
        let function = slot.swap(null_mut(), Ordering::Acquire);
        if !function.is_null() {
            // SAFETY: only functions of this type are stored here.
            let function: extern "C" fn() = unsafe { core::mem::transmute(function) };
            function();
        }
    }
}

/// Result of a check.
pub struct CheckResult {
    /// Bytes that were lost since the earlier check.
    pub bytes: u64,
    /// Objects that were lost since the earlier check.
    pub objects: u64,
    /// Exit status for LeakSanitizer's check; 0: the program continues.
    pub code: c_int,
    /// Losses for comparison in a later check.
    losses: Answer,
}

impl CheckResult {
    /// Returns all losses, for a later check to exclude.
    pub fn losses(&mut self) -> &[u8] {
        let all = self.losses.bytes();
        let first = all.iter().position(|byte| *byte == b'\n');
        &all[first.map_or(all.len(), |at| at + 1)..]
    }
}

/// Style of a check's messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Style {
    /// gperftools' lines.
    Gperftools,
    /// LeakSanitizer's last line.
    Sanitizer,
    /// No messages: the check only records what is lost already.
    Silent,
}

/// Checks this process. `before` has the losses of an earlier check, which are not reported again.
/// Returns `None` if the check failed; the reason was printed. Keeps `errno`.
pub fn check(name: &CStr, style: Style, before: &[u8]) -> Option<CheckResult> {
    let saved = sys::errno();
    hooks::list_declared_strings();
    let mut pid = Text::<16>::new();
    pid.push_number(u64::from(sys::pid()));
    let mut mode = Text::<NAME_BYTES>::new();
    mode.push(variable(c"HEAPCHECK").unwrap_or_default());
    let mut check_name = Text::<NAME_BYTES>::new();
    check_name.push(name.to_bytes());
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
        check_name.as_c_str().unwrap_or_default(),
        c"--style",
        style_name,
        c"--socket",
    ];
    let found = request::ask(&arguments, before).and_then(|mut answer| {
        let [bytes, objects, code] = numbers(answer.bytes()).ok_or(Failure::Silent)?;
        Ok(CheckResult {
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

/// Parses the numbers of an answer's first line, `lost BYTES OBJECTS CODE`.
fn numbers(answer: &[u8]) -> Option<[u64; 3]> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let mut words = line.strip_prefix(b"lost ")?.split(|byte| *byte == b' ');
    let mut number = || -> Option<u64> {
        let text = core::str::from_utf8(words.next()?).ok()?;
        text.parse().ok()
    };
    Some([number()?, number()?, number()?])
}

/// Checks the program at its exit if a variable requests it. Returns the exit status that replaces
/// the program's own.
pub fn at_exit() -> Option<c_int> {
    if !is_by_variable() || !is_pending() || hooks::is_turned_off() {
        return None;
    }
    run_cleaners();
    let found = check(WHOLE_PROGRAM, Style::Gperftools, b"")?;
    if found.objects > 0 && is_set_to_true(c"HEAP_CHECK_IDENTIFY_LEAKS") {
        // Like gperftools, so that the objects can be examined in a core dump.
        // SAFETY: flushes the C library's buffers and ends the process.
        unsafe {
            libc::fflush(null_mut());
            libc::abort()
        }
    }
    (found.objects > 0).then_some(1)
}
