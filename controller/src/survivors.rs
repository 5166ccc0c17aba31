//! Finds processes that continue when the program that we started has exited, such as daemons, and
//! names them with the command that samples them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use mem_agents::agent_file;
use mem_agents::text;
use proc::Stat;
use shm_protocol::segment::DIR_VARIABLE;

use crate::terminal::diagnostic;

/// Maximum number of processes that are named.
const MAX_NAMED: usize = 3;

/// Process that outlives the session.
#[derive(Debug)]
pub struct Survivor {
    /// Pid, as we see it.
    pub pid: i32,
    /// Name and pid, for display.
    pub title: String,
    /// True if the session has sampled it.
    pub was_sampled: bool,
}

impl Survivor {
    /// Describes a process that was not sampled. Returns `None` if it has exited.
    fn unsampled(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid).filter(|stat| !stat.is_dead())?;
        Some(Self {
            pid,
            title: format!("{} ({pid})", text::escape(&stat.comm)),
            was_sampled: false,
        })
    }
}

/// Returns the processes that have loaded the agent, and create their segments in this directory.
/// `run` creates a directory for itself, and its descendants inherit the name. So this finds all
/// descendants, including those whose parents have exited.
pub fn in_directory(directory: &Path) -> Vec<Survivor> {
    let carries_agent = |pid: i32| {
        let environment = proc::environment(pid)?;
        let segment_directory = proc::value(&environment, DIR_VARIABLE)?;
        if segment_directory != directory.as_os_str().as_bytes() {
            return None;
        }
        agent_file::mapped(pid, &proc::maps(pid)?)
    };
    let our_pid = std::process::id() as i32;
    let others = proc::all_pids().into_iter().filter(|pid| *pid != our_pid);
    others
        .filter(|pid| carries_agent(*pid).is_some())
        .filter_map(Survivor::unsampled)
        .collect()
}

/// Returns the processes of `pids` that continue.
pub fn among(pids: &[i32]) -> Vec<Survivor> {
    let survivors = pids.iter().filter_map(|pid| Survivor::unsampled(*pid));
    let sampled = survivors.map(|survivor| Survivor {
        was_sampled: true,
        ..survivor
    });
    sampled.collect()
}

/// Prints the names of processes that outlive the program, with the command that samples each.
pub fn report(survivors: &[Survivor], command: &str) {
    for survivor in survivors.iter().take(MAX_NAMED) {
        let Survivor { pid, title, .. } = survivor;
        diagnostic(&if survivor.was_sampled {
            format!(
                "{title} continues, and is no longer sampled: {command} -p {pid} samples it again"
            )
        } else {
            format!("{title} continues, and was not sampled: {command} -p {pid} samples it")
        });
    }
    if survivors.len() > MAX_NAMED {
        let unnamed = survivors.len() - MAX_NAMED;
        diagnostic(&format!(
            "{unnamed} more continue: mem_profiler list shows them"
        ));
    }
}
