//! A redis server and its clients.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::tools::Tools;

/// Maximum time for a server to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a server that keeps nothing on disk and listens in our own directory.
pub fn server(tools: &Tools) -> Command {
    let mut command = Command::new("redis-server");
    command
        .args(["--port", "0", "--save", "", "--appendonly", "no"])
        .args(["--ignore-warnings", "ARM64-COW-BUG", "--unixsocket"])
        .arg(tools.scratch("redis.socket"));
    command
}

/// Sends the server this many commands, half SET and half LPUSH, then ends it.
pub fn load(tools: &Tools, commands: u64) -> Result<()> {
    let socket = tools.scratch("redis.socket");
    let deadline = Instant::now() + START_TIMEOUT;
    while UnixStream::connect(&socket).is_err() {
        ensure!(
            Instant::now() < deadline,
            "redis-server does not listen; is it able to start?"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let each = (commands / 2).to_string();
    client("redis-benchmark", tools)
        .args(["-t", "set,lpush", "-n", &each, "-r", "200000", "-d", "64"])
        .args(["-c", "16", "-P", "16", "-q"])
        .status()
        .context("cannot run redis-benchmark")
        .and_then(|status| {
            ensure!(status.success(), "redis-benchmark: {status}");
            Ok(())
        })?;
    let status = client("redis-cli", tools)
        .args(["shutdown", "nosave"])
        .status()?;
    ensure!(status.success(), "redis-cli: {status}");
    Ok(())
}

fn client(program: &str, tools: &Tools) -> Command {
    let mut command = Command::new(program);
    command
        .arg("-s")
        .arg(tools.scratch("redis.socket"))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}
