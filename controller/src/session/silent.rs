//! Processes whose program vanished without exiting: killed, or replaced by a program that does not
//! load the agent. Which of them is unknown once they are dead, unless we started the process.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use mem_agents::discovery::{Agent, Life};
use mem_agents::segment::Head;
use mem_agents::text;

use super::Run;
use super::joining::MAX_NAMED;

/// Maximum number of processes that are remembered.
const MAX_REMEMBERED: usize = 4096;

/// Text in every program of Go. Go's runtime ends processes by a system call of its own.
const GO_BUILD_INFO: &str = " Go buildinf:";

/// The last program of each process that has ended.
#[derive(Default)]
pub(super) struct LastPrograms {
    /// By pid.
    programs: HashMap<i32, LastProgram>,
}

/// A program of a process that has ended.
struct LastProgram {
    /// Creation time of its segment, in ns of the segments' clock.
    created_ns: u64,
    title: String,
    file: PathBuf,
    /// True if it neither returned from `main` nor called `exit` or `_exit`.
    is_silent: bool,
}

impl LastPrograms {
    /// Records a program that has ended. Only the last of each process counts.
    pub(super) fn record(&mut self, agent: &Agent) {
        if agent.life == Life::Running {
            return;
        }
        let mut head = Head::new();
        let Ok(header) = agent.segment.head(&mut head) else {
            return;
        };
        let is_unexplained = agent.life == Life::Dead && agent.end.is_none();
        let program = LastProgram {
            created_ns: agent.created_ns,
            title: agent.title(),
            file: Path::new(OsStr::from_bytes(header.exe())).to_owned(),
            is_silent: is_unexplained && !header.exited(),
        };
        if self.programs.len() >= MAX_REMEMBERED {
            self.programs.retain(|_, program| program.is_silent);
        }
        let earlier = self.programs.get(&agent.pid);
        if earlier.is_none_or(|earlier| earlier.created_ns <= program.created_ns)
            && self.programs.len() < MAX_REMEMBERED
        {
            self.programs.insert(agent.pid, program);
        }
    }

    /// Returns the titles of the programs that vanished, in order.
    fn silent_titles(&self) -> Vec<&str> {
        let mut silent: Vec<&LastProgram> = self.programs.values().collect();
        silent.retain(|program| program.is_silent);
        silent.sort_by_key(|program| program.created_ns);
        let mut go_programs: HashMap<&Path, bool> = HashMap::new();
        silent.retain(|program| {
            let is_go_program = || {
                symbols::first_contained_text(&program.file, &[GO_BUILD_INFO])
                    .is_ok_and(|go| go.is_some())
            };
            !*go_programs
                .entry(&program.file)
                .or_insert_with(is_go_program)
        });
        silent.into_iter().map(|program| &*program.title).collect()
    }
}

impl Run {
    /// Warns about descendants that may have executed a program without the agent, which has ended
    /// before it was seen.
    pub(super) fn warn_of_silent_ends(&mut self) {
        let silent = self.last_programs.silent_titles();
        if silent.is_empty() {
            return;
        }
        let (named, others) = silent.split_at(silent.len().min(MAX_NAMED));
        let more = match others.len() {
            0 => String::new(),
            count => format!(" and {}", text::count(count as u64, "other", "others")),
        };
        let warning = format!(
            "{}{more} did not exit: killed, or executed a program without the agent (env -i, sudo, \
             static), which was not sampled",
            named.join(", ")
        );
        self.reporter.warning(&warning);
    }
}
