//! Python lines in CPU profiles that the agent's timers sampled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use mem_tests::cpu::{COMPLETE, Read, files, truth};
use mem_tests::target::cpu_seconds;
use mem_tests::{Outcome, Scratch, Session, Target, artifacts, pythons, run, wait};

const PYTHON: &str = "/usr/bin/python3";

/// Returns a script under the engine from its start.
fn timed_run(scratch: &Scratch, python: &Path, arguments: &[&Path]) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", "timers", "-F", "250", "-o"]);
    command.arg(scratch.file("p_")).arg("--").arg(python);
    run(command.args(arguments))
}

/// Samples and nanoseconds by Python's functions of a stack, innermost first.
fn by_functions(read: &Read) -> BTreeMap<Vec<&str>, (i64, f64)> {
    let profile = &read.profile;
    let mut sums: BTreeMap<Vec<&str>, (i64, f64)> = BTreeMap::new();
    for (stack, samples, ns) in read.stacks() {
        let locations = stack.iter().map(|id| &profile.locations[*id as usize]);
        let lines = locations.filter(|location| profile.is_python(location));
        let name = |line: &profile::Line| {
            let name = &profile.functions[line.function as usize].name;
            name.rsplit('.').next().unwrap_or(name)
        };
        let names = lines.filter_map(|location| profile.lines_of(location).first().map(name));
        let sum = sums.entry(names.collect()).or_default();
        *sum = (sum.0 + samples, sum.1 + ns as f64);
    }
    sums
}

/// Nanoseconds by what the innermost line of the script says behind a `#`.
fn by_comment<'a>(read: &Read, script: &'a str) -> BTreeMap<&'a str, f64> {
    let profile = &read.profile;
    let mut sums = BTreeMap::new();
    for (stack, _, ns) in read.stacks() {
        let locations = stack.iter().map(|id| &profile.locations[*id as usize]);
        let innermost = locations.into_iter().find(|l| profile.is_python(l));
        let line = innermost.and_then(|location| profile.lines_of(location).first());
        let text = line.and_then(|line| script.lines().nth((line.line as usize).checked_sub(1)?));
        let comment = text.and_then(|text| Some(text.split_once("# ")?.1));
        *sums.entry(comment.unwrap_or_default()).or_default() += ns as f64;
    }
    sums
}

/// Whichever instruction of the interpreter a signal interrupts, the interpreter continues, and the
/// stack is one that the program has. At a few instructions it has no Python frames, because the
/// interpreter's data are being changed.
#[test]
fn a_stack_is_right_wherever_the_interpreter_is_interrupted() {
    let tried = pythons::all().into_iter().map(|python| {
        std::thread::spawn(move || {
            let scratch = Scratch::new();
            let library = scratch.compile("python_interrupts.c", &["-shared", "-fPIC"]);
            let script = artifacts::source("python_busy.py");
            let outcome = timed_run(&scratch, &python, &[&script, &library, Path::new("1")]);
            let read = Read::only(&outcome);
            let said = read.profile.facts.python.clone().unwrap_or_default();
            assert!(said.ends_with(": named"), "{said}");
            let edges = outcome.stdout.lines().filter_map(|line| {
                let (caller, callee) = line.strip_prefix("edge ")?.split_once(' ')?;
                Some((caller, callee))
            });
            let edges: BTreeSet<(&str, &str)> = edges.collect();
            let (mut all, mut wrong) = (0, Vec::new());
            for (names, (samples, _)) in by_functions(&read) {
                // The rest is the interpreter's start and end, or another thread.
                if names.contains(&"main") {
                    all += samples;
                    let mut calls = names.windows(2).map(|pair| (pair[1], pair[0]));
                    let is_whole = names.last() == Some(&"<module>");
                    if !is_whole || !calls.all(|call| edges.contains(&call)) {
                        wrong.push((names, samples));
                    }
                }
            }
            let samples: i64 = wrong.iter().map(|(_, samples)| samples).sum();
            assert!(all > 300, "{said}: {all} {outcome:?}");
            assert!(samples <= 1 + all / 1000, "{said}: of {all}: {wrong:?}");
        })
    });
    for tried in tried.collect::<Vec<_>>() {
        tried.join().expect("an interpreter that continues");
    }
}

