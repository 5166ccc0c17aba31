//! Which frames are shown of stacks that hold Python ([`symbols::interpreter`] has the rules).

use std::collections::HashSet;
use std::path::PathBuf;

use heap_format::{Function, Line, Location, NO_MAPPING, Profile, marker_at, merge};
use symbols::interpreter::{self, NATIVE, Role};

pub use symbols::interpreter::Shown;

use crate::nodes::{Origin, origin};

/// Leaves out of the stacks what is not to be shown. `merged`: equal stacks become one. Returns a
/// warning for the user.
pub fn narrow(profile: &mut Profile, shown: Shown, merged: bool) -> Option<String> {
    let python: Vec<bool> = profile
        .locations
        .iter()
        .map(|location| origin(profile, location) == Origin::Python)
        .collect();
    if !python.contains(&true) {
        let help = match &profile.facts.cpu {
            Some(_) => "; sampled by mem_profiler cpu --engine ptrace, or timers, there are",
            None => "",
        };
        let nothing = shown == Shown::PythonOnly;
        return nothing.then(|| format!("--python-only: there are no frames of Python{help}"));
    }
    let frames = match shown {
        Shown::Native => return None,
        Shown::PythonOnly => {
            let has_own = profile.locations.iter().any(|l| profile.is_python(l));
            let is_own = |location| !has_own || profile.is_python(location);
            let own = profile.locations.iter().zip(&python);
            let own: Vec<bool> = own.map(|(l, &python)| python && is_own(l)).collect();
            only(profile, &own)
        }
        Shown::Usual => Roles::of(profile, &python).usual(profile),
    };
    if shown == Shown::Usual && !profile.drop_frames.is_empty() {
        profile.drop_frames.push('|');
        profile.drop_frames.push_str(interpreter::ALLOCATORS);
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
            "Python objects are missing here: a free-threaded build takes all from its own \
             allocator; what extensions take from malloc is included"
                .to_owned(),
        );
    }
    hides.then(|| {
        "small Python objects are missing here: start it with PYTHONMALLOC=malloc (run \
         --python-malloc) to see them"
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
    let is_mark = |frame: &u32| {
        let address = profile.locations[*frame as usize].address;
        marker_at(address).is_some()
    };
    profile.stacks.rewritten(|frames, out| {
        let before = out.len();
        out.extend(frames.iter().filter(|&&frame| python[frame as usize]));
        let mark = frames.last().filter(|frame| is_mark(frame));
        let is_alone = mark.is_some() && frames.len() == 1;
        if out.len() == before && !is_alone {
            out.push(native);
        }
        // Alone it stands for samples without a stack; after others, for missing outer frames,
        // which may be Python's.
        out.extend(mark);
    })
}

struct Roles {
    of: Vec<Role>,
}

impl Roles {
    fn of(profile: &Profile, python: &[bool]) -> Self {
        let modules = interpreters(profile, python);
        let locations = profile.locations.iter().zip(python);
        // There are two kinds of frames for the same lines; the interpreter's own are exact.
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

    fn usual(&self, profile: &Profile) -> heap_format::Stacks {
        let role = |frame: u32| self.of[frame as usize];
        let is_mark = |frame: u32| {
            let address = profile.locations[frame as usize].address;
            marker_at(address).is_some()
        };
        profile.stacks.rewritten(|frames, out| {
            interpreter::usual(frames, role, is_mark, |frame| out.push(frame));
        })
    }
}

/// The role of a location that is no Python.
fn native(profile: &Profile, location: &Location, modules: &HashSet<PathBuf>) -> Role {
    let Some(mapping) = profile.mappings.get(location.mapping as usize) else {
        return Role::Other;
    };
    let lines = profile.lines_of(location).iter();
    let names = lines.map(|line| profile.functions[line.function as usize].name.as_str());
    Role::native(&mapping.path, modules.contains(&mapping.path), names)
}

/// Modules with code of the interpreter: what stands around frames of Python, and a program named
/// `python` if the interpreter is a library.
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
    modules.extend(main.filter(|path| interpreter::is_called_python(path)));
    modules
}
