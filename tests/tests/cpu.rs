//! `mem_profiler cpu` on real programs: shares, sums and complete stacks, with each engine.
//!
//! Shares do not depend on luck. `split` works in turns that are long against the time between
//! samples, and says itself what each function took; a sample is misplaced by at most the time
//! since the last one, where a turn ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cpu::{COMPLETE, COMPLETE_DEEP, Read, truth, waiting_split};
use mem_tests::{Outcome, Scratch, Session, Target, run, wait};

/// Returns by how many percentage points shares may be off because of time without samples. The
/// time of lost samples is assigned to the samples near them.
fn missing(read: &Read) -> f64 {
    let (lost, samples) = (read.sampling.lost as f64, read.samples() as f64);
    100.0 * (lost / samples + 1.0 - read.sampled() / read.total())
}

/// Checks the shares of functions, in points, and the sum.
fn check_split(read: &Read, program: &Path, said: &BTreeMap<String, f64>, points: f64) {
    let found = read.by_function(program, "part_");
    let parts = |of: &BTreeMap<String, f64>| -> f64 {
        let parts = of.iter().filter(|(name, _)| name.starts_with("part_"));
        parts.map(|(_, ns)| ns).sum()
    };
    let (all_found, all_said) = (parts(&found), parts(said));
    let points = points + missing(read);
    for (name, ns) in said.iter().filter(|(name, _)| name.starts_with("part_")) {
        let share = 100.0 * found.get(name).unwrap_or(&0.0) / all_found;
        let expected = 100.0 * ns / all_said;
        assert!(
            (share - expected).abs() <= points,
            "{name}: {share:.2} % for {expected:.2} %, {points:.2} allowed: {found:?} {said:?}"
        );
    }
    let cpu = said["cpu"];
    let (total, process) = (
        read.total(),
        read.sampling.process_ns.expect("its clock") as f64,
    );
    assert!(
        (total - process).abs() <= 0.001 * process,
        "{total} {process}"
    );
    assert!((total - cpu).abs() <= 0.02 * cpu, "{total} of {cpu}");
}

/// Runs `split` from its first instruction on.
fn sampled_run(scratch: &Scratch, program: &Path, options: &[&str], arguments: &[&str]) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "-o"]).arg(scratch.file("p_"));
    run(command.args(options).arg("--").arg(program).args(arguments))
}

/// At 999 Hz, samples are one millisecond apart. At most two turns of 200 ms end in each function:
/// one percentage point, for two processors.
#[test]
fn perf_finds_known_shares() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    for shape in ["two", "four", "deep", "threads"] {
        let options = ["--engine", "perf", "-F", "999"];
        let outcome = sampled_run(&scratch, &program, &options, &["1.5", shape]);
        let read = Read::only(&outcome);
        assert_eq!(read.sampling.engine, "perf_event");
        check_split(&read, &program, &truth(&outcome.stdout), 2.0);
        read.assert_complete(if shape == "deep" {
            COMPLETE_DEEP
        } else {
            COMPLETE
        });
    }
}

/// On a busy machine, rounds may be so late that a whole turn is misplaced: with two seconds, one
/// turn of each function.
#[test]
fn ptrace_finds_known_shares() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let options = ["--engine", "ptrace", "-F", "250"];
    let outcome = sampled_run(&scratch, &program, &options, &["3", "two", "3000"]);
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "ptrace");
    assert!(read.sampling.kernel_hidden.is_some());
    check_split(&read, &program, &truth(&outcome.stdout), 5.0);
    read.assert_complete(COMPLETE);
}

/// Starts a session in a process, and waits until it samples: its events are open.
fn attached(scratch: &Scratch, pid: u32, options: &[&str]) -> Session {
    let mut command = scratch.profiler();
    command
        .args(["cpu", "-p", &pid.to_string(), "-o"])
        .arg(scratch.file("p_"));
    let session = Session::start(command.args(options));
    let directory = format!("/proc/{}/fd", session.pid());
    wait::until("the session to begin", || {
        let files = std::fs::read_dir(&directory).ok()?;
        let names = files
            .flatten()
            .filter_map(|f| std::fs::read_link(f.path()).ok());
        let is_engine = |name: &PathBuf| {
            let name = name.to_string_lossy();
            name.contains("perf_event") || name.ends_with("/schedstat")
        };
        // More than those that own the rings.
        (names.filter(is_engine).count()
            > std::thread::available_parallelism().map_or(1, usize::from))
        .then_some(())
    });
    session
}

