//! CPU profiles that are requested through gperftools' variables and functions: the controller
//! samples this process from outside, as `mem_profiler cpu` does, and writes gperftools' format.
//! The program gets no timer and no signal handler, unless it wants to select samples with a filter
//! of its own, or to start profiling by a signal (`CPUPROFILESIGNAL`).
//!
//! If the program contains gperftools' own profiler, everything is left to that.

// Decision 39: a CPU profile that a program requests.
mod filter;
mod switch;

use crate::controller::{self, Answer};
use crate::environment;
use crate::sys::{self, Text};
use crate::{backend, cpu, timers};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, Ordering};
pub use filter::{Filter, lets_pass};

/// Longest name of a profile, with its terminator: what gperftools' `ProfilerState` has room for.
pub const NAME: usize = 1024;

/// Nothing is sampled.
const IDLE: u8 = 0;
/// A thread starts or stops the controller.
const BUSY: u8 = 1;
/// The controller samples.
const RUNS: u8 = 2;

/// What there is not where the controller cannot do it.
const LACK: &str = "no CPU profile";

static STATE: AtomicU8 = AtomicU8::new(IDLE);
/// The process that is sampled; a forked child is not.
static SAMPLED: AtomicU32 = AtomicU32::new(0);
/// Pid of the controller.
static SAMPLER: AtomicI32 = AtomicI32::new(0);
/// When it began, Unix time in seconds.
static STARTED: AtomicI64 = AtomicI64::new(0);
static FILE: [AtomicU8; NAME] = [const { AtomicU8::new(0) }; NAME];
/// Where further requests to the controller go.
static SOCKET: [AtomicU8; controller::NAME] = [const { AtomicU8::new(0) }; controller::NAME];

/// What is being sampled.
pub struct Running {
    /// Since when, Unix time in seconds.
    pub started: i64,
}

/// Whether this process is sampled.
pub fn running() -> Option<Running> {
    let runs = STATE.load(Ordering::Acquire) == RUNS;
    (runs && SAMPLED.load(Ordering::Relaxed) == sys::pid()).then(|| Running {
        started: STARTED.load(Ordering::Relaxed),
    })
}

/// Reads the environment, at start-up, and has the whole run sampled if that was requested.
pub fn start() {
    let set = |name| environment::variable(name).filter(|value| !value.is_empty());
    let (path, signal) = (set(c"CPUPROFILE"), set(c"CPUPROFILESIGNAL"));
    // gperftools' own profiler has read the variables as well.
    let is_wanted = path.is_some() || signal.is_some();
    if !is_wanted || !sys::next_symbol(c"ProfilerStart").is_null() {
        return;
    }
    if path.is_none() {
        return switch::install(c"", signal.unwrap_or_default());
    }
    let name = unique(c"CPUPROFILE");
    let Some(name) = name.as_c_str() else { return };
    match signal {
        Some(number) => switch::install(name, number),
        None => drop(begin(name, None)),
    }
}

