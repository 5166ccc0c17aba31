//! If the system gives huge pages to every mapping, small heaps and the agent's own data get none,
//! because the first byte of each would make 2 MiB resident.
//!
//! The agent reads the system's mode from a file of our own, mounted in its place for one process.

use std::fs;
use std::process::Command;

use mem_tests::{Scratch, run};

const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Mappings that may get huge pages, and those that are excluded.
#[derive(Debug, PartialEq, Eq)]
struct Mappings {
    eligible: u32,
    excluded: u32,
}

/// Mappings of a program that has allocated so many MiB, where the file says `mode`.
fn mappings(mode: &str, sampling: Option<&str>, mib: u32) -> Mappings {
    let scratch = Scratch::new();
    let program = scratch.compile("huge_pages.c", &[]);
    let file = scratch.shared().join("enabled");
    fs::write(&file, mode).expect("a file of our own");
    let script = format!("mount --bind \"$1\" {FILE} && LD_PRELOAD=$2 exec \"$3\" {mib}");
    let plain = scratch.preloaded(&program);
    let agent = plain.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
    let agent = agent.and_then(|(_, value)| value).expect("it is preloaded");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, "sh"]);
    command.arg(&file).arg(agent).arg(&program);
    for (name, value) in plain.get_envs() {
        if name != "LD_PRELOAD"
            && let Some(value) = value
        {
            command.env(name, value);
        }
    }
    if let Some(interval) = sampling {
        command.env("MEM_PROFILER_START", interval);
    }
    let text = run(&mut command).stdout;
    let numbers: Vec<u32> = text
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    let [eligible, excluded] = numbers[..] else {
        panic!("two numbers, not {text:?}");
    };
    Mappings { eligible, excluded }
}

#[test]
fn small_heaps_get_none_where_every_mapping_would() {
    for sampling in [None, Some("1024"), Some("1")] {
        let found = mappings("[always] madvise never\n", sampling, 8);
        assert_eq!(found.eligible, 0, "{sampling:?}: {found:?}");
        assert!(found.excluded > 0, "{sampling:?}: {found:?}");
    }
}

#[test]
fn large_heaps_get_some() {
    let found = mappings("[always] madvise never\n", None, 300);
    assert!(found.eligible > 0 && found.excluded > 0, "{found:?}");
}

#[test]
fn nothing_is_excluded_where_no_mapping_would() {
    for mode in ["always [madvise] never\n", "always madvise [never]\n"] {
        assert_eq!(mappings(mode, None, 8).excluded, 0, "{mode}");
    }
}