/// With 200 sleeping threads and two running ones, each engine samples only the running ones, and
/// the session ends with the process. Samples of processors divide the time that was used in a
/// tenth of a second, so a turn that ends within it may get too much if the machine's host took a
/// processor away.
#[test]
fn sleepers_are_left_alone() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    for (engine, points) in [("perf", 4.0), ("ptrace", 8.0)] {
        let mut target = waiting_split(&program, &["1.5", "idle", "1500", "wait"]);
        let session = attached(&scratch, target.pid(), &["--engine", engine, "-F", "499"]);
        target.say("go");
        let said = target.finish_output();
        let read = Read::only(&session.wait());
        check_split(&read, &program, &truth(&said), points);
        read.assert_complete(COMPLETE);
        // The two, and the first one, which started and joins them. That the others wake up in the
        // end may be seen where processors are sampled.
        assert!(
            engine == "perf" || read.profile.facts.threads.len() <= 3,
            "{:?}",
            read.profile.facts.threads
        );
    }
}

/// Threads run side by side, each in its own function. The result depends neither on the order in
/// which the samples of processors arrive, nor on turns that keep time with the samples. The time
/// that a thread used at its end, after its clock was last read, is known from its samples: a tenth
/// of a second, more on a busy machine.
#[test]
fn threads_side_by_side_have_their_own_time() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut target = waiting_split(&program, &["3", "threads", "3000", "wait"]);
    let session = attached(&scratch, target.pid(), &["--engine", "perf", "-F", "499"]);
    target.say("go");
    let said = target.finish_output();
    let read = Read::only(&session.wait());
    check_split(&read, &program, &truth(&said), 3.0);
    read.assert_complete(COMPLETE);
}

/// Returns the priority of a process's first thread.
fn nice(pid: u32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let nice = fields.split_whitespace().nth(16);
    nice.and_then(|nice| nice.parse().ok()).expect("a number")
}

/// Returns the output of `nice`, started by this command.
fn nice_of(command: &mut Command) -> i32 {
    run(command).stdout.trim().parse().expect("a number")
}

/// The sampled program may occupy all processors with hundreds of threads. The collector of samples
/// runs before them, unless it was made nice. A program that it starts keeps its own priority.
#[test]
fn samples_are_collected_before_others_have_their_turn() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut target = waiting_split(&program, &["0.1", "two", "100", "wait"]);
    let session = attached(&scratch, target.pid(), &["--engine", "perf"]);
    // If this test may raise its priority, the session may, too.
    let own = nice(std::process::id());
    let raised = format!("{}", -10 - own);
    let expected = match own {
        -9..=0 => nice_of(Command::new("nice").args(["-n", &raised, "nice"])),
        _ => own,
    };
    assert_eq!(nice(session.pid()), expected);
    target.say("go");
    target.finish_output();
    Read::only(&session.wait());
    for engine in ["perf", "ptrace"] {
        let mut command = scratch.profiler();
        command.args(["cpu", "run", "--engine", engine, "-o"]);
        command.arg(scratch.file("n_")).args(["--", "nice"]);
        assert_eq!(nice_of(&mut command), own, "{engine}");
        let mut command = Command::new("nice");
        command
            .args(["-n", "5"])
            .arg(scratch.profiler().get_program());
        command.args(["cpu", "run", "--engine", engine, "-o"]);
        command.arg(scratch.file("n_")).args(["--", "nice"]);
        assert_eq!(nice_of(&mut command), (own + 5).min(19), "{engine}");
    }
}

/// Waiting threads are seen without being stopped, and each sleeper has all of the elapsed time.
#[test]
fn waiting_threads_are_seen_where_they_wait() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut target = waiting_split(&program, &["0.1", "idle", "100", "wait"]);
    let session = attached(&scratch, target.pid(), &["--offcpu", "-s", "2"]);
    let read = Read::only(&session.wait());
    let waiting = read.by_function(&program, "wait_for_end")["wait_for_end"];
    let length = read.profile.facts.duration_ns.expect("its length") as f64;
    // On a busy machine the last sample may be old, but the time without a sample is known.
    let (total, sampled) = (read.total(), read.sampled());
    assert!(
        total > 0.9 * 200.0 * length && total < 1.02 * 201.0 * length,
        "{total} of 200 times {length}"
    );
    assert!(
        waiting > 0.98 * 200.0 / 201.0 * sampled,
        "{waiting} of {sampled}"
    );
    assert!(sampled > 0.2 * total, "{sampled} of {total}");
    read.assert_complete(COMPLETE);
    assert_eq!(read.sampling.engine, "/proc");
    target.say("go");
    assert!(!target.finish_output().is_empty());
}

