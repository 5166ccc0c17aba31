//! CPU profiles that programs request themselves: `CPUPROFILE` and gperftools' `ProfilerStart`.

use std::path::{Path, PathBuf};

use mem_tests::cpu::seconds;
use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::{Outcome, Scratch, Target, run, wait};

fn start(scratch: &Scratch, arguments: &[&str]) -> (PathBuf, PathBuf, Outcome) {
    let program = scratch.compile("cpu_profiler.c", &[]);
    let file = scratch.file("own.prof");
    let mut command = scratch.preloaded(&program);
    let outcome = run(command.arg(&file).args(arguments));
    (program, file, outcome)
}

#[test]
fn what_lies_between_start_and_stop_is_profiled() {
    let scratch = Scratch::new();
    for arguments in [&[][..], &["fork"]] {
        let (program, file, outcome) = start(&scratch, arguments);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let child = if arguments.is_empty() {
            ""
        } else {
            "child: 0\n"
        };
        let expected = format!(
            "started: 1\nagain: 0\nenabled: 1 1 named: 1 since: 1\n{child}\
             enabled: 0 written: 1\nchildren: -1\n"
        );
        assert_eq!(outcome.stdout, expected, "{outcome:?}");
        let [inside, outside] =
            ["profiled", "unprofiled"].map(|name| seconds(&program, &file, &format!(" {name}")));
        assert!((0.4..=0.6).contains(&inside), "{inside} {outcome:?}");
        assert!(outside < 0.05, "{outside} {outcome:?}");
        std::fs::remove_file(&file).expect("the profile");
    }
}

#[test]
fn a_variable_profiles_the_whole_run_and_each_child_by_itself() {
    let scratch = Scratch::new();
    let program = scratch.compile("cpu_profiler.c", &[]);
    let file = scratch.file("whole.prof");
    let mut command = scratch.preloaded("sh");
    command.env("CPUPROFILE", &file);
    // The shell takes the name, and leaves its number to nobody.
    let script = "\"$0\" & wait; echo $!; i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
    let outcome = run(command.args(["-c", script]).arg(&program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(file.exists(), "{outcome:?}");
    let child = format!("{}_{}", file.display(), outcome.stdout.trim());
    let found = seconds(&program, Path::new(&child), " profiled");
    assert!((0.4..=0.6).contains(&found), "{found} {outcome:?}");
    let all = seconds(&program, Path::new(&child), " main");
    assert!((0.8..=1.0).contains(&all), "{all} {outcome:?}");
}

/// A signal begins a profile, and the next one ends it. Each profile has a file.
#[test]
fn a_signal_switches_profiles() {
    let scratch = Scratch::new();
    let program = scratch.compile("cpu_profiler.c", &[]);
    let file = scratch.file("switched.prof");
    let start = |signal: &str| {
        let mut command = scratch.preloaded(&program);
        command.env("CPUPROFILE", &file);
        run(command.env("CPUPROFILESIGNAL", signal).arg("switch"))
    };
    let outcome = start(&libc::SIGUSR2.to_string());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!file.exists(), "{outcome:?}");
    let found = ["0", "1"].map(|number| {
        let file = PathBuf::from(format!("{}.{number}", file.display()));
        [" profiled", " unprofiled"].map(|name| seconds(&program, &file, name))
    });
    // The functions used half a second and a fifth of a second.
    assert!((0.4..=0.6).contains(&found[0][0]), "{found:?} {outcome:?}");
    assert!(found[0][1] < 0.05, "{found:?} {outcome:?}");
    assert!(found[1][0] < 0.05, "{found:?} {outcome:?}");
    assert!((0.1..=0.3).contains(&found[1][1]), "{found:?} {outcome:?}");
    for (wrong, why) in [("99", "no signal's number"), ("9", "cannot be handled")] {
        let outcome = start(wrong);
        assert!(outcome.stderr.contains(why), "{wrong}: {outcome:?}");
    }
}

#[test]
fn a_profile_outlives_the_process_that_is_killed() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &["-pthread"]);
    let file = scratch.file("killed.prof");
    let mut command = scratch.preloaded(&program);
    command.env("CPUPROFILE", &file);
    let mut target = Target::start(command.args(["100", "two", "200", "wait"]));
    assert_eq!(target.hear(), "ready");
    target.say("");
    wait::until("half a second of CPU time", || {
        let used = mem_tests::target::cpu_seconds(target.pid());
        (used > 0.5).then_some(())
    });
    target.kill();
    target.finish();
    // The file is there from the start, and has nothing until the end.
    wait::until("its profile", || {
        let written = std::fs::metadata(&file).ok()?.len();
        (written > 0).then_some(())
    });
    assert!(seconds(&program, &file, " main") > 0.3);
}

#[test]
fn a_program_that_cannot_be_profiled_says_so_and_runs() {
    let scratch = Scratch::new();
    let program = scratch.compile("cpu_profiler.c", &[]);
    let mut command = scratch.preloaded(&program);
    let outcome = run(command.env("CPUPROFILE", scratch.file("no/such/directory")));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let said = ["no/such", "does not exist", "no CPU profile"];
    for said in said {
        assert!(outcome.stderr.contains(said), "{said}: {outcome:?}");
    }
}

/// A full disk is reported, and does not affect the program.
#[test]
fn a_profile_without_room_is_reported() {
    let scratch = Scratch::new();
    let program = scratch.compile("cpu_profiler.c", &[]);
    let place = scratch.file("tiny");
    let tiny = TinyFilesystem::mount(&place, "64k");
    tiny.fill();
    let mut command = scratch.preloaded(&program);
    let outcome = run(command.env("CPUPROFILE", place.join("own.prof")));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("No space left"), "{outcome:?}");
}

/// gperftools silently samples at a lower rate than requested.
#[test]
fn a_rate_that_is_too_high_is_reported() {
    let scratch = Scratch::new();
    let program = scratch.compile("cpu_profiler.c", &[]);
    let mut command = scratch.preloaded(&program);
    command.env("CPUPROFILE", scratch.file("own.prof"));
    let outcome = run(command.env("CPUPROFILE_FREQUENCY", "9999"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let said = "CPUPROFILE_FREQUENCY=9999: 4000 is used instead";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
}

/// The program writes its own profile to the same file.
#[test]
fn a_program_with_gperftools_own_profiler_keeps_it() {
    let scratch = Scratch::new();
    let flags = ["-Wl,--no-as-needed", "-l:libprofiler.so.0"];
    let program = scratch.compile("cpu_profiler.c", &flags);
    let file = scratch.file("theirs.prof");
    let outcome = run(scratch.preloaded(&program).env("CPUPROFILE", &file));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("PROFILE: "), "{outcome:?}");
    assert!(!outcome.stderr.contains("mem_profiler"), "{outcome:?}");
    assert!(seconds(&program, &file, " main") > 0.5, "{outcome:?}");
}
