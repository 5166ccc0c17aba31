//! Selects the frames of Python stacks to show, by the rules in [`symbols::interpreter`].

use std::collections::HashSet;
use std::path::PathBuf;

use profile::{Function, Line, Location, NO_MAPPING, Profile, marker_at, merge};
use symbols::interpreter::{self, NATIVE, Role};

pub use symbols::interpreter::FrameSelection;

use crate::nodes::{Origin, origin_of};

/// Drops the frames that `shown` excludes. With `merged`, merges stacks that become equal. Returns
/// a warning for the user.
pub fn select_frames(profile: &mut Profile, shown: FrameSelection, merged: bool) -> Option<String> {
    let python: Vec<bool> = profile
        .locations
        .iter()
        .map(|location| origin_of(profile, location) == Origin::Python)
        .collect();
    if !python.contains(&true) {
        let advice = match &profile.facts.cpu {
            Some(_) => "; sampled by mem_profiler cpu --engine ptrace, or timers, there are",
            None => "",
        };
        let is_requested = shown == FrameSelection::PythonOnly;
        return is_requested
            .then(|| format!("--python-only: there are no frames of Python{advice}"));
    }
    let stacks = match shown {
        FrameSelection::Native => return None,
        FrameSelection::PythonOnly => {
            let has_interpreter_frames = profile.locations.iter().any(|l| profile.is_python(l));
            let is_own = |location| !has_interpreter_frames || profile.is_python(location);
            let pairs = profile.locations.iter().zip(&python);
            let are_own: Vec<bool> = pairs.map(|(l, &python)| python && is_own(l)).collect();
            keep_python_frames(profile, &are_own)
        }
        FrameSelection::Usual => Roles::new(profile, &python).usual_stacks(profile),
    };
    if shown == FrameSelection::Usual && !profile.drop_frames.is_empty() {
        profile.drop_frames.push('|');
        profile.drop_frames.push_str(interpreter::ALLOCATORS);
    }
    profile.stacks = stacks;
    drop_unused_locations(profile);
    // Cannot fail: a profile has its columns in common with itself.
    if merged && let Ok(merged) = merge::merge(std::slice::from_ref(profile)) {
        *profile = merged;
    }
    None
}

/// Word in the fact `python` for a build without the global interpreter lock.
const FREE_THREADED: &str = "free-threaded";

/// Returns a remark if the interpreter's small objects are not in the profile.
pub fn hidden_objects_remark(profile: &Profile) -> Option<String> {
    let hides = profile.facts.python_hides == Some(true) && profile.facts.cpu.is_none();
    let is_free_threaded = |python: &String| python.contains(FREE_THREADED);
    if hides && profile.facts.python.as_ref().is_some_and(is_free_threaded) {
        return Some(
            "Python objects are missing here: a free-threaded build takes them from its own allocator; what extensions take is included"
                .to_owned(),
        );
    }
    hides.then(|| {
        "small Python objects are missing here: start it with PYTHONMALLOC=malloc (run \
         --python-malloc) to see them"
            .to_owned()
    })
}

/// Drops locations that are in no stack.
fn drop_unused_locations(profile: &mut Profile) {
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

/// Keeps only Python frames. A stack without any becomes the single frame `[native]`.
fn keep_python_frames(profile: &mut Profile, python: &[bool]) -> profile::Stacks {
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
    let is_marker = |frame: &u32| {
        let address = profile.locations[*frame as usize].address;
        marker_at(address).is_some()
    };
    profile.stacks.rewritten(|frames, out| {
        let before = out.len();
        out.extend(frames.iter().filter(|&&frame| python[frame as usize]));
        let marker = frames.last().filter(|frame| is_marker(frame));
        let is_alone = marker.is_some() && frames.len() == 1;
        if out.len() == before && !is_alone {
            out.push(native);
        }
        // A pseudo-frame is kept: alone, it stands for samples without a stack; after other frames,
        // for missing outer frames, which may be Python's.
        out.extend(marker);
    })
}

/// Roles of all locations.
struct Roles {
    by_location: Vec<Role>,
}

impl Roles {
    fn new(profile: &Profile, python: &[bool]) -> Self {
        let modules = interpreter_modules(profile, python);
        let locations = profile.locations.iter().zip(python);
        // If there are two kinds of frames for a function, those of the interpreter are exact.
        let has_interpreter_frames = locations.clone().any(|(l, _)| profile.is_python(l));
        let role = |(location, &is_python): (&Location, &bool)| {
            if !is_python {
                native_role(profile, location, &modules)
            } else if has_interpreter_frames && !profile.is_python(location) {
                Role::Trampoline
            } else {
                Role::Python
            }
        };
        Self {
            by_location: locations.map(role).collect(),
        }
    }

    fn usual_stacks(&self, profile: &Profile) -> profile::Stacks {
        let role = |frame: u32| self.by_location[frame as usize];
        let is_marker = |frame: u32| {
            let address = profile.locations[frame as usize].address;
            marker_at(address).is_some()
        };
        profile.stacks.rewritten(|frames, out| {
            interpreter::show_usual(frames, role, is_marker, |frame| out.push(frame));
        })
    }
}

/// Returns the role of a native location.
fn native_role(profile: &Profile, location: &Location, modules: &HashSet<PathBuf>) -> Role {
    let Some(mapping) = profile.mappings.get(location.mapping as usize) else {
        return Role::Other;
    };
    let lines = profile.lines_of(location).iter();
    let names = lines.map(|line| profile.functions[line.function as usize].name.as_str());
    Role::native(&mapping.path, modules.contains(&mapping.path), names)
}

/// Returns the modules with the interpreter's code: those of frames that call Python frames, and a
/// program named `python` if the interpreter is a library.
fn interpreter_modules(profile: &Profile, python: &[bool]) -> HashSet<PathBuf> {
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
