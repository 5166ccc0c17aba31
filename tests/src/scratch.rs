//! Temporary directories of a test, and the programs compiled into them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use shm_protocol::segment::FILE_PREFIX;
use tempfile::TempDir;

use crate::{artifacts, wait};

/// Directories of one test, which are removed on drop.
pub struct Scratch {
    files: TempDir,
    shared: TempDir,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Makes the directories: one for files, and one in memory for segments.
    pub fn new() -> Self {
        let new = |directory: &Path| {
            tempfile::Builder::new()
                .prefix("mem-tests.")
                .tempdir_in(directory)
        };
        let files = new(&std::env::temp_dir()).expect("a directory for files");
        let shared = new(Path::new("/dev/shm")).expect("a directory in /dev/shm");
        Self { files, shared }
    }

    /// Returns a path in the directory for files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Returns the directory for files.
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// Returns the directory of segments.
    pub fn shared(&self) -> &Path {
        self.shared.path()
    }

    /// Returns the resident memory of the segments, in bytes.
    pub fn shared_bytes(&self) -> u64 {
        let files = self.shared().read_dir().expect("the shared directory");
        let metadata = files.map(|file| file.and_then(|file| file.metadata()));
        metadata
            .map(|file| 512 * file.expect("a segment").blocks())
            .sum()
    }

    /// Compiles a program of `programs/` as released programs are: optimised, without frame
    /// pointers.
    pub fn compile(&self, source: &str, flags: &[&str]) -> PathBuf {
        let name = source.split('.').next().unwrap_or(source);
        self.compile_as(source, name, flags)
    }

    /// Like [`compile`](Self::compile), but gives the program another name.
    pub fn compile_as(&self, source: &str, name: &str, flags: &[&str]) -> PathBuf {
        let path = artifacts::source(source);
        let out = self.file(name);
        let common = ["-O2", "-g", "-fomit-frame-pointer", "-pthread"];
        let mut command = match path.extension().and_then(OsStr::to_str) {
            Some("cpp") => gnu("g++", &["-std=c++20"]),
            Some("c") => gnu("gcc", &["-std=gnu17"]),
            Some("rs") => Command::new("rustc"),
            _ => panic!("{source}: no compiler for this"),
        };
        if command.get_program() == "rustc" {
            command.args([
                "--edition",
                "2024",
                "-O",
                "-g",
                "-C",
                "force-frame-pointers=no",
            ]);
        } else {
            command.args(common);
        }
        command.arg(&path).arg("-o").arg(&out).args(flags);
        let output = command.output().expect("a compiler");
        assert!(
            output.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        fs::canonicalize(out).expect("the program just built")
    }

    /// Returns a command that runs a program with the agent preloaded.
    pub fn preloaded(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", artifacts::agent())
            .env("MEM_PROFILER_DIR", self.shared())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Returns a command that runs the controller, which sees this test's processes only.
    pub fn profiler(&self) -> Command {
        let mut command = Command::new(artifacts::profiler());
        command
            .env("MEM_PROFILER_DIR", self.shared())
            .current_dir(self.files())
            .stdin(Stdio::null());
        command
    }

    /// Returns a command that runs the parser.
    pub fn parser(&self) -> Command {
        let mut command = Command::new(artifacts::parser());
        command.current_dir(self.files()).stdin(Stdio::null());
        command
    }

    /// Returns all segments. Excludes a server's file of histories.
    pub fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.shared()).expect("the shared directory");
        let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
        paths.retain(|path| !path.to_string_lossy().contains("/mem_profiler_history."));
        paths.sort();
        paths
    }

    /// Returns the newest segment of a process.
    pub fn segment(&self, pid: u32) -> Option<PathBuf> {
        let start = format!("{FILE_PREFIX}{pid}.");
        let ours = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&start)
        };
        self.segments().into_iter().rfind(ours)
    }

    /// Returns true if a session is running in a process, according to its segment.
    pub fn is_sampling(&self, pid: u32) -> bool {
        let mut epoch = [0];
        self.segment(pid)
            .and_then(|path| File::open(path).ok())
            .is_some_and(|file| file.read_at(&mut epoch, 0).is_ok_and(|_| epoch != [0]))
    }

    /// Waits until a process is being sampled.
    pub fn wait_for_sampling(&self, pid: u32) {
        wait::until("the session to start", || {
            self.is_sampling(pid).then_some(())
        });
    }
}

fn gnu(compiler: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(compiler);
    command.args(flags);
    command
}
