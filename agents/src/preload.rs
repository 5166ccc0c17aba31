//! Processes that should have the agent but do not: `LD_PRELOAD` names it, but the loader did not
//! load it, and said so, if at all, only when the program started.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proc::Status;
use symbols::Elf;

use crate::agent_file::{self, Role};
use crate::program;
use crate::text;

/// Why the agent that a process's `LD_PRELOAD` names is not there; `None` if it names none, or it
/// is there, or that cannot be known.
pub fn failure(pid: i32) -> Option<String> {
    let environment = proc::environment(pid)?;
    let agent = named(pid, &environment)?;
    let maps = proc::maps(pid)?;
    if agent_file::mapped(pid, &maps).is_some() {
        return None;
    }
    let shown = text::path(agent);
    Some(match reason(pid, agent) {
        Some(reason) => format!("LD_PRELOAD names {shown}, but {reason}"),
        None => format!(
            "LD_PRELOAD names {shown}, but the loader did not load it; its message about that is \
             among the program's first"
        ),
    })
}

/// The agent among what a process's environment preloads.
fn named(pid: i32, environment: &[u8]) -> Option<&Path> {
    let is_agent = |entry: &&[u8]| {
        agent_file::has_usual_name(entry)
            || agent_file::path_in(pid, entry)
                .is_some_and(|file| agent_file::role(&file) == Role::Agent)
    };
    let agent = agent_file::preloads(environment).find(is_agent)?;
    Some(Path::new(OsStr::from_bytes(agent)))
}

fn reason(pid: i32, agent: &Path) -> Option<String> {
    let directory = proc::directory(pid);
    let exe = directory.join("exe");
    if let Some(obstacle) = program::obstacle(&exe) {
        return Some(obstacle.to_owned());
    }
    if exe.metadata().is_ok_and(|file| gives_rights(&file, pid)) {
        return Some(SECURE.to_owned());
    }
    // Names without a directory are searched by the loader, in its own way.
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

/// Why the loader cannot preload this agent into this program.
pub fn mismatch(agent: &Path, program: &Path) -> Option<&'static str> {
    let agent = match Elf::open(agent) {
        Ok(agent) => agent,
        // It cannot be read: nothing is known of it.
        Err(_) if std::fs::File::open(agent).is_err() => return None,
        Err(_) => {
            return Some("that file is not an ELF library: the copy is damaged; install it again");
        }
    };
    let program = Elf::open(program).ok()?;
    let same = (agent.is_wide, agent.machine) == (program.is_wide, program.machine);
    (!same).then_some(
        "that file is for another architecture than the program's: the loader skips it; \
         install the package for this architecture",
    )
}

/// Why programs that give rights are not sampled.
pub const SECURE: &str = "the program is setuid, setgid or has capabilities, so the loader ignores \
                          LD_PRELOAD; start it as the user whose rights it gets";

/// Whether the program's file gives the process rights that its user does not have.
fn gives_rights(file: &Metadata, pid: i32) -> bool {
    let real = Status::of(pid).map(|status| status.uids[0]);
    real.is_some_and(|uid| gives_rights_to(file, uid))
}

/// The same for a user who would start it.
pub fn gives_rights_to(file: &Metadata, uid: u32) -> bool {
    let mode = file.permissions().mode();
    let is_setuid = mode & 0o4000 != 0 && file.uid() != uid;
    // As the kernel has it: without the right to execute, it is a mark for locking.
    let is_setgid = mode & 0o2010 == 0o2010 && uid != 0;
    is_setuid || is_setgid
}

/// What to say of processes whose agent is missing: one line each, and how many more there are.
pub fn warnings() -> Vec<String> {
    const MOST: usize = 5;
    let us = std::process::id() as i32;
    let pids = proc::all().into_iter().filter(|pid| *pid != us);
    let mut lines: Vec<String> = pids
        .filter_map(|pid| {
            let failure = failure(pid)?;
            let exe = proc::exe(pid).unwrap_or_default();
            let name = text::escape(text::base_name(&exe));
            Some(format!("{name} ({pid}) runs without the agent: {failure}"))
        })
        .collect();
    let more = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    if more > 0 {
        lines.push(format!(
            "{more} more processes run without the agent that their LD_PRELOAD names"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_found_among_what_is_preloaded() {
        let named = |environment: &[u8]| named(i32::MAX, environment).map(|path| path.to_owned());
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
            assert_eq!(named(environment), Some(agent.into()));
        }
        assert_eq!(
            named(b"LD_PRELOAD=/libmem_agent/x.so\0X=libmem_agent.so"),
            None
        );
        assert_eq!(named(b""), None);
    }

    #[test]
    fn processes_that_ask_for_no_agent_are_not_missing_one() {
        assert_eq!(failure(std::process::id() as i32), None);
        assert_eq!(failure(i32::MAX), None);
    }
}