/// A program would notice an interrupted system call: a server's wait must not return early while
/// it is sampled.
#[test]
fn no_system_call_is_interrupted() {
    let scratch = Scratch::new();
    let program = scratch.compile("waits.c", &[]);
    for options in [&["--engine", "perf"][..], &["--offcpu"]] {
        let mut command = Command::new(&program);
        let mut target = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        assert_eq!(target.hear(), "ready");
        let session = attached(
            &scratch,
            target.pid(),
            &[options, &["-F", "499", "-s", "2"]].concat(),
        );
        let read = Read::only(&session.wait());
        assert!(read.samples() > 0);
        target.say("end");
        assert_eq!(target.hear(), "0 interrupted");
    }
}

/// Where everything may be sampled, many threads need no more descriptors than few. Elsewhere, each
/// thread needs one event per processor. The engine that is used instead, and the reason, are in
/// the profile, too.
#[test]
fn an_unavailable_engine_is_reported_and_replaced() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let without_rights = ["--bounding-set=-all", "--inh-caps=-all"];
    for rights in [&[][..], &without_rights] {
        let mut command = Command::new("setpriv");
        command.args(rights).arg(&program);
        command.args(["1", "idle", "200", "wait"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut target = Target::start(piped);
        assert_eq!(target.hear(), "ready");
        let mut command = Command::new("prlimit");
        command.args(["--nofile=256:256", "setpriv"]).args(rights);
        command.arg(mem_tests::artifacts::profiler());
        command
            .args(["cpu", "-p", &target.pid().to_string(), "-o"])
            .arg(scratch.file("p_"));
        let session = Session::start(&mut command);
        target.say("go");
        target.finish_output();
        let outcome = session.wait();
        let read = Read::only(&outcome);
        if rights.is_empty() {
            assert_eq!(read.sampling.engine, "perf_event", "{outcome:?}");
            assert!(read.sampling.fallbacks.is_empty(), "{outcome:?}");
            read.assert_complete(COMPLETE);
        } else if std::thread::available_parallelism().map_or(1, usize::from) > 1 {
            assert_eq!(read.sampling.engine, "ptrace", "{outcome:?}");
            let reason = &read.sampling.fallbacks[0];
            assert!(reason.contains("ulimit -n"), "{reason}");
            assert!(outcome.stderr.contains("ulimit -n"), "{outcome:?}");
        }
    }
}

/// Threads that constantly take turns run for less than a period at a time.
#[test]
fn threads_that_take_turns_are_sampled() {
    let scratch = Scratch::new();
    let program = scratch.compile("turns.c", &["-O1", "-pthread"]);
    let mut command = Command::new(&program);
    let mut target = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    assert_eq!(target.hear(), "ready");
    let session = attached(&scratch, target.pid(), &["--engine", "perf"]);
    target.say("go");
    let ns: f64 = target.finish_output().trim().parse().expect("a number");
    let read = Read::only(&session.wait());
    read.assert_complete(COMPLETE);
    let total = read.total();
    assert!((total - ns).abs() <= 0.1 * ns, "{total} of {ns}");
}

/// Threads that live for less than a period are seen, and so is their creation, although the C
/// library has no unwind tables after the call that creates a thread.
#[test]
fn the_making_of_short_threads_is_seen_whole() {
    let scratch = Scratch::new();
    let program = scratch.compile("births.c", &["-O1", "-pthread"]);
    let mut command = Command::new(&program);
    let mut target = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    assert_eq!(target.hear(), "ready");
    let options = ["--engine", "perf", "-F", "999"];
    let session = attached(&scratch, target.pid(), &options);
    target.say("go");
    let said = truth(&target.finish_output());
    let read = Read::only(&session.wait());
    read.assert_complete(COMPLETE);
    let own = read.by_function(&program, "live");
    let lived = own.get("live").copied().unwrap_or_default() / read.total();
    // How much of it the making of threads takes depends on the machine, and what runs beside.
    let expected = said["live"] / said["cpu"];
    assert!(
        lived > 0.7 * expected && lived < 1.2 * expected,
        "{lived} for {expected}: {own:?} {said:?}"
    );
}

/// The file in gperftools' format has the same time, rounded to whole samples.
#[test]
fn the_format_of_gperftools_is_written_at_once() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let options = ["--engine", "perf", "-F", "999", "--format", "gperftools"];
    // So long that what its start and end take, which it does not count, is little of it.
    let outcome = sampled_run(&scratch, &program, &options, &["5", "two"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut files = std::fs::read_dir(scratch.file("")).expect("a directory");
    let file = files.find_map(|file| {
        let path = file.ok()?.path();
        path.extension()
            .is_some_and(|e| e == "prof")
            .then_some(path)
    });
    let profile = profile::open(&file.expect("a profile")).expect("it can be read");
    let said = truth(&outcome.stdout)["cpu"];
    let found = profile.total(1) as f64;
    assert!((found - said).abs() <= 0.02 * said, "{found} of {said}");
}

/// Other readers attribute the kernel's part to no function, even if the program is mapped at any
/// address.
#[test]
fn the_kernel_has_no_functions_name_in_other_readers() {
    let scratch = Scratch::new();
    let program = scratch.compile("turns.c", &["-pie", "-fPIE"]);
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", "perf", "--format", "gperftools"]);
    command.arg("-o").arg(scratch.file("p_"));
    let script = format!("echo | {}", program.display());
    let outcome = run(command.args(["--", "sh", "-c", &script]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let is_it = |line: &&str| line.contains("/p_turns.") && line.ends_with(".prof");
    let line = outcome.stderr.lines().find(is_it).expect("a profile");
    let file = line.trim_start_matches("mem_profiler: ");
    let mut shares = Vec::new();
    for (reader, arguments, name) in [
        ("google-pprof", &["--text"][..], "0x1000000000000400"),
        ("go", &["tool", "pprof", "-top"], "[[kernel]]"),
    ] {
        let mut command = Command::new(reader);
        let output = command.args(arguments).arg(&program).arg(file).output();
        let text = output.expect(reader).stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        let row = text.lines().find(|line| line.ends_with(name));
        let share = row.and_then(|row| row.split_whitespace().nth(1)?.strip_suffix('%'));
        let share: f64 = share
            .and_then(|share| share.parse().ok())
            .unwrap_or_else(|| panic!("{reader}: {text}"));
        assert!(share > 20.0, "{reader}: {text}");
        assert!(!text.contains("__abi_tag"), "{reader}: {text}");
        shares.push(share);
    }
    assert!((shares[0] - shares[1]).abs() < 1.0, "{shares:?}");
}

/// Checks that the live table's facts about its quality are complete and add up.
fn check_quality(quality: &serde_json::Value, engine: &str) {
    let number = |name: &str| {
        quality[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{quality}"))
    };
    assert!(
        quality["engine"]
            .as_str()
            .is_some_and(|name| name.starts_with(engine))
    );
    assert!(number("samples") > 0 && number("rate") == 99, "{quality}");
    let all = number("process_ns");
    let parts = ["truncated_ns", "not_sampled_ns", "unnamed_ns", "hidden_ns"];
    // Hardly any stack of a program this simple lacks anything.
    let lacking: u64 = parts.map(number).iter().sum();
    assert!(all > 0 && lacking < all / 2, "{quality}");
    assert!(number("lost") <= number("samples"), "{quality}");
    assert_eq!(
        quality["kernel_hidden"].is_string(),
        engine == "ptrace",
        "{quality}"
    );
    assert_eq!(quality["fallbacks"], serde_json::json!([]));
}

/// In the live table, the only function that works has all of the time, with each engine.
#[test]
fn top_shows_what_works_now() {
    let scratch = Scratch::new();
    let program = scratch.compile("burn.c", &["-O1"]);
    let mut command = Command::new(&program);
    command.env("STAYS", "1").stdout(Stdio::piped());
    let target = Target::start(command.stdin(Stdio::piped()));
    let pid = target.pid().to_string();
    for engine in ["perf", "ptrace"] {
        let mut command = scratch.profiler();
        command.args(["top", "--cpu", "--json", "--engine", engine, "-p", &pid]);
        let outcome = run(command.args(["--delay", "2s", "--filter", "site_"]));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let table: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let first = &table["functions"][0];
        assert_eq!(first["name"], "site_migration", "{table}");
        let all = table["total"]["cpu_seconds"].as_f64().expect("a number");
        let own = first["numbers"]["flat_seconds"].as_f64().expect("a number");
        assert!(
            all > 0.0 && own > 0.6 * all && own <= 1.001 * all,
            "{table}"
        );
        check_quality(&table["cpu"], engine);
        let mut command = scratch.profiler();
        command.args(["top", "--cpu", "--once", "--engine", engine, "-p", &pid]);
        let outcome = run(&mut command);
        let parts = ["lost ", " truncated, ", " not sampled, ", " without a name"];
        let is_told = |line: &str| parts.iter().all(|part| line.contains(part));
        let line = outcome.stdout.lines().find(|line| is_told(line));
        let line = line.unwrap_or_else(|| panic!("{outcome:?}"));
        assert_eq!(line.contains("kernel hidden"), engine == "ptrace", "{line}");
    }
    for (options, said) in [
        (&["top", "--cpu", "--once"][..], "no process was named"),
        (
            &["top", "--cpu", "--sort", "live", "-p", &pid],
            "sorted by now",
        ),
        (&["top", "--sort", "now", "-p", &pid], "need --cpu"),
        (&["top", "-F", "50", "-p", &pid], "--cpu"),
        (&["top", "--cpu", "-c", "1", "-p", &pid], "--interval"),
    ] {
        run(scratch.profiler().args(options)).refused(2, &[said]);
    }
}
