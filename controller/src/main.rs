//! `mem_profiler`: finds the agents in running processes, runs sampling sessions in them
//! through their shared-memory segments, and writes dumps.
//!
//! All policy is here; the agent only counts. A process is never stopped, signalled or waited for:
//! a dump is read from its segment, alive or dead. The exceptions are `leaks` and the check that a
//! program requests itself, which stop a process for as long as a copy of it takes, and the check
//! at a program's exit.

use std::process::ExitCode;

fn main() -> ExitCode {
    mem_controller::run()
}