/// The name of a profile that a variable gives, with the pid if a program that started this one has
/// taken that name: as gperftools does, the first byte shows that to children.
pub fn unique(variable: &CStr) -> Text<NAME> {
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

/// Has this process sampled into a file, except for what the filter leaves out. Whether it is now,
/// and was not before. Keeps `errno`.
pub fn begin(path: &CStr, filter: Option<Filter>) -> bool {
    let bytes = path.to_bytes_with_nul();
    let own = sys::pid();
    if backend::is_left_out() {
        return false;
    }
    if bytes.len() < 2 || bytes.len() > NAME || !enter(own) {
        return false;
    }
    write(&FILE, bytes);
    filter::install(filter);
    let what = match filter {
        Some(_) => c"start-filtered",
        None => c"start",
    };
    let answer = controller::act(c"self-cpu", &[what, c"--file", path], LACK);
    let sampler = answer.and_then(|mut answer| sampler(answer.bytes()));
    SAMPLER.store(sampler.unwrap_or(0), Ordering::Relaxed);
    STARTED.store(now(), Ordering::Relaxed);
    let next = if sampler.is_some() { RUNS } else { IDLE };
    STATE.store(next, Ordering::Release);
    if sampler.is_some() && filter.is_some() && !begin_inside() {
        end();
        return false;
    }
    sampler.is_some()
}

/// Gives the threads timers at once, which some allocation would do later. Whether they have them.
fn begin_inside() -> bool {
    let saved = sys::errno();
    cpu::start();
    sys::set_errno(saved);
    timers::session() != 0
}

/// Ends it, and waits until the file is written. Keeps `errno`.
pub fn end() {
    let own = SAMPLED.load(Ordering::Relaxed) == sys::pid();
    let order = (Ordering::Acquire, Ordering::Relaxed);
    let runs = || STATE.compare_exchange(RUNS, BUSY, order.0, order.1);
    if !own || runs().is_err() {
        return;
    }
    let saved = sys::errno();
    let sampler = SAMPLER.load(Ordering::Relaxed);
    if let Err(failure) = ask(b"stop") {
        controller::complain(LACK, failure);
    } else {
        controller::reap(sampler);
    }
    // A program may unload its filter from now on.
    filter::install(None);
    sys::set_errno(saved);
    STATE.store(IDLE, Ordering::Release);
}

/// Has what was sampled so far written. Keeps `errno`.
pub fn flush() {
    if running().is_some() {
        let saved = sys::errno();
        let _ = ask(b"flush");
        sys::set_errno(saved);
    }
}

/// How many samples there are so far. Keeps `errno`.
pub fn samples() -> c_int {
    let saved = sys::errno();
    let answer = ask(b"samples").ok();
    sys::set_errno(saved);
    let number = answer.and_then(|mut answer| number(answer.bytes()));
    number.unwrap_or(0)
}

/// Asks the controller that samples. Changes `errno`.
fn ask(question: &[u8]) -> Result<Answer, controller::Failure> {
    let mut name = [0; controller::NAME];
    for (byte, place) in name.iter_mut().zip(&SOCKET) {
        *byte = place.load(Ordering::Relaxed);
    }
    let len = name.iter().position(|byte| *byte == 0);
    let name = &name[..len.unwrap_or(name.len())];
    controller::ask_again(SAMPLER.load(Ordering::Relaxed), name, question)
}

/// At the program's exit.
pub fn at_exit() {
    if STATE.load(Ordering::Relaxed) == RUNS {
        end();
    }
}

/// Takes the one place that there is; one that a parent had is free in its child.
fn enter(own: u32) -> bool {
    if SAMPLED.swap(own, Ordering::AcqRel) != own {
        filter::forget();
        STATE.store(IDLE, Ordering::Relaxed);
    }
    let order = (Ordering::Acquire, Ordering::Relaxed);
    let entered = STATE.compare_exchange(IDLE, BUSY, order.0, order.1);
    entered.is_ok()
}

fn now() -> i64 {
    // SAFETY: no memory is passed.
    unsafe { libc::time(null_mut()) }
}

/// The pid of an answer's controller; the name of its socket is noted.
fn sampler(answer: &[u8]) -> Option<c_int> {
    let at = answer.iter().position(|byte| *byte == b' ')?;
    let (pid, name) = (&answer[..at], answer[at + 1..].trim_ascii_end());
    if name.len() >= SOCKET.len() {
        return None;
    }
    write(&SOCKET, name);
    SOCKET[name.len()].store(0, Ordering::Relaxed);
    number(pid)
}

fn write(places: &[AtomicU8], bytes: &[u8]) {
    for (place, byte) in places.iter().zip(bytes) {
        place.store(*byte, Ordering::Relaxed);
    }
}

fn number(text: &[u8]) -> Option<c_int> {
    core::str::from_utf8(text).ok()?.trim_end().parse().ok()
}

/// Copies the name of the profile, terminated.
///
/// # Safety
/// There are [`NAME`] bytes to be written.
pub unsafe fn copy_file(to: *mut c_char) {
    for (index, place) in FILE.iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { to.add(index).write(place.load(Ordering::Relaxed) as c_char) };
    }
}
