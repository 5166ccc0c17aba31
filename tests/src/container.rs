//! Programs in namespaces of their own.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::artifacts;
use crate::scratch::Scratch;
use crate::target::Target;

/// Starts a program in mount and pid namespaces of its own, with its own file system for segments.
pub fn contained(scratch: &Scratch, program: &Path) -> Target {
    // The shell stays as the first process of its namespace. The program that it starts inherits
    // its input.
    let script = r#"
        mount -t tmpfs none "$MEM_PROFILER_DIR" || exit 1
        exec 3<&0
        LD_PRELOAD=$AGENT "$0" <&3 &
        wait $!
    "#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-c", script])
        .arg(program)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .env("AGENT", artifacts::agent())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    target
}

/// Returns the pid of this program in our namespace.
pub fn pid_of(program: &Path) -> u32 {
    let is = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let found: Vec<_> = pids.filter(is).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}
