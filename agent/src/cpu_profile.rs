//! CPU profiles that gperftools' variables and functions ask for: the controller samples this
//! process from outside, as `mem_profiler cpu` does, and writes gperftools' format. No timer and no
//! signal handler is in the program.
//!
//! Where the program has gperftools' own profiler, all of it is left to that.

mod switch;

use crate::controller::{self, Answer};
use crate::sys::{self, Text, variable};
use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, Ordering};

/// Longest name of a profile, with its terminator: what gperftools' `ProfilerState` has room for.
pub const NAME: usize = 1024;

/// Nothing is sampled.
const IDLE: u8 = 0;
/// A thread starts or stops the controller.
const BUSY: u8 = 1;
/// The controller samples.
const RUNS: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);
/// The process that is sampled; a forked child is not.
static SAMPLED: AtomicU32 = AtomicU32::new(0);
/// Pid of the controller.
static SAMPLER: AtomicI32 = AtomicI32::new(0);
/// When it began, Unix time in seconds.
static STARTED: AtomicI64 = AtomicI64::new(0);
static FILE: [AtomicU8; NAME] = [const { AtomicU8::new(0) }; NAME];

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

/// Reads the environment, at start-up, and has the whole run sampled if that was asked for.
pub fn start() {
    let Some(path) = variable(c"CPUPROFILE").filter(|path| !path.is_empty()) else {
        return;
    };
    // gperftools' own profiler has read the variable as well.
    if !sys::next_symbol(c"ProfilerStart").is_null() {
        return;
    }
    // As gperftools does: the first byte tells children that the name is taken.
    let (first, rest) = (path[0], &path[1..]);
    let mut name = Text::<NAME>::new();
    name.push(&[first & 0x7f]);
    name.push(rest);
    match first & 0x80 {
        0 => mark_taken(path),
        _ => {
            name.push(b"_");
            name.push_number(u64::from(sys::pid()));
        }
    }
    let Some(name) = name.as_c_str() else { return };
    match variable(c"CPUPROFILESIGNAL").filter(|number| !number.is_empty()) {
        Some(number) => switch::install(name, number),
        None => drop(begin(name)),
    }
}

/// Marks the variable's value for the programs that this one starts.
fn mark_taken(path: &'static [u8]) {
    // SAFETY: a byte of the environment, which is the process's own writable memory. Start-up:
    // there is one thread, and nobody has a reference to it.
    unsafe {
        let first = path.as_ptr().cast_mut();
        first.write(first.read() | 0x80);
    }
}

/// Has this process sampled into a file. Whether it is now, and was not before. Keeps `errno`.
pub fn begin(path: &CStr) -> bool {
    let bytes = path.to_bytes_with_nul();
    let own = sys::pid();
    if bytes.len() < 2 || bytes.len() > NAME || !enter(own) {
        return false;
    }
    for (place, byte) in FILE.iter().zip(bytes) {
        place.store(*byte, Ordering::Relaxed);
    }
    let answer = ask(&[c"start", c"--file", path]);
    let sampler = answer.and_then(|mut answer| number(answer.bytes()));
    SAMPLER.store(sampler.unwrap_or(0), Ordering::Relaxed);
    STARTED.store(now(), Ordering::Relaxed);
    let next = if sampler.is_some() { RUNS } else { IDLE };
    STATE.store(next, Ordering::Release);
    sampler.is_some()
}

/// Ends it, and waits until the file is written. Keeps `errno`.
pub fn end() {
    let own = SAMPLED.load(Ordering::Relaxed) == sys::pid();
    let order = (Ordering::Acquire, Ordering::Relaxed);
    let runs = || STATE.compare_exchange(RUNS, BUSY, order.0, order.1);
    if !own || runs().is_err() {
        return;
    }
    let sampler = SAMPLER.swap(0, Ordering::Relaxed);
    let mut number = Text::<16>::new();
    number.push_number(sampler as u64);
    let number = number.as_c_str().unwrap_or_default();
    let _ = ask(&[c"stop", c"--sampler", number]);
    controller::reap(sampler);
    STATE.store(IDLE, Ordering::Release);
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

/// The number of an answer.
fn number(answer: &[u8]) -> Option<c_int> {
    core::str::from_utf8(answer).ok()?.trim_end().parse().ok()
}

/// Lets the controller do it; says so if it cannot. Keeps `errno`.
fn ask(what: &[&CStr]) -> Option<Answer> {
    controller::act(c"self-cpu", what, "no CPU profile")
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
