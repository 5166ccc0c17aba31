//! Package with the shell scripts for boards, unpacked.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::artifacts;
use crate::scratch::Scratch;
use crate::session::{copy_program, tool};

/// Shells in which the POSIX scripts must work.
pub const SHELLS: [&[&str]; 3] = [&["bash"], &["dash"], &["busybox", "sh"]];

/// A directory laid out like the `.tar.xz`.
pub struct Package {
    home: PathBuf,
}

impl Package {
    /// Unpacks the package into a test's directory, under this name. A name with spaces checks the
    /// quotes in the scripts.
    pub fn unpack(scratch: &Scratch, name: &str) -> Self {
        let home = scratch.file(name);
        // For programs of root, an agent that other users cannot read is refused.
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(scratch.files(), everybody).expect("a directory of ours");
        for directory in ["bin", "lib", "share/mem-profiler"] {
            fs::create_dir_all(home.join(directory)).expect("a new directory");
        }
        symlink(artifacts::profiler(), home.join("bin/mem_profiler")).expect("a link");
        symlink(artifacts::parser(), home.join("bin/mem_parser")).expect("a link");
        symlink(artifacts::server(), home.join("bin/mem_server")).expect("a link");
        // A copy, not a link: the loader must find the agent at this path.
        fs::copy(artifacts::agent(), home.join("lib/libmem_agent.so")).expect("a copy");
        let package = Self { home };
        for script in fs::read_dir(sources()).expect("the scripts").flatten() {
            if script.path().extension() != Some("bash".as_ref()) {
                continue;
            }
            let to = package.script(script.file_name().to_str().expect("a name"));
            copy_program(script.path(), &to);
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("a file of ours");
        }
        let setup = home_link(&package.home);
        symlink("share/mem-profiler/setup.bash", setup).expect("a link");
        package
    }

    /// Returns the directory of the package.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the path of the agent.
    pub fn agent(&self) -> PathBuf {
        self.home.join("lib/libmem_agent.so")
    }

    /// Returns the path of a script of the package.
    pub fn script(&self, name: &str) -> PathBuf {
        self.home.join("share/mem-profiler").join(name)
    }

    /// Returns a shell that sources `setup.bash` and continues with a script.
    pub fn shell(&self, scratch: &Scratch, shell: &[&str], script: &str) -> Command {
        let sourced = format!(". \"$MEM_PROFILER_HOME/setup.bash\"\n{script}");
        let mut command = shell_command(scratch, shell);
        command
            .args(["-c", &sourced])
            .env("MEM_PROFILER_HOME", &self.home);
        command
    }
}

/// Returns a directory with busybox's commands, which differ from the system's.
pub fn applets(scratch: &Scratch) -> PathBuf {
    let directory = scratch.file("applets");
    if !directory.exists() {
        fs::create_dir(&directory).expect("a new directory");
        let place = directory.to_str().expect("a path of ours");
        tool("busybox", ["--install", "-s", place]);
        // All commands are links to busybox. Only some builds install `busybox` itself.
        let busybox = fs::read_link(directory.join("sh")).expect("a link");
        let link = directory.join("busybox");
        if fs::symlink_metadata(&link).is_err() {
            symlink(busybox, link).expect("a link");
        }
    }
    directory
}

/// Returns a shell in which the profiler sees this test's processes only. The shell of busybox
/// prefers the commands of busybox.
pub fn shell_command(scratch: &Scratch, shell: &[&str]) -> Command {
    let mut command = Command::new(shell[0]);
    command
        .args(&shell[1..])
        .env("MEM_PROFILER_DIR", scratch.shared())
        .env_remove("LD_PRELOAD")
        .current_dir(scratch.files())
        .stdin(Stdio::null());
    if shell[0] == "busybox" {
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{path}", applets(scratch).display()));
    }
    command
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/board")
}

fn home_link(home: &Path) -> PathBuf {
    home.join("setup.bash")
}
