//! Detects allocators that take the place of the agent's: linked into the program, or preloaded
//! before the agent. The agent does not see calls to them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mem_agents::agent_file::{self, Role};
use mem_agents::text;

use crate::python;

/// Functions by which allocators are recognised. The first is the one that everything else calls.
const FUNCTIONS: [&str; 7] = [
    "malloc",
    "je_malloc",
    "_rjem_malloc",
    "tc_malloc",
    "mi_malloc",
    "rpmalloc",
    "scalloc",
];
/// Beginnings of allocators' messages, by which an allocator in a stripped program is recognised.
const MESSAGES: [&str; 3] = ["<jemalloc>: ", "tcmalloc: large alloc", "mimalloc: "];

/// Allocator other than the agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherAllocator {
    /// The executable exports `malloc`: all calls go there, also from libraries.
    Exported,
    /// The executable has a `malloc` that is not exported: only its own calls go there.
    Hidden,
    /// The executable has an allocator with this function, under a name other than `malloc`.
    Named(&'static str),
    /// The executable is stripped and contains this message of an allocator.
    Message(&'static str),
    /// A library that is preloaded before the agent defines `malloc`.
    PreloadedBefore(PathBuf),
}

impl OtherAllocator {
    /// Returns true if no calls reach the agent, unless the allocator forwards them.
    pub fn takes_all(&self) -> bool {
        matches!(self, Self::Exported | Self::PreloadedBefore(_))
    }
}

impl std::fmt::Display for OtherAllocator {
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
            Self::Message(message) => write!(
                f,
                "the executable seems to have an allocator linked in ({message:?}), which is not \
                 seen"
            ),
            Self::PreloadedBefore(library) => write!(
                f,
                "{} is preloaded before the agent, and its malloc is called instead: name the \
                 agent first in LD_PRELOAD",
                text::path(library)
            ),
        }
    }
}

/// Finds an allocator in a program's file. Examines stripped programs only if `thoroughly`, since
/// that means reading the whole file.
pub fn of_program(path: &Path, name: &[u8], thoroughly: bool) -> Option<OtherAllocator> {
    let definitions = symbols::definitions(path, &FUNCTIONS).ok()?;
    let mut mallocs = definitions
        .found
        .iter()
        .filter(|function| function.name == FUNCTIONS[0])
        .peekable();
    if mallocs.peek().is_some() {
        return Some(if mallocs.any(|malloc| malloc.is_exported) {
            OtherAllocator::Exported
        } else {
            OtherAllocator::Hidden
        });
    }
    // CPython contains parts of mimalloc; there is a separate hint for it.
    if python::is_interpreter(name) {
        return None;
    }
    if let Some(other) = definitions.found.first() {
        return Some(OtherAllocator::Named(other.name));
    }
    if definitions.has_symbols || !thoroughly {
        return None;
    }
    let message = symbols::first_contained_text(path, &MESSAGES)
        .ok()
        .flatten();
    message.map(OtherAllocator::Message)
}

/// Finds an allocator other than the agent's in a running process.
pub fn of_process(pid: i32, thoroughly: bool) -> Option<OtherAllocator> {
    let name = proc::exe(pid)?;
    let file = proc::directory(pid).join("exe");
    of_program(&file, &name, thoroughly).or_else(|| preloaded_before(pid))
}

/// Returns the library with a `malloc` that is preloaded before the agent.
fn preloaded_before(pid: i32) -> Option<OtherAllocator> {
    let environment = proc::environment(pid)?;
    // Usually the agent comes first, which is known without reading the maps.
    let first = agent_file::ld_preload_entries(&environment).next()?;
    if agent_file::has_usual_name(first) {
        return None;
    }
    let maps = proc::maps(pid)?;
    let before = agent_file::preloaded(pid, &environment, &maps)
        .find(|library| library.role != Role::Other)?;
    (before.role == Role::Allocator).then_some(OtherAllocator::PreloadedBefore(before.path))
}

/// Processes with the same program and the same other allocator.
struct Group {
    /// Device and inode of the program's file.
    file_id: (u64, u64),
    allocator: OtherAllocator,
    /// Name and pid of the first process, for display.
    first: String,
    /// Number of further processes.
    others: usize,
}

/// Returns warnings about processes with other allocators, one line for all that have the same
/// program and allocator.
pub fn warnings<'a>(processes: impl Iterator<Item = (i32, &'a [u8])>) -> Vec<String> {
    let mut linked_by_file: HashMap<(u64, u64), Option<OtherAllocator>> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for (pid, name) in processes {
        let program = proc::directory(pid).join("exe");
        let Ok(file) = std::fs::metadata(&program) else {
            continue;
        };
        let file_id = (file.dev(), file.ino());
        let exe = || proc::exe(pid).unwrap_or_default();
        let linked = || of_program(&program, &exe(), false);
        let other = linked_by_file.entry(file_id).or_insert_with(linked).clone();
        let Some(allocator) = other.or_else(|| preloaded_before(pid)) else {
            continue;
        };
        match groups
            .iter_mut()
            .find(|group| group.file_id == file_id && group.allocator == allocator)
        {
            Some(group) => group.others += 1,
            None => groups.push(Group {
                file_id,
                allocator,
                first: format!("{} ({pid})", text::escape(name)),
                others: 0,
            }),
        }
    }
    let lines = groups.into_iter().map(|group| {
        let Group {
            allocator, first, ..
        } = group;
        match group.others {
            0 => format!("{first}: {allocator}"),
            1 => format!("{first} and another process of the same program: {allocator}"),
            n => format!("{first} and {n} other processes of the same program: {allocator}"),
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_no_other_allocator() {
        let pid = std::process::id() as i32;
        assert_eq!(of_process(pid, true), None);
        assert_eq!(
            warnings([(pid, &b"x"[..]), (i32::MAX, b"y")].into_iter()),
            [""; 0]
        );
    }
}
