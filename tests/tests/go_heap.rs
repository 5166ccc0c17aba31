//! `mem_profiler go`: the heap profile of Go's runtime, read from outside, is the one that the
//! program itself writes at the same moment.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::session::copy_program;
use mem_tests::{Outcome, Scratch, Session, Target, artifacts, run, wait};
use profile::Profile;

/// Builds a program with the installed Go, or the one that `MEM_TESTS_GO` names.
fn built(scratch: &Scratch, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let out = scratch.file(name);
    let mut command = Command::new(std::env::var_os("MEM_TESTS_GO").unwrap_or("go".into()));
    command.arg("build").args(flags).arg("-o").arg(&out);
    command.arg(artifacts::source(source));
    if std::env::var_os("GOCACHE").is_none() {
        command.env("GOCACHE", scratch.file("cache"));
    }
    command.env("GOTOOLCHAIN", "local");
    assert!(command.status().expect("go").success());
    out
}

fn started(program: &Path, arguments: &[&str]) -> Target {
    let mut target = Target::plain(program, arguments);
    target.hear_until("ready");
    target
}

/// Sends a command to a program. Returns the lines that it printed.
fn step(target: &mut Target, line: &str) -> Vec<String> {
    target.say(line);
    target.hear_until("ok")
}

/// Returns `mem_profiler go` for a process.
fn go(scratch: &Scratch, pid: u32) -> Command {
    let mut command = scratch.profiler();
    command
        .args(["go", "-p", &pid.to_string(), "-o"])
        .arg(scratch.file("g_"));
    command
}

/// Returns the only dump of a command that succeeded.
fn dump(outcome: &Outcome) -> PathBuf {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let paths = outcome.stdout.lines().filter_map(|line| {
        let (path, remark) = line.split_once(" (")?;
        assert_eq!(remark, "as of the last garbage collection)", "{outcome:?}");
        path.ends_with(".heap").then(|| PathBuf::from(path))
    });
    let paths: Vec<PathBuf> = paths.collect();
    assert_eq!(paths.len(), 1, "{outcome:?}");
    paths[0].clone()
}

/// Returns the sums of a profile by stack, outermost function first.
fn folded(scratch: &Scratch, options: &[&str], file: &Path) -> Vec<String> {
    let mut command = scratch.parser();
    command.arg("--folded").args(options).arg(file);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    // Go leaves this one out of the profiles that it writes.
    let goexit = "runtime.goexit;";
    let lines = outcome.stdout.lines();
    let mut lines: Vec<String> = lines
        .map(|line| line.strip_prefix(goexit).unwrap_or(line).to_owned())
        .collect();
    lines.sort();
    lines
}

const COLUMNS: [&str; 4] = [
    "--inuse_space",
    "--inuse_objects",
    "--alloc_space",
    "--alloc_objects",
];

/// Ways to link a program.
const KINDS: [(&str, &[&str]); 3] = [
    ("exe", &[]),
    ("pie", &["-buildmode=pie"]),
    ("without_dwarf", &["-ldflags=-w"]),
];

#[test]
fn it_is_the_profile_that_the_program_writes_at_the_same_moment() {
    let scratch = Scratch::new();
    for (name, flags) in KINDS {
        let program = built(&scratch, "go_heap.go", name, flags);
        for rate in ["0", "1", "4096"] {
            let mut target = started(&program, &[rate]);
            let own = scratch.file(&format!("{name}.{rate}.pb.gz"));
            step(&mut target, &format!("own {}", own.display()));
            // Not published before the next collection.
            step(&mut target, "more");
            let ours = dump(&run(&mut go(&scratch, target.pid())));
            let theirs = profile::open(&own).expect("a profile of Go");
            let read = profile::open(&ours).expect("a dump");
            assert_eq!(read.period, theirs.period, "{name} {rate}");
            for kind in [
                "alloc_objects",
                "alloc_space",
                "inuse_objects",
                "inuse_space",
            ] {
                let total = |profile: &Profile| {
                    profile.total(profile.type_index(kind).expect("a heap profile"))
                };
                assert_eq!(total(&read), total(&theirs), "{name} {rate} {kind}");
            }
            if name == "without_dwarf" {
                continue;
            }
            for column in COLUMNS {
                let (found, expected) = (
                    folded(&scratch, &[column], &ours),
                    folded(&scratch, &[column], &own),
                );
                assert_eq!(found, expected, "{name} {rate} {column}");
            }
        }
    }
}

