//! The program `frail.c` under the agent: it fails if the agent changes anything that it relies on.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::{Scratch, Steps};

/// Line that `frail.c` prints for an unharmed child.
pub const WELL: &str = "ended 17 0";

/// Starts the program `frail.c`, after `prepare` has changed the command.
pub fn frail(scratch: &Scratch, prepare: impl FnOnce(&mut Command)) -> Steps {
    let program = scratch.compile("frail.c", &[]);
    let mut command = scratch.preloaded(&program);
    prepare(&mut command);
    Steps::run(program, &mut command)
}

/// Returns the value of `LD_PRELOAD` that preloads an agent, or nothing.
pub fn preload(agent: &Path, with: bool) -> OsString {
    let mut text = OsString::from("LD_PRELOAD=");
    if with {
        text.push(agent);
    }
    text
}
