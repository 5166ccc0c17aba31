//! `mem_profiler cpu` on real programs: shares, sums, whole stacks, each engine.
//!
//! Shares do not depend on luck. `split` works in turns that are long against the time between
//! samples, and says itself what each function took; a sample is misplaced by at most the time
//! since the last one, where a turn ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heap_format::cpu::Sampling;
use heap_format::{Profile, TRUNCATED_ADDRESS};
use mem_tests::code::{self, Code};
use mem_tests::target::cpu_seconds;
use mem_tests::{Outcome, Scratch, Session, Target, run, sums, wait};

/// Profiles that a session named, in its order.
fn files(outcome: &Outcome) -> Vec<PathBuf> {
    let lines = outcome.stdout.lines().chain(outcome.stderr.lines());
    let files = lines.filter_map(|line| Some(&line[..line.find(".cpu")? + 4]));
    let path = |text: &str| PathBuf::from(text.trim_start_matches("mem_profiler: "));
    let mut files: Vec<PathBuf> = files.map(path).filter(|path| path.exists()).collect();
    files.dedup();
    files
}

/// A profile, and sums over it.
struct Read {
    profile: Profile,
    sampling: Sampling,
}

impl Read {
    fn of(path: &Path) -> Self {
        let profile = heap_format::open(path).expect("a profile that can be read");
        let sampling = profile.facts.cpu.clone().expect("facts of its sampling");
        Self { profile, sampling }
    }

    fn only(outcome: &Outcome) -> Self {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let files = files(outcome);
        assert_eq!(files.len(), 1, "{outcome:?}");
        Self::of(&files[0])
    }

    fn stacks(&self) -> impl Iterator<Item = (&[u32], i64, i64)> {
        let stacks = self.profile.stacks.iter().enumerate();
        stacks.map(|(at, stack)| {
            let values = self.profile.values_of(at);
            (stack, values[0], values[1])
        })
    }

    /// Nanoseconds of all stacks.
    fn total(&self) -> f64 {
        self.profile.total(1) as f64
    }

    /// The share of stacks with samples that are followed to their end, by samples.
    fn complete(&self) -> f64 {
        let (mut all, mut whole) = (0, 0);
        for (stack, samples, _) in self.stacks() {
            let last = stack
                .last()
                .map(|id| self.profile.locations[*id as usize].address);
            all += samples;
            if last != Some(TRUNCATED_ADDRESS - 1) {
                whole += samples;
            }
        }
        assert!(all > 0, "samples");
        whole as f64 / all as f64
    }

    fn assert_complete(&self, least: f64) {
        let complete = self.complete();
        assert!(complete >= least, "{complete} are complete");
    }

    /// Nanoseconds of the functions of a program whose name starts so, the nearest to the leaf.
    fn by_function(&self, program: &Path, start: &str) -> BTreeMap<String, f64> {
        let binaries = [Code::of(program)];
        let mut sums = BTreeMap::new();
        for (stack, _, ns) in self.stacks() {
            let names = code::names(&self.profile, stack, &binaries);
            let name = names.iter().find(|name| name.starts_with(start));
            *sums
                .entry(name.copied().unwrap_or_default().to_owned())
                .or_default() += ns as f64;
        }
        sums
    }

    /// How many samples there are.
    fn samples(&self) -> i64 {
        self.profile.total(0)
    }
}

/// What `split` says of itself: nanoseconds by name.
fn truth(lines: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (name, ns) = line.split_once(' ')?;
        Some((name.to_owned(), ns.parse().ok()?))
    };
    lines.lines().filter_map(line).collect()
}

/// The least share of complete stacks.
const COMPLETE: f64 = 0.99;
/// The same of short runs with stacks so deep that their copies have to grow first: the time until
/// that is noticed depends on the machine's load.
const COMPLETE_DEEP: f64 = 0.85;

