//! CPU profiles that are requested through gperftools' variables and functions.
//!
//! The controller samples this process from outside, as `mem_profiler cpu` does, and writes
//! gperftools' format. The program gets no timer and no signal handler, unless it wants to select
//! samples with a filter of its own, or to start profiling by a signal (`CPUPROFILESIGNAL`). If it
//! contains gperftools' own profiler, everything is left to that.

// Decision 39: a CPU profile that a program requests.
mod filter;
mod switch;

use crate::environment;
use crate::request::{self, Controller};
use crate::sys::{self, Text};
use crate::{backend, cpu, timers};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, Ordering};
pub use filter::{Filter, wants_sample};

/// Maximum length of a profile's name with its terminating zero: the size in gperftools'
/// `ProfilerState`.
pub const NAME_BYTES: usize = 1024;

/// State: nothing is sampled.
const IDLE: u8 = 0;
/// State: a thread is starting or stopping the controller.
const BUSY: u8 = 1;
/// State: the controller is sampling.
const RUNNING: u8 = 2;

/// Name of the missing result, for messages about a failed controller.
const MISSING_RESULT: &str = "no CPU profile";

static STATE: AtomicU8 = AtomicU8::new(IDLE);
/// Pid of the sampled process; a forked child is not sampled.
static SAMPLED: AtomicU32 = AtomicU32::new(0);
static SAMPLER: Controller = Controller::none();
/// Start of the profile, as Unix time in seconds.
static STARTED: AtomicI64 = AtomicI64::new(0);
/// Name of the profile, with its terminating zero.
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static FILE: [AtomicU8; NAME_BYTES] = [const { AtomicU8::new(0) }; NAME_BYTES];

/// Profile in progress.
pub struct Running {
    /// Start time, in seconds since the Unix epoch.
    pub started: i64,
}

/// Returns the profile in progress of this process, if there is one.
pub fn running() -> Option<Running> {
    let runs = STATE.load(Ordering::Acquire) == RUNNING;
    (runs && SAMPLED.load(Ordering::Relaxed) == sys::pid()).then(|| Running {
        started: STARTED.load(Ordering::Relaxed),
    })
}

/// Reads the environment, at start-up. Starts a profile of the whole run if that is requested.
pub fn start() {
    let nonempty = |name| environment::variable(name).filter(|value| !value.is_empty());
    let path = nonempty(c"CPUPROFILE");
    let signal = nonempty(c"CPUPROFILESIGNAL");
    // If the program contains gperftools' own profiler, that reads the same variables.
    let is_wanted = path.is_some() || signal.is_some();
    if !is_wanted || !sys::next_symbol(c"ProfilerStart").is_null() {
        return;
    }
    if path.is_none() {
        return switch::install(c"", signal.unwrap_or_default());
    }
    let name = unique_name(c"CPUPROFILE");
    let Some(name) = name.as_c_str() else { return };
    match signal {
        Some(number) => switch::install(name, number),
        None => drop(begin(name, None)),
    }
}

/// Returns the profile name that a variable gives. If the program that started this one already
/// uses the name, it gets the pid as a suffix. As with gperftools, the highest bit of the
/// variable's first byte tells children that the name is in use.
pub fn unique_name(variable: &CStr) -> Text<NAME_BYTES> {
    let mut name = Text::new();
    let Some([first, rest @ ..]) = environment::variable(variable) else {
        return name;
    };
    let is_taken = first & 0x80 != 0;
    name.push(&[first & 0x7f]);
    name.push(rest);
    if is_taken {
        name.push(b"_");
        name.push_number(u64::from(sys::pid()));
    } else {
        environment::mark(variable);
    }
    name
}

/// Starts a profile of this process, written to a file and filtered. Returns false if that fails,
/// or if a profile is in progress. Keeps `errno`.
pub fn begin(path: &CStr, filter: Option<Filter>) -> bool {
    let bytes = path.to_bytes_with_nul();
    let pid = sys::pid();
    if backend::is_left_out() {
        return false;
    }
    if bytes.len() < 2 || bytes.len() > NAME_BYTES || !claim_profile(pid) {
        return false;
    }
    write(&FILE, bytes);
    filter::install(filter);
    let action = if filter.is_some() {
        c"start-filtered"
    } else {
        c"start"
    };
    let answer = request::run_action(c"self-cpu", &[action, c"--file", path], MISSING_RESULT);
    let has_begun = answer.is_some_and(|mut answer| SAMPLER.store(answer.bytes()));
    STARTED.store(now(), Ordering::Relaxed);
    let next = if has_begun { RUNNING } else { IDLE };
    STATE.store(next, Ordering::Release);
    if has_begun && filter.is_some() && !start_timers() {
        end();
        return false;
    }
    has_begun
}

/// Gives timers to all threads now, rather than at some later allocation. Returns true if they have
/// timers.
fn start_timers() -> bool {
    let saved = sys::errno();
    cpu::start();
    sys::set_errno(saved);
    timers::session() != 0
}

/// Ends the profile, and waits until the file is written. Keeps `errno`.
pub fn end() {
    let is_ours = SAMPLED.load(Ordering::Relaxed) == sys::pid();
    if !is_ours || !claim_state(RUNNING) {
        return;
    }
    let saved = sys::errno();
    if let Err(failure) = SAMPLER.ask(b"stop") {
        request::complain(MISSING_RESULT, failure);
    } else {
        SAMPLER.reap();
    }
    // The program may unload its filter afterwards.
    filter::install(None);
    sys::set_errno(saved);
    STATE.store(IDLE, Ordering::Release);
}

/// Writes the profile so far. Keeps `errno`.
pub fn flush() {
    if running().is_some() {
        let saved = sys::errno();
        let _ = SAMPLER.ask(b"flush");
        sys::set_errno(saved);
    }
}

/// Returns the number of samples so far. Keeps `errno`.
pub fn samples() -> c_int {
    let saved = sys::errno();
    let answer = SAMPLER.ask(b"samples").ok();
    sys::set_errno(saved);
    let number = answer.and_then(|mut answer| number(answer.bytes()));
    number.unwrap_or(0)
}

/// Ends the profile at the program's exit.
pub fn at_exit() {
    if STATE.load(Ordering::Relaxed) == RUNNING {
        end();
    }
}

/// Claims the process's only profile. In a forked child, the parent's claim does not count.
fn claim_profile(pid: u32) -> bool {
    if SAMPLED.swap(pid, Ordering::AcqRel) != pid {
        filter::forget();
        STATE.store(IDLE, Ordering::Relaxed);
    }
    claim_state(IDLE)
}

/// Changes the state to [`BUSY`]. Returns false if it is not `from`.
fn claim_state(from: u8) -> bool {
    STATE
        .compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

fn now() -> i64 {
    // SAFETY: no memory is passed.
    unsafe { libc::time(null_mut()) }
}

fn write(to: &[AtomicU8], bytes: &[u8]) {
    for (stored, byte) in to.iter().zip(bytes) {
        stored.store(*byte, Ordering::Relaxed);
    }
}

fn number(text: &[u8]) -> Option<c_int> {
    core::str::from_utf8(text).ok()?.trim_end().parse().ok()
}

/// Copies the name of the profile with its terminating zero.
///
/// # Safety
/// [`NAME_BYTES`] bytes at `to` are writable.
pub unsafe fn copy_file(to: *mut c_char) {
    for (index, stored) in FILE.iter().enumerate() {
        // SAFETY: `index` is below `NAME_BYTES`.
        unsafe {
            to.add(index)
                .write(stored.load(Ordering::Relaxed) as c_char)
        };
    }
}
