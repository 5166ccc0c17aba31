//! Python interpreter of this process: its address, its version, and whether its data are as
//! expected.
//!
//! An interpreter is found at start-up, or when its library first appears on a stack. The offsets
//! of its data may be wrong (an unknown version, an unusual build). So if the first stacks cannot
//! be read, the interpreter is left alone.

use super::options::CommandLine;
use crate::arch::glibc_function;
use crate::backend;
use crate::environment;
use crate::module::Watcher;
use crate::session;
use crate::symbol_table;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use cpython::MAX_INITIAL_FAILURES;
use cpython::layout::{self, Layout, RUNTIME_WORDS};
use python_frames::{Code, Runtime};
use shm_protocol::layout::{
    PYTHON_DETECTED, PYTHON_DIFFERS, PYTHON_FREE_THREADED, PYTHON_GONE, PYTHON_HIDES, PYTHON_NAMED,
    PYTHON_UNKNOWN,
};
use unwind::probe;

/// Interpreter of the process, written once.
struct DetectedRuntime(UnsafeCell<Option<Runtime>>);
// SAFETY: written by one thread, and read by others only after [`IS_DETECTED`] was set.
unsafe impl Sync for DetectedRuntime {}
/// The interpreter, once one was found.
static RUNTIME: DetectedRuntime = DetectedRuntime(UnsafeCell::new(None));
/// True once [`RUNTIME`] is written.
static IS_DETECTED: AtomicBool = AtomicBool::new(false);
/// True while no interpreter has been found, but one may still be loaded.
static MAY_BE_LOADED_LATER: AtomicBool = AtomicBool::new(false);

/// Version as in `Py_Version`; 0 if not known.
static VERSION: AtomicU32 = AtomicU32::new(0);
/// State of the interpreter, as one of the `PYTHON_` constants.
static STATE: AtomicU8 = AtomicU8::new(PYTHON_DETECTED as u8);
/// Set of [`PYTHON_HIDES`] and [`PYTHON_FREE_THREADED`].
static FLAGS: AtomicU32 = AtomicU32::new(0);
/// Number of stacks that could not be read before the first that could.
static FAILURES: AtomicU32 = AtomicU32::new(0);

/// Looks for an interpreter in the program and the libraries that it is linked with, at start-up.
/// Its symbols are weak references of the agent, which the loader has bound. A failing `dlsym`
/// would allocate its message from the program's heap, where a session may already record every
/// allocation.
pub fn start(line: Option<CommandLine>) {
    if environment::variable(c"MEM_PROFILER_PYTHON") == Some(b"0") {
        return;
    }
    let allocator = environment::variable(c"PYTHONMALLOC");
    let is_malloc_requested = matches!(allocator, Some(b"malloc" | b"malloc_debug"));
    if !is_malloc_requested || line.is_some_and(CommandLine::ignores_environment) {
        FLAGS.store(PYTHON_HIDES, Ordering::Relaxed);
    }
    let evaluate = glibc_function!("_PyEval_EvalFrameDefault");
    // SAFETY: `evaluate` is null or a function of a module that is never unloaded.
    let size = unsafe { symbol_table::size_of_function(evaluate as *const c_void) }.unwrap_or(0);
    let symbols = Symbols {
        runtime: glibc_function!("_PyRuntime") as u64,
        version: glibc_function!("Py_Version") as u64,
        first_in: [
            glibc_function!("PyIter_Send") as u64,
            glibc_function!("PyFrame_GetCode") as u64,
            glibc_function!("PyVectorcall_Call") as u64,
        ],
        evaluate: (evaluate as u64, size),
    };
    if symbols.runtime == 0 {
        MAY_BE_LOADED_LATER.store(true, Ordering::Relaxed);
    } else {
        store_interpreter(&symbols, false);
    }
}

/// Handles interpreters that are loaded and unloaded after start-up.
pub static WATCHER: Watcher = Watcher {
    found: library_found,
    unloaded: library_unloaded,
};

/// Handles a library that was found on a stack for the first time. An interpreter that was loaded
/// after start-up is recognised by the library's file name.
///
/// # Safety
/// The library begins at `base` and stays loaded during the call.
unsafe fn library_found(name: &[u8], base: u64) {
    let file = name.rsplit(|byte| *byte == b'/').next();
    let is_interpreter = file.is_some_and(|file| file.starts_with(b"libpython3"));
    if !is_interpreter || !MAY_BE_LOADED_LATER.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the library at `base` stays loaded during the call.
    let find = |name| unsafe { symbol_table::find_exported(base, name) }.unwrap_or((0, 0));
    let symbols = Symbols {
        runtime: find(c"_PyRuntime").0,
        version: find(c"Py_Version").0,
        first_in: [c"PyIter_Send", c"PyFrame_GetCode", c"PyVectorcall_Call"]
            .map(|name| find(name).0),
        evaluate: find(c"_PyEval_EvalFrameDefault"),
    };
    // Several threads may get here; only one of them publishes the interpreter.
    if symbols.runtime != 0 && MAY_BE_LOADED_LATER.swap(false, Ordering::Relaxed) {
        store_interpreter(&symbols, true);
        publish();
    }
}

