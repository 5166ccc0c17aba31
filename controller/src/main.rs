//! `mem_profiler`: finds agents in running processes, runs sampling sessions through their
//! shared-memory segments, and writes dumps.
//!
//! See `mem_controller` for its parts and guarantees.

use std::process::ExitCode;

fn main() -> ExitCode {
    mem_controller::run()
}
