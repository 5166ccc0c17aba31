//! `mem_profiler cpu` with the agent's timers: shares and sums, programs that are sensitive to
//! signals, and systems where nothing else is allowed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cpu::{COMPLETE, Read, files, truth};
use mem_tests::timers::{
    BUSY, attached, burn, check, staying, timed_run, wait_for_no_timers, wait_for_timers,
};
use mem_tests::{Scratch, Session, Target, artifacts, run};

/// The kernel checks timers at its tick, and only those of the threads that run then, so samples
/// are further apart on a busy machine. Therefore each function has one turn, and only one end of a
/// turn may misplace the time between two samples: 4 percentage points of 1.5 s are 60 ms. Time
/// after a thread's last sample is not counted.
#[test]
fn timers_find_known_shares() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    for shape in ["two", "deep", "threads"] {
        let outcome = timed_run(&scratch, &program, &["-F", "250"], &["1.5", shape, "1500"]);
        let read = Read::only(&outcome);
        let said = truth(&outcome.stdout);
        check(&read, said["cpu"], BUSY);
        let points = 4.0 + 100.0 * (1.0 - read.sampled() / read.total());
        let found = read.by_function(&program, "part_");
        for (name, ns) in said.iter().filter(|(name, _)| name.starts_with("part_")) {
            let share = 100.0 * found.get(name).unwrap_or(&0.0) / said["cpu"];
            let expected = 100.0 * ns / said["cpu"];
            assert!(
                (share - expected).abs() <= points,
                "{shape} {name}: {share:.2} % for {expected:.2} %, {points:.2} allowed: {found:?} \
                 {said:?}"
            );
        }
    }
}

/// Programs that use signals themselves, fork, start thousands of threads, serve requests, or run
/// on small stacks behave as without us.
#[test]
fn programs_are_undisturbed() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    for (shape, least_sampled) in [
        ("signals", BUSY),
        ("forks", BUSY),
        // Each thread's life is shorter than a period: it is sampled by chance, with half of it.
        ("storm", 0.02),
        ("epoll", BUSY),
        ("stacks", BUSY),
    ] {
        let outcome = timed_run(&scratch, &program, &["-F", "499"], &[shape]);
        assert_eq!(outcome.code, Some(0), "{shape}: {outcome:?}");
        let said = truth(&outcome.stdout);
        let files = files(&outcome);
        let reads = files.iter().map(|file| Read::of(file));
        let read = reads.max_by_key(Read::samples).expect("a profile");
        check(&read, said["cpu"], least_sampled);
        // How much of the time that is depends on the machine: a fork takes as long as it takes.
        let by_function = read.by_function(&program, "site_burn");
        let found = by_function.get("site_burn").copied().unwrap_or(0.0);
        let burnt = said["burnt"];
        // Whether a sample falls into a short thread's work is chance.
        assert!(
            found > 0.8 * least_sampled * burnt || shape == "storm",
            "{shape}: {found} of {burnt}"
        );
    }
}

/// Returns the controller where it may neither open perf events nor trace.
fn unobserving(scratch: &Scratch, filter: &Path) -> Command {
    through(scratch, filter, &[])
}

/// Returns the controller, executed by a program with these arguments.
fn through(scratch: &Scratch, program: &Path, arguments: &[&str]) -> Command {
    let profiler = scratch.profiler();
    let environment = profiler.get_envs();
    let environment = environment.filter_map(|(name, value)| Some((name, value?)));
    let mut command = Command::new(program);
    command.envs(environment).args(arguments);
    command.arg(artifacts::profiler());
    command
}

