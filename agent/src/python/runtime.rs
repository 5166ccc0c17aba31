//! The interpreter of this process.

use super::layout::{self, Layout, WORDS};
use super::options::CommandLine;
use crate::arch::glibc_function;
use crate::environment;
use crate::module::Watcher;
use crate::session;
use crate::symbol_table;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use cpython::FORGIVEN;
use shm_protocol::layout::{
    PYTHON_DIFFERS, PYTHON_GONE, PYTHON_HIDES, PYTHON_MET, PYTHON_NAMED, PYTHON_UNKNOWN,
    PYTHON_UNLOCKED,
};
use unwind::probe;

/// What is known of it. Written once.
struct Known(UnsafeCell<Option<Runtime>>);
// SAFETY: written by one thread, and read by others once [`IS_FOUND`] says that it was.
unsafe impl Sync for Known {}
static KNOWN: Known = Known(UnsafeCell::new(None));
static IS_FOUND: AtomicBool = AtomicBool::new(false);
/// Whether one may still be loaded.
static SOUGHT: AtomicBool = AtomicBool::new(false);

static VERSION: AtomicU32 = AtomicU32::new(0);
/// One of the `PYTHON_` constants.
static JUDGEMENT: AtomicU8 = AtomicU8::new(PYTHON_MET as u8);
/// [`PYTHON_HIDES`] and [`PYTHON_UNLOCKED`], where they are said of it.
static FLAGS: AtomicU32 = AtomicU32::new(0);
/// Stacks that could not be read before one could.
static FAILURES: AtomicU32 = AtomicU32::new(0);

/// An interpreter.
#[derive(Clone, Copy)]
pub struct Runtime {
    /// Address of `_PyRuntime`.
    pub at: u64,
    pub layout: Layout,
    /// Where its evaluation loop is, for the versions whose frames do not show it.
    pub loop_at: (u64, u64),
    /// Whether it is in a library that may be unloaded.
    pub may_go: bool,
}

/// Looks for an interpreter that the program is, or is linked with; at start-up. Its names are weak
/// references of this library, which the loader has bound: a failing `dlsym` would allocate its
/// message from the program's heap, where a session may already record every allocation.
pub fn start(line: Option<CommandLine>) {
    if environment::variable(c"MEM_PROFILER_PYTHON") == Some(b"0") {
        return;
    }
    let allocator = environment::variable(c"PYTHONMALLOC");
    let is_asked = matches!(allocator, Some(b"malloc" | b"malloc_debug"));
    if !is_asked || line.is_some_and(CommandLine::ignores_environment) {
        FLAGS.store(PYTHON_HIDES, Ordering::Relaxed);
    }
    let evaluate = glibc_function!("_PyEval_EvalFrameDefault");
    // SAFETY: the interpreter is in the program or in a library that it is linked with.
    let size = unsafe { symbol_table::size_of_function(evaluate as *const c_void) }.unwrap_or(0);
    let names = Names {
        runtime: glibc_function!("_PyRuntime") as u64,
        version: glibc_function!("Py_Version") as u64,
        first_in: [
            glibc_function!("PyIter_Send") as u64,
            glibc_function!("PyFrame_GetCode") as u64,
            glibc_function!("PyVectorcall_Call") as u64,
        ],
        evaluate: (evaluate as u64, size),
    };
    if names.runtime == 0 {
        SOUGHT.store(true, Ordering::Relaxed);
    } else {
        take(&names, false);
    }
}

/// Notices interpreters that are loaded and unloaded after start-up.
pub static WATCHER: Watcher = Watcher { meet, leave };

/// A library was found on a stack for the first time: one with an interpreter that was loaded after
/// start-up is recognised by its name.
///
/// # Safety
/// It begins at `base`, and stays loaded meanwhile.
unsafe fn meet(name: &[u8], base: u64) {
    let file = name.rsplit(|byte| *byte == b'/').next();
    let is_one = file.is_some_and(|file| file.starts_with(b"libpython3"));
    if !is_one || !SOUGHT.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the caller's.
    let find = |name| unsafe { symbol_table::exported(base, name) }.unwrap_or((0, 0));
    let names = Names {
        runtime: find(c"_PyRuntime").0,
        version: find(c"Py_Version").0,
        first_in: [c"PyIter_Send", c"PyFrame_GetCode", c"PyVectorcall_Call"]
            .map(|name| find(name).0),
        evaluate: find(c"_PyEval_EvalFrameDefault"),
    };
    // The first one, if several threads meet it.
    if names.runtime != 0 && SOUGHT.swap(false, Ordering::Relaxed) {
        take(&names, true);
        publish();
    }
}

