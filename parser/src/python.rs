//! Which frames are shown of stacks that hold Python: a person who writes Python wants its lines, and
//! of the native code what they called, not the interpreter between them.
//!
//! The native frames that are left out are those of the interpreter's module, between Python's
//! frames and outside the outermost one. That module is known by where it stands: the frame around
//! a Python frame runs it. What the innermost line called stays, whosever code it is, but for what
//! only passes the call on; so do modules that call back, and a garbage collection. Functions of the
//! interpreter that only ask for memory are an allocator's.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use heap_format::{Function, Line, Location, NO_MAPPING, Profile, marker_at, merge};

use crate::nodes::{Origin, origin};

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
const NATIVE: &str = "[native]";

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

/// The interpreter's functions that do no more than ask for memory, as `malloc`.
const ALLOCATORS: &str =
    "_?Py(Mem|Object)_(Raw)?(Malloc|Calloc|Realloc)|_PyMem_(Debug|Raw).*|pymalloc_.*|new_arena";

/// Beginnings of the names of files in which threads and programs start.
const STARTING: [&str; 4] = ["libc.", "libc-", "libpthread", "ld-"];

/// Leaves out of the stacks what is not to be shown. `merged`: equal stacks become one. Returns a
/// warning for people.
pub fn narrow(profile: &mut Profile, shown: Shown, merged: bool) -> Option<String> {
    let python: Vec<bool> = profile
        .locations
        .iter()
        .map(|location| origin(profile, location) == Origin::Python)
        .collect();
    if !python.contains(&true) {
        let nothing = shown == Shown::PythonOnly;
        return nothing.then(|| "--python-only: there are no frames of Python".to_owned());
    }
    let frames = match shown {
        Shown::Native => return None,
        Shown::PythonOnly => only(profile, &python),
        Shown::Usual => Roles::of(profile, &python).usual(profile),
    };
    if shown == Shown::Usual && !profile.drop_frames.is_empty() {
        profile.drop_frames.push('|');
        profile.drop_frames.push_str(ALLOCATORS);
    }
    profile.stacks = frames;
    forget_unused(profile);
    // The columns are its own, so there is no error.
    if merged && let Ok(merged) = merge::merge(std::slice::from_ref(profile)) {
        *profile = merged;
    }
    None
}

/// What the fact `python` says of a build without a global lock.
const FREE_THREADED: &str = "free-threaded";

/// What to say of objects that are not in a profile of memory.
pub fn hidden_objects(profile: &Profile) -> Option<String> {
    let hides = profile.facts.python_hides == Some(true) && profile.facts.cpu.is_none();
    let is_unlocked = |python: &String| python.contains(FREE_THREADED);
    if hides && profile.facts.python.as_ref().is_some_and(is_unlocked) {
        return Some(
            "objects of Python are not in here: a free-threaded build takes them, small and large ones, from \
             an allocator of its own; what extensions take from malloc is"
                .to_owned(),
        );
    }
    hides.then(|| {
        "small objects of Python are not in here: it takes them from an allocator of its own; started \
         with PYTHONMALLOC=malloc in the environment (run --python-malloc), each of them is seen"
            .to_owned()
    })
}

/// Takes away the locations that are in no stack any more.
fn forget_unused(profile: &mut Profile) {
    let mut used = vec![false; profile.locations.len()];
    let frames = profile.stacks.iter().flatten();
    frames.for_each(|&frame| used[frame as usize] = true);
    let mut numbers = Vec::with_capacity(used.len());
    let mut kept = 0;
    for &is_used in &used {
        numbers.push(kept);
        kept += u32::from(is_used);
    }
    let mut used = used.iter();
    profile.locations.retain(|_| used.next() == Some(&true));
    let renumbered = profile.stacks.rewritten(|frames, out| {
        out.extend(frames.iter().map(|&frame| numbers[frame as usize]));
    });
    profile.stacks = renumbered;
}

/// Python's frames alone.
fn only(profile: &mut Profile, python: &[bool]) -> heap_format::Stacks {
    let native = profile.locations.len() as u32;
    let function = profile.functions.len() as u32;
    profile.functions.push(Function {
        name: NATIVE.to_owned(),
        ..Function::default()
    });
    profile.locations.push(Location {
        address: 0,
        mapping: NO_MAPPING,
        first_line: profile.lines.len() as u32,
        line_count: 1,
    });
    profile.lines.push(Line {
        function,
        ..Line::default()
    });
    profile.stacks.rewritten(|frames, out| {
        let before = out.len();
        out.extend(frames.iter().filter(|&&frame| python[frame as usize]));
        if out.len() == before {
            out.push(native);
        }
    })
}

