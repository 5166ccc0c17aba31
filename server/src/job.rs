//! Runs the other programs of this project, each in a temporary directory.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use mem_agents::beside;
use tempfile::TempDir;

use crate::reply::{Reply, Step};

/// Interval between checks for a program's exit.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum length of a program's messages that is passed on, in bytes.
const MAX_MESSAGE: u64 = 2048;

/// Function that makes the next step when a program has succeeded.
type Finish = Box<dyn FnOnce(&Job) -> Step + Send>;
/// Function that may make an answer of the message of a program that failed.
type Otherwise = Box<dyn FnOnce(&str) -> Option<Result<Reply, Reply>> + Send>;

/// A running program. Killed on drop.
pub struct Job {
    child: Child,
    directory: TempDir,
    deadline: Instant,
    program: &'static str,
}

impl Drop for Job {
    fn drop(&mut self) {
        // The program may have exited already. It is reaped in either case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Job {
    /// File in the program's directory with its output, after [`Job::start_heard`].
    pub const HEARD: &str = "heard";

    /// Starts a program in `directory`. The job fails if the program runs longer than `timeout`.
    pub fn start(
        program: &'static str,
        directory: TempDir,
        timeout: Duration,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, Reply> {
        Self::start_with(program, directory, timeout, Stdio::null(), arguments)
    }

    /// Like [`Job::start`], but keeps the program's output.
    pub fn start_heard(
        program: &'static str,
        directory: TempDir,
        timeout: Duration,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, Reply> {
        let heard = File::create(directory.path().join(Self::HEARD));
        let heard = heard.map_err(|error| Reply::refusal(500, error.to_string()))?;
        Self::start_with(program, directory, timeout, heard.into(), arguments)
    }

    fn start_with(
        program: &'static str,
        directory: TempDir,
        timeout: Duration,
        output: Stdio,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, Reply> {
        let failed = |error: std::io::Error| {
            Reply::refusal(
                500,
                format!("{program} cannot be run: {error}; install it beside mem_server"),
            )
        };
        let mut command = Command::new(beside::program(program));
        command
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(File::create(directory.path().join("said")).map_err(failed)?);
        arguments(&mut command);
        Ok(Self {
            child: command.spawn().map_err(failed)?,
            directory,
            deadline: Instant::now() + timeout,
            program,
        })
    }

    /// Returns the program's directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Waits for `first`, then until the program has exited, and calls `finish` to make the answer.
    pub fn then(
        self,
        first: Duration,
        finish: impl FnOnce(&Self) -> Result<Reply, Reply> + Send + 'static,
    ) -> Step {
        self.then_or(first, finish, |_| None)
    }

    /// Like [`Job::then`], but what `finish` returns may be more work.
    pub fn then_next(
        self,
        first: Duration,
        finish: impl FnOnce(&Self) -> Step + Send + 'static,
    ) -> Step {
        self.wait(first, Box::new(finish), Box::new(|_| None))
    }

    /// Like [`Job::then`], but if the program fails, `otherwise` may make an answer from its
    /// message.
    pub fn then_or(
        self,
        first: Duration,
        finish: impl FnOnce(&Self) -> Result<Reply, Reply> + Send + 'static,
        otherwise: impl FnOnce(&str) -> Option<Result<Reply, Reply>> + Send + 'static,
    ) -> Step {
        let finish = Box::new(|job: &Self| finish(job).into());
        self.wait(first, finish, Box::new(otherwise))
    }

    fn wait(mut self, first: Duration, finish: Finish, otherwise: Otherwise) -> Step {
        Step::Later(
            first,
            Box::new(move || match self.child.try_wait() {
                Ok(Some(status)) if status.success() => finish(&self),
                Ok(None) if Instant::now() < self.deadline => {
                    self.wait(POLL_INTERVAL, finish, otherwise)
                }
                Ok(None) => Reply::refusal(503, format!("{} takes too long", self.program)).into(),
                ended => {
                    let message = self.error_message(ended.ok().flatten());
                    let other = otherwise(&message);
                    other
                        .unwrap_or_else(|| Err(Reply::refusal(500, message)))
                        .into()
                }
            }),
        )
    }

    /// Returns the program's error message, or the way in which it ended.
    fn error_message(&self, status: Option<ExitStatus>) -> String {
        let mut message = Vec::new();
        let file = File::open(self.directory.path().join("said"));
        // An unreadable file counts as empty.
        let _ = file.and_then(|file| file.take(MAX_MESSAGE).read_to_end(&mut message));
        match String::from_utf8_lossy(&message).trim() {
            "" => match status.and_then(|status| status.signal()) {
                Some(libc::SIGSYS) => format!(
                    "{} made a system call that this server's service does not permit: its unit's SystemCallFilter=, or the container's seccomp profile",
                    self.program
                ),
                Some(signal) => format!("{} was ended by signal {signal}", self.program),
                None => format!("{} failed", self.program),
            },
            message => message.to_owned(),
        }
    }
}