/// Checks the shares of functions, in points, and the sum.
fn check_split(read: &Read, program: &Path, said: &BTreeMap<String, f64>, points: f64) {
    let found = read.by_function(program, "part_");
    let parts = |of: &BTreeMap<String, f64>| -> f64 {
        let parts = of.iter().filter(|(name, _)| name.starts_with("part_"));
        parts.map(|(_, ns)| ns).sum()
    };
    let (all_found, all_said) = (parts(&found), parts(said));
    for (name, ns) in said.iter().filter(|(name, _)| name.starts_with("part_")) {
        let share = 100.0 * found.get(name).unwrap_or(&0.0) / all_found;
        let expected = 100.0 * ns / all_said;
        assert!(
            (share - expected).abs() <= points,
            "{name}: {share:.2} % for {expected:.2} %: {found:?} {said:?}"
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

/// Between samples at 999 Hz is a millisecond, at most two turns of 200 ms end in each
/// function: a point, and two processors.
#[test]
fn perf_tells_known_shares() {
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

/// Rounds may come late on a busy machine, by so much that a whole turn is misplaced: of two
/// seconds, one turn of each function.
#[test]
fn ptrace_tells_known_shares() {
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

/// A running `split`, which waits for a line of input before it works.
fn waiting_split(program: &Path, arguments: &[&str]) -> Target {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    target
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

/// 200 threads that sleep beside two that run: only those that run are sampled, by each engine,
/// and the session ends with the process.
#[test]
fn sleepers_are_left_alone() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    for (engine, points) in [("perf", 2.0), ("ptrace", 8.0)] {
        let mut target = waiting_split(&program, &["1.5", "idle", "1500", "wait"]);
        let session = attached(&scratch, target.pid(), &["--engine", engine, "-F", "499"]);
        target.say("go");
        let said = target.finish_output();
        let read = Read::only(&session.wait());
        check_split(&read, &program, &truth(&said), points);
        read.assert_complete(COMPLETE);
        // The two, and the first one, which started and joins them.
        assert!(
            read.profile.facts.threads.len() <= 3,
            "{:?}",
            read.profile.facts.threads
        );
    }
}

/// What waits is seen without being stopped: each sleeper's time is all the time there was.
#[test]
fn waiting_threads_are_seen_where_they_wait() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut target = waiting_split(&program, &["0.1", "idle", "100", "wait"]);
    let session = attached(&scratch, target.pid(), &["--offcpu", "-s", "2"]);
    let read = Read::only(&session.wait());
    let waiting = read.by_function(&program, "wait_for_end")["wait_for_end"];
    let length = read.profile.facts.duration_ns.expect("its length") as f64;
    assert!(
        waiting > 0.9 * 200.0 * length,
        "{waiting} of 200 times {length}"
    );
    assert!(
        read.total() < 1.02 * 201.0 * length,
        "{} of {length}",
        read.total()
    );
    assert!(read.complete() >= 0.99, "{} are complete", read.complete());
    assert_eq!(read.sampling.engine, "/proc");
    target.say("go");
    assert!(!target.finish_output().is_empty());
}

/// An interrupted system call is what a program would notice: a server's wait must not return
/// early while it is sampled.
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

/// The better engine is tried and named; what is used instead, and why, is in the profile too.
#[test]
fn what_is_not_allowed_is_said_and_replaced() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut target = waiting_split(&program, &["1", "idle", "200", "wait"]);
    // 202 threads need at least as many events.
    let mut command = Command::new("prlimit");
    command
        .arg("--nofile=256:256")
        .arg(mem_tests::artifacts::profiler());
    command
        .args(["cpu", "-p", &target.pid().to_string(), "-o"])
        .arg(scratch.file("p_"));
    let session = Session::start(&mut command);
    target.say("go");
    target.finish_output();
    let outcome = session.wait();
    let read = Read::only(&outcome);
    let few = std::thread::available_parallelism().map_or(1, usize::from) > 1;
    if few {
        assert_eq!(read.sampling.engine, "ptrace");
        let reason = &read.sampling.fallbacks[0];
        assert!(reason.contains("ulimit -n"), "{reason}");
        assert!(outcome.stderr.contains("ulimit -n"), "{outcome:?}");
    }
}

#[test]
fn what_cannot_be_sampled_is_explained() {
    let scratch = Scratch::new();
    let cpu = |args: &[&str]| run(scratch.profiler().arg("cpu").args(args));
    cpu(&[]).refused(2, &["name processes with -p"]);
    for bad in ["0", "1000000", "-5", "x"] {
        cpu(&["-p", "1", "-F", bad]).refused(2, &["--frequency"]);
    }
    for bad in ["0", "x", "-1", "nan"] {
        cpu(&["-p", "1", "-s", bad]).refused(2, &["--seconds"]);
    }
    cpu(&["-p", "2147483647"]).refused(1, &["2147483647: there is no such process"]);
    cpu(&["-p", "no-such-program"]).refused(1, &["no process has this name"]);
    cpu(&["-p", "/no/such/group"]).refused(1, &["there is no such control group"]);
    cpu(&["-p", "1", "-o", "/nonexistent/p_"]).refused(1, &["does not exist"]);
    cpu(&["run", "--", "/no/such/program"]).refused(127, &["/no/such/program"]);
    let mut zombie = Command::new("true").spawn().expect("true");
    wait::until("it to end", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", zombie.id())).ok()?;
        stat.contains(") Z ").then_some(())
    });
    cpu(&["-p", &zombie.id().to_string()]).refused(1, &["the process has ended"]);
    zombie.wait().expect("a child");
    // It does nothing: nothing was collected.
    let mut sleeper = Command::new("sleep").arg("1000").spawn().expect("sleep");
    cpu(&["-s", "0.3", "-p", &sleeper.id().to_string()]).refused(1, &["no sample"]);
    sleeper.kill().expect("a child");
    sleeper.wait().expect("a child");
}

/// A shell that executes a program after another, and ends with its code: one profile for each
/// process and program that used time, in the program's own words.
#[test]
fn children_and_executed_programs_have_their_own_profiles() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let script = format!(
        "{0} 0.3 two; {0} 0.3 four & wait; exec {0} 0.3 deep",
        program.display()
    );
    let outcome = run(scratch
        .profiler()
        .args(["cpu", "run", "-F", "499", "-o"])
        .arg(scratch.file("p_"))
        .args(["--", "sh", "-c", &format!("{script}; exit 7")]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let reads: Vec<Read> = files(&outcome).iter().map(|path| Read::of(path)).collect();
    let of_split: Vec<&Read> = reads
        .iter()
        .filter(|read| read.profile.facts.process.as_deref() == Some("split"))
        .collect();
    assert_eq!(of_split.len(), 3, "{outcome:?}");
    for read in of_split {
        let parts: f64 = read.by_function(&program, "part_").values().sum();
        assert!(parts >= 0.29e9, "{parts}");
        read.assert_complete(COMPLETE_DEEP);
    }
    let outcome = run(scratch
        .profiler()
        .args(["cpu", "run", "-o"])
        .arg(scratch.file("q_"))
        .args(["--", "sh", "-c"])
        .arg(format!("{} 0.2 two; exit 7", program.display())));
    assert_eq!(outcome.code, Some(7), "{outcome:?}");
}

/// A program that is too short for a sample is no failure: its code is passed on.
#[test]
fn a_program_without_a_sample_ends_as_it_would() {
    let scratch = Scratch::new();
    for options in [&[][..], &["--engine", "ptrace"], &["--offcpu"]] {
        for (program, code) in [("true", 0), ("false", 1)] {
            let mut command = scratch.profiler();
            // One sample in a second: hardly ever is there one.
            command.args(["cpu", "run", "-F", "1", "-o"]);
            command.arg(scratch.file("p_")).args(options);
            let outcome = run(command.args(["--", program]));
            assert_eq!(outcome.code, Some(code), "{outcome:?}");
            if files(&outcome).is_empty() {
                let said = outcome.stderr.matches("nothing was sampled").count();
                assert_eq!(said, 1, "{outcome:?}");
            }
        }
    }
}

/// Short programs are counted, not listed.
#[test]
fn many_short_programs_are_one_line() {
    let scratch = Scratch::new();
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "-F", "1", "-o"]);
    command.arg(scratch.file("p_"));
    let script = "i=0; while [ $i -lt 50 ]; do /bin/true; i=$((i+1)); done; exit 3";
    let outcome = run(command.args(["--", "sh", "-c", script]));
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    // A file and its remark for what was sampled by chance, a line for the rest.
    let lines = outcome.stderr.lines().count();
    let most = 2 * files(&outcome).len() + 5;
    assert!(lines <= most, "{lines} lines: {outcome:?}");
    let silent = outcome.stderr.matches("without a sample").count();
    assert!(silent <= 1, "{outcome:?}");
}

/// A profiler of `split` with 300 sleeping threads that may open so many files.
fn with_few_files(scratch: &Scratch, limit: &str, options: &[&str]) -> Outcome {
    let program = scratch.compile("split.cpp", &[]);
    let mut target = waiting_split(&program, &["1", "idle", "300", "wait"]);
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limit}"));
    command.arg(mem_tests::artifacts::profiler());
    command.args(["cpu", "-p", &target.pid().to_string(), "-o"]);
    command.arg(scratch.file("p_")).args(["-s", "1"]);
    let session = Session::start(command.args(options));
    target.say("go");
    let outcome = session.wait();
    target.finish_output();
    outcome
}

