//! Control groups that a test creates, of version 1 or 2, with a limit on memory or processes; and
//! plain files that look like a tree of control groups.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wait;

/// Control group. Removed on drop, once its processes are gone.
pub struct Cgroup {
    directory: PathBuf,
    version: u8,
}

impl Cgroup {
    /// Makes a group with a limit on memory. Needs root, and a writable hierarchy.
    pub fn new(bytes: u64) -> Self {
        let group = Self::controlled_by("memory");
        group.limit_memory(bytes);
        group
    }

    /// Makes a group with a limit on the number of processes.
    pub fn of_processes(count: u64) -> Self {
        let group = Self::controlled_by("pids");
        group.write("pids.max", &count.to_string());
        group
    }

    /// Makes a group that can be frozen.
    pub fn to_freeze() -> Self {
        Self::controlled_by("freezer")
    }

    /// Freezes the processes of the group as long as the result lives.
    pub fn freeze(&self) -> Frozen<'_> {
        self.set_frozen(true);
        let [(file, line), (other, other_line)] =
            [("freezer.state", "FROZEN"), ("cgroup.events", "frozen 1")];
        wait::until("the control group to be frozen", || {
            let read = |name| fs::read_to_string(self.directory.join(name)).unwrap_or_default();
            let is_so = read(file).lines().any(|text| text == line)
                || read(other).lines().any(|text| text == other_line);
            is_so.then_some(())
        });
        Frozen(self)
    }

    fn set_frozen(&self, frozen: bool) {
        match (self.version, frozen) {
            (1, true) => self.write("freezer.state", "FROZEN"),
            (1, false) => self.write("freezer.state", "THAWED"),
            (_, true) => self.write("cgroup.freeze", "1"),
            (_, false) => self.write("cgroup.freeze", "0"),
        }
    }

    fn controlled_by(controller: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mem-tests.{}.{number}", std::process::id());
        let mount = Path::new("/sys/fs/cgroup");
        if mount.join(controller).is_dir() {
            Self::at(mount.join(controller).join(name), 1)
        } else {
            // Switches the controller on for the children, unless that was done already.
            let wanted = format!("+{controller}");
            let _ = fs::write(mount.join("cgroup.subtree_control"), wanted);
            Self::at(mount.join(name), 2)
        }
    }

    /// Sets the limit on memory.
    pub fn limit_memory(&self, bytes: u64) {
        let limit = ["memory.limit_in_bytes", "memory.max"][usize::from(self.version - 1)];
        self.write(limit, &bytes.to_string());
    }

    /// Returns the number of bytes that the processes of the group have in use.
    pub fn memory(&self) -> u64 {
        let file = ["memory.usage_in_bytes", "memory.current"][usize::from(self.version - 1)];
        let text = fs::read_to_string(self.directory.join(file)).expect("our group");
        text.trim().parse().expect("a number")
    }

    fn at(directory: PathBuf, version: u8) -> Self {
        fs::create_dir(&directory).unwrap_or_else(|error| {
            panic!(
                "{}: {error}: this test needs a control group",
                directory.display()
            )
        });
        Self { directory, version }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.directory.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Returns the path in the form that `--cgroup` takes.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Makes a command start inside the group.
    pub fn put(&self, command: &mut Command) {
        let path = self.directory.join("cgroup.procs");
        let procs = File::options().write(true).open(path).expect("our group");
        let enter = move || {
            // SAFETY: one write of a text that is there, to a file that is open.
            match unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) } {
                1 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: `enter` is async-signal-safe: one system call.
        unsafe { command.pre_exec(enter) };
    }

    /// Returns the number of processes of the group that the OOM killer has killed.
    pub fn kills(&self) -> u64 {
        let file = ["memory.oom_control", "memory.events"][usize::from(self.version - 1)];
        let text = fs::read_to_string(self.directory.join(file)).expect("our group");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|n| n.trim().parse().ok()).expect("a count")
    }
}

/// Frozen control group. Thawed on drop, because frozen processes cannot be killed.
pub struct Frozen<'a>(&'a Cgroup);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.set_frozen(false);
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Exited processes leave the group a moment later.
        if !std::thread::panicking() {
            wait::until("the control group to be empty", || {
                fs::remove_dir(&self.directory).ok()
            });
        } else if let Ok(mut file) = File::create(self.directory.join("cgroup.kill")) {
            let _ = file.write_all(b"1");
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

/// Returns a command that sees a tree of control groups of version 2, made of plain files, whatever
/// this machine has. The process is in the group `/box/app`, and `/box` has the limit.
#[must_use]
pub fn with_version_2(pid: u32, tree: &Path, mut command: Command) -> Command {
    let script = r#"
        echo "0::/box/app" >"$TREE/of_process"
        mount --bind "$TREE" /sys/fs/cgroup && mount --bind "$TREE/of_process" "/proc/$PID/cgroup" &&
            exec "$0" "$@"
    "#;
    let mut outer = Command::new("unshare");
    outer.args(["--mount", "sh", "-c", script]);
    outer.arg(command.get_program());
    command.args(["-p", &pid.to_string()]);
    outer.args(command.get_args());
    outer.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    outer.env("TREE", tree).env("PID", pid.to_string());
    outer.current_dir(command.get_current_dir().expect("the test's directory"));
    outer.stdin(Stdio::null());
    outer
}
