//! Support for the end-to-end tests: a private directory, processes that end with the test, and
//! waiting for conditions with a deadline.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Maximum time to wait for a condition.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Shared directory and output directory of one test.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        // In /dev/shm, so that segments are on a tmpfs, as usual.
        let dir = tempfile::Builder::new()
            .prefix("mem_controller_test.")
            .tempdir_in("/dev/shm");
        let place = Self { dir: dir.unwrap() };
        std::fs::create_dir(place.shm()).unwrap();
        std::fs::create_dir(place.out()).unwrap();
        place
    }

    pub fn shm(&self) -> PathBuf {
        self.dir.path().join("shm")
    }

    pub fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    pub fn prefix(&self) -> String {
        self.out().join("p_").to_str().unwrap().to_owned()
    }

    /// Starts a `fake_agent` and waits until it is ready.
    pub fn fake(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(example("fake_agent"));
        command.args(arguments).env("MEM_PROFILER_DIR", self.shm());
        ready(&mut command)
    }

    /// Starts a program with the real agent.
    pub fn preload(&self, program: &Path, arguments: &[&str]) -> Process {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LD_PRELOAD", agent())
            .env("MEM_PROFILER_DIR", self.shm())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = Process(command.spawn().unwrap());
        let prefix = format!("mem_profiler.{}.", process.pid());
        wait_for("its segment", || {
            self.segments().iter().any(|name| name.starts_with(&prefix))
        });
        process
    }

    pub fn profiler(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mem_profiler"));
        command
            .args(arguments)
            .env("MEM_PROFILER_DIR", self.shm())
            .stdin(Stdio::null());
        command
    }

    /// Runs `mem_profiler` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.profiler(arguments).output().unwrap())
    }

    /// Starts `mem_profiler`.
    pub fn spawn(&self, arguments: &[&str]) -> Process {
        let mut command = self.profiler(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    /// Returns the names of the segments, sorted.
    pub fn segments(&self) -> Vec<String> {
        names(&self.shm())
    }

    /// Returns the names of the dumps, sorted.
    pub fn dumps(&self) -> Vec<String> {
        names(&self.out())
    }

    /// Returns the first byte of a process's segment: the current epoch.
    pub fn epoch(&self, pid: u32) -> u8 {
        use std::os::unix::fs::FileExt;
        let name = format!("mem_profiler.{pid}.");
        let found = self.segments().into_iter().find(|s| s.starts_with(&name));
        let mut byte = [0];
        if let Some(name) = found {
            let file = std::fs::File::open(self.shm().join(name)).unwrap();
            file.read_exact_at(&mut byte, 0).unwrap();
        }
        byte[0]
    }
}

/// Starts a `fake_agent`, and waits until it is ready.
pub fn ready(command: &mut Command) -> Process {
    let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    process
}

pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub fn example(name: &str) -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_mem_profiler"));
    let built = binary.parent().unwrap().join("examples").join(name);
    assert!(
        built.exists(),
        "cargo test -p mem-controller, whole, builds {name}"
    );
    built
}

/// Returns the agent: `MEM_AGENT_LIB`, or the one built next to `mem_profiler` or in release.
pub fn agent() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_mem_profiler"));
    let directory = binary.parent().unwrap();
    let named = std::env::var_os("MEM_AGENT_LIB").map(PathBuf::from);
    let built = [
        directory.join("libmem_agent.so"),
        directory.join("../release/libmem_agent.so"),
    ];
    let found = named
        .into_iter()
        .chain(built)
        .find_map(|place| place.canonicalize().ok());
    found.expect("build the agent first (cargo build -p mem-agent), or set MEM_AGENT_LIB")
}

/// Copies a file into a new directory that all users can access, unlike the build directory. The
/// copy is removed with the directory.
pub fn open_to_all(file: &Path) -> (tempfile::TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o755);
    let mut builder = tempfile::Builder::new();
    let directory = builder.permissions(open).tempdir().unwrap();
    let copy = directory.path().join(file.file_name().unwrap());
    // Copied by another process: a file that this process has open for writing may stay open in
    // another test's child for a moment, and could not be executed.
    let copied = Command::new("cp").arg(file).arg(&copy).status();
    assert!(copied.unwrap().success());
    (directory, copy)
}

/// Finds an installed program by its possible names.
pub fn program(names: &[&str]) -> PathBuf {
    let directories = ["/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin"].map(Path::new);
    let all = names.iter().flat_map(|name| {
        directories
            .iter()
            .map(move |directory| directory.join(name))
    });
    let found = all.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{names:?} is not installed, and this test needs it"))
}

/// Process that does not outlive its test.
pub struct Process(pub Child);

impl Process {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// Waits for the end of the process.
    pub fn end(mut self) -> Ran {
        use std::io::Read;
        let mut out = String::new();
        let mut err = String::new();
        self.0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        Ran {
            code: self.0.wait().unwrap().code(),
            out,
            err,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Exit code and output of a program.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts success and returns the lines of stdout before the last.
    #[track_caller]
    pub fn succeeded(&self) -> Vec<&str> {
        assert_eq!(self.code, Some(0), "{self:?}");
        let mut lines: Vec<&str> = self.out.lines().collect();
        assert_eq!(
            lines.pop(),
            Some("succeeded in collecting memory data!"),
            "{self:?}"
        );
        lines
    }

    /// Asserts exit code 1 and a message with all these parts.
    #[track_caller]
    pub fn failed_saying(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in {self:?}");
        }
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < end, "waited without success: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