/// Perf events and ptrace are refused. The agent samples instead, and a message says so. Afterwards
/// the process has no handler any more.
#[test]
fn where_nothing_else_is_allowed_the_agent_samples() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let filter = scratch.compile("unobserving.c", &[]);
    let refused = |pid: u32| attached(&scratch, &mut unobserving(&scratch, &filter), pid);
    let target = staying(&scratch, &program, "stays");
    let session = refused(target.pid());
    burn(target.pid(), 1.0);
    let outcome = session.stop();
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "timers");
    let reason = &read.sampling.fallbacks[0];
    assert!(
        reason.contains("perf events") && reason.contains("agent"),
        "{reason}"
    );
    assert!(outcome.stderr.contains("by timers"), "{outcome:?}");
    read.assert_complete(COMPLETE);
    let (total, process) = (read.total(), read.sampling.process_ns.expect("its clock"));
    assert!(total <= process as f64 * 1.001, "{total} of {process}");
    let sampled = read.sampled();
    assert!(sampled >= BUSY * total, "{sampled} of {total}");
    wait_for_no_timers(target.pid());
    // Without an agent neither way is open.
    let mut command = Command::new(&program);
    command.args(["stays", "wait"]);
    let mut plain = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    assert_eq!(plain.hear(), "ready");
    let mut command = Command::new(&filter);
    command.arg(artifacts::profiler());
    command.args(["cpu", "-s", "1", "-p", &plain.pid().to_string(), "-o"]);
    run(command.arg(scratch.file("q_"))).refused(1, &["was not started with the agent"]);
}

/// Checks the live table if only the agent can sample, and if the agent is requested. It shows the
/// agent's counts as they grow. Afterwards the process is as before.
#[test]
fn top_shows_what_the_agent_counts() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let filter = scratch.compile("unobserving.c", &[]);
    let target = staying(&scratch, &program, "stays");
    let pid = target.pid().to_string();
    let table = |mut command: Command, engine: &[&str]| {
        command.args(["top", "--cpu", "--json", "-F", "250", "--delay", "2s"]);
        let outcome = run(command.args(engine).args(["-p", &pid]));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let table: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        (table, outcome)
    };
    for command in [scratch.profiler(), unobserving(&scratch, &filter)] {
        let is_asked = command.get_program() == artifacts::profiler();
        let engine: &[&str] = if is_asked {
            &["--engine", "timers"]
        } else {
            &[]
        };
        let (table, outcome) = table(command, engine);
        assert_eq!(
            outcome.stderr.contains("by timers"),
            !is_asked,
            "{outcome:?}"
        );
        let all = table["total"]["cpu_seconds"].as_f64().expect("a number");
        let functions = table["functions"].as_array().expect("rows");
        let burnt = functions.iter().find(|row| row["name"] == "site_burn");
        let numbers = &burnt.unwrap_or_else(|| panic!("{table}"))["numbers"];
        let own = numbers["cpu_seconds"].as_f64().expect("a number");
        assert!(
            all > 0.0 && own > BUSY * all && own <= 1.001 * all,
            "{table}"
        );
        wait_for_no_timers(target.pid());
        let listed = run(scratch.profiler().arg("list"));
        assert!(!listed.stdout.contains("kept"), "{listed:?}");
    }
    // While it runs, a table of the heap would show nothing.
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers", "-p", &pid, "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    wait_for_timers(target.pid());
    let mut command = scratch.profiler();
    run(command.args(["top", "--once", "-p", &pid])).refused(1, &["samples CPU time only"]);
    session.stop();
}