/// A library was unloaded that was at these addresses.
fn leave(start: u64, end: u64) {
    if found().is_some_and(|runtime| runtime.may_go && (start..end).contains(&runtime.at)) {
        JUDGEMENT.store(PYTHON_GONE as u8, Ordering::Relaxed);
        publish();
    }
}

/// Addresses of an interpreter's names, or 0.
struct Names {
    runtime: u64,
    version: u64,
    /// Functions that came with 3.10, 3.9 and 3.8.
    first_in: [u64; 3],
    /// With its size.
    evaluate: (u64, u64),
}

/// Takes an interpreter; once.
fn take(names: &Names, may_go: bool) {
    let at = names.runtime;
    let (version, layout) = told(at).unwrap_or_else(|| {
        let version = version(names);
        (version, layout::of_version(version))
    });
    VERSION.store(version, Ordering::Relaxed);
    if layout.is_some_and(|layout| layout.more != 0) {
        // It takes all objects from an allocator of its own.
        FLAGS.fetch_or(PYTHON_UNLOCKED | PYTHON_HIDES, Ordering::Relaxed);
    }
    let Some(layout) = layout else {
        return JUDGEMENT.store(PYTHON_UNKNOWN as u8, Ordering::Relaxed);
    };
    let (from, size) = names.evaluate;
    let runtime = Runtime {
        at,
        layout,
        loop_at: (from, from + size),
        may_go,
    };
    // SAFETY: the constructor's only thread, or the one that first met the library; nobody reads it
    // before it is said to be there.
    unsafe { *KNOWN.0.get() = Some(runtime) };
    IS_FOUND.store(true, Ordering::Release);
}

/// What an interpreter says of itself.
fn told(at: u64) -> Option<(u32, Option<Layout>)> {
    let bytes = WORDS as u64 * 8;
    if !probe::are_readable(at, at.saturating_add(bytes)) {
        return None;
    }
    // SAFETY: readable, as just found; a variable of a loaded module, whose first words never
    // change.
    let words = unsafe { (at as *const [u64; WORDS]).read_unaligned() };
    layout::told(&words)
}

/// By `Py_Version`, which there is from 3.11 on, or by functions that came with a version; 0: not
/// known. `_PyRuntime` came with 3.7, and who shows the evaluation loop shows the other functions,
/// too.
fn version(names: &Names) -> u32 {
    // SAFETY: null, or `const unsigned long Py_Version`.
    if let Some(version) = unsafe { (names.version as *const u64).as_ref() } {
        return u32::try_from(*version).unwrap_or(u32::MAX);
    }
    let versions = [0x030a_0000, 0x0309_0000, 0x0308_0000];
    let mut first = names.first_in.iter().zip(versions);
    let oldest = if names.evaluate.0 == 0 {
        0
    } else {
        0x0307_0000
    };
    first
        .find(|(function, _)| **function != 0)
        .map_or(oldest, |(_, version)| version)
}

/// The interpreter, if its frames are to be read.
#[inline]
pub fn known() -> Option<&'static Runtime> {
    if JUDGEMENT.load(Ordering::Relaxed) > PYTHON_NAMED as u8 {
        return None;
    }
    found()
}

#[inline]
fn found() -> Option<&'static Runtime> {
    if !IS_FOUND.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: written once, before it was said to be there.
    unsafe { (*KNOWN.0.get()).as_ref() }
}

/// A stack was read: the interpreter is as expected for its version.
#[inline]
pub fn confirm() {
    if JUDGEMENT.load(Ordering::Relaxed) == PYTHON_MET as u8 {
        JUDGEMENT.store(PYTHON_NAMED as u8, Ordering::Relaxed);
        publish();
    }
}

/// A stack could not be read. If none ever could, the interpreter is left alone from now on.
#[cold]
pub fn doubt() {
    let confirmed = JUDGEMENT.load(Ordering::Relaxed) != PYTHON_MET as u8;
    if !confirmed && FAILURES.fetch_add(1, Ordering::Relaxed) >= FORGIVEN {
        JUDGEMENT.store(PYTHON_DIFFERS as u8, Ordering::Relaxed);
        publish();
    }
}

/// Writes into the segment's status what is known.
pub fn publish() {
    if let Some(status) = session::status() {
        let judgement = u32::from(JUDGEMENT.load(Ordering::Relaxed));
        let flags = FLAGS.load(Ordering::Relaxed);
        status.python.store(judgement | flags, Ordering::Relaxed);
        let version = VERSION.load(Ordering::Relaxed);
        status.python_version.store(version, Ordering::Release);
    }
}