/// Words of the interpreter's data are corrupted while samples are taken.
#[test]
fn an_interpreter_with_corrupted_data_survives_interruptions() {
    let tried = pythons::all().into_iter().map(|python| {
        std::thread::spawn(move || {
            let scratch = Scratch::new();
            let library = |source| scratch.compile(source, &["-shared", "-fPIC"]);
            let spoils = library("python_garbage.c");
            let interrupts = library("python_interrupts.c");
            let script = artifacts::source("python_garbage.py");
            let arguments = [&script, &spoils, Path::new("1"), &interrupts];
            let outcome = timed_run(&scratch, &python, &arguments);
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
            assert!(outcome.stdout.contains("survived"), "{outcome:?}");
        })
    });
    for tried in tried.collect::<Vec<_>>() {
        tried.join().expect("an interpreter that continues");
    }
}

/// As for native functions (`cpu_timers`), 4 percentage points of 1.5 s are 60 ms, and time after
/// the last sample is not counted.
#[test]
fn lines_have_known_shares() {
    let script = artifacts::source("python_split.py");
    let text = std::fs::read_to_string(&script).expect("the script");
    for python in pythons::all() {
        let scratch = Scratch::new();
        let outcome = timed_run(&scratch, &python, &[&script, Path::new("1.5")]);
        let read = Read::only(&outcome);
        let said = truth(&outcome.stdout);
        let total = read.total();
        assert!(
            (total - said["cpu"]).abs() <= 0.03 * said["cpu"],
            "{total} {said:?}"
        );
        read.assert_complete(COMPLETE);
        let points = 4.0 + 100.0 * (1.0 - read.sampled() / total);
        let (functions, lines) = (by_functions(&read), by_comment(&read, &text));
        for part in ["part_a", "part_b"] {
            let of_it = functions
                .iter()
                .filter(|(names, _)| names.first() == Some(&part));
            let ns: f64 = of_it.map(|(_, (_, ns))| ns).sum();
            let (share, expected) = (100.0 * ns / total, 100.0 * said[part] / said["cpu"]);
            let told = format!("{}: {functions:?} {lines:?} {said:?}", python.display());
            assert!(
                (share - expected).abs() <= points,
                "{part}, {points} allowed: {told}"
            );
            // The loop's head is another line.
            let line = lines.get(&*format!("line of {part}")).unwrap_or(&0.0);
            assert!(*line > 0.5 * ns, "{part}: {told}");
        }
    }
}

/// Returns a script that runs under the agent, and waits for a line of input before it works.
fn waiting(scratch: &Scratch, arguments: &[&str]) -> Target {
    let mut command = scratch.preloaded(PYTHON);
    command.args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    target
}

fn waiting_split(scratch: &Scratch, seconds: &str) -> Target {
    let script = artifacts::source("python_split.py");
    waiting(scratch, &[&script.to_string_lossy(), seconds, "wait"])
}

fn attached(scratch: &Scratch, target: &Target, options: &[&str]) -> Session {
    let mut command = scratch.profiler();
    command.args(["cpu", "-F", "250", "-p", &target.pid().to_string()]);
    Session::start(command.args(options).arg("-o").arg(scratch.file("p_")))
}

/// Returns true if stacks have lines of Python.
fn has_lines(read: &Read) -> bool {
    by_functions(read)
        .keys()
        .any(|names| names.contains(&"part_a"))
}

/// A process that runs Python is sampled by its agent even if perf events are allowed, unless the
/// user requests perf events.
#[test]
fn a_process_that_runs_python_is_sampled_with_its_lines() {
    let scratch = Scratch::new();
    for (options, engine) in [
        (&[][..], "timers"),
        (&["--engine", "perf"][..], "perf_event"),
    ] {
        let mut target = waiting_split(&scratch, "1");
        let session = attached(&scratch, &target, options);
        if options.is_empty() {
            scratch.wait_for_sampling(target.pid());
        }
        target.say("go");
        target.finish_output();
        let outcome = session.wait();
        let read = Read::only(&outcome);
        assert_eq!(read.sampling.engine, engine);
        assert_eq!(has_lines(&read), options.is_empty(), "{outcome:?}");
        let said = match options.is_empty() {
            true => "runs Python, whose lines the agent names",
            false => "no lines of Python (--engine ptrace names them)",
        };
        assert!(outcome.stderr.contains(said), "{outcome:?}");
        std::fs::remove_file(&files(&outcome)[0]).expect("the profile");
    }
}