/// Filters are installed before the program starts, as in a container. The controller uses a child
/// of its own to find out whether they allow timers, and tells the program. If they do not, only
/// this child is killed.
#[test]
fn under_the_controller_s_own_filters_timers_are_tried_by_a_child_of_it() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let filter = scratch.compile("filtered.c", &[]);
    for (way, is_sampled) in [("allow", true), ("kill", false), ("refuse", false)] {
        let mut command = through(&scratch, &filter, &[way]);
        command.args(["cpu", "run", "--engine", "timers", "-F", "250", "-o"]);
        command.arg(scratch.file(&format!("{way}_"))).arg("--");
        let outcome = run(command.arg(&program).arg("forks"));
        // If nothing could be sampled, the session fails, but not the program.
        let code = if is_sampled { 0 } else { 1 };
        assert_eq!(outcome.code, Some(code), "{way}: {outcome:?}");
        let cpu = truth(&outcome.stdout)["cpu"];
        let files = files(&outcome);
        assert_eq!(!files.is_empty(), is_sampled, "{way}: {outcome:?}");
        let said = "it was started under 2 seccomp filters";
        assert_eq!(outcome.stderr.contains(said), !is_sampled, "{outcome:?}");
        let reads = files.iter().map(|file| Read::of(file));
        if let Some(read) = reads.max_by_key(Read::samples) {
            check(&read, cpu, 0.6);
        }
    }
    // One more filter, of which the controller knows nothing.
    let mut command = through(&scratch, &filter, &["allow"]);
    command.args(["cpu", "run", "--engine", "timers", "-o"]);
    command.arg(scratch.file("more_")).arg("--");
    let outcome = run(command.arg(&filter).arg("allow").arg(&program).arg("forks"));
    // The process that installs the filter may be sampled before, under filters that the controller
    // tried.
    let before = files(&outcome);
    let is_before = |file: &PathBuf| file.to_string_lossy().contains("more_filtered.");
    assert!(
        before.len() <= 1 && before.iter().all(is_before),
        "{outcome:?}"
    );
    assert_eq!(outcome.code, Some(1 - before.len() as i32), "{outcome:?}");
    let said = "it was started under 4 seccomp filters";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
}

/// A running process is sampled under inherited filters if its environment declares that as many
/// filters allow timers. The message of a refusal explains this.
#[test]
fn declared_filters_are_trusted_up_to_their_number() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let filter = scratch.compile("filtered.c", &[]);
    for (said, is_sampled) in [(None, false), (Some("1"), false), (Some("2"), true)] {
        let mut command = scratch.preloaded(&filter);
        if let Some(said) = said {
            command.env("MEM_PROFILER_FILTERS", said);
        }
        command.arg("allow").arg(&program).args(["stays", "wait"]);
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        target.say("go");
        let mut command = scratch.profiler();
        command.args(["cpu", "--engine", "timers", "-s", "1", "-F", "250"]);
        command.args(["-p", &target.pid().to_string(), "-o"]);
        let outcome = run(command.arg(scratch.file("p_")));
        match is_sampled {
            true => assert!(Read::only(&outcome).samples() > 3, "{outcome:?}"),
            false => outcome.refused(1, &["2 seccomp filters", "MEM_PROFILER_FILTERS=2"]),
        }
        burn(target.pid(), 0.05);
    }
}

