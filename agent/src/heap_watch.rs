//! The controller that writes the dumps of `HEAPPROFILE` while the program runs: after the
//! intervals that `HEAP_PROFILE_ALLOCATION_INTERVAL` and related variables give, on request, at the
//! exit, and if the process is killed.

// Decision 84: the dumps of `HEAPPROFILE`.
use crate::request::{self, Controller};
use crate::sys::{self, Text};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

/// Name of the missing result, for messages about a failed controller.
const MISSING_RESULT: &str = "no heap profile";

static WATCHER: Controller = Controller::none();
/// Pid of the process that [`WATCHER`] watches. A forked child is not watched.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Starts the controller, in the constructor, unless another controller has started the program.
/// Keeps `errno`.
pub fn start(prefix: &CStr) {
    if crate::environment::is_set(c"MEM_PROFILER_START") {
        return;
    }
    let answer = request::run_action(
        c"self-profile",
        &[c"watch", c"--file", prefix],
        MISSING_RESULT,
    );
    if answer.is_some_and(|mut answer| WATCHER.store(answer.bytes())) {
        WATCHED.store(sys::pid(), Ordering::Relaxed);
        // Forked children may be requested to write dumps by a signal. Without one, only the
        // controller writes dumps.
        if !crate::environment::is_set(c"HEAPPROFILESIGNAL") {
            crate::session::leave_children_out();
        }
    }
}

/// Returns true if the controller watches this process.
pub fn is_watching() -> bool {
    let watched = WATCHED.load(Ordering::Relaxed);
    // A filter may forbid `getpid`, so it is called only if a process is watched.
    watched != 0 && watched == sys::pid()
}

/// Requests a dump from the controller. Keeps `errno`.
pub fn write(reason: &CStr) {
    let mut question = Text::<256>::new();
    question.push(b"dump ");
    question.push(reason.to_bytes());
    ask(question.as_c_str().unwrap_or_default().to_bytes());
}

/// Requests the last dump from the controller, at the program's exit. Keeps `errno`.
pub fn at_exit() {
    if is_watching() && ask(b"exit") {
        WATCHER.reap();
    }
}

/// Sends a request to the controller. Returns true if it has answered.
fn ask(question: &[u8]) -> bool {
    let saved = sys::errno();
    let answer = WATCHER.ask(question);
    if let Err(failure) = &answer {
        request::complain(MISSING_RESULT, *failure);
    }
    sys::set_errno(saved);
    answer.is_ok()
}