/// An agent notices a request when its process allocates memory. A process that only computes is
/// traced instead, which also shows its lines, and all of its time is known.
#[test]
fn a_process_that_does_not_notice_is_sampled_from_outside() {
    const SCRIPT: &str = "print('ready', flush=True)\nimport sys\nsys.stdin.readline()\n\
                          def spin():\n    total = 0\n    while True:\n        total = total + 1 & 255\n\
                          spin()\n";
    let scratch = Scratch::new();
    let mut target = waiting(&scratch, &["-c", SCRIPT]);
    let pid = target.pid();
    target.say("go");
    wait::until("CPU time", || (cpu_seconds(pid) > 0.3).then_some(()));
    let session = attached(&scratch, &target, &[]);
    let begin = cpu_seconds(pid);
    wait::until("CPU time", || {
        (cpu_seconds(pid) > begin + 1.5).then_some(())
    });
    let outcome = session.stop();
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "timers + ptrace", "{outcome:?}");
    let fallbacks = read.sampling.fallbacks.join("\n");
    assert!(fallbacks.contains("has allocated memory"), "{fallbacks}");
    let functions = by_functions(&read);
    assert!(
        functions.contains_key(&vec!["spin", "<module>"]),
        "{functions:?}"
    );
    let total = read.total();
    assert!((total - read.sampling.process_ns.expect("its clock") as f64).abs() < 0.02 * total);
    assert!(total >= 1.0e9, "{total}");
    assert!(read.samples() > 0 && read.sampled() > 0.2 * total);
    target.kill();
}

/// An agent can run only one session at a time. During a heap session, the message names the two
/// other ways to get lines.
#[test]
fn beside_a_heap_session_both_ways_to_the_lines_are_named() {
    let scratch = Scratch::new();
    let mut target = waiting_split(&scratch, "1");
    let pid = target.pid().to_string();
    let mut heap = scratch.profiler();
    heap.args(["-p", &pid, "-o"]).arg(scratch.file("h_"));
    let heap = Session::start(&mut heap);
    scratch.wait_for_sampling(target.pid());
    let ways = [
        format!("mem_profiler stop -p {pid}"),
        format!("mem_profiler both -p {pid}"),
    ];
    let refused = attached(&scratch, &target, &["--engine", "timers", "-s", "1"]).wait();
    refused.refused(1, &[&ways[0], &ways[1]]);
    let session = attached(&scratch, &target, &[]);
    target.say("go");
    target.finish_output();
    let outcome = session.wait();
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "perf_event", "{outcome:?}");
    for way in &ways {
        assert!(outcome.stderr.contains(way), "{way}: {outcome:?}");
    }
    assert_eq!(heap.wait().code, Some(0));
    // If a session already samples CPU time, the suggestion does not apply.
    let mut target = waiting_split(&scratch, "1000");
    let first = attached(&scratch, &target, &["--engine", "timers"]);
    scratch.wait_for_sampling(target.pid());
    let second = attached(&scratch, &target, &["--engine", "timers", "-s", "1"]).wait();
    second.refused(1, &["mem_profiler stop -p"]);
    assert!(!second.stderr.contains("mem_profiler both"), "{second:?}");
    first.stop();
    target.kill();
}

/// A process whose agent gets no timer from the kernel is sampled from outside, too.
#[test]
fn a_process_that_gets_no_timer_is_sampled_from_outside() {
    let scratch = Scratch::new();
    let script = artifacts::source("python_split.py");
    let mut command = scratch.preloaded("/bin/bash");
    command.args(["-c", "ulimit -i 0 && exec \"$@\"", "bash", PYTHON]);
    command.arg(script).args(["1", "wait"]);
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let session = attached(&scratch, &target, &[]);
    scratch.wait_for_sampling(target.pid());
    target.say("go");
    target.finish_output();
    let outcome = session.wait();
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "timers + ptrace", "{outcome:?}");
    let fallbacks = read.sampling.fallbacks.join("\n");
    assert!(fallbacks.contains("ulimit -i"), "{fallbacks}");
    assert!(has_lines(&read), "{outcome:?}");
}

