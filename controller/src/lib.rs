//! `mem_profiler`: its command line, which [`run`] executes, and all policy: when a session begins
//! and ends, which processes join it, when dumps are written, what is shown and printed.
//!
//! `cli` says what is valid, `commands` executes it; `session` samples heaps, `cpu_session` samples
//! CPU time, `top` draws the live view, `launch` starts programs with the agent. What it shares with
//! `mem_server` is in `mem_agents`, leak checks are in `mem_leaks`.
//!
//! Promises: nothing here stops, signals or waits for a process, except `cpu_session` with the
//! engine `ptrace`, leak checks, which stop it while they copy it, and `launch`, which forwards
//! signals to the program that it has started.
//!
//! Limits: Linux.

mod allocator;
mod allocator_stats;
mod cli;
mod commands;
mod cpu_session;
mod family;
mod launch;
mod page;
mod python;
mod question;
mod session;
mod smaps;
mod terminal;
mod top;
mod triggers;

use std::process::ExitCode;

/// Executes the command line of `mem_profiler`.
pub fn run() -> ExitCode {
    launch::inherited::survive_file_limits();
    commands::execute(cli::parse())
}
