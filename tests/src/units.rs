//! Rights that a unit of systemd leaves a service, and a command that runs another one with its
//! system calls and capabilities alone.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::package::Package;
use crate::scratch::Scratch;
use crate::session::{copy_program, tool};

/// Returns the values of a key of a unit's text, one after the other.
pub fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(name, _)| *name == key)
        .flat_map(|(_, value)| value.split_ascii_whitespace())
        .collect()
}

/// Returns the names of the system calls in one of systemd's sets, and in the sets that it
/// includes.
pub fn calls_of(set: &str) -> Vec<String> {
    let listed = tool("systemd-analyze", ["syscall-filter", set]);
    let names = listed
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'));
    let mut calls = Vec::new();
    for name in names.skip(1).filter(|name| !name.is_empty()) {
        if name.starts_with('@') {
            calls.extend(calls_of(name));
        } else {
            calls.push(name.to_owned());
        }
    }
    calls
}

/// Returns the option of `setpriv` with which root keeps only the capabilities that a unit allows.
pub fn capabilities(unit: &str) -> String {
    let kept = values(unit, "CapabilityBoundingSet");
    assert!(!kept.is_empty(), "the unit has no set of capabilities");
    let kept = kept
        .iter()
        .map(|name| name.to_lowercase().replace("cap_", ",+"));
    format!("--bounding-set=-all{}", kept.collect::<String>())
}

/// Returns a command that runs the command appended to it with the rights that a unit allows. As
/// with systemd, a system call that is not permitted kills the process.
pub fn confined(scratch: &Scratch, unit: &str) -> Command {
    let permitted = values(unit, "SystemCallFilter");
    assert!(!permitted.is_empty(), "the unit has no filter");
    let mut source = String::from(FILTER_BEGIN);
    for name in permitted {
        let calls = if name.starts_with('@') {
            calls_of(name)
        } else {
            vec![name.to_owned()]
        };
        for call in calls {
            // Not every architecture has every call.
            let _ = writeln!(source, "#ifdef SYS_{call}\n    PERMIT(SYS_{call})\n#endif");
        }
    }
    source.push_str(FILTER_END);
    let (file, program) = (scratch.file("confined.c"), scratch.file("confined"));
    fs::write(&file, source).expect("a file");
    let [file, path] = [&file, &program].map(|path| path.to_str().expect("a path of ours"));
    tool("gcc", ["-O1", "-o", path, file]);
    let mut command = Command::new("setpriv");
    command
        .args(["--no-new-privs", &capabilities(unit)])
        .arg(program);
    command
}

/// Returns a command that runs a copy of a system program, under another name, with the agent and
/// as a user other than root.
pub fn another_users(scratch: &Scratch, package: &Package, system: &str, name: &str) -> Command {
    let program = scratch.file(name);
    copy_program(system, &program);
    let files = scratch.files().display().to_string();
    tool("chmod", ["-R", "a+rx", &files]);
    tool("chmod", ["1777", &scratch.shared().display().to_string()]);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "env"]);
    command.arg(format!("LD_PRELOAD={}", package.agent().display()));
    command.env("MEM_PROFILER_DIR", scratch.shared());
    command.arg(program);
    command
}

const FILTER_BEGIN: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define PERMIT(CALL) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALL, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
"#;

const FILTER_END: &str = r#"
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

int main(int argc, char **argv)
{
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (argc < 2 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("confined");
        return 127;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
"#;
