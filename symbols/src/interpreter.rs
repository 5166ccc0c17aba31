//! Selects the frames of a Python stack to show: Python's own frames, and the native code that they
//! call.
//!
//! The interpreter's frames between Python frames and outside the outermost one are hidden. The
//! interpreter's module is the one that contains the frame that runs a Python frame. Native code
//! called by the innermost Python frame is shown, in whatever module it is, except for functions
//! that only forward the call. Other modules that call back into Python and garbage collections are
//! shown too. Functions of the interpreter that only request memory count as allocators.

use std::path::Path;

/// Prefix of the names of the interpreter's evaluation loop. Compilers append suffixes.
const EVALUATION: &str = "_PyEval_EvalFrame";

/// Name of the garbage collector's main function, which is shown though no Python code called it.
const COLLECTION: &str = "gc_collect_main";

/// Name prefixes of interpreter functions that only forward calls.
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

/// Regular expression for the interpreter's functions that only request memory, as `malloc` does.
pub const ALLOCATORS: &str = "_?Py(Mem|Object)_(Raw)?(Malloc|Calloc|Realloc)|_PyMem_(Debug|Raw).*|pymalloc_.*|new_arena|\
     allocate_from_new_pool|tracemalloc_.*";

/// Prefixes of the names of files whose code starts programs and threads.
const RUNTIME_FILES: [&str; 4] = ["libc.", "libc-", "libpthread", "ld-"];

/// Kind of a frame in a Python stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A Python frame.
    Python,
    /// Trampoline code for a Python function, in stacks that also have Python frames.
    Trampoline,
    /// The interpreter's evaluation loop.
    Evaluation,
    /// Interpreter code that only forwards a call.
    Call,
    /// Other code of the interpreter.
    Interpreter,
    /// Start-up code of a program or thread.
    Start,
    /// Anything else.
    Other,
}

/// Roles hidden outside the outermost Python frame, if no other native code is there.
const HIDDEN_OUTSIDE: [Role; 5] = [
    Role::Start,
    Role::Trampoline,
    Role::Evaluation,
    Role::Call,
    Role::Interpreter,
];

/// Roles hidden between Python frames, and outside the outermost one if other native code is there,
/// which is then shown with the start-up code that called it.
const HIDDEN_BETWEEN: [Role; 4] = [
    Role::Trampoline,
    Role::Evaluation,
    Role::Call,
    Role::Interpreter,
];

impl Role {
    /// Returns the kind of native code in the file `path`. `in_interpreter` is true if the file
    /// contains the interpreter. `names` has several entries if functions were inlined.
    pub fn native<'a>(
        path: &Path,
        in_interpreter: bool,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Self {
        if !in_interpreter {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let is_start = RUNTIME_FILES.iter().any(|start| file.starts_with(start));
            return if is_start { Self::Start } else { Self::Other };
        }
        let is_in = |start: &str| names.clone().any(|name| name.starts_with(start));
        let mut is_call = names
            .clone()
            .map(|name| CALLS.iter().any(|start| name.starts_with(start)));
        if is_in(EVALUATION) {
            Self::Evaluation
        } else if is_in(COLLECTION) {
            Self::Other
        } else if names.clone().next().is_some() && is_call.all(|is_call| is_call) {
            Self::Call
        } else {
            Self::Interpreter
        }
    }
}

/// Selection of the frames of Python stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameSelection {
    /// Python frames, with the native frames that matter.
    #[default]
    Usual,
    /// All frames.
    Native,
    /// Python frames only.
    PythonOnly,
}

/// Name of code outside Python functions if only Python frames are shown.
pub const NATIVE: &str = "[native]";

/// Returns true if the program at `path` is named like a Python interpreter. Then its own code is
/// treated as the interpreter's, even if a library contains the interpreter as well.
pub fn is_called_python(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path != Path::new("") && name.starts_with("python")
}

/// Shows the frames of a stack that [`FrameSelection::Usual`] selects, innermost first. `is_marker`
/// is true for a pseudo-frame that stands for missing frames.
pub fn show_usual<F: Copy>(
    frames: &[F],
    role: impl Fn(F) -> Role,
    is_marker: impl Fn(F) -> bool,
    mut show: impl FnMut(F),
) {
    let has_role = |frame: F, roles: &[Role]| roles.contains(&role(frame));
    let is_python = |&frame: &F| has_role(frame, &[Role::Python]);
    let (Some(first), Some(last)) = (
        frames.iter().position(is_python),
        frames.iter().rposition(is_python),
    ) else {
        return frames.iter().for_each(|&frame| show(frame));
    };
    let mut show_but = |frames: &[F], hidden: &[Role]| {
        let visible = frames.iter().filter(|&&frame| !has_role(frame, hidden));
        visible.for_each(|&frame| show(frame));
    };
    // A trampoline is the caller of the frame that runs its code.
    let inner = &frames[..first];
    let runs = |&&frame: &&F| has_role(frame, &[Role::Evaluation, Role::Trampoline]);
    let running = inner.iter().rev().take_while(runs).count();
    show_but(&inner[..first - running], &[Role::Call]);
    show_but(&frames[first..=last], &HIDDEN_BETWEEN);
    let outer = &frames[last + 1..];
    let has_only_python = outer
        .iter()
        .all(|&frame| has_role(frame, &HIDDEN_OUTSIDE) || is_marker(frame));
    let hidden = if has_only_python {
        &HIDDEN_OUTSIDE[..]
    } else {
        &HIDDEN_BETWEEN[..]
    };
    show_but(outer, hidden);
}
