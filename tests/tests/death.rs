//! Post mortem: however and whenever a process dies, its dump has everything that it had allocated
//! until then.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::cgroup::{Cgroup, with_version_2};
use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::{CrashTarget, Scratch, Session, Steps, Target, run, wait};

/// Makes the agent sample every allocation from the start, without a controller.
fn from_the_start(command: &mut Command) {
    command
        .env("MEM_PROFILER_START", "1")
        .env("MEM_PROFILER_INTERVAL", "1");
}

fn recover(scratch: &Scratch) -> PathBuf {
    let outcome = run(scratch.profiler().args(["recover", "-o", "post_"]));
    let dump = scratch.files().join(outcome.dump());
    assert!(
        scratch.segments().is_empty(),
        "nothing is left: {outcome:?}"
    );
    dump
}

#[test]
fn killed_at_any_moment_it_leaves_all_that_it_counted() {
    for moment in [1, 20_000, 50_000, 77_777, 120_000] {
        let scratch = Scratch::new();
        let mut crashing = CrashTarget::start(&scratch, 3, &[], from_the_start);
        crashing.let_allocate(moment);
        crashing.target.kill();
        crashing.assert_complete(&recover(&scratch));
    }
}

#[test]
fn however_it_dies_it_leaves_all_that_it_counted() {
    for (how, signal) in [
        ("abort", Some(libc::SIGABRT)),
        ("segv", Some(libc::SIGSEGV)),
        ("_exit", None),
    ] {
        let scratch = Scratch::new();
        let mut crashing = CrashTarget::start(&scratch, 3, &[], from_the_start);
        crashing.let_allocate(30_000);
        crashing.target.say(how);
        assert_eq!(crashing.target.ended().signal(), signal, "{how}");
        crashing.assert_complete(&recover(&scratch));
    }
}

#[test]
fn sampled_every_1024_bytes_the_estimates_stand_when_it_dies() {
    let scratch = Scratch::new();
    let mut crashing = CrashTarget::start(&scratch, 3, &[], |command| {
        from_the_start(command);
        command.env("MEM_PROFILER_INTERVAL", "1024");
    });
    crashing.let_allocate(300_000);
    crashing.target.kill();
    crashing.assert_estimated(&recover(&scratch));
}

#[test]
fn a_waiting_controller_writes_the_dump_and_says_of_what_it_died() {
    for (signal, name) in [(libc::SIGKILL, "SIGKILL"), (libc::SIGSEGV, "SIGSEGV")] {
        let scratch = Scratch::new();
        let mut crashing = CrashTarget::start(&scratch, 3, &[], |_| {});
        let before = crashing.totals();
        let session = Session::of(&scratch, crashing.pid(), "1024");
        crashing.let_allocate(50_000);
        crashing.target.signal(signal);
        assert_eq!(crashing.target.ended().signal(), Some(signal));
        let outcome = session.wait();
        let said = format!("died during the session of {name}");
        assert!(outcome.stdout.contains(&said), "{outcome:?}");
        let profile = outcome.profile();
        let ended = profile.facts.ended.as_deref();
        assert_eq!(ended, Some(format!("target died: {name}").as_str()));
        let since = (crashing.totals().allocated - before.allocated) as f64 * 1000.0;
        let counted = profile.total(1) as f64;
        // It allocated while the session was being started, too.
        assert!(
            counted > 40_000.0 * 1000.0 && counted < since * 1.1,
            "{counted} {since}"
        );
    }
}

