//! CPU profiles in which samples are missing, because nobody reads them, or because the program
//! blocks their signal or forks all the time: the sum is nevertheless the time that the process
//! used, and losses are reported.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cpu::{COMPLETE, Read, files, truth};
use mem_tests::{Outcome, Scratch, Session, Target, artifacts, run, target, wait};

/// CPU time for which the controller may continue, in seconds.
const GOES_ON: f64 = 0.25;

/// Returns the CPU time for which the controller is held up, in seconds. Each processor has a
/// separate ring with room for about 0.1 s of samples, so more than a fifth of all samples are
/// lost, however the threads move between processors.
fn held_up() -> f64 {
    0.5 * std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

/// How often the controller is held up.
const TIMES: f64 = 3.0;

/// Lets a process that works for so many seconds be sampled by a controller that stands still most
/// of the time. On a busy machine this one may come late, and the process may have ended before.
fn hold_up(session: &Session, pid: u32, seconds: f64) {
    let held_up = held_up();
    let reach = |used: f64| {
        wait::until("CPU time", || {
            (target::cpu_seconds(pid) >= used || target::has_ended(pid)).then_some(())
        });
    };
    let mut used = target::cpu_seconds(pid);
    let end = used + seconds - held_up - GOES_ON;
    while used < end && !target::has_ended(pid) {
        // Not by SIGSTOP, which leaves a thread stopped that ptrace has stopped just now.
        session.signal(libc::SIGTSTP);
        reach(used + held_up);
        session.signal(libc::SIGCONT);
        reach(used + held_up + GOES_ON);
        used = target::cpu_seconds(pid);
    }
}

fn lost_share(read: &Read) -> f64 {
    let lost = read.sampling.lost as f64;
    lost / (lost + read.samples() as f64)
}

/// Samples by the kernel's events of processors, and by those of threads, which are all that a
/// process without rights has.
#[test]
fn samples_without_room_cost_no_time() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let rights = ["--bounding-set=-all", "--inh-caps=-all"];
    let seconds = (TIMES * (held_up() + GOES_ON)).ceil();
    for (rights, engine) in [
        (&[][..], "perf"),
        (&rights[..], "perf"),
        (&rights[..], "ptrace"),
    ] {
        let mut command = Command::new("setpriv");
        command.args(rights).arg(&program);
        command.args([&seconds.to_string(), "threads", "200", "wait"]);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped());
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        let mut command = Command::new("setpriv");
        command.args(rights).arg(artifacts::profiler());
        command.args(["cpu", "--engine", engine, "-F", "999"]);
        command.args(["-p", &target.pid().to_string(), "-o"]);
        // The kernel suspends no group that nobody waits for.
        let session = Session::start(command.arg(scratch.file("p_")).process_group(0));
        let directory = format!("/proc/{}/fd", session.pid());
        wait::until("the session to begin", || {
            let files = std::fs::read_dir(&directory).ok()?.flatten();
            let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
            let is_engine = |name: &PathBuf| {
                let name = name.to_string_lossy();
                name.contains("perf_event") || name.ends_with("/schedstat")
            };
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let least = if engine == "perf" { processors } else { 0 };
            (names.filter(is_engine).count() > least).then_some(())
        });
        target.say("go");
        hold_up(&session, target.pid(), seconds - 0.1);
        let cpu = truth(&target.finish_output())["cpu"];
        let read = Read::only(&session.wait());
        let total = read.total();
        assert!((total - cpu).abs() <= 0.02 * cpu, "{total} of {cpu}");
        read.assert_complete(COMPLETE);
        if engine == "perf" {
            let lost = lost_share(&read);
            assert!(lost >= 0.2, "{lost} of the samples are lost");
        }
    }
}

fn timed_run(scratch: &Scratch, program: &Path, shape: &str) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", "timers", "-o"]);
    run(command
        .arg(scratch.file("p_"))
        .arg("--")
        .arg(program)
        .arg(shape))
}

/// A late sample stands for all the time until then.
#[test]
fn a_signal_that_is_blocked_for_a_while_costs_no_time() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let outcome = timed_run(&scratch, &program, "masks");
    let read = Read::only(&outcome);
    let (total, cpu) = (read.total(), truth(&outcome.stdout)["cpu"]);
    assert!((total - cpu).abs() <= 0.02 * cpu, "{total} of {cpu}");
    // In 40 ms, three or four samples arrive as one.
    let lost = lost_share(&read);
    assert!(lost >= 0.2, "{lost} of the samples are lost");
    read.assert_complete(COMPLETE);
}

/// Threads whose samples never arrive are reported, with the reason.
#[test]
fn threads_that_block_the_signal_are_reported() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let outcome = timed_run(&scratch, &program, "deaf");
    let said = &outcome.stderr;
    assert!(
        said.contains("2 threads") && said.contains("block") && said.contains("signal"),
        "{outcome:?}"
    );
}

/// A timer does not run while its thread forks. The time of a fork has its sample nevertheless, and
/// no function of the agent is in that sample.
#[test]
fn a_program_that_forks_all_the_time_is_sampled() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let outcome = timed_run(&scratch, &program, "breeds");
    let cpu = truth(&outcome.stdout)["cpu"];
    let files = files(&outcome);
    let reads = files.iter().map(|file| Read::of(file));
    let read = reads.max_by_key(Read::samples).expect("a profile");
    let (total, sampled) = (read.total(), read.sampled());
    assert!((total - cpu).abs() <= 0.02 * cpu, "{total} of {cpu}");
    assert!(sampled > 0.6 * cpu, "{sampled} of {cpu}");
    read.assert_complete(COMPLETE);
    let is_agent_frame = |id: &u32| {
        let location = &read.profile.locations[*id as usize];
        let module = read.profile.mappings.get(location.mapping as usize);
        module.is_some_and(|module| module.path.ends_with("libmem_agent.so"))
    };
    let inside = read
        .stacks()
        .filter(|(stack, ..)| stack.iter().any(is_agent_frame));
    let inside: f64 = inside.map(|(_, _, ns)| ns as f64).sum();
    assert!(inside < 0.05 * cpu, "{inside} of {cpu}");
}
