//! Processes that `mem_profiler cpu` samples: children, executed programs, and those that end at
//! once. Also its messages about those that it cannot sample.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cpu::{COMPLETE_DEEP, Read, files, waiting_split};
use mem_tests::{Outcome, Scratch, Session, Target, run, wait};

#[test]
fn what_cannot_be_sampled_is_explained() {
    let scratch = Scratch::new();
    let cpu = |args: &[&str]| run(scratch.profiler().arg("cpu").args(args));
    cpu(&[]).refused(2, &["no process was named"]);
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
    cpu(&["-s", "0.3", "-p", &sleeper.id().to_string()]).refused(1, &["no samples"]);
    sleeper.kill().expect("a child");
    sleeper.wait().expect("a child");
}

/// Without rights, perf events cover only the part outside the kernel. The session's line and the
/// profile say so, and give the share of the time.
#[test]
fn a_hidden_kernel_is_reported() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
    command.arg(mem_tests::artifacts::profiler());
    command.args(["cpu", "run", "--engine", "perf", "-o"]);
    command.arg(scratch.file("p_")).arg("--").arg(&program);
    let outcome = run(command.args(["0.3", "two"]));
    let read = Read::only(&outcome);
    let setting = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let setting: i32 = setting
        .expect("a setting")
        .trim()
        .parse()
        .expect("a number");
    let said = outcome.stderr.contains("kernel hidden")
        || outcome.stderr.contains("in the kernel, which is hidden");
    assert_eq!(said, setting > 1, "{outcome:?}");
    let why = read.sampling.kernel_hidden.unwrap_or_default();
    assert_eq!(why.contains("CAP_PERFMON"), setting > 1, "{why}");
}

/// A shell executes one program after another, and ends with its own code. There is one profile for
/// each process and program that used time, and the results are those that the program prints.
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
        // They are many without a sample where stacks are copied again, which takes its time.
        let found = read.by_function(&program, "part_");
        let parts = found.iter().filter(|(name, _)| name.starts_with("part_"));
        let (parts, sampled): (f64, f64) = (parts.map(|(_, ns)| ns).sum(), read.sampled());
        assert!(read.total() >= 0.3e9, "{}", read.total());
        assert!(parts >= 0.8 * sampled, "{parts} of {sampled}: {found:?}");
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