#[test]
fn an_orderly_end_without_destructors_is_not_called_a_death() {
    let scratch = Scratch::new();
    let mut crashing = CrashTarget::start(&scratch, 1, &[], |_| {});
    let session = Session::of(&scratch, crashing.pid(), "1");
    crashing.let_allocate(1000);
    crashing.target.say("_exit");
    assert!(crashing.target.ended().success());
    let outcome = session.wait();
    assert!(
        outcome.stdout.contains(" ended during the session)"),
        "{outcome:?}"
    );
    assert!(!outcome.stdout.contains("died"), "{outcome:?}");

    let scratch = Scratch::new();
    let mut shell = scratch.profiler();
    shell.args(["run", "-c", "1", "--min", "0", "-o", "sh_", "--agent"]);
    shell.arg(mem_tests::artifacts::agent());
    let outcome = run(shell.args(["--", "sh", "-c", "for i in 1 2 3; do x=$x$i; done"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains(" exited "), "{outcome:?}");
    assert!(!outcome.stderr.contains("died"), "{outcome:?}");
}

#[test]
fn a_process_killed_by_its_memory_limit_leaves_its_profile() {
    let scratch = Scratch::new();
    let group = Cgroup::new(96 << 20);
    let mut crashing = CrashTarget::start(&scratch, 3, &["hog"], |command| {
        from_the_start(command);
        group.put(command);
    });
    assert_eq!(crashing.target.ended().signal(), Some(libc::SIGKILL));
    assert!(group.kills() > 0, "the kernel's own count of such kills");
    // It had filled the better part of its group with objects of 1000 bytes.
    assert!(
        crashing.totals().allocated > 50_000,
        "{:?}",
        crashing.totals()
    );
    crashing.assert_complete(&recover(&scratch));
}

#[test]
fn before_the_control_group_is_full_a_dump_is_written() {
    let scratch = Scratch::new();
    let group = Cgroup::new(160 << 20);
    let mut crashing = CrashTarget::start(&scratch, 2, &["hog"], |command| {
        group.put(command);
        // Stopped until the session runs: the group fills up within a moment.
        command.env("CRASH_TARGET_WAITS", "1");
    });
    let group_path = group.path();
    let mut command = scratch.profiler();
    command.args(["-c", "64K", "-o", "g_", "--on-cgroup", "50%", "--cgroup"]);
    let session = Session::start(command.arg(group_path));
    scratch.wait_for_sampling(crashing.pid());
    crashing.target.say("go");
    assert_eq!(crashing.target.ended().signal(), Some(libc::SIGKILL));
    let outcome = session.wait();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let dumps = outcome.dumps();
    assert_eq!(dumps.len(), 2, "one before, one after the end: {outcome:?}");
    let open = |at: usize| profile::open(&scratch.files().join(&dumps[at])).expect("whole");
    let (early, last) = (open(0), open(1));
    let trigger = early.facts.trigger.clone().unwrap_or_default();
    assert!(
        trigger.starts_with("memory of the control group at "),
        "{trigger}"
    );
    assert!(early.total(3) < last.total(3), "it went on growing");
    assert_eq!(last.facts.ended.as_deref(), Some("target died: SIGKILL"));
}

#[test]
fn a_control_group_of_version_2_is_watched_up_to_the_one_with_the_limit() {
    let scratch = Scratch::new();
    let mut steps = Steps::start(&scratch);
    let tree = scratch.file("cgroup");
    let own = tree.join("box/app");
    fs::create_dir_all(&own).expect("a directory");
    let put = |path: PathBuf, text: &str| fs::write(path, text).expect("a file");
    put(tree.join("cgroup.controllers"), "memory");
    put(own.join("memory.max"), "max\n");
    put(own.join("memory.current"), "1048575999\n");
    put(tree.join("box/memory.max"), "1048576000\n");
    put(tree.join("box/memory.current"), "104857600\n");
    let mut command = scratch.profiler();
    command.args(["-c", "1", "-o", "v_", "--on-cgroup", "90%"]);
    let session = Session::start(&mut with_version_2(steps.pid(), &tree, command));
    scratch.wait_for_sampling(steps.pid());
    steps.step("keep 7");
    put(tree.join("box/memory.current"), "996147200\n");
    let first = wait::until("the trigger's dump", || {
        let names = fs::read_dir(scratch.files())
            .expect("the directory")
            .flatten();
        let mut paths = names.map(|entry| entry.path());
        paths.find(|path| path.extension().is_some_and(|e| e == "heap"))
    });
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(
        outcome.dumps().len(),
        2,
        "one of the trigger, one of the end: {outcome:?}"
    );
    let trigger = profile::open(&first).expect("whole").facts.trigger;
    let trigger = trigger.unwrap_or_default();
    assert!(
        trigger.starts_with("memory of the control group at 950"),
        "{trigger}"
    );
}

/// Processes that die by `_exit` with a profile, one after the other.
fn many_deaths(scratch: &Scratch, shared: &Path, count: usize) {
    let program = scratch.compile("crash_target.c", &[]);
    for _ in 0..count {
        let mut command = scratch.preloaded(&program);
        command.arg(scratch.file("totals")).arg("1");
        command.env("MEM_PROFILER_DIR", shared);
        from_the_start(&mut command);
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        target.say("_exit");
        assert!(target.ended().success());
    }
}

fn kept(shared: &Path) -> (usize, u64) {
    let entries = fs::read_dir(shared).expect("the directory").flatten();
    let blocks = entries.map(|e| e.metadata().map_or(0, |m| m.blocks()));
    blocks.fold((0, 0), |(count, bytes), b| (count + 1, bytes + b * 512))
}

/// Lets processes die until at most `most` profiles are left, with at most `most_bytes` bytes. One
/// process in sixteen cleans up, by chance. That none of 400 does happens once in 10^11 runs.
fn until_bounded(scratch: &Scratch, shared: &Path, most: usize, most_bytes: u64) -> (usize, u64) {
    for _ in 0..400 {
        let (count, bytes) = kept(shared);
        if count <= most && bytes <= most_bytes {
            return (count, bytes);
        }
        many_deaths(scratch, shared, 1);
    }
    panic!("nobody looked: {:?}", kept(shared));
}

#[test]
fn uncollected_profiles_are_bounded_in_number() {
    let scratch = Scratch::new();
    many_deaths(&scratch, scratch.shared(), 320);
    // In addition, there may be one segment of a process that has examined the directory.
    let (count, _) = until_bounded(&scratch, scratch.shared(), 257, u64::MAX);
    assert!(count >= 200, "the newest stay: {count}");
}

#[test]
fn uncollected_profiles_are_bounded_in_bytes() {
    let scratch = Scratch::new();
    let shared = scratch.file("tiny");
    let _tiny = TinyFilesystem::mount(&shared, "160m");
    many_deaths(&scratch, &shared, 120);
    // A quarter of the filesystem, and one segment of a process that has examined the directory.
    let (count, _) = until_bounded(&scratch, &shared, usize::MAX, 42 << 20);
    assert!(count >= 10, "the newest stay: {count}");
    // There is room left for a session in a new process.
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("MEM_PROFILER_DIR", &shared);
    });
    let pid = program.pid().to_string();
    let mut profiler = scratch.profiler();
    profiler.env("MEM_PROFILER_DIR", &shared);
    let outcome = run(profiler.args(["-s", "0.05", "-o", "b_", "-p", &pid]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    program.step("keep 1");
}

/// Returns the only file in the directory that was not there before.
fn new_file(shared: &Path, before: &[PathBuf]) -> PathBuf {
    let entries = fs::read_dir(shared).expect("the directory").flatten();
    let mut files = entries.map(|entry| entry.path());
    let file = files.find(|file| !before.contains(file));
    file.expect("the profile of the process that died")
}

/// The oldest profiles are removed first, except the one that shows how the crash loop began.
#[test]
fn of_a_crash_loop_the_first_and_the_latest_profile_are_kept() {
    let scratch = Scratch::new();
    let shared = scratch.file("tiny");
    let _tiny = TinyFilesystem::mount(&shared, "40m");
    many_deaths(&scratch, &shared, 1);
    let first = new_file(&shared, &[]);
    many_deaths(&scratch, &shared, 60);
    // A quarter of the filesystem, and one segment of a process that has examined the directory.
    until_bounded(&scratch, &shared, usize::MAX, 11 << 20);
    let entries = fs::read_dir(&shared).expect("the directory").flatten();
    let before: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    assert!(first.exists(), "the first is gone: {before:?}");
    many_deaths(&scratch, &shared, 1);
    assert!(new_file(&shared, &before).exists(), "the latest is gone");
    assert!(first.exists(), "the first is gone");
}

#[test]
fn a_directory_full_of_kept_profiles_is_reported() {
    let scratch = Scratch::new();
    let shared = scratch.file("tiny");
    let tiny = TinyFilesystem::mount(&shared, "40m");
    many_deaths(&scratch, &shared, 1);
    let start = |shared: &Path| {
        Steps::start_with(&scratch, &[], |command| {
            command.env("MEM_PROFILER_DIR", shared);
        })
    };
    let program = start(&shared);
    tiny.fill();
    let session = |shared: &Path, pid: u32| {
        let mut profiler = scratch.profiler();
        profiler.env("MEM_PROFILER_DIR", shared);
        run(profiler.args(["-s", "0.05", "-o", "f_", "-p", &pid.to_string()]))
    };
    let directory = shared.to_str().expect("a path of ours");
    let outcome = session(&shared, program.pid());
    let parts = [
        directory,
        "the session needs",
        "are free",
        "MEM_PROFILER_DIR",
        "the profile of an ended process takes",
        "mem_profiler recover",
    ];
    outcome.refused(1, &parts);
    // In another directory, the problem does not occur.
    let program = start(scratch.shared());
    let outcome = session(scratch.shared(), program.pid());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}
