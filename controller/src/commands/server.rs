//! `serve` and `push`: by the server, a program of its own, so that this one stays small.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::bail;

use crate::beside;
use crate::text;

/// Its name.
pub const SERVER: &str = "mem_server";

/// Becomes the server, with the command's own arguments.
pub fn execute(command: &str, args: &[OsString]) -> anyhow::Result<ExitCode> {
    let server = beside::program(SERVER);
    let error = Command::new(&server).arg(command).args(args).exec();
    bail!(
        "{command} is done by {SERVER}, and {} cannot be run: {error}; install it beside \
         mem_profiler",
        text::path(&server)
    )
}