/// Executed programs and new children have their own profiles even if only `/proc` shows them.
#[test]
fn waiting_children_and_executed_programs_are_distinguished() {
    let scratch = Scratch::new();
    let script = "sleep 1 & wait; exec sleep 1.5";
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--offcpu", "-o"]);
    command.arg(scratch.file("p_"));
    let outcome = run(command.args(["--", "sh", "-c", script]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let reads: Vec<Read> = files(&outcome).iter().map(|path| Read::of(path)).collect();
    // A child that is met before it executes has a profile of that time as well.
    let named = |name: &str| -> BTreeSet<u32> {
        let facts = reads.iter().map(|read| &read.profile.facts);
        let named = facts.filter(|facts| facts.process.as_deref() == Some(name));
        named.filter_map(|facts| facts.pid).collect()
    };
    let (shells, sleepers) = (named("sh"), named("sleep"));
    assert_eq!(sleepers.len(), 2, "{outcome:?}");
    assert!(
        !shells.is_empty() && shells.is_subset(&sleepers),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("time off CPU"), "{outcome:?}");
    assert!(!outcome.stderr.contains("of CPU time"), "{outcome:?}");
}

/// Sleeping processes are reported in one line, and a working process among them has its profile.
#[test]
fn idle_processes_are_reported_together() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut sleepers: Vec<_> = (0..12)
        .map(|_| Command::new("sleep").arg("1000").spawn().expect("sleep"))
        .collect();
    for engine in ["perf", "ptrace"] {
        let mut target = waiting_split(&program, &["100", "two", "100", "wait"]);
        target.say("go");
        let mut command = scratch.profiler();
        command.args(["cpu", "-s", "0.5", "--engine", engine, "-o"]);
        command.arg(scratch.file("p_"));
        for sleeper in &sleepers {
            command.args(["-p", &sleeper.id().to_string()]);
        }
        let outcome = run(command.args(["-p", &target.pid().to_string()]));
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert_eq!(files(&outcome).len(), 1, "{outcome:?}");
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        let of_sleepers: Vec<_> = lines.iter().filter(|line| line.contains("sleep")).collect();
        assert_eq!(of_sleepers.len(), 1, "{outcome:?}");
        let said = "12 processes have no samples, since they used ";
        assert!(of_sleepers[0].contains(said), "{outcome:?}");
        assert!(of_sleepers[0].ends_with("and 4 others"), "{outcome:?}");
        target.kill();
    }
    for sleeper in &mut sleepers {
        sleeper.kill().expect("a child");
        sleeper.wait().expect("a child");
    }
}

/// The failure of a program is passed on. If the program succeeded, but nothing was sampled, the
/// session has failed.
#[test]
fn a_session_without_a_sample_fails_unless_its_program_does() {
    let scratch = Scratch::new();
    for options in [&[][..], &["--engine", "ptrace"], &["--offcpu"]] {
        for (program, code) in [("true", 0), ("exit 3", 3)] {
            let mut command = scratch.profiler();
            // One sample in a second: hardly ever is there one.
            command.args(["cpu", "run", "-F", "1", "-o"]);
            command.arg(scratch.file("p_")).args(options);
            let outcome = run(command.args(["--", "sh", "-c", program]));
            let is_empty = files(&outcome).is_empty();
            let said = outcome.stderr.matches("nothing was sampled").count();
            assert_eq!(said, usize::from(is_empty), "{outcome:?}");
            let code = if is_empty && code == 0 { 1 } else { code };
            assert_eq!(outcome.code, Some(code), "{outcome:?}");
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

/// A message names a requested process even if it ends before anything was sampled.
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

/// Returns a profiler of `split` with 300 sleeping threads that may open so many files.
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

/// Without free descriptors, there is a profile or the true reason: the process has not ended.
#[test]
fn few_descriptors_do_not_mean_that_a_process_ended() {
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

/// The started program has the limit of open files that it would have without us.
#[test]
fn a_started_program_keeps_its_limit_of_files() {
    let scratch = Scratch::new();
    let mut command = Command::new("prlimit");
    command.arg("--nofile=200:1000");
    command.arg(mem_tests::artifacts::profiler());
    command.args(["cpu", "run", "-o"]).arg(scratch.file("p_"));
    // The limit is given back just after the start.
    let outcome = run(command.args(["--", "sh", "-c", "sleep 0.5; ulimit -Sn"]));
    assert!(outcome.stdout.starts_with("200\n"), "{outcome:?}");
}

/// A control group of this test's own.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Version 2 may be mounted at either of two places, beside version 1 or alone. A group may be
/// named by its path in the file system, by its path in the kernel, or by its own name.
#[test]
fn a_control_group_is_found_by_each_of_its_names() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    let mounts = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let mut tried = 0;
    for mount in mounts.filter_map(|line| line.split(' ').nth(4)) {
        let name = format!("mem-tests-{}.scope", std::process::id());
        let group = Group(Path::new(mount).join(&name));
        let scratch = Scratch::new();
        let program = scratch.compile("burn.c", &[]);
        let mut command = Command::new(&program);
        command.env("STAYS", "1").stdin(Stdio::piped());
        let mut target = Target::start(command.stdout(Stdio::piped()));
        let pid = target.pid().to_string();
        // Some hierarchies take no process before their limits are set, or are not ours to change.
        let is_in = std::fs::create_dir(&group.0).is_ok()
            && std::fs::write(group.0.join("cgroup.procs"), &pid).is_ok();
        if is_in {
            tried += 1;
            let path = group.0.to_str().expect("a path");
            for named in [path, &format!("{path}/"), &format!("/{name}"), &name] {
                // On a busy machine, a session may be too short for a sample.
                let sampled = ["0.3", "1", "5", "20"].iter().map(|seconds| {
                    let mut command = scratch.profiler();
                    command.args(["cpu", "--wall", "-s", seconds, "-F", "499", "-p", named]);
                    run(command.arg("-o").arg(scratch.file("g_")))
                });
                let is_sampled = |outcome: &Outcome| !outcome.stderr.contains("no samples of");
                let outcome = sampled.into_iter().find(is_sampled);
                let outcome = outcome.expect("a sample within 20 seconds");
                assert_eq!(outcome.code, Some(0), "{named}: {outcome:?}");
                assert_eq!(mem_tests::cpu::files(&outcome).len(), 1, "{outcome:?}");
                assert!(outcome.stderr.contains(&pid), "{named}: {outcome:?}");
            }
        }
        target.kill();
        target.finish();
        if is_in {
            let path = group.0.to_str().expect("a path");
            let mut command = scratch.profiler();
            let outcome = run(command.args(["cpu", "-s", "0.1", "-p", path]));
            outcome.refused(1, &["no process is in this control group"]);
        }
    }
    assert!(
        tried > 0,
        "no control group could be made: this test needs root"
    );
}
