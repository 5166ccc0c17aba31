//! Allocators that take the place of the agent's: one linked into the program, or one that is
//! preloaded before the agent. Calls to them are not seen.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mem_agents::agent_file::{self, Role};
use mem_agents::text;

use crate::python;

/// The functions by which allocators are known. The first is called by everybody.
const FUNCTIONS: [&str; 7] = [
    "malloc",
    "je_malloc",
    "_rjem_malloc",
    "tc_malloc",
    "mi_malloc",
    "rpmalloc",
    "scalloc",
];
/// What the messages of allocators begin with, by which a stripped program shows that it has one.
const MESSAGES: [&str; 3] = ["<jemalloc>: ", "tcmalloc: large alloc", "mimalloc: "];

/// An allocator other than the agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Other {
    /// The executable exports `malloc`: everybody's calls go there.
    Exported,
    /// The executable has a `malloc` of its own: its own calls go there.
    Hidden,
    /// The executable has an allocator with functions of other names.
    Named(&'static str),
    /// The executable is stripped, and has an allocator's messages.
    Messages(&'static str),
    /// A library that is preloaded before the agent defines `malloc`.
    Before(PathBuf),
}

impl Other {
    /// Whether nothing reaches the agent, unless that allocator passes it on.
    pub fn takes_all(&self) -> bool {
        matches!(self, Self::Exported | Self::Before(_))
    }
}

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exported => write!(
                f,
                "the executable defines malloc itself (a statically linked allocator): calls go \
                 there, not to the agent"
            ),
            Self::Hidden => write!(
                f,
                "the executable has a malloc of its own (a statically linked allocator): its own \
                 calls are not seen"
            ),
            Self::Named(function) => write!(
                f,
                "the executable has an allocator of its own ({function}): what it allocates there \
                 is not seen"
            ),
            Self::Messages(message) => write!(
                f,
                "the executable seems to have an allocator linked in ({message:?}), which is not \
                 seen"
            ),
            Self::Before(library) => write!(
                f,
                "{} is preloaded before the agent, and its malloc is called instead: name the \
                 agent first in LD_PRELOAD",
                text::path(library)
            ),
        }
    }
}

/// The allocator in a program's file; of a stripped one only if `thoroughly`, for that takes
/// reading all of it.
pub fn of_program(path: &Path, name: &[u8], thoroughly: bool) -> Option<Other> {
    let found = symbols::definitions(path, &FUNCTIONS).ok()?;
    let mallocs = found.found.iter().filter(|f| f.name == FUNCTIONS[0]);
    if let Some(exported) = mallocs.map(|f| f.is_exported).max() {
        return Some(match exported {
            true => Other::Exported,
            false => Other::Hidden,
        });
    }
    // CPython has parts of mimalloc in it, and a hint of its own.
    if python::is_interpreter(name) {
        return None;
    }
    if let Some(other) = found.found.first() {
        return Some(Other::Named(other.name));
    }
    if found.has_symbols || !thoroughly {
        return None;
    }
    let message = symbols::contained(path, &MESSAGES).ok().flatten();
    message.map(Other::Messages)
}

/// The allocator that a live process has besides the agent's.
pub fn of_process(pid: i32, thoroughly: bool) -> Option<Other> {
    let name = proc::exe(pid)?;
    let file = proc::directory(pid).join("exe");
    of_program(&file, &name, thoroughly).or_else(|| preloaded_before(pid))
}

/// A library with a `malloc` that was preloaded before the agent.
fn preloaded_before(pid: i32) -> Option<Other> {
    let environment = proc::environment(pid)?;
    // The agent alone is the usual case, and needs no maps.
    let first = agent_file::preloads(&environment).next()?;
    if agent_file::has_usual_name(first) {
        return None;
    }
    let maps = proc::maps(pid)?;
    let before = agent_file::preloaded(pid, &environment, &maps)
        .find(|library| library.role != Role::Other)?;
    (before.role == Role::Allocator).then_some(Other::Before(before.path))
}

/// What to say of processes with other allocators: one line for all with the same.
pub fn warnings<'a>(processes: impl Iterator<Item = (i32, &'a [u8])>) -> Vec<String> {
    let mut known: HashMap<(u64, u64), Option<Other>> = HashMap::new();
    let mut lines: Vec<((u64, u64), Other, String, usize)> = Vec::new();
    for (pid, name) in processes {
        let program = proc::directory(pid).join("exe");
        let Ok(file) = std::fs::metadata(&program) else {
            continue;
        };
        let number = (file.dev(), file.ino());
        let exe = || proc::exe(pid).unwrap_or_default();
        let linked = || of_program(&program, &exe(), false);
        let other = known.entry(number).or_insert_with(linked).clone();
        let Some(other) = other.or_else(|| preloaded_before(pid)) else {
            continue;
        };
        let title = format!("{} ({pid})", text::escape(name));
        let same = lines
            .iter_mut()
            .find(|(file, known, ..)| *file == number && *known == other);
        match same {
            Some((.., more)) => *more += 1,
            None => lines.push((number, other, title, 0)),
        }
    }
    let lines = lines.into_iter().map(|(_, other, first, more)| match more {
        0 => format!("{first}: {other}"),
        1 => format!("{first} and another process of the same program: {other}"),
        n => format!("{first} and {n} other processes of the same program: {other}"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_none() {
        let own = std::process::id() as i32;
        assert_eq!(of_process(own, true), None);
        assert_eq!(
            warnings([(own, &b"x"[..]), (i32::MAX, b"y")].into_iter()),
            [""; 0]
        );
    }
}
