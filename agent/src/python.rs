//! Frames of the Python interpreter (CPython 3.8 to 3.15) of this process, for the stack walker.
//!
//! The crate `python_frames` reads them. This module finds the interpreter, keeps its library
//! loaded while its frames are read, and tells the segment whether they can be read.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `options` | command line of the interpreter |
//! | `runtime` | the interpreter of this process: found at start-up, checked when it runs |

mod options;
mod runtime;

use crate::session::{self, Epoch};
use crate::{module, own};
use core::ffi::c_void;
use python_frames::{Host, Runtime, Session};
use unwind::interpreter::{InterpreterFrames, NativeStack};

pub use options::CommandLine;
pub use python_frames::Frames;
pub use runtime::{WATCHER, publish, start};

/// Returns true if this process runs an interpreter whose frames can be read.
#[inline]
pub fn is_known() -> bool {
    runtime::usable_runtime().is_some()
}

/// Returns true if interpreter frames are found without walking the native frames that run them.
#[inline]
pub fn is_found_by_stack() -> bool {
    runtime::usable_runtime().is_some_and(Runtime::is_found_by_stack)
}

/// Returns the interpreter frames of a walk, each with the native frame that runs it.
#[inline]
pub fn read<'a>(
    frames: &'a mut Frames,
    native_stack: &NativeStack<'_>,
    epoch: &Epoch,
) -> InterpreterFrames<'a> {
    match runtime::usable_runtime() {
        Some(runtime) if runtime.may_unload => with_library_loaded(|runtime| {
            // SAFETY: `with_library_loaded` keeps the library loaded.
            unsafe { frames.read(runtime, native_stack, &session(epoch, &Process(epoch))) }
        }),
        // SAFETY: the interpreter is part of the program or of a library that is never unloaded.
        Some(runtime) => unsafe {
            frames.read(runtime, native_stack, &session(epoch, &Process(epoch)))
        },
        None => InterpreterFrames::NONE,
    }
}

/// Like [`read`], for a thread that a signal interrupted at any instruction. Callers must call
/// [`Frames::forget_interrupted`] afterwards.
pub fn read_interrupted<'a>(
    frames: &'a mut Frames,
    native_stack: &NativeStack<'_>,
    epoch: &Epoch,
) -> InterpreterFrames<'a> {
    with_library_loaded(|runtime| {
        // SAFETY: `with_library_loaded` keeps the library loaded.
        unsafe { frames.read_interrupted(runtime, native_stack, &session(epoch, &Process(epoch))) }
    })
}

/// Runs `work` on the interpreter. If its library may be unloaded, keeps it loaded until `work`
/// returns.
#[inline(never)]
fn with_library_loaded<'a>(
    work: impl FnOnce(&Runtime) -> InterpreterFrames<'a>,
) -> InterpreterFrames<'a> {
    match runtime::usable_runtime() {
        Some(runtime) if !runtime.may_unload => work(runtime),
        Some(_) => {
            module::reading(move || runtime::usable_runtime().map_or(InterpreterFrames::NONE, work))
                .unwrap_or(InterpreterFrames::NONE)
        }
        None => InterpreterFrames::NONE,
    }
}

/// Returns the session in which the frames of an epoch are recorded.
fn session<'a>(epoch: &'a Epoch, process: &'a Process<'a>) -> Session<'a> {
    Session {
        number: epoch.session,
        codes: &epoch.bank.codes,
        host: process,
    }
}

/// Host of the interpreter: this process in one epoch.
struct Process<'a>(&'a Epoch);

impl Host for Process<'_> {
    fn map(&self, bytes: usize) -> *mut c_void {
        own::map(bytes)
    }

    unsafe fn unmap(&self, at: *mut c_void, bytes: usize) {
        // SAFETY: the caller's mapping is one that `map` made, and nobody uses it any more.
        unsafe { own::unmap(at, bytes) };
    }

    fn reserve_codes(&self, bytes: usize) -> bool {
        session::reserve_codes(self.0, bytes)
    }

    fn record_success(&self) {
        runtime::record_success();
    }

    fn record_failure(&self) {
        runtime::record_failure();
    }
}
