//! Paths of the tools that the script `run` has installed and built.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Directory in shared memory that scratch files, segments among them, go to.
const SHARED_MEMORY: &str = "/dev/shm";

/// Tools that are run, and a temporary directory that is removed on drop.
pub struct Tools {
    target: PathBuf,
    sources: PathBuf,
    scratch: PathBuf,
    /// The compiler proper, without the driver around it.
    pub cc1plus: PathBuf,
}

impl Tools {
    /// Finds the tools under cargo's target directory. Fails with the name of a missing one.
    pub fn find(target: &Path) -> Result<Self> {
        let scratch = Path::new(SHARED_MEMORY).join(format!("mem-bench.{}", std::process::id()));
        std::fs::create_dir(&scratch)
            .with_context(|| format!("cannot make {}", scratch.display()))?;
        let tools = Self {
            target: target.to_owned(),
            sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("programs"),
            scratch,
            cc1plus: PathBuf::from(output("g++", &["-print-prog-name=cc1plus"])?.trim()),
        };
        let needed = [
            tools.agent(),
            tools.controller(),
            tools.jemalloc(),
            tools.jemalloc_profiling(),
            tools.program("micro"),
        ];
        for path in needed {
            ensure!(
                path.exists(),
                "{} is missing: start this with tests/bench/run",
                path.display()
            );
        }
        Ok(tools)
    }

    /// Returns our agent.
    pub fn agent(&self) -> PathBuf {
        self.target.join("release/libmem_agent.so")
    }

    /// Returns our controller.
    pub fn controller(&self) -> PathBuf {
        self.target.join("release/mem_profiler")
    }

    /// Returns the agent's jemalloc alone.
    pub fn jemalloc(&self) -> PathBuf {
        self.target.join("peers/libjemalloc_plain.so")
    }

    /// Returns the path of jemalloc with its own profiler.
    pub fn jemalloc_profiling(&self) -> PathBuf {
        self.target.join("peers/libjemalloc_profiling.so")
    }

    /// Returns memray's interpreter, which has memray.
    pub fn memray_python(&self) -> PathBuf {
        self.target.join("peers/memray/bin/python3")
    }

    /// Returns heaptrack's recorder.
    pub fn heaptrack(&self) -> Result<PathBuf> {
        let found = output("dpkg", &["-S", "libheaptrack_preload.so"])?;
        let path = found.lines().find_map(|line| line.split_once(": "));
        path.map(|(_, path)| PathBuf::from(path))
            .context("heaptrack has no libheaptrack_preload.so")
    }

    /// Returns a compiled program of ours, or a file made for one.
    pub fn program(&self, name: &str) -> PathBuf {
        self.target.join("peers/programs").join(name)
    }

    /// Returns a source among our programs.
    pub fn source(&self, name: &str) -> PathBuf {
        self.sources.join(name)
    }

    /// Returns a path in our own directory.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Returns the directory for the segments of measured agents.
    pub fn segments(&self) -> OsString {
        self.scratch.clone().into_os_string()
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.scratch) {
            eprintln!("cannot remove {}: {error}", self.scratch.display());
        }
    }
}

/// Returns the output of a command.
fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", arguments.join(" "), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
