//! The program `steps.c` under the agent, which executes commands step by step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use crate::scratch::Scratch;
use crate::target::Target;
use crate::truth::{self, Site};

/// Running `steps.c`.
pub struct Steps {
    /// The binary.
    pub program: PathBuf,
    /// The process.
    pub target: Target,
}

impl Steps {
    /// Compiles and starts the program.
    pub fn start(scratch: &Scratch) -> Self {
        Self::start_with(scratch, &[], |_| {})
    }

    /// Compiles the program with further flags. Starts it after `prepare` has changed the command.
    pub fn start_with(
        scratch: &Scratch,
        flags: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let program = scratch.compile("steps.c", flags);
        let mut command = scratch.preloaded(&program);
        prepare(&mut command);
        Self::run(program, &mut command)
    }

    /// Starts the program by the caller's command.
    pub fn run(program: PathBuf, command: &mut Command) -> Self {
        let mut target = Target::start(command);
        assert_eq!(target.hear(), "ready");
        Self { program, target }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Sends a command to the program. Returns the lines that it printed.
    pub fn step(&mut self, line: &str) -> Vec<String> {
        self.target.say(line);
        self.target.hear_until("ok")
    }

    /// Makes the program fork, by the step `how`. Returns the child's pid. The child allocates at
    /// `site_child` and stays until its parent exits.
    pub fn fork(&mut self, how: &str, objects: u32) -> u32 {
        let said = self.step(&format!("{how} {objects}"));
        let child = said.iter().find_map(|line| line.strip_prefix("child "));
        child.and_then(|pid| pid.parse().ok()).expect("a child")
    }

    /// Returns the bytes that the program has allocated, by function.
    pub fn expected(&mut self) -> BTreeMap<String, Site> {
        truth::expected(&self.step("expected"))
    }
}
