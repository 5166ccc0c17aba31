//! Runs the other programs of this project, each in a temporary directory.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mem_agents::siblings;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::reply::{Reply, Step};
use crate::starter;

/// Interval between checks for a program's exit.
pub const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of bytes of a program's messages that are passed on.
const MAX_MESSAGE: u64 = 2048;

/// Maximum number of reports that are made at the same time, each by a child process.
const MAX_JOBS: usize = 4;
/// Permits to make a report.
static JOBS: Semaphore = Semaphore::const_new(MAX_JOBS);

/// Function that makes the next step when a program has succeeded.
type Finish = Box<dyn FnOnce(&Job) -> Step + Send>;
/// Function that may turn the message of a failed program into a reply.
type OnFailure = Box<dyn FnOnce(&str) -> Option<Result<Reply, Reply>> + Send>;

/// Returns a permit to make a report with another program. The error is the reply if there is none.
pub fn permit() -> Result<SemaphorePermit<'static>, Reply> {
    let permit = JOBS.try_acquire();
    permit.map_err(|_| Reply::refusal(503, "other reports are being made: try again"))
}

/// Program of this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `mem_parser`.
    Parser,
    /// `mem_profiler`.
    Profiler,
    /// The running program, even if its file was replaced.
    Server,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Parser => "mem_parser",
            Self::Profiler => "mem_profiler",
            Self::Server => "mem_server",
        }
    }

    fn path(self) -> PathBuf {
        match self {
            Self::Server => "/proc/self/exe".into(),
            other => siblings::program(other.name()),
        }
    }

    /// Returns the signal that the program gets when the server ends.
    fn last_signal(self) -> libc::c_int {
        match self {
            // On this signal, it ends its session first.
            Self::Profiler => libc::SIGTERM,
            Self::Parser | Self::Server => libc::SIGKILL,
        }
    }
}

/// Returns a directory for the files of a job.
pub fn directory() -> Result<Arc<TempDir>, Reply> {
    let made = tempfile::tempdir().map_err(|error| Reply::temporary_file_error(&error));
    Ok(Arc::new(made?))
}

/// Way in which a program failed.
pub enum Failure {
    /// The program ran longer than its timeout.
    TooLong,
    /// Error, with the program's message.
    Message(String),
}

/// A running program. Killed on drop, and when the server ends.
pub struct Job {
    child: Child,
    directory: Arc<TempDir>,
    deadline: Instant,
    program: Program,
    /// Standard input, after [`Job::start_with_input`].
    input: Option<ChildStdin>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // The program may have exited already. It is reaped in either case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Job {
    /// File in the program's directory with its output, after [`Job::start_keeping_output`].
    pub const OUTPUT: &str = "output";

    /// Starts a program in `directory`. The job fails if the program runs longer than `timeout`.
    pub fn start(
        program: Program,
        directory: &Arc<TempDir>,
        timeout: Duration,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, Reply> {
        Self::start_with(program, directory, timeout, |command| {
            command.stdin(Stdio::null()).stdout(Stdio::null());
            arguments(command);
        })
    }

    /// Like [`Job::start`], but keeps the program's output.
    pub fn start_keeping_output(
        program: Program,
        directory: &Arc<TempDir>,
        timeout: Duration,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, Reply> {
        let output = File::create(directory.path().join(Self::OUTPUT));
        let output = output.map_err(|error| Reply::temporary_file_error(&error))?;
        Self::start_with(program, directory, timeout, |command| {
            command.stdin(Stdio::null()).stdout(output);
            arguments(command);
        })
    }

    /// Like [`Job::start_keeping_output`], but the program reads its standard input, which
    /// [`Job::write_input`] writes.
    pub fn start_with_input(
        program: Program,
        directory: &Arc<TempDir>,
        timeout: Duration,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, Reply> {
        Self::start_keeping_output(program, directory, timeout, |command| {
            command.stdin(Stdio::piped());
            arguments(command);
        })
    }

    fn start_with(
        program: Program,
        directory: &Arc<TempDir>,
        timeout: Duration,
        arguments: impl FnOnce(&mut Command),
    ) -> Result<Self, Reply> {
        let failed = |error: std::io::Error| {
            Reply::refusal(
                500,
                format!(
                    "{} cannot be run: {error}; install it beside mem_server",
                    program.name()
                ),
            )
        };
        let mut command = Command::new(program.path());
        command
            .current_dir(directory.path())
            .stderr(File::create(directory.path().join("said")).map_err(failed)?);
        arguments(&mut command);
        let mut child = starter::start(command, program.last_signal()).map_err(failed)?;
        Ok(Self {
            input: child.stdin.take(),
            child,
            directory: Arc::clone(directory),
            deadline: Instant::now() + timeout,
            program,
        })
    }

    /// Writes to the program's standard input, and closes it. Errors are ignored: if the program
    /// has ended, its exit is noticed anyway.
    pub fn write_input(&mut self, line: &str) {
        if let Some(mut input) = self.input.take() {
            let _ = input.write_all(line.as_bytes());
        }
    }

    /// Returns the program's directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Waits for `initial_delay`, then polls until the program has exited, and calls `finish` to
    /// make the answer.
    pub fn then(
        self,
        initial_delay: Duration,
        finish: impl FnOnce(&Self) -> Result<Reply, Reply> + Send + 'static,
    ) -> Step {
        self.then_or(initial_delay, finish, |_| None)
    }

    /// Like [`Job::then`], but `finish` may return another step of work.
    pub fn then_next(
        self,
        initial_delay: Duration,
        finish: impl FnOnce(&Self) -> Step + Send + 'static,
    ) -> Step {
        self.wait_step(initial_delay, Box::new(finish), Box::new(|_| None))
    }

    /// Like [`Job::then`], but if the program fails, `on_failure` may make an answer from its
    /// message.
    pub fn then_or(
        self,
        initial_delay: Duration,
        finish: impl FnOnce(&Self) -> Result<Reply, Reply> + Send + 'static,
        on_failure: impl FnOnce(&str) -> Option<Result<Reply, Reply>> + Send + 'static,
    ) -> Step {
        let finish = Box::new(|job: &Self| finish(job).into());
        self.wait_step(initial_delay, finish, Box::new(on_failure))
    }

    fn wait_step(mut self, delay: Duration, finish: Finish, on_failure: OnFailure) -> Step {
        Step::Later(
            delay,
            Box::new(move || match self.poll() {
                None => self.wait_step(POLL_INTERVAL, finish, on_failure),
                Some(Ok(())) => finish(&self),
                Some(Err(Failure::TooLong)) => {
                    Reply::refusal(503, format!("{} takes too long", self.program.name())).into()
                }
                Some(Err(Failure::Message(message))) => on_failure(&message)
                    .unwrap_or_else(|| Err(Reply::refusal(500, message)))
                    .into(),
            }),
        )
    }

    /// Returns how the program has ended; `None` while it runs.
    pub fn poll(&mut self) -> Option<Result<(), Failure>> {
        match self.child.try_wait() {
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(None) if Instant::now() < self.deadline => None,
            Ok(None) => Some(Err(Failure::TooLong)),
            ended => Some(Err(Failure::Message(
                self.error_message(ended.ok().flatten()),
            ))),
        }
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
                    self.program.name()
                ),
                Some(signal) => format!("{} was ended by signal {signal}", self.program.name()),
                None => format!("{} failed", self.program.name()),
            },
            message => message.to_owned(),
        }
    }
}
