//! Programs to capture.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capture::{Refusal, Stopped};

pub const PATIENCE: Duration = Duration::from_secs(300);

/// Asks until it is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Compiles a C program or library under a name that is used once.
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

/// Returns a copy that other users reach too: they may not be able to enter the build's directory.
pub fn open_to_all(program: &Path) -> PathBuf {
    let name = program.file_name().expect("a name").to_string_lossy();
    let copy = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    // By another process: what this one has open for writing, another test's child may have open
    // for a moment longer, and it could not be executed.
    let copied = Command::new("cp").arg(program).arg(&copy).status();
    assert!(copied.expect("cp").success());
    copy
}

/// A running program.
pub struct Target {
    pub program: PathBuf,
    pub child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pub said: Vec<String>,
}

/// How its call went.
#[derive(Debug)]
pub struct Outcome {
    pub result: i64,
    pub interrupted: i64,
    pub ms: i64,
    pub chld: i64,
    /// Times that `waitpid` knew of a child.
    pub bad: i64,
    /// The same with `__WALL`.
    pub hidden: i64,
    pub usr1: i64,
}

impl Outcome {
    /// It went as without us.
    pub fn assert_clean(&self) {
        let seen = (self.result, self.chld, self.bad, self.hidden);
        assert_eq!(seen, (0, 0, 0, 0), "{self:?}");
    }
}

impl Target {
    /// `target.c` with these arguments.
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
            said: Vec::new(),
        };
        loop {
            let line = target.hear();
            assert!(!line.is_empty(), "the program ended");
            target.said.push(line.trim().to_owned());
            if line == "ready\n" {
                return target;
            }
        }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits until its first thread sleeps in a system call of this number.
    pub fn until_in(&self, call: i64) {
        let path = format!("/proc/{}/syscall", self.pid());
        // After a stop, some calls continue as another one.
        let wanted = [call, libc::SYS_restart_syscall].map(|call| format!("{call} "));
        until("the system call", || {
            let now = std::fs::read_to_string(&path);
            now.is_ok_and(|text| wanted.iter().any(|wanted| text.starts_with(wanted)))
        });
    }

    pub fn stop(&self) -> Result<Stopped, Refusal> {
        Stopped::stop(self.pid(), Duration::from_secs(10))
    }

    pub fn stop_with_copy(&self) -> Result<(Stopped, Result<capture::Copy, Refusal>), Refusal> {
        Stopped::stop_with_copy(self.pid(), Duration::from_secs(10))
    }

    /// Stops, copies, lets go.
    pub fn capture(&self) -> (capture::Copy, capture::Pause) {
        let (stopped, copy) = self.stop_with_copy().expect("stopped");
        (copy.expect("a copy"), stopped.resume())
    }

    /// Lets it finish.
    pub fn finish(mut self) -> Outcome {
        // One that has finished already does not read.
        let _ = self.stdin.take().map(|mut stdin| stdin.write_all(b"x"));
        let line = self.hear();
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
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Nothing of the capture is left: not stopped, not traced, no child, no copy.
    pub fn until_left_alone(&self) {
        until("tracing to end", || {
            fields(self.pid(), "TracerPid")
                .iter()
                .all(|tracer| tracer == "0")
        });
        until("the copies to end", || self.others().is_empty());
        until("its children to be waited for", || {
            self.children().is_empty()
        });
    }

    pub fn children(&self) -> Vec<i32> {
        let own = self.pid().to_string();
        let is_child = |pid: i32| fields(pid, "PPid").first() == Some(&own);
        processes().filter(|&pid| is_child(pid)).collect()
    }

    /// No thread of it is stopped.
    pub fn assert_runs(&self) {
        let states = self.states();
        let is_stopped = |state: &String| "Tt".contains(&state[..]);
        assert!(!states.iter().any(is_stopped), "{states:?}");
    }

    /// Other processes of the same program, but for zombies.
    pub fn others(&self) -> Vec<i32> {
        let same = |pid: i32| {
            let program = std::fs::read_link(format!("/proc/{pid}/exe"));
            program.is_ok_and(|program| program == self.program)
        };
        processes()
            .filter(|&pid| pid != self.pid() && same(pid))
            .collect()
    }

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

/// Returns a field of each thread's status.
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
