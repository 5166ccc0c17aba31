//! Finds the agent among the libraries that a process preloads. It is recognised by the functions
//! that it defines, since copies of the file and links to it can have any name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use profile::maps::{Entry, strip_deleted};

use crate::text;

/// Prefix of the agent's usual file name. A file with that prefix is taken for the agent without
/// looking at its functions.
const USUAL_NAME: &[u8] = b"libmem_agent";

/// Function that every allocator defines.
const MALLOC: &str = "malloc";

/// Combination of functions that only the agent defines.
const FUNCTIONS: [&str; 3] = [MALLOC, "mallocx", "__lsan_do_leak_check"];

/// Kind of a preloaded library, by the functions that it defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The agent's functions.
    Agent,
    /// `malloc`, and not the agent's other functions.
    Allocator,
    /// Something else, or the file cannot be read.
    Other,
}

/// Returns the role of a library's file.
pub fn role(file: &Path) -> Role {
    let Ok(definitions) = symbols::definitions(file, &FUNCTIONS) else {
        return Role::Other;
    };
    let exports = |name: &&str| {
        let mut found = definitions.found.iter();
        found.any(|function| function.is_exported && function.name == *name)
    };
    if FUNCTIONS.iter().all(exports) {
        Role::Agent
    } else if exports(&MALLOC) {
        Role::Allocator
    } else {
        Role::Other
    }
}

/// Returns true if a path ends with the agent's usual file name.
pub fn has_usual_name(path: &[u8]) -> bool {
    text::base_name(path).starts_with(USUAL_NAME)
}

/// Returns the entries of `LD_PRELOAD` in an environment.
pub fn ld_preload_entries(environment: &[u8]) -> impl Iterator<Item = &[u8]> {
    let preloaded = proc::value(environment, "LD_PRELOAD").unwrap_or_default();
    let entries = preloaded.split(|b| b" :".contains(b));
    entries.filter(|entry| !entry.is_empty())
}

/// Returns the path under which we can open a file that a process names. Returns `None` for a name
/// without a slash, since the loader searches for it.
pub fn path_in(pid: i32, name: &[u8]) -> Option<PathBuf> {
    let directory = proc::directory(pid);
    let path = Path::new(OsStr::from_bytes(name));
    if let Ok(inside) = path.strip_prefix("/") {
        return Some(directory.join("root").join(inside));
    }
    name.contains(&b'/')
        .then(|| directory.join("cwd").join(path))
}

/// Library that a process preloads and has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Path of the file, as in the process's maps.
    pub path: PathBuf,
    /// Kind of the library.
    pub role: Role,
}

/// Returns the libraries that a process preloads and has mapped, in the order of `LD_PRELOAD`.
pub fn preloaded<'a>(
    pid: i32,
    environment: &'a [u8],
    maps: &'a [u8],
) -> impl Iterator<Item = Library> + 'a {
    ld_preload_entries(environment).filter_map(move |entry| {
        let mapped = mapping_of(pid, entry, maps)?;
        let path_in_maps = Path::new(OsStr::from_bytes(mapped.path));
        let path = strip_deleted(path_in_maps).0.to_owned();
        let role = if has_usual_name(mapped.path) {
            Role::Agent
        } else {
            role(&path_in(pid, path.as_os_str().as_bytes())?)
        };
        Some(Library { path, role })
    })
}

/// Returns the mapping of an entry of `LD_PRELOAD`. Compares names, and inodes if the entry may be
/// a symbolic link.
fn mapping_of<'a>(pid: i32, entry: &[u8], maps: &'a [u8]) -> Option<Entry<'a>> {
    let files = || Entry::all(maps).filter(|mapped| mapped.path.starts_with(b"/"));
    let name = text::base_name(entry);
    if let Some(same_name) = files().find(|mapped| text::base_name(mapped.path) == name) {
        return Some(same_name);
    }
    let inode = path_in(pid, entry)?.metadata().ok()?.ino();
    files().find(|mapped| mapped.inode == inode)
}

/// Returns the path of the agent that a process has mapped, as in its maps.
pub fn mapped(pid: i32, maps: &[u8]) -> Option<PathBuf> {
    if let Some(usual) = Entry::all(maps).find(|mapped| has_usual_name(mapped.path)) {
        let path_in_maps = Path::new(OsStr::from_bytes(usual.path));
        return Some(strip_deleted(path_in_maps).0.to_owned());
    }
    let environment = proc::environment(pid)?;
    let mut libraries = preloaded(pid, &environment, maps);
    let agent = libraries.find(|library| library.role == Role::Agent)?;
    Some(agent.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_at_spaces_and_colons() {
        let entries =
            |environment: &'static [u8]| ld_preload_entries(environment).collect::<Vec<_>>();
        assert_eq!(
            entries(b"A=1\0LD_PRELOAD=/a.so: /b.so c.so\0"),
            [b"/a.so", b"/b.so" as &[u8], b"c.so"]
        );
        assert!(entries(b"X=/a.so").is_empty());
    }

    #[test]
    fn names_without_a_slash_have_no_path() {
        assert_eq!(path_in(7, b"x.so"), None);
        let root = proc::directory(7).join("root/lib/x.so");
        assert_eq!(path_in(7, b"/lib/x.so"), Some(root));
    }

    #[test]
    fn a_process_without_the_agent_maps_none() {
        let pid = std::process::id() as i32;
        assert_eq!(mapped(pid, &proc::maps(pid).unwrap()), None);
        assert_eq!(role(Path::new("/nowhere.so")), Role::Other);
    }
}
