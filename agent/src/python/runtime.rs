//! The interpreter of this process.

use super::layout::{self, Layout, Told, WORDS};
use super::options::CommandLine;
use crate::arch::glibc_function;
use crate::session;
use crate::symbol_table;
use crate::sys;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use shm_protocol::layout::{
    PYTHON_DIFFERS, PYTHON_HIDES, PYTHON_MET, PYTHON_NAMED, PYTHON_UNKNOWN, PYTHON_UNLOCKED,
};
use unwind::probe;

/// What is known of it. Written at start-up, while the process has one thread.
struct Known(UnsafeCell<Option<Runtime>>);
// SAFETY: written once, by the constructor, before there is another thread.
unsafe impl Sync for Known {}
static KNOWN: Known = Known(UnsafeCell::new(None));

static VERSION: AtomicU32 = AtomicU32::new(0);
/// One of the `PYTHON_` constants.
static JUDGEMENT: AtomicU8 = AtomicU8::new(PYTHON_MET as u8);
/// [`PYTHON_HIDES`] and [`PYTHON_UNLOCKED`], where they are said of it.
static FLAGS: AtomicU32 = AtomicU32::new(0);
/// Stacks that could not be read before one could.
static FAILURES: AtomicU32 = AtomicU32::new(0);
/// So many are forgiven: an interpreter that starts has frames which are not whole.
const FORGIVEN: u32 = 1000;

/// An interpreter.
#[derive(Clone, Copy)]
pub struct Runtime {
    /// Address of `_PyRuntime`.
    pub at: u64,
    pub layout: Layout,
    /// Where its evaluation loop is, for the versions whose frames do not tell.
    pub loop_at: (u64, u64),
}

/// Looks for an interpreter; at start-up. Its names are weak references of this library, which the
/// loader has bound: a `dlsym` in vain would allocate its message from the program's heap, where
/// a session may already record every allocation.
pub fn start(line: Option<CommandLine>) {
    let at = glibc_function!("_PyRuntime") as u64;
    if at == 0 || sys::variable(c"MEM_PROFILER_PYTHON") == Some(b"0") {
        return;
    }
    let (version, found) = told(at).unwrap_or_else(|| {
        let version = version();
        let layout = layout::of_version(version);
        (version, layout.map_or(Told::Unknown, Told::Known))
    });
    VERSION.store(version, Ordering::Relaxed);
    if matches!(&found, Told::Known(layout) if layout.more != 0) {
        // It takes all objects from an allocator of its own.
        FLAGS.fetch_or(PYTHON_UNLOCKED | PYTHON_HIDES, Ordering::Relaxed);
    }
    let allocator = sys::variable(c"PYTHONMALLOC");
    let is_asked = matches!(allocator, Some(b"malloc" | b"malloc_debug"));
    if !is_asked || line.is_some_and(CommandLine::ignores_environment) {
        FLAGS.fetch_or(PYTHON_HIDES, Ordering::Relaxed);
    }
    let layout = match found {
        Told::Known(layout) => layout,
        Told::Unknown => return JUDGEMENT.store(PYTHON_UNKNOWN as u8, Ordering::Relaxed),
    };
    let evaluate = glibc_function!("_PyEval_EvalFrameDefault");
    // SAFETY: the interpreter is in the program or in a library that it is linked with.
    let size = unsafe { symbol_table::size_of_function(evaluate as *const c_void) }.unwrap_or(0);
    let runtime = Runtime {
        at,
        layout,
        loop_at: (evaluate as u64, evaluate as u64 + size),
    };
    // SAFETY: one thread, as the constructor runs.
    unsafe { *KNOWN.0.get() = Some(runtime) };
}

/// What an interpreter says of itself.
fn told(at: u64) -> Option<(u32, Told)> {
    let bytes = WORDS as u64 * 8;
    if !probe::are_readable(at, at + bytes) {
        return None;
    }
    // SAFETY: readable, as just found; a variable of a loaded module, whose first words never change.
    let words = unsafe { (at as *const [u64; WORDS]).read_unaligned() };
    layout::told(&words)
}

/// By `Py_Version`, which there is from 3.11 on, or by functions that came with a version.
fn version() -> u32 {
    let exported = glibc_function!("Py_Version") as *const u64;
    // SAFETY: null, or `const unsigned long Py_Version`.
    if let Some(version) = unsafe { exported.as_ref() } {
        return u32::try_from(*version).unwrap_or(u32::MAX);
    }
    let first_in = [
        (glibc_function!("PyIter_Send"), 0x030a_0000),
        (glibc_function!("PyFrame_GetCode"), 0x0309_0000),
        (glibc_function!("PyVectorcall_Call"), 0x0308_0000),
    ];
    let first = first_in.iter().find(|(function, _)| *function != 0);
    first.map_or(0, |(_, version)| *version)
}

/// The interpreter, if its frames are to be read.
#[inline]
pub fn known() -> Option<&'static Runtime> {
    if JUDGEMENT.load(Ordering::Relaxed) > PYTHON_NAMED as u8 {
        return None;
    }
    // SAFETY: written before there was a second thread.
    unsafe { (*KNOWN.0.get()).as_ref() }
}

/// A stack was read: the interpreter is as its version has it.
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