#[test]
fn at_a_rate_of_1_the_numbers_are_the_planted_ones() {
    let scratch = Scratch::new();
    let program = built(&scratch, "go_heap.go", "exact", &[]);
    let mut target = started(&program, &["1"]);
    step(
        &mut target,
        &format!("own {}", scratch.file("own").display()),
    );
    let ours = dump(&run(&mut go(&scratch, target.pid())));
    // The first of the large objects was replaced.
    let main = "runtime.main;main.main;main.";
    for (column, stack, value) in [
        ("--alloc_objects", "holdLarge", 1000),
        ("--alloc_space", "holdLarge", 1000 << 16),
        ("--inuse_space", "holdLarge", 999 << 16),
        ("--inuse_objects", "holdSmall;main.small", 8000),
        ("--inuse_space", "holdSmall;main.small", 8000 << 10),
        ("--alloc_objects", "replace", 500),
    ] {
        let lines = folded(&scratch, &[column], &ours);
        let line = format!("{main}{stack} {value}");
        let found = lines.iter().any(|found| found.ends_with(&line));
        assert!(found, "{column} {line}: {lines:?}");
    }
    let mut leaks = scratch.parser();
    let leaks = run(leaks.arg("--leaks").arg(&ours));
    assert!(leaks.stdout.contains("has no ages"), "{leaks:?}");
    // What allocates is shown first, not the runtime's part of it.
    let mut table = scratch.parser();
    table.arg("-t").arg(&ours);
    let table = run(&mut table);
    let first = table
        .stdout
        .lines()
        .find(|line| line.contains('%') && line.contains("main."));
    assert!(
        first.is_some_and(|line| line.contains("main.holdLarge")),
        "{table:?}"
    );
}

#[test]
fn a_program_that_samples_nothing_is_made_to_for_a_while() {
    let scratch = Scratch::new();
    let program = built(&scratch, "go_silent.go", "silent", &[]);
    let mut target = started(&program, &[]);
    let pid = target.pid();
    run(&mut go(&scratch, pid)).refused(1, &["MemProfileRate is 0", "--enable -s 60"]);
    assert_eq!(step(&mut target, "rate"), ["0"]);
    let session = Session::start(go(&scratch, pid).arg("--enable"));
    wait::until("sampling", || {
        (step(&mut target, "rate") == ["524288"]).then_some(())
    });
    step(&mut target, "hold 100");
    let outcome = session.stop();
    for said in ["set from 0 to 524288", "MemProfileRate is 0 again"] {
        assert!(outcome.stderr.contains(said), "{outcome:?}");
    }
    assert_eq!(step(&mut target, "rate"), ["0"]);
    let objects = folded(&scratch, &["--inuse_objects"], &dump(&outcome));
    let held = objects
        .iter()
        .find_map(|line| line.split_once("main.main;main.hold "));
    let held = held.unwrap_or_else(|| panic!("{objects:?}")).1;
    let held: f64 = held.parse().expect("a number");
    // An object of two mean distances counts for 1.157 of them: six standard errors are 24.
    assert!((held - 100.0).abs() < 24.0, "{objects:?}");
}

#[test]
fn a_process_that_ends_meanwhile_is_reported() {
    let scratch = Scratch::new();
    let program = built(&scratch, "go_silent.go", "ending", &[]);
    let mut target = started(&program, &[]);
    let session = Session::start(go(&scratch, target.pid()).args(["--enable", "-s", "600"]));
    wait::until("sampling", || {
        (step(&mut target, "rate") == ["524288"]).then_some(())
    });
    drop(target);
    session.wait().refused(1, &["it has ended"]);
}

#[test]
fn other_programs_are_refused_with_what_to_do() {
    let scratch = Scratch::new();
    let other = scratch.compile("sleeper.c", &[]);
    let sleeper = Target::plain(&other, &[]);
    run(&mut go(&scratch, sleeper.pid())).refused(1, &["no program of Go", "mem_profiler rss -p"]);
    let stripped = built(&scratch, "go_heap.go", "stripped", &["-ldflags=-s -w"]);
    let target = started(&stripped, &["0"]);
    run(&mut go(&scratch, target.pid())).refused(1, &["-ldflags=-s", "mem_profiler rss -p"]);
    // A session on a Go program says where its profile is.
    let pid = target.pid().to_string();
    let mut session = scratch.profiler();
    session.args(["-s", "1", "-p", &pid]);
    let advice = format!("mem_profiler go -p {pid}");
    run(&mut session).refused(1, &["without the agent", &advice]);
    let mut started = scratch.profiler();
    started.args(["run", "-o"]).arg(scratch.file("run_"));
    started
        .arg("--")
        .arg(&stripped)
        .arg("0")
        .stdin(Stdio::null());
    let outcome = run(&mut started);
    assert!(
        outcome.stderr.contains("mem_profiler go -p PID"),
        "{outcome:?}"
    );
}

#[test]
fn another_users_process_is_refused() {
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.files(), Permissions::from_mode(0o777)).expect("our own");
    let program = built(&scratch, "go_silent.go", "foreign", &[]);
    let mut target = started(&program, &[]);
    let profiler = scratch.file("mem_profiler");
    copy_program(artifacts::profiler(), &profiler);
    for options in [&[][..], &["--enable"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
            .arg(&profiler)
            .args(["go", "-p", &target.pid().to_string()]);
        command.args(options).current_dir(scratch.files());
        run(&mut command).refused(1, &["cannot be read: no permission", "as root"]);
    }
    assert_eq!(step(&mut target, "rate"), ["0"]);
}
