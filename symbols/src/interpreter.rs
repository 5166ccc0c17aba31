//! Which frames of stacks that hold Python are shown: a person who writes Python wants its lines,
//! and of the native code what they called, not the interpreter between them.
//!
//! The native frames that are left out are those of the interpreter's module, between Python's
//! frames and outside the outermost one. That module is known by where it stands: the frame around
//! a Python frame runs it. What the innermost line called stays, whosever code it is, except for
//! what only passes the call on; so do modules that call back, and a garbage collection. Functions
//! of the interpreter that only ask for memory are an allocator's.

use std::path::Path;

/// What the interpreter's function is called that runs code; compilers add to the name.
const EVALUATION: &str = "_PyEval_EvalFrame";

/// The function of the interpreter that matters although no line of Python has called it.
const COLLECTION: &str = "gc_collect_main";

/// Beginnings of the names of its functions that do no more than call what a line calls.
const CALLS: [&str; 17] = [
    "_PyEval_",
    "_PyFunction_Vectorcall",
    "_PyObject_Call",
    "_PyObject_FastCall",
    "_PyObject_MakeTpCall",
    "_PyObject_Vectorcall",
    "_PyVectorcall",
    "PyObject_Call",
    "PyObject_Vectorcall",
    "PyVectorcall",
    "call_function",
    "cfunction_",
    "do_call_core",
    "method_vectorcall",
    "object_vacall",
    "slot_tp_call",
    "vectorcall_",
];

/// The interpreter's functions that do no more than ask for memory, as `malloc`: a regular
/// expression.
pub const ALLOCATORS: &str = "_?Py(Mem|Object)_(Raw)?(Malloc|Calloc|Realloc)|_PyMem_(Debug|Raw).*|pymalloc_.*|new_arena|\
     allocate_from_new_pool|tracemalloc_.*";

/// Beginnings of the names of files in which threads and programs start.
const STARTING: [&str; 4] = ["libc.", "libc-", "libpthread", "ld-"];

/// What a frame is to a reader of Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A line of Python.
    Python,
    /// The interpreter's name for one, where there are Python's own frames as well.
    Trampoline,
    /// The function of the interpreter that runs code.
    Evaluation,
    /// Code of the interpreter that only calls.
    Call,
    /// Other code of the interpreter.
    Interpreter,
    /// Where programs and threads start.
    Start,
    /// Anything else.
    Other,
}

/// What is left out outside of Python's frames; between them, all but the first.
const HIDDEN: [Role; 5] = [
    Role::Start,
    Role::Trampoline,
    Role::Evaluation,
    Role::Call,
    Role::Interpreter,
];

impl Role {
    /// For code that is not Python, in this file, which may have the interpreter's code. Debug
    /// information has several names: also of what was inlined there.
    pub fn native<'a>(
        path: &Path,
        is_interpreters: bool,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        if !is_interpreters {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            return match STARTING.iter().any(|start| file.starts_with(start)) {
                true => Self::Start,
                false => Self::Other,
            };
        }
        let is_in = |start: &str| names.clone().any(|name| name.starts_with(start));
        let mut calls = names
            .clone()
            .map(|name| CALLS.iter().any(|start| name.starts_with(start)));
        match (is_in(EVALUATION), is_in(COLLECTION)) {
            (true, _) => Self::Evaluation,
            (_, true) => Self::Other,
            _ if names.clone().next().is_some() && calls.all(|calls| calls) => Self::Call,
            _ => Self::Interpreter,
        }
    }
}

/// Which frames of stacks with Python are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// Python's, with the native ones that matter.
    #[default]
    Usual,
    /// Both kinds, all of them.
    Native,
    /// Python's alone.
    PythonOnly,
}

/// Name of what is in no Python function, where only Python is shown.
pub const NATIVE: &str = "[native]";

/// Whether a program is the interpreter by its name: its code is that, where that is a library as
/// well.
pub fn is_called_python(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path != Path::new("") && name.starts_with("python")
}

/// Shows those frames of a stack, innermost first, that are shown if nothing else is requested.
/// `is_mark`: a frame that only says that others are missing.
pub fn usual<F: Copy>(
    frames: &[F],
    role: impl Fn(F) -> Role,
    is_mark: impl Fn(F) -> bool,
    mut show: impl FnMut(F),
) {
    let is = |frame: F, roles: &[Role]| roles.contains(&role(frame));
    let is_python = |&frame: &F| is(frame, &[Role::Python]);
    let (Some(first), Some(last)) = (
        frames.iter().position(is_python),
        frames.iter().rposition(is_python),
    ) else {
        return frames.iter().for_each(|&frame| show(frame));
    };
    let mut show_but = |frames: &[F], hidden: &[Role]| {
        let shown = frames.iter().filter(|&&frame| !is(frame, hidden));
        shown.for_each(|&frame| show(frame));
    };
    // A trampoline is outside of the frame that runs its code.
    let inner = &frames[..first];
    let runs = |&&frame: &&F| is(frame, &[Role::Evaluation, Role::Trampoline]);
    let running = inner.iter().rev().take_while(runs).count();
    show_but(&inner[..first - running], &[Role::Call]);
    show_but(&frames[first..=last], &HIDDEN[1..]);
    let outer = &frames[last + 1..];
    let is_python_alone = outer
        .iter()
        .all(|&frame| is(frame, &HIDDEN) || is_mark(frame));
    match is_python_alone {
        true => show_but(outer, &HIDDEN),
        false => show_but(outer, &HIDDEN[1..]),
    }
}