/// What a location is to a reader of Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
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

struct Roles {
    of: Vec<Role>,
}

impl Roles {
    fn of(profile: &Profile, python: &[bool]) -> Self {
        let modules = interpreters(profile, python);
        let locations = profile.locations.iter().zip(python);
        // Two kinds of frames for the same lines, of which the interpreter's own are exact.
        let has_own = locations.clone().any(|(l, _)| profile.is_python(l));
        let role = |(location, &python): (&Location, &bool)| match python {
            true if has_own && !profile.is_python(location) => Role::Trampoline,
            true => Role::Python,
            false => native(profile, location, &modules),
        };
        Self {
            of: locations.map(role).collect(),
        }
    }

    fn is(&self, frame: u32, roles: &[Role]) -> bool {
        roles.contains(&self.of[frame as usize])
    }

    fn usual(&self, profile: &Profile) -> heap_format::Stacks {
        profile.stacks.rewritten(|frames, out| {
            let is_python = |&frame: &u32| self.is(frame, &[Role::Python]);
            let (Some(first), Some(last)) = (
                frames.iter().position(is_python),
                frames.iter().rposition(is_python),
            ) else {
                out.extend(frames);
                return;
            };
            // A trampoline is outside of the frame that runs its code.
            let inner = &frames[..first];
            let runs = |&&frame: &&u32| self.is(frame, &[Role::Evaluation, Role::Trampoline]);
            let running = inner.iter().rev().take_while(runs).count();
            let called = inner[..first - running].iter();
            out.extend(called.filter(|&&frame| !self.is(frame, &[Role::Call])));
            let middle = frames[first..=last].iter();
            let hidden = &HIDDEN[1..];
            out.extend(middle.filter(|&&frame| !self.is(frame, hidden)));
            let outer = &frames[last + 1..];
            let is_python_alone = outer.iter().all(|&frame| {
                let address = profile.locations[frame as usize].address;
                self.is(frame, &HIDDEN) || marker_at(address).is_some()
            });
            let hidden = match is_python_alone {
                true => &HIDDEN[..],
                false => &HIDDEN[1..],
            };
            out.extend(outer.iter().filter(|&&frame| !self.is(frame, hidden)));
        })
    }
}

/// The role of a location that is no Python.
fn native(profile: &Profile, location: &Location, modules: &HashSet<PathBuf>) -> Role {
    let Some(mapping) = profile.mappings.get(location.mapping as usize) else {
        return Role::Other;
    };
    if modules.contains(&mapping.path) {
        // Debug information tells what was inlined there, too.
        let is_in = |start: &str| {
            let mut lines = profile.lines_of(location).iter();
            lines.any(|line| {
                let function = &profile.functions[line.function as usize];
                function.name.starts_with(start)
            })
        };
        return match (is_in(EVALUATION), is_in(COLLECTION)) {
            (true, _) => Role::Evaluation,
            (_, true) => Role::Other,
            _ if only_calls(profile, location) => Role::Call,
            _ => Role::Interpreter,
        };
    }
    let file = mapping
        .path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    match STARTING.iter().any(|start| file.starts_with(start)) {
        true => Role::Start,
        false => Role::Other,
    }
}

/// Whether all functions at a location of the interpreter only call.
fn only_calls(profile: &Profile, location: &Location) -> bool {
    let lines = profile.lines_of(location);
    let calls = |line: &Line| {
        let name = &profile.functions[line.function as usize].name;
        CALLS.iter().any(|start| name.starts_with(start))
    };
    !lines.is_empty() && lines.iter().all(calls)
}

/// Modules with code of the interpreter: what stands around frames of Python, and a program that is
/// called `python` where that is a library.
fn interpreters(profile: &Profile, python: &[bool]) -> HashSet<PathBuf> {
    let mut modules = HashSet::new();
    let mut seen = HashSet::new();
    for frames in profile.stacks.iter() {
        for pair in frames.windows(2) {
            let [inner, outer] = [pair[0] as usize, pair[1] as usize];
            if python[inner] && !python[outer] && seen.insert(pair[1]) {
                let mapping = profile
                    .mappings
                    .get(profile.locations[outer].mapping as usize);
                modules.extend(mapping.map(|m| m.path.clone()).filter(|p| p.is_absolute()));
            }
        }
    }
    let main = symbols::main_mapping(profile).map(|at| profile.mappings[at].path.clone());
    let is_python = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.as_path() != Path::new("") && name.starts_with("python")
    };
    modules.extend(main.filter(is_python));
    modules
}