/// Handles the unloading of a library at these addresses.
fn library_unloaded(start: u64, end: u64) {
    if detected_runtime()
        .is_some_and(|runtime| runtime.may_unload && (start..end).contains(&runtime.at))
    {
        STATE.store(PYTHON_GONE as u8, Ordering::Relaxed);
        publish();
    }
}

/// Addresses of an interpreter's symbols; 0 for those that it does not have.
struct Symbols {
    runtime: u64,
    version: u64,
    /// Functions that were added in 3.10, 3.9 and 3.8.
    first_in: [u64; 3],
    /// Evaluation loop: its address and its size in bytes.
    evaluate: (u64, u64),
}

/// Stores the interpreter with these symbols. Called once.
fn store_interpreter(symbols: &Symbols, may_unload: bool) {
    let at = symbols.runtime;
    let (version, layout) = read_description(at).unwrap_or_else(|| {
        let version = version(symbols);
        (version, layout::for_version(version))
    });
    VERSION.store(version, Ordering::Relaxed);
    if layout.is_some_and(|layout| layout.extra_header_bytes != 0) {
        // Without the GIL, all objects come from the interpreter's own allocator.
        FLAGS.fetch_or(PYTHON_FREE_THREADED | PYTHON_HIDES, Ordering::Relaxed);
    }
    let Some(layout) = layout else {
        return STATE.store(PYTHON_UNKNOWN as u8, Ordering::Relaxed);
    };
    let (from, size) = symbols.evaluate;
    let runtime = Runtime {
        at,
        layout,
        evaluation: Code {
            start: from,
            end: from + size,
        },
        may_unload,
        unmaps_freed: backend::is_system(),
    };
    // SAFETY: called once: by the only thread at start-up, or by the thread that cleared
    // `MAY_BE_LOADED_LATER`. Nobody reads it before `IS_DETECTED` is set.
    unsafe { *RUNTIME.0.get() = Some(runtime) };
    IS_DETECTED.store(true, Ordering::Release);
}

/// Reads what an interpreter says about its own version and layout (`_Py_DebugOffsets`, from 3.13
/// on).
fn read_description(at: u64) -> Option<(u32, Option<Layout>)> {
    let bytes = RUNTIME_WORDS as u64 * 8;
    if !probe::are_readable(at, at.saturating_add(bytes)) {
        return None;
    }
    // SAFETY: just found readable: a variable of a loaded module, whose first words are constant.
    let words = unsafe { (at as *const [u64; RUNTIME_WORDS]).read_unaligned() };
    let (version, layout) = layout::published(&words)?;
    let is_readable = |layout: &Layout| {
        let interpreters = at.saturating_add(layout.interpreters);
        probe::are_readable(interpreters, interpreters.saturating_add(8))
    };
    Some((version, layout.filter(is_readable)))
}

/// Returns the version by `Py_Version` (from 3.11 on) or by the functions that it has; 0 if not
/// known. An interpreter that exports its evaluation loop exports the other functions, too.
fn version(symbols: &Symbols) -> u32 {
    // SAFETY: null or the address of `const unsigned long Py_Version`.
    if let Some(version) = unsafe { (symbols.version as *const u64).as_ref() } {
        return u32::try_from(*version).unwrap_or(u32::MAX);
    }
    let versions = [0x030a_0000, 0x0309_0000, 0x0308_0000];
    let mut functions = symbols.first_in.iter().zip(versions);
    let oldest = if symbols.evaluate.0 == 0 {
        0
    } else {
        0x0307_0000
    };
    functions
        .find(|(function, _)| **function != 0)
        .map_or(oldest, |(_, version)| version)
}

/// Returns the interpreter unless it is to be left alone.
#[inline]
pub fn usable_runtime() -> Option<&'static Runtime> {
    if STATE.load(Ordering::Relaxed) > PYTHON_NAMED as u8 {
        return None;
    }
    detected_runtime()
}

#[inline]
fn detected_runtime() -> Option<&'static Runtime> {
    if !IS_DETECTED.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: `RUNTIME` is written once, before `IS_DETECTED` is set.
    unsafe { (*RUNTIME.0.get()).as_ref() }
}

/// Records that a stack was read: the interpreter is as expected.
#[inline]
pub fn record_success() {
    if STATE.load(Ordering::Relaxed) == PYTHON_DETECTED as u8 {
        STATE.store(PYTHON_NAMED as u8, Ordering::Relaxed);
        publish();
    }
}

/// Records that a stack could not be read. If none ever could, the interpreter is left alone.
#[cold]
pub fn record_failure() {
    let confirmed = STATE.load(Ordering::Relaxed) != PYTHON_DETECTED as u8;
    if !confirmed && FAILURES.fetch_add(1, Ordering::Relaxed) >= MAX_INITIAL_FAILURES {
        STATE.store(PYTHON_DIFFERS as u8, Ordering::Relaxed);
        publish();
    }
}

/// Writes the state of the interpreter into the segment.
pub fn publish() {
    if let Some(status) = session::status() {
        let state = u32::from(STATE.load(Ordering::Relaxed));
        let flags = FLAGS.load(Ordering::Relaxed);
        status.python.store(state | flags, Ordering::Relaxed);
        let version = VERSION.load(Ordering::Relaxed);
        status.python_version.store(version, Ordering::Release);
    }
}
