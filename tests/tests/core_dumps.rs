//! Core dumps of profiled processes: as small as without the agent, with the sampled objects in
//! them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use mem_tests::{Scratch, Session, Steps, run};

/// Flags of each mapping in `/proc/PID/smaps`, after its permissions.
fn flags(pid: u32) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("a process of ours");
    let mut mappings = Vec::new();
    let mut access = String::new();
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            mappings.push((access.clone(), flags.to_owned()));
        } else if line.contains('-') {
            access = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
    }
    mappings
}

/// gdb writes inaccessible memory as zeros, unless it is excluded.
#[test]
fn gcore_writes_sampled_objects_and_no_reservation() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 1000");
    session.stop();
    let pid = program.pid();
    let is_dumped = |flags: &str| !flags.split(' ').any(|flag| flag == "dd");
    for (access, flags) in flags(pid) {
        if access.starts_with("rw") {
            assert!(is_dumped(&flags), "{access} {flags}");
        }
    }
    let core = scratch.file("core");
    let outcome = run(Command::new("timeout")
        .args(["120", "gcore", "-o"])
        .arg(&core)
        .arg(pid.to_string()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let written = fs::metadata(format!("{}.{pid}", core.display())).expect("a core");
    assert!(written.len() < 1 << 30, "{} bytes", written.len());
    assert!(written.blocks() > 0);
    program.target.finish_well();
}