/// Without descriptors there is a profile or a true reason; the process has not ended.
#[test]
fn few_descriptors_are_no_end_of_a_process() {
    let scratch = Scratch::new();
    for options in [&[][..], &["--engine", "ptrace"], &["--engine", "perf"]] {
        let outcome = with_few_files(&scratch, "64:64", options);
        assert!(!outcome.stderr.contains("has ended"), "{outcome:?}");
        if outcome.code != Some(0) {
            outcome.refused(1, &["ulimit -n"]);
        }
    }
    for limit in ["64:64", "200:1000"] {
        let outcome = with_few_files(&scratch, limit, &["--offcpu"]);
        let read = Read::only(&outcome);
        assert!(read.samples() > 0, "{outcome:?}");
    }
}

/// The program that is started has the limit of open files that it would have without us.
#[test]
fn a_started_program_keeps_its_limit_of_files() {
    let scratch = Scratch::new();
    let mut command = Command::new("prlimit");
    command.arg("--nofile=200:1000");
    command.arg(mem_tests::artifacts::profiler());
    command.args(["cpu", "run", "-o"]).arg(scratch.file("p_"));
    // The limit is given back just after the start.
    let outcome = run(command.args(["--", "sh", "-c", "sleep 0.5; ulimit -Sn"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.starts_with("200\n"), "{outcome:?}");
}

/// Whoever names a process is told of it, also when it ends before anything was sampled.
#[test]
fn a_named_process_that_ends_at_once_is_named() {
    let scratch = Scratch::new();
    for options in [&["--engine", "perf"][..], &["--engine", "ptrace"], &[]] {
        let mut sleeper = Command::new("sleep").arg("0.7").spawn().expect("sleep");
        let pid = sleeper.id().to_string();
        let mut command = scratch.profiler();
        command.args(["cpu", "-F", "1", "-p", &pid, "-o"]);
        command.arg(scratch.file("p_"));
        let session = Session::start(command.args(options));
        sleeper.wait().expect("a child");
        session.wait().refused(1, &[&pid]);
    }
}

/// What is executed, and what is born, has its own profile where only `/proc` tells of it.
#[test]
fn waiting_children_and_executed_programs_are_told_apart() {
    let scratch = Scratch::new();
    let script = "sleep 1 & wait; exec sleep 1.5";
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--offcpu", "-o"]);
    command.arg(scratch.file("p_"));
    let outcome = run(command.args(["--", "sh", "-c", script]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let reads: Vec<Read> = files(&outcome).iter().map(|path| Read::of(path)).collect();
    let named = |name: &str| {
        let process = |read: &&Read| read.profile.facts.process.as_deref() == Some(name);
        reads.iter().filter(process).count()
    };
    assert_eq!(named("sleep"), 2, "{outcome:?}");
    assert_eq!(reads.len() - named("sleep"), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("time off CPU"), "{outcome:?}");
    assert!(!outcome.stderr.contains("of CPU time"), "{outcome:?}");
}

/// Dump and CPU profile are of the same process and time, and their page is made.
#[test]
fn heap_and_cpu_time_are_sampled_side_by_side() {
    let scratch = Scratch::new();
    let program = scratch.compile("turnover.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    target.say("begin");
    target.hear();
    let mut command = scratch.profiler();
    command.args(["both", "-p", &target.pid().to_string(), "--html", "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    scratch.wait_for_sampling(target.pid());
    // Events of CPU time are opened meanwhile.
    let directory = format!("/proc/{}/fd", session.pid());
    wait::until("events of two threads and more", || {
        let links = std::fs::read_dir(&directory).ok()?.flatten();
        let links = links.filter_map(|file| std::fs::read_link(file.path()).ok());
        let events = links.filter(|link| link.to_string_lossy().contains("perf_event"));
        (events.count() > 2).then_some(())
    });
    let before = cpu_seconds(target.pid());
    wait::until("half a second of CPU time", || {
        (cpu_seconds(target.pid()) > before + 0.5).then_some(())
    });
    let outcome = session.stop();
    assert!(
        outcome
            .stdout
            .ends_with("succeeded in collecting memory data!\n")
    );
    let read = Read::only(&outcome);
    let heap = outcome.profile();
    let facts = [&read.profile.facts, &heap.facts];
    assert_eq!(facts.map(|facts| facts.pid), [Some(target.pid()); 2]);
    // One after the other would not overlap.
    assert!(facts[0].start_unix_ns < facts[1].end_unix_ns, "{facts:?}");
    assert!(facts[1].start_unix_ns < facts[0].end_unix_ns, "{facts:?}");
    assert!(read.total() > 0.4e9, "{outcome:?}");
    read.assert_complete(COMPLETE);
    let found = sums(&heap, &[&program], "site_");
    assert!(found["site_turnover"].detail.alloc_bytes > 0.0, "{found:?}");
    let page = outcome.dumps()[0].with_extension("html");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("Cost of malloc") && page.contains("site_turnover"));
}

/// Where there is no heap to sample, CPU time alone is offered.
#[test]
fn both_need_the_agent() {
    let scratch = Scratch::new();
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep");
    let pid = sleeper.id().to_string();
    let outcome = run(scratch.profiler().args(["both", "-s", "1", "-p", &pid]));
    sleeper.kill().expect("a child");
    sleeper.wait().expect("a child");
    outcome.refused(1, &["without the agent", "mem_profiler cpu -p"]);
}

/// Where another session has the heap, nothing is sampled, and nothing else is said.
#[test]
fn both_are_refused_together() {
    let scratch = Scratch::new();
    let program = scratch.compile("turnover.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1024");
    let pid = target.pid().to_string();
    let mut command = scratch.profiler();
    command.args(["both", "-s", "1", "-p", &pid, "-o"]);
    let outcome = run(command.arg(scratch.file("p_")));
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    outcome.refused(1, &["a session of mem_profiler", "is running"]);
    session.stop();
}

/// gperftools' format holds the same time, to within its whole samples.
#[test]
fn the_format_of_gperftools_is_written_at_once() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let options = ["--engine", "perf", "-F", "999", "--format", "gperftools"];
    let outcome = sampled_run(&scratch, &program, &options, &["1", "two"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut files = std::fs::read_dir(scratch.file("")).expect("a directory");
    let file = files.find_map(|file| {
        let path = file.ok()?.path();
        path.extension()
            .is_some_and(|e| e == "prof")
            .then_some(path)
    });
    let profile = heap_format::open(&file.expect("a profile")).expect("it can be read");
    let said = truth(&outcome.stdout)["cpu"];
    let found = profile.total(1) as f64;
    assert!((found - said).abs() <= 0.02 * said, "{found} of {said}");
}

/// The live table: the one function that works has all the time there is, and each engine sees it.
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
            all > 0.0 && own > 0.8 * all && own <= 1.001 * all,
            "{table}"
        );
    }
    for (options, said) in [
        (&["top", "--cpu", "--once"][..], "name a process"),
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
