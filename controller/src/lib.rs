//! Command line of `mem_profiler`, executed by [`run`], and all policy: when sessions begin and
//! end, which processes join, when dumps are written, what is displayed.
//!
//! `cli` defines the command line and `commands` executes it. `session` samples heaps,
//! `cpu_session` CPU time, and `rss_session` page faults. `go_heap` reads the heap profile that
//! Go's runtime keeps, `ledger` lists what the memory of a process or control group consists of,
//! `top` draws the live view, and `launch` starts programs with the agent. Code shared with
//! `mem_server` is in `mem_agents`; leak checks are in `mem_leaks`.
//!
//! Guarantees: nothing is written into a process, except eight bytes by `go --enable`. No process
//! is stopped, signalled or waited for, with three exceptions: `cpu_session` with the engine
//! `ptrace` stops threads, leak checks stop a process while it is copied, and `launch` forwards
//! signals to the program that it has started.
//!
//! Limits: Linux only.

mod agent_request;
mod allocator;
mod allocator_stats;
mod cli;
mod commands;
mod cpu_session;
mod family;
mod go_heap;
mod jemalloc_options;
mod launch;
mod ledger;
mod page;
mod python;
mod reporter;
mod rounds;
mod rss_session;
mod session;
mod smaps;
mod survivors;
mod terminal;
mod top;
mod triggers;

use std::process::ExitCode;

/// Executes the command line of `mem_profiler`.
pub fn run() -> ExitCode {
    launch::inherited::survive_file_limits();
    commands::execute(cli::parse())
}
