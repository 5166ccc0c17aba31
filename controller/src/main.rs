//! `mem_profiler`: finds the agents in running processes, runs sampling sessions in them
//! through their shared-memory segments, and writes dumps.
//!
//! All policy is here; the agent only counts. A process is never stopped, signalled or
//! waited for: a dump is read from its segment, alive or dead. The exceptions are `leaks`
//! and the check that a program asks for itself, which stop a process for as long as a copy of it
//! takes, and the check at a program's exit.

mod allocator;
mod allocator_stats;
mod cgroup;
mod claims;
mod cleaning;
mod cli;
mod clock;
mod collect;
mod commands;
mod cpu_session;
mod discovery;
mod dump;
mod ended;
mod family;
mod governor;
mod helper;
mod launch;
mod leaks;
mod names;
mod output;
mod page;
mod parallel_writer;
mod preload;
mod process;
mod process_end;
mod program;
mod python;
mod question;
mod resolved_tree;
mod segment;
mod select;
mod session;
mod smaps;
mod snapshot;
mod stack_groups;
mod target;
mod terminal;
mod text;
mod threads;
mod timeline;
mod top;
mod triggers;
mod waiting;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::execute(cli::parse())
}
