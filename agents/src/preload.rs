//! Finds processes that lack the agent although `LD_PRELOAD` names it, and explains why. The
//! loader's own message, if any, was printed when the program started.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proc::Status;
use profile::maps::Entry;
use symbols::Elf;

use crate::agent_file::{self, Role};
use crate::process;
use crate::program;
use crate::text;

/// Explains why the agent in a process's `LD_PRELOAD` is not loaded. Returns `None` if `LD_PRELOAD`
/// names no agent, if the agent is loaded, or if that is unknown because the process is just
/// starting or exiting.
pub fn failure(pid: i32) -> Option<String> {
    let environment = proc::environment(pid)?;
    let agent = agent_entry(pid, &environment)?;
    let is_missing = || {
        let maps = proc::maps(pid)?;
        let is_absent = agent_file::mapped(pid, &maps).is_none();
        (is_absent && has_loaded(pid, &environment, &maps)).then_some(())
    };
    is_missing()?;
    let failure = explain(pid, agent);
    // Checks again, since the process may have exited or executed another program while its files
    // were read.
    is_missing()?;
    (proc::environment(pid)? == environment).then_some(failure)
}

/// Explains why the program that a sampled process has executed did not load the agent. Returns
/// `None` if it did, or if that is not known yet.
pub fn absence(pid: i32) -> Option<String> {
    let maps = proc::maps(pid)?;
    // The environment needs the same permission as the maps. It may be empty.
    let environment = proc::environment(pid).unwrap_or_default();
    if !has_loaded(pid, &environment, &maps) || agent_file::mapped(pid, &maps).is_some() {
        return None;
    }
    if agent_entry(pid, &environment).is_some() {
        return failure(pid);
    }
    Some("its environment has no LD_PRELOAD (env -i, sudo and su remove it)".to_owned())
}

/// Returns true if the program's dynamic loader has begun to map the program's libraries, or the
/// program has no loader. Preloaded libraries are mapped before all others.
fn has_loaded(pid: i32, environment: &[u8], maps: &[u8]) -> bool {
    let exe = proc::directory(pid).join("exe");
    // Excludes the loader's cache, which is mapped without execute permission.
    let is_code =
        |mapped: &Entry<'_>| mapped.path.starts_with(b"/") && mapped.permissions.contains(&b'x');
    let mut copies: BTreeMap<u64, usize> = BTreeMap::new();
    for mapped in Entry::all(maps).filter(is_code) {
        *copies.entry(mapped.inode).or_default() += 1;
    }
    // Auditors (`LD_AUDIT`) are mapped earlier, each with a copy of its libraries, such as the C
    // library.
    let auditors = proc::value(environment, "LD_AUDIT").unwrap_or_default();
    let auditors = auditors.split(|byte| *byte == b':');
    let auditors = auditors.filter(|name| !name.is_empty()).count();
    match Elf::open(&exe) {
        Ok(program) if program.has_interpreter => {
            copies.len() > 2 && copies.values().any(|count| *count > auditors)
        }
        Ok(_) => !copies.is_empty(),
        Err(_) => false,
    }
}

fn explain(pid: i32, agent: &Path) -> String {
    let name = text::path(agent);
    match reason(pid, agent) {
        Some(reason) => format!("LD_PRELOAD names {name}, but {reason}"),
        None => format!(
            "LD_PRELOAD names {name}, but the loader did not load it; its message about that is \
             among the program's first"
        ),
    }
}

/// Returns the entry of `LD_PRELOAD` that names the agent.
fn agent_entry(pid: i32, environment: &[u8]) -> Option<&Path> {
    let is_agent = |entry: &&[u8]| {
        agent_file::has_usual_name(entry)
            || agent_file::path_in(pid, entry)
                .is_some_and(|file| agent_file::role(&file) == Role::Agent)
    };
    let agent = agent_file::ld_preload_entries(environment).find(is_agent)?;
    Some(Path::new(OsStr::from_bytes(agent)))
}

/// Returns the reason why the loader did not load `agent`, if it can be found.
fn reason(pid: i32, agent: &Path) -> Option<String> {
    let directory = proc::directory(pid);
    let exe = directory.join("exe");
    if let Some(obstacle) = program::obstacle(&exe) {
        return Some(obstacle.to_owned());
    }
    if exe
        .metadata()
        .is_ok_and(|file| grants_privileges(&file, pid))
    {
        return Some(PRIVILEGED.to_owned());
    }
    // The loader searches for names without a slash by its own rules.
    let inside = agent.strip_prefix("/").ok()?;
    let file = directory.join("root").join(inside);
    match file.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Some("there is no such file: correct the path, and restart it".to_owned());
        }
        _ => {}
    }
    mismatch(&file, &exe).map(str::to_owned)
}

