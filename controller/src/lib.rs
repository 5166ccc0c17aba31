//! The controller as a library: it finds agents, runs sessions and reads segments, for
//! `mem_profiler`, whose commands [`run`] executes, and for programs that serve or send profiles.
//!
//! Promises: [`discovery`] finds only processes whose segments this user may use; [`live`] makes a
//! profile of a session as it is now; [`target`] starts and stops one exclusively: another
//! controller that tries gets an error that says so. Nothing here stops, signals or waits for a
//! process, except
//! [`cpu_session`] with the engine `ptrace`, leak checks, which stop it while they copy it, and
//! `launch`, which forwards signals to the program that it has started.
//!
//! The caller must look at its own targets ([`target::Target::look`]) several times a second, so
//! that their tables grow in time, and must extend their sessions.
//!
//! Limits: Linux. Commands print their errors and warnings; the public modules return them.

mod agent_file;
mod allocator;
mod allocator_stats;
pub mod beside;
mod cgroup;
mod claims;
mod cleaning;
mod cli;
pub mod clock;
pub mod collect;
mod commands;
pub mod cpu_session;
pub mod discovery;
pub mod dump;
pub mod ended;
mod family;
pub mod governor;
mod helper;
mod interpreted;
pub mod launch;
mod leaks;
mod lineage;
pub mod listing;
pub mod live;
mod mappings;
mod names;
pub mod offspring;
pub mod output;
mod page;
mod parallel_writer;
mod preload;
pub mod process;
pub mod process_end;
mod program;
mod python;
mod question;
mod resolved_tree;
mod room;
pub mod segment;
pub mod select;
mod session;
mod smaps;
pub mod snapshot;
mod stack_groups;
pub mod target;
pub mod terminal;
pub mod text;
mod threads;
mod timeline;
mod top;
pub mod triggers;
mod unreadable;
pub mod waiting;

use std::process::ExitCode;

pub use cli::{IntervalArgs, SelectArgs, values};

/// Executes the command line of `mem_profiler`.
pub fn run() -> ExitCode {
    launch::inherited::survive_file_limits();
    commands::execute(cli::parse())
}
