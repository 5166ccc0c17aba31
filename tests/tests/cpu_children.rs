//! `mem_profiler cpu` by the agent's own timers, in children and in programs that a process
//! executes.

use std::path::Path;

use mem_tests::cpu::{COMPLETE, Read, files, truth};
use mem_tests::timers::{BUSY, burn, check, timed_run, wait_for_timers};
use mem_tests::{Scratch, Session, Target, run, wait};

/// The parent only forks; its children, and theirs, work and never allocate. The session continues
/// in each, from the first instruction.
#[test]
fn children_that_never_allocate_carry_on_the_session() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let outcome = timed_run(&scratch, &program, &["-F", "250"], &["family"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut said = truth(&outcome.stdout);
    said.retain(|name, _| name.parse::<u32>().is_ok());
    assert_eq!(said.len(), 12, "{outcome:?}");
    let (mut all, mut all_sampled, mut all_burnt) = (0.0, 0.0, 0.0);
    for file in files(&outcome) {
        let read = Read::of(&file);
        let pid = read.profile.facts.pid.expect("a pid").to_string();
        let Some(cpu) = said.remove(&pid) else {
            continue;
        };
        // They end by `_exit`, and their parents reap them at once. Timers are looked at with the
        // kernel's ticks, of which one process may meet few where there are more than processors
        // (one in 500 had samples of a third of its time): what is sampled is asked of all
        // together.
        let (total, sampled) = (read.total(), read.sampled());
        assert!((total - cpu).abs() <= 0.02 * cpu, "{pid}: {total} of {cpu}");
        all += cpu;
        all_sampled += sampled;
        all_burnt += read.by_function(&program, "site_burn")["site_burn"];
        read.assert_complete(COMPLETE);
    }
    assert!(all_sampled >= BUSY * all, "{all_sampled} of {all}");
    assert!(all_burnt >= BUSY * all, "{all_burnt} of {all}");
    assert!(said.is_empty(), "no profile of {said:?}: {outcome:?}");
}

/// The CPU time of a child that shares or still runs in a copy of its parent's memory does not
/// count for the parent.
#[test]
fn children_that_no_handler_has_seen_have_their_own_clocks() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let outcome = timed_run(&scratch, &program, &["-F", "250"], &["strangers"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    check(&Read::only(&outcome), truth(&outcome.stdout)["cpu"], 0.0);
}

/// A child shares its parent's memory until it executes a program. Changes of its own signals and
/// filters end no session in the parent.
#[test]
fn children_in_their_parent_s_memory_leave_its_timers_alone() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let outcome = timed_run(&scratch, &program, &["-F", "250"], &["guests"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let said = truth(&outcome.stdout);
    let files = files(&outcome);
    let reads = files.iter().map(|file| Read::of(file));
    let read = reads.max_by_key(Read::samples).expect("a profile");
    // If the session ended with the first child, the share would be a twentieth.
    check(&read, said["cpu"], 0.3);
}

/// Each program that a process executes has its own profile, even if segments have the names of
/// earlier ones and, on a disk, their inodes.
#[test]
fn each_program_that_a_process_executes_has_a_profile() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let room = scratch.file("room");
    std::fs::create_dir(&room).expect("a directory");
    let mut command = scratch.profiler();
    command.env("MEM_PROFILER_DIR", &room);
    command.args(["cpu", "run", "--engine", "timers", "-F", "250", "-o"]);
    command.arg(scratch.file("p_")).arg("--").arg(&program);
    let outcome = run(command.arg("again8"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let files = files(&outcome);
    assert_eq!(files.len(), 8, "{outcome:?}");
    let reads: Vec<Read> = files.iter().map(|file| Read::of(file)).collect();
    assert!(reads.iter().all(|read| read.samples() > 0), "{outcome:?}");
    // Time that one program used after its last sample may count for the next one.
    let total: f64 = reads.iter().map(Read::total).sum();
    assert!(total >= 0.95 * 8.0 * 0.15e9, "{total}: {outcome:?}");
    let left = std::fs::read_dir(&room).expect("the directory").count();
    assert_eq!(left, 0, "{outcome:?}");
}

/// A program with the agent executes one without it. The session waits for the process, and knows
/// its time.
#[test]
fn a_program_without_an_agent_ends_no_session() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let command = format!("exec env -u LD_PRELOAD {} 0.5 two", program.display());
    let outcome = timed_run(&scratch, Path::new("sh"), &["-F", "10"], &["-c", &command]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let said = outcome.stderr.split_once(" without a sample (");
    let ns = said.and_then(|(_, rest)| rest.split_once(" of CPU time"));
    let (time, _) = ns.expect("a time");
    let ms = match time.strip_suffix(" ms") {
        Some(ms) => ms.parse::<f64>(),
        None => time.trim_end_matches(" s").parse().map(|s: f64| 1000.0 * s),
    };
    assert!(ms.expect("a number") >= 480.0, "{outcome:?}");
}

/// A shell that executes the program at once has created its segment in the same tick of the clock.
/// The order of the two segments must not depend on the tick.
#[test]
fn a_program_that_a_shell_executes_at_once_is_sampled_to_its_end() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let command = format!("exec {} 0.3 two", program.display());
    // Half of them have a tick for both.
    for _ in 0..10 {
        let outcome = timed_run(&scratch, Path::new("sh"), &[], &["-c", &command]);
        let read = Read::only(&outcome);
        let cpu = truth(&outcome.stdout)["cpu"];
        let total = read.total();
        assert!(total >= 0.9 * cpu, "{total} of {cpu}: {outcome:?}");
    }
}

/// A session of a running process is for this process alone. Its children have neither timers nor a
/// handler, as they can check.
#[test]
fn children_of_an_attached_process_are_as_they_would_be() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let mut command = scratch.preloaded(&program);
    command.args(["forks", "wait"]);
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers", "-F", "250"]);
    command.args(["-p", &target.pid().to_string(), "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    wait::until("the session", || {
        let listed = run(scratch.profiler().arg("list"));
        listed.stdout.contains("sampling").then_some(())
    });
    target.say("go");
    let said = target.finish_output();
    assert!(said.starts_with("cpu "), "{said}");
    assert!(Read::only(&session.wait()).samples() > 0);
}

/// After an attached process executes another program, it takes no more samples, and a message says
/// so.
#[test]
fn an_attached_process_that_executes_another_program_is_reported() {
    let scratch = Scratch::new();
    let sign = scratch.file("sign");
    let mut command = scratch.preloaded("/bin/sh");
    let script = "while [ ! -e \"$0\" ]; do i=$((i+1)); done; exec sleep 1000";
    let mut target = Target::start(command.args(["-c", script]).arg(&sign));
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers", "-p"]);
    command.arg(target.pid().to_string());
    let session = Session::start(command.arg("-o").arg(scratch.file("p_")));
    wait_for_timers(target.pid());
    burn(target.pid(), 0.3);
    std::fs::write(&sign, "").expect("a file");
    let outcome = session.wait();
    let said = "has executed another program, and its timers are gone";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    assert!(Read::only(&outcome).samples() > 0);
    target.kill();
}
