//! The program `frail.c` under the agent, which needs little to go wrong.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::{Scratch, Steps};

/// Line that `frail.c` prints for an unharmed child.
pub const WELL: &str = "ended 17 0";

/// Returns the program `frail.c`, started after `prepare` has seen the command.
pub fn frail(scratch: &Scratch, prepare: impl FnOnce(&mut Command)) -> Steps {
    let program = scratch.compile("frail.c", &[]);
    let mut command = scratch.preloaded(&program);
    prepare(&mut command);
    Steps::run(program, &mut command)
}

/// Returns the variable that preloads an agent, or that preloads nothing.
pub fn preload(agent: &Path, with: bool) -> OsString {
    let mut text = OsString::from("LD_PRELOAD=");
    if with {
        text.push(agent);
    }
    text
}