/// Explains why the loader cannot preload an agent's file into a program.
pub fn mismatch(agent: &Path, program: &Path) -> Option<&'static str> {
    let size = agent.metadata().map_or(u64::MAX, |file| file.len());
    let agent = match Elf::open(agent) {
        Ok(agent) => agent,
        // The file cannot be read, so nothing is known about it.
        Err(_) if std::fs::File::open(agent).is_err() => return None,
        Err(_) => {
            return Some("that file is not an ELF library: the copy is damaged; install it again");
        }
    };
    if size < agent.min_file_bytes() {
        return Some("the end of that file is missing: the copy is incomplete; install it again");
    }
    let program = Elf::open(program).ok()?;
    let same = (agent.is_wide, agent.machine) == (program.is_wide, program.machine);
    (!same).then_some(
        "that file is for another architecture than the program's: the loader skips it; \
         install the package for this architecture",
    )
}

/// Reason for programs that get privileges on exec.
pub const PRIVILEGED: &str = "the program is setuid, setgid or has capabilities, so the loader ignores \
                          LD_PRELOAD; start it as the user whose rights it gets";

/// Returns true if the program's file gives the process privileges that its user does not have.
fn grants_privileges(file: &Metadata, pid: i32) -> bool {
    let real = Status::of(pid).map(|status| status.uids[0]);
    real.is_some_and(|uid| grants_privileges_to(file, uid))
}

/// Returns true if the file would give a user privileges on exec.
pub fn grants_privileges_to(file: &Metadata, uid: u32) -> bool {
    let mode = file.permissions().mode();
    let is_setuid = mode & 0o4000 != 0 && file.uid() != uid;
    // To the kernel, setgid without group execute permission means mandatory locking.
    let is_setgid = mode & 0o2010 == 0o2010 && uid != 0;
    is_setuid || is_setgid
}

/// Returns a warning for each process without the agent, up to a limit, and the number of others.
pub fn warnings() -> Vec<String> {
    const MAX_LINES: usize = 5;
    let us = std::process::id() as i32;
    let pids = proc::all_pids().into_iter().filter(|pid| *pid != us);
    let mut lines: Vec<String> = pids
        .filter_map(|pid| {
            let failure = failure(pid)?;
            let title = process::title(pid);
            Some(format!("{title} runs without the agent: {failure}"))
        })
        .collect();
    let omitted = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    if omitted > 0 {
        lines.push(format!(
            "{omitted} more processes run without the agent that their LD_PRELOAD names"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_found_among_preloaded_libraries() {
        let agent_entry =
            |environment: &[u8]| agent_entry(i32::MAX, environment).map(|path| path.to_owned());
        for (environment, agent) in [
            (
                &b"A=1\0LD_PRELOAD=/x/libmem_agent.so\0"[..],
                "/x/libmem_agent.so",
            ),
            (
                b"LD_PRELOAD=/a.so:/y/libmem_agent-2.so",
                "/y/libmem_agent-2.so",
            ),
            (b"LD_PRELOAD=/a.so libmem_agent.so", "libmem_agent.so"),
        ] {
            assert_eq!(agent_entry(environment), Some(agent.into()));
        }
        assert_eq!(
            agent_entry(b"LD_PRELOAD=/libmem_agent/x.so\0X=libmem_agent.so"),
            None
        );
        assert_eq!(agent_entry(b""), None);
    }

    #[test]
    fn a_file_without_its_end_is_incomplete() {
        let program = Path::new("/proc/self/exe");
        let whole = std::fs::read(program).unwrap();
        let least = Elf::open(program).unwrap().min_file_bytes() as usize;
        let file = tempfile::NamedTempFile::new().unwrap();
        for (size, is_whole) in [(4096, false), (least - 1, false), (least, true)] {
            std::fs::write(file.path(), &whole[..size]).unwrap();
            let mismatch = mismatch(file.path(), program);
            assert_eq!(mismatch.is_none(), is_whole, "{size}: {mismatch:?}");
        }
    }

    #[test]
    fn processes_without_ld_preload_are_not_reported() {
        assert_eq!(failure(std::process::id() as i32), None);
        assert_eq!(failure(i32::MAX), None);
    }
}