/// The profile is in the segment, so it does not matter how the process ends.
#[test]
fn a_killed_process_has_its_profile() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let mut target = staying(&scratch, &program, "stays");
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers"]);
    command.args(["-F", "250", "-p", &target.pid().to_string(), "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    wait_for_timers(target.pid());
    burn(target.pid(), 0.5);
    target.kill();
    let read = Read::only(&session.wait());
    let burnt = read.by_function(&program, "site_burn")["site_burn"];
    assert!(burnt > BUSY * read.total(), "{burnt} of {}", read.total());
    assert!(scratch.segments().is_empty(), "{:?}", scratch.segments());
}

/// The session of a killed controller ends by itself, and the process is as before.
#[test]
fn a_killed_controller_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let target = staying(&scratch, &program, "stays");
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers", "-s", "3"]);
    command.args(["-p", &target.pid().to_string(), "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    wait_for_timers(target.pid());
    session.signal(libc::SIGKILL);
    session.wait();
    wait_for_no_timers(target.pid());
    let timers = std::fs::read_to_string(format!("/proc/{}/timers", target.pid()));
    assert_eq!(timers.unwrap_or_default(), "", "no timer is left");
}

/// If the controller and the process are killed, the profile is in the segment, and the next reader
/// writes it to a file.
#[test]
fn the_profile_of_a_dead_process_is_recovered() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let mut target = staying(&scratch, &program, "stays");
    let pid = target.pid().to_string();
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers", "-p", &pid, "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    wait_for_timers(target.pid());
    burn(target.pid(), 0.5);
    session.signal(libc::SIGKILL);
    target.kill();
    session.wait();
    let cleaned = run(scratch.profiler().arg("clean"));
    assert!(
        cleaned.stderr.contains("mem_profiler recover"),
        "{cleaned:?}"
    );
    let listed = run(scratch.profiler().arg("list"));
    assert!(listed.stdout.contains("dead, profile kept"), "{listed:?}");
    let recover = || {
        let mut command = scratch.profiler();
        run(command.args(["recover", "-o"]).arg(scratch.file("r_")))
    };
    let read = Read::only(&recover());
    assert_eq!(read.sampling.engine, "timers");
    assert_eq!(read.sampling.process_ns, None, "nobody read its clock");
    let burnt = read.by_function(&program, "site_burn")["site_burn"];
    assert!(
        burnt > BUSY * 0.5e9 && burnt > 0.9 * read.total(),
        "{burnt}"
    );
    read.assert_complete(COMPLETE);
    assert!(scratch.segments().is_empty(), "{:?}", scratch.segments());
    recover().refused(1, &["nothing to recover"]);
}

/// A program that does not load the agent has no samples, and a message says so.
#[test]
fn a_static_program_is_reported_to_have_no_agent() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &["-static"]);
    let outcome = timed_run(&scratch, &program, &[], &["0.3", "two"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(files(&outcome).is_empty(), "{outcome:?}");
    assert!(
        outcome.stderr.contains("not loaded the agent"),
        "{outcome:?}"
    );
}

/// A program that starts to handle every signal no longer gets ours, keeps its handlers, and
/// continues.
#[test]
fn a_signal_that_the_program_takes_is_its_own() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let mut target = staying(&scratch, &program, "takes");
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers", "-F", "250"]);
    command.args(["-p", &target.pid().to_string(), "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    wait_for_timers(target.pid());
    target.say("take");
    assert_eq!(target.hear(), "taken");
    let said = target.finish_output();
    assert!(said.starts_with("cpu "), "{said}");
    session.wait();
}

/// One session samples the heap and the CPU time of a process, both by its agent.
#[test]
fn both_are_sampled_by_the_agent() {
    let scratch = Scratch::new();
    let program = scratch.compile("timed.cpp", &[]);
    let target = staying(&scratch, &program, "stays");
    let mut command = scratch.profiler();
    command.args(["both", "--engine", "timers", "-s", "1.5", "-c", "4096"]);
    command.args(["-p", &target.pid().to_string(), "-o"]);
    let outcome = run(command.arg(scratch.file("b_")));
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "timers");
    assert!(read.samples() > 3, "{}", read.samples());
    let heap = profile::open(&outcome.dump()).expect("a dump");
    let allocated: i64 = (0..heap.stacks.len()).map(|at| heap.values_of(at)[0]).sum();
    assert!(allocated > 0, "{outcome:?}");
}

/// A process that never allocates does not notice the session. The reason is reported, and no empty
/// profile is written.
#[test]
fn a_process_that_does_not_notice_the_session_is_reported() {
    let scratch = Scratch::new();
    let program = scratch.compile("burn.c", &["-O1"]);
    let mut command = scratch.preloaded(&program);
    command.env("STAYS", "1").stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let mut command = scratch.profiler();
    // As long as it takes to use 0.3 s of CPU time on a busy machine.
    command.args(["cpu", "--engine", "timers", "-s", "5"]);
    command.args(["-p", &target.pid().to_string(), "-o"]);
    run(command.arg(scratch.file("p_"))).refused(1, &["none of its threads has allocated memory"]);
    let mut command = scratch.profiler();
    command.args([
        "top", "--cpu", "--once", "--delay", "5s", "--engine", "timers",
    ]);
    let outcome = run(command.args(["-p", &target.pid().to_string()]));
    let said = "none of its threads has allocated memory";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
}
