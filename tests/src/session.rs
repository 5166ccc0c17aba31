//! Runs the controller and the parser.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use profile::Profile;

use crate::scratch::Scratch;
use crate::wait;

/// Exit and output of a command.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Returns the dumps that the controller has printed, in order.
    pub fn dumps(&self) -> Vec<PathBuf> {
        let dump = |line: &str| {
            let end = line.find(".heap")? + ".heap".len();
            Some(PathBuf::from(&line[..end]))
        };
        self.stdout.lines().filter_map(dump).collect()
    }

    /// Returns the only dump of a session that must have succeeded.
    pub fn dump(&self) -> PathBuf {
        assert_eq!(self.code, Some(0), "{self:?}");
        let dumps = self.dumps();
        assert_eq!(dumps.len(), 1, "{self:?}");
        dumps.into_iter().next().expect("one")
    }

    /// Reads the only dump.
    pub fn profile(&self) -> Profile {
        profile::open(&self.dump()).expect("a dump that can be read")
    }

    /// Reads the only dump of a process whose children may have dumps, too.
    pub fn profile_of(&self, pid: u32) -> Profile {
        assert_eq!(self.code, Some(0), "{self:?}");
        let pid_part = format!(".{pid}.");
        let mut dumps = self.dumps();
        dumps.retain(|dump| dump.to_string_lossy().contains(&pid_part));
        assert_eq!(dumps.len(), 1, "{pid}: {self:?}");
        profile::open(&dumps[0]).expect("a dump that can be read")
    }

    /// Checks that the command failed with this code and printed all of these texts.
    pub fn refused(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in said {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
        }
    }
}

/// Running command.
pub struct Session {
    child: Child,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<String>,
}

impl Session {
    /// Starts a command. Collects its output.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        Self {
            child,
            stdout,
            stderr,
        }
    }

    /// Starts a session without a fixed end in one process, and waits until it samples.
    pub fn of(scratch: &Scratch, pid: u32, interval: &str) -> Self {
        let prefix = scratch.file("prof_");
        let args = ["-c", interval, "-p", &pid.to_string(), "-o"];
        let session = Self::start(scratch.profiler().args(args).arg(prefix));
        scratch.wait_for_sampling(pid);
        session
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the command.
    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, not yet waited for.
        let sent = unsafe { libc::kill(self.pid() as i32, signal) };
        assert_eq!(sent, 0, "the command cannot be signalled");
    }

    /// Returns true if the command has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Ends the command as Ctrl-C does.
    pub fn stop(self) -> Outcome {
        self.signal(libc::SIGINT);
        self.wait()
    }

    /// Waits until the command exits.
    pub fn wait(mut self) -> Outcome {
        let child = &mut self.child;
        let status = wait::until("a command to end", || child.try_wait().expect("a child"));
        Outcome {
            code: status.code(),
            stdout: self.stdout.join().expect("readable output"),
            stderr: self.stderr.join().expect("readable output"),
        }
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Outcome {
    Session::start(command).wait()
}

/// Runs a tool that must succeed. Returns its output.
pub fn tool<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> String {
    let mut command = Command::new(program);
    let outcome = run(command.args(args).stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{command:?}: {outcome:?}");
    outcome.stdout
}

/// Copies a file that is to be executed, in a process of its own. A file cannot be executed while
/// it is open for writing, and a file that this process opened may stay open a moment longer in a
/// child of another thread.
pub fn copy_program(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    tool("cp", [from.as_ref(), to.as_ref()]);
}

/// Writes an executable file, in a process of its own, too (see [`copy_program`]).
pub fn write_program(path: &Path, bytes: &[u8]) {
    let mut command = Command::new("sh");
    command
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("a shell");
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(bytes).expect("a shell that reads");
    drop(pipe);
    assert!(child.wait().expect("a child").success(), "{command:?}");
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    let mut pipe = pipe.expect("a pipe");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a readable pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
