//! `serve` and `push`: run `mem_server`, a separate program, so that this one stays small.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::bail;
use mem_agents::siblings;
use mem_agents::text;

/// Name of the server program.
pub const SERVER: &str = "mem_server";

/// Describes where the server should be installed.
fn destination() -> String {
    let exe = std::env::current_exe().ok();
    match exe.as_deref().and_then(Path::parent) {
        Some(directory) => format!("into {}, where mem_profiler is", text::path(directory)),
        None => "beside mem_profiler".to_owned(),
    }
}

/// Replaces this process by the server, with the command's arguments.
pub fn execute(command: &str, args: &[OsString]) -> anyhow::Result<ExitCode> {
    let server = siblings::program(SERVER);
    let error = Command::new(&server).arg(command).args(args).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "{command} is done by {SERVER}, a separate program of the same package (but not of the board's): put it {}",
            destination()
        );
    }
    bail!(
        "{command} is done by {SERVER}, and {} cannot be run: {error}",
        text::path(&server)
    )
}
