//! Programs to capture.

#![allow(dead_code, reason = "each test file uses a part of this module")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capture::{Refusal, Stopped};

pub const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Polls until an event has happened. Panics after [`TEST_TIMEOUT`].
pub fn wait_until(event: &str, mut has_happened: impl FnMut() -> bool) {
    let end = Instant::now() + TEST_TIMEOUT;
    while !has_happened() {
        assert!(Instant::now() < end, "waited {TEST_TIMEOUT:?} for {event}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Compiles a C program or library under a unique name.
pub fn compile(source: &str, flags: &[&str]) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{source}-{}-{number}", std::process::id());
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o"])
        .arg(&output)
        .arg(source)
        .arg("-pthread")
        .args(flags);
    assert!(gcc.status().expect("gcc").success());
    output
}

/// Copies a program to where other users can execute it: they may not be able to enter the build
/// directory.
pub fn open_to_all(program: &Path) -> PathBuf {
    let name = program.file_name().expect("a name").to_string_lossy();
    let copy = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    // Copied by another process: a descriptor open for writing in this one could be inherited by
    // another test's child, and the program could not be executed while that is open (ETXTBSY).
    let status = Command::new("cp").arg(program).arg(&copy).status();
    assert!(status.expect("cp").success());
    copy
}

/// A running program.
pub struct Target {
    pub program: PathBuf,
    pub child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Lines that the program has printed so far.
    pub lines: Vec<String>,
}

/// Counters that `target.c` prints when it finishes.
#[derive(Debug)]
pub struct Outcome {
    /// Result of the call; 0 for success.
    pub result: i64,
    /// Number of `EINTR` results.
    pub interrupted: i64,
    /// Duration of the call, in milliseconds.
    pub ms: i64,
    /// Number of `SIGCHLD` signals.
    pub chld: i64,
    /// Number of calls of `waitpid` that saw a child.
    pub bad: i64,
    /// Number of calls of `waitpid` with `__WALL` that saw a child.
    pub hidden: i64,
    /// Number of signals that the test sent.
    pub usr1: i64,
}

impl Outcome {
    /// Checks that the program noticed nothing of the captures.
    pub fn assert_clean(&self) {
        let counters = (self.result, self.chld, self.bad, self.hidden);
        assert_eq!(counters, (0, 0, 0, 0), "{self:?}");
    }
}

impl Target {
    /// Starts `target.c` with these arguments.
    pub fn start(arguments: &[&str]) -> Self {
        let program = compile("target.c", &[]);
        Self::run(Command::new(&program).args(arguments), program)
    }

    pub fn run(command: &mut Command, program: PathBuf) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut target = Self {
            program,
            child,
            stdin,
            stdout,
            lines: Vec::new(),
        };
        loop {
            let line = target.read_line();
            assert!(!line.is_empty(), "the program ended");
            target.lines.push(line.trim().to_owned());
            if line == "ready\n" {
                return target;
            }
        }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits until the main thread sleeps in the system call of this number.
    pub fn wait_for_call(&self, call: i64) {
        let path = format!("/proc/{}/syscall", self.pid());
        // After a stop, some calls continue as `restart_syscall`.
        let prefixes = [call, libc::SYS_restart_syscall].map(|call| format!("{call} "));
        wait_until("the system call", || {
            let text = std::fs::read_to_string(&path);
            text.is_ok_and(|text| prefixes.iter().any(|prefix| text.starts_with(prefix)))
        });
    }

    pub fn stop(&self) -> Result<Stopped, Refusal> {
        Stopped::stop(self.pid(), Duration::from_secs(10))
    }

    pub fn stop_with_copy(&self) -> Result<(Stopped, Result<capture::Copy, Refusal>), Refusal> {
        Stopped::stop_with_copy(self.pid(), Duration::from_secs(10))
    }

    /// Stops, copies and resumes the program.
    pub fn capture(&self) -> (capture::Copy, capture::Pause) {
        let (stopped, copy) = self.stop_with_copy().expect("stopped");
        (copy.expect("a copy"), stopped.resume())
    }

    /// Makes the program finish, and returns its counters.
    pub fn finish(mut self) -> Outcome {
        // Writing fails if the program has finished already.
        let _ = self.stdin.take().map(|mut stdin| stdin.write_all(b"x"));
        let line = self.read_line();
        let numbers: Vec<i64> = line
            .split_whitespace()
            .skip(1)
            .step_by(2)
            .map(|word| word.parse().unwrap())
            .collect();
        let &[result, interrupted, ms, chld, bad, hidden, usr1] = &numbers[..] else {
            panic!("{line:?}, {:?}", self.child.wait());
        };
        assert!(self.child.wait().expect("an end").success());
        Outcome {
            result,
            interrupted,
            ms,
            chld,
            bad,
            hidden,
            usr1,
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Waits until nothing of the captures is left: the program is not traced, has no children, and
    /// no copy exists.
    pub fn wait_until_released(&self) {
        wait_until("tracing to end", || {
            fields(self.pid(), "TracerPid")
                .iter()
                .all(|tracer| tracer == "0")
        });
        wait_until("the copies to end", || self.other_processes().is_empty());
        wait_until("its children to be reaped", || self.children().is_empty());
    }

    pub fn children(&self) -> Vec<i32> {
        let own = self.pid().to_string();
        let is_child = |pid: i32| fields(pid, "PPid").first() == Some(&own);
        processes().filter(|&pid| is_child(pid)).collect()
    }

    /// Checks that no thread is stopped.
    pub fn assert_runs(&self) {
        let states = self.states();
        let is_stopped = |state: &String| "Tt".contains(&state[..]);
        assert!(!states.iter().any(is_stopped), "{states:?}");
    }

    /// Returns the pids of other processes that run the same program, except for zombies.
    pub fn other_processes(&self) -> Vec<i32> {
        let runs_program = |pid: i32| {
            let program = std::fs::read_link(format!("/proc/{pid}/exe"));
            program.is_ok_and(|program| program == self.program)
        };
        processes()
            .filter(|&pid| pid != self.pid() && runs_program(pid))
            .collect()
    }

    /// Returns the state of each thread, as a letter.
    pub fn states(&self) -> Vec<String> {
        let states = fields(self.pid(), "State");
        states.iter().map(|state| state[..1].to_owned()).collect()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.program);
    }
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the value of a field in the status of each thread.
pub fn fields(pid: i32, name: &str) -> Vec<String> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let value = |path: PathBuf| {
        let text = std::fs::read_to_string(path.join("status")).ok()?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    };
    threads
        .filter_map(|thread| value(thread.ok()?.path()))
        .collect()
}

/// Reads another process's memory.
pub fn memory(pid: i32, address: u64, bytes: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; bytes];
    let file = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    file.read_exact_at(&mut buffer, address).expect("readable");
    buffer
}