/// Checks the live table, and its rows by name.
#[test]
fn top_names_lines() {
    let scratch = Scratch::new();
    let mut target = waiting_split(&scratch, "1000");
    target.say("go");
    for (option, is_alone) in [(None, false), (Some("--python-only"), true)] {
        let mut command = scratch.profiler();
        command.args(["top", "--cpu", "--json", "-F", "250", "--delay", "2s"]);
        command.args(option).args(["-p", &target.pid().to_string()]);
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let table: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let rows = table["functions"].as_array().expect("rows");
        let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        // Now and then a stack is cut off.
        let is_line = |name: &&str| name.contains("(python_split.py:") || *name == "[truncated]";
        assert!(
            names.iter().any(|name| name.starts_with("part_a (")),
            "{names:?}"
        );
        assert_eq!(names.iter().all(is_line), is_alone, "{names:?}");
    }
    target.kill();
}

/// The dump and the CPU profile of one session both have the lines.
#[test]
fn heap_and_cpu_time_have_the_same_lines() {
    let scratch = Scratch::new();
    let mut target = waiting_split(&scratch, "1");
    let mut command = scratch.profiler();
    let pid = target.pid().to_string();
    command.args(["both", "-p", &pid, "-c", "1", "-F", "250", "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    scratch.wait_for_sampling(target.pid());
    target.say("go");
    target.finish_output();
    let outcome = session.wait();
    let read = Read::only(&outcome);
    assert_eq!(read.sampling.engine, "timers");
    assert!(has_lines(&read), "{outcome:?}");
    let heap = outcome.profile();
    let lines = heap.locations.iter().filter_map(|l| heap.python_name(l));
    let in_heap = lines.filter(|name| name.starts_with("part_a ")).count();
    assert!(in_heap > 0, "{outcome:?}");
}

/// gperftools' format has only addresses of code, so agents are not asked for lines.
#[test]
fn gperftools_format_has_the_native_frames() {
    let scratch = Scratch::new();
    let mut target = waiting_split(&scratch, "1");
    let session = attached(&scratch, &target, &["--format", "gperftools", "-s", "1"]);
    target.say("go");
    let outcome = session.wait();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("; perf_event, "), "{outcome:?}");
    assert!(!outcome.stderr.contains("whose lines"), "{outcome:?}");
    target.finish_output();
}

/// The file in gperftools' format omits lines, even if they were sampled.
#[test]
fn gperftools_format_leaves_lines_out() {
    let scratch = Scratch::new();
    let script = artifacts::source("python_split.py");
    let mut command = scratch.profiler();
    command.args([
        "cpu",
        "run",
        "--engine",
        "timers",
        "--format",
        "gperftools",
        "-o",
    ]);
    command.arg(scratch.file("p_")).arg("--").arg(PYTHON);
    let outcome = run(command.arg(script).arg("0.5"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let written = std::fs::read_dir(scratch.files()).expect("the files");
    let written: Vec<PathBuf> = written.filter_map(|file| Some(file.ok()?.path())).collect();
    let file = written
        .iter()
        .find(|path| path.is_file())
        .expect("a profile");
    let profile = profile::open(file).expect("a profile that can be read");
    assert!(profile.total(0) > 10);
    let names = profile.mappings.iter().map(|mapping| mapping.path.clone());
    let names: Vec<PathBuf> = names.collect();
    assert!(!names.contains(&PathBuf::from("[python]")), "{names:?}");
    let mapped = |address: u64| {
        profile
            .mappings
            .iter()
            .any(|m| (m.start..m.end).contains(&address))
    };
    let locations = profile.locations.iter();
    let outside = locations
        .filter(|location| !mapped(location.address))
        .count();
    assert!(outside <= 2, "{outside} of {}", profile.locations.len());
}
