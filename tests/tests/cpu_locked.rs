//! Users without rights may lock little memory for perf's buffers: the buffers become smaller, or
//! another engine is used. Both are reported, and the numbers are right.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cpu::{COMPLETE, Read, truth};
use mem_tests::{Outcome, Scratch, Session, Target, artifacts, run, wait};

/// Bytes of the smallest buffer.
const SMALLEST: u64 = 128 << 10;

/// A user of this test's own, and programs for it.
struct User {
    scratch: Scratch,
    id: String,
    profiler: PathBuf,
    program: PathBuf,
}

impl User {
    fn new() -> Self {
        let scratch = Scratch::new();
        for (path, mode) in [(scratch.files(), 0o755), (scratch.shared(), 0o1777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
        }
        // The build's directories may be closed to others.
        let profiler = scratch.file("mem_profiler");
        fs::copy(artifacts::profiler(), &profiler).expect("a copy");
        let program = scratch.compile("split.cpp", &[]);
        let id = (100_000 + std::process::id()).to_string();
        Self {
            scratch,
            id,
            profiler,
            program,
        }
    }

    /// Returns a program run by the user, which may lock at most `locked` bytes if that is given.
    fn command(&self, program: &Path, locked: Option<u64>) -> Command {
        let mut command = Command::new("setpriv");
        for kind in ["--reuid", "--regid"] {
            command.arg(format!("{kind}={}", self.id));
        }
        command.args(["--clear-groups", "env"]);
        command.arg(format!(
            "MEM_PROFILER_DIR={}",
            self.scratch.shared().display()
        ));
        if let Some(bytes) = locked {
            command
                .arg("prlimit")
                .arg(format!("--memlock={bytes}:{bytes}"));
        }
        command.arg(program);
        command
    }

    fn target(&self) -> Target {
        let mut command = self.command(&self.program, None);
        command.args(["1.5", "two", "200", "wait"]);
        let mut target = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        assert_eq!(target.hear(), "ready");
        target
    }

    fn session(&self, pid: u32, locked: Option<u64>, options: &[&str]) -> Command {
        let mut command = self.command(&self.profiler, locked);
        command.args(["cpu", "-F", "250", "-p", &pid.to_string(), "-o"]);
        command.arg(self.scratch.shared().join("p_")).args(options);
        command
    }

    /// Samples the program while it works.
    fn sample(&self, locked: u64) -> (Outcome, String) {
        let mut target = self.target();
        let session = Session::start(&mut self.session(target.pid(), Some(locked), &[]));
        begun(&session);
        target.say("go");
        let said = target.finish_output();
        (session.wait(), said)
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Waits until a session samples.
fn begun(session: &Session) {
    let directory = format!("/proc/{}/fd", session.pid());
    wait::until("the session to begin", || {
        let files = fs::read_dir(&directory).ok()?.flatten();
        let names = files.filter_map(|file| fs::read_link(file.path()).ok());
        let names: Vec<_> = names
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        let events = names
            .iter()
            .filter(|name| name.contains("perf_event"))
            .count();
        let is_traced = names.iter().any(|name| name.ends_with("/schedstat"));
        // More than those that own the rings.
        (is_traced || events > processors()).then_some(())
    });
}

/// Checks the total, and the share of the function that uses 70 % of the time.
fn is_right(read: &Read, program: &Path, said: &str) {
    let (said, found) = (truth(said), read.by_function(program, "part_"));
    let (total, cpu) = (read.total(), said["cpu"]);
    assert!((total - cpu).abs() <= 0.02 * cpu, "{total} of {cpu}");
    let share = |of: &dyn Fn(&str) -> f64| of("part_a") / (of("part_a") + of("part_b"));
    let one = share(&|name| found.get(name).copied().unwrap_or(0.0));
    let other = share(&|name| said[name]);
    assert!((one - other).abs() <= 0.08, "{found:?} {said:?}");
    read.assert_complete(COMPLETE);
}

#[test]
fn perf_does_with_what_may_be_locked() {
    let user = User::new();
    let allowed = fs::read_to_string("/proc/sys/kernel/perf_event_mlock_kb").expect("perf events");
    let allowed: u64 = allowed.trim().parse().expect("a number");
    // These sessions use up the memory that a user's processes may lock in addition to their
    // limits.
    let mut sleeper = user.target();
    let sessions = (0..=allowed / 516).map(|_| {
        let session = Session::start(&mut user.session(sleeper.pid(), None, &[]));
        begun(&session);
        session
    });
    let sessions: Vec<_> = sessions.collect();

    let least = processors() as u64 * (SMALLEST + (64 << 10));
    let (outcome, said) = user.sample(least);
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "perf_event", "{outcome:?}");
    let small = "only 128 of 512 KiB may be locked";
    assert!(outcome.stderr.contains(small), "{outcome:?}");
    assert!(read.sampling.fallbacks[0].contains(small), "{outcome:?}");
    is_right(&read, &user.program, &said);

    let (outcome, said) = user.sample(0);
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "ptrace", "{outcome:?}");
    let none = "too little memory may be locked for perf's buffers";
    for text in [&outcome.stderr, &read.sampling.fallbacks[0]] {
        assert!(
            text.contains(none) && text.contains("ulimit -l"),
            "{outcome:?}"
        );
    }
    is_right(&read, &user.program, &said);

    let pid = sleeper.pid();
    let refused = run(&mut user.session(pid, Some(0), &["--engine", "perf"]));
    refused.refused(1, &[none, "perf_event_mlock_kb", "ulimit -l"]);

    sleeper.say("go");
    sleeper.finish_output();
    for session in sessions {
        assert_eq!(session.wait().code, Some(0));
    }
    // Now that nobody else has any, all of it is there again.
    let (outcome, said) = user.sample(0);
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "perf_event", "{outcome:?}");
    is_right(&read, &user.program, &said);
}
