//! A program under a filter of system calls runs as it would without the agent.

use mem_tests::{Scratch, Session, Target, run};

/// Returns the program `sandboxed.c` under one of its filters.
fn sandboxed(scratch: &Scratch, list: u32, way: &str, with: bool) -> Target {
    let program = scratch.compile("sandboxed.c", &[]);
    let mut command = scratch.preloaded(&program);
    if !with {
        command.env_remove("LD_PRELOAD");
    }
    let mut target = Target::start(command.args([list.to_string().as_str(), way]));
    assert_eq!(target.hear(), "ready", "list {list}, {way}, agent: {with}");
    target
}

fn work(target: &mut Target) {
    target.say("work");
    assert_eq!(target.hear(), "ok");
}

fn idle_in_a_sandbox(list: u32) {
    for way in WAYS {
        for with in [false, true] {
            let scratch = Scratch::new();
            let mut target = sandboxed(&scratch, list, way, with);
            work(&mut target);
            let status = target.finish();
            assert!(
                status.success(),
                "list {list}, {way}, agent: {with}: {status}"
            );
        }
    }
}

fn sampled_in_a_sandbox(list: u32) {
    for way in WAYS {
        let scratch = Scratch::new();
        let mut target = sandboxed(&scratch, list, way, true);
        work(&mut target);
        let args = ["-s", "0.5", "-c", "1024", "-p", &target.pid().to_string()];
        let mut session = Session::start(scratch.profiler().args(args));
        while !session.is_over() {
            work(&mut target);
        }
        let outcome = session.wait();
        assert!(matches!(outcome.code, Some(0 | 1)), "{outcome:?}");
        work(&mut target);
        let status = target.finish();
        assert!(status.success(), "list {list}, {way}: {status}");
    }
}

/// A process that has never had a second thread needs no futex, nor does the C library's allocator.
#[test]
fn a_sandbox_that_forbids_futex_in_a_session() {
    for way in WAYS {
        for interval in ["1", "1024"] {
            let scratch = Scratch::new();
            let program = scratch.compile("sandboxed.c", &["-O0"]);
            let mut command = scratch.preloaded(&program);
            command
                .args(["-", way])
                .env("MEM_PROFILER_START", "1")
                .env("MEM_PROFILER_INTERVAL", interval);
            let mut target = Target::start(&mut command);
            assert_eq!(target.hear(), "ready", "{way}, {interval}");
            work(&mut target);
            let status = target.finish();
            assert!(status.success(), "{way}, {interval}: {status}");
        }
    }
}

/// Sampled objects that are kept need new pages, under a filter that forbids `madvise`.
#[test]
fn a_sandbox_in_a_session_that_keeps_objects() {
    for way in WAYS {
        let scratch = Scratch::new();
        let program = scratch.compile("sandboxed.c", &[]);
        let mut command = scratch.preloaded(&program);
        command
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", "1");
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready", "{way}");
        work(&mut target);
        for step in [&format!("filter {way}"), "keep"] {
            target.say(step);
            assert_eq!(target.hear(), "ok", "{way}: {step}");
        }
        let status = target.finish();
        assert!(status.success(), "{way}: {status}");
    }
}

/// How a program comes by its filter. One that is there before the program starts has to
/// allow what jemalloc does when it is loaded: see the guide.
const WAYS: [&str; 2] = ["prctl", "syscall"];

#[test]
fn a_sandbox_that_allows_little_idle() {
    idle_in_a_sandbox(0);
}

#[test]
fn a_sandbox_that_allows_getpid_and_signal_masks_idle() {
    idle_in_a_sandbox(1);
}

#[test]
fn a_sandbox_that_allows_sysinfo_as_well_idle() {
    idle_in_a_sandbox(2);
}

#[test]
fn a_sandbox_that_allows_little_in_a_session() {
    sampled_in_a_sandbox(0);
}

#[test]
fn a_sandbox_that_allows_getpid_and_signal_masks_in_a_session() {
    sampled_in_a_sandbox(1);
}

#[test]
fn a_sandbox_that_allows_sysinfo_as_well_in_a_session() {
    sampled_in_a_sandbox(2);
}

/// A filter is installed between a session's start and its first sample. The agent may make no
/// system calls any more, and readers are told so, not that all is well.
#[test]
fn a_sandbox_entered_during_a_session_is_reported() {
    for way in WAYS {
        let scratch = Scratch::new();
        let program = scratch.compile("sandboxed.c", &[]);
        let mut target = Target::start(&mut scratch.preloaded(&program));
        assert_eq!(target.hear(), "ready");
        work(&mut target);
        let pid = target.pid().to_string();
        let list = || run(scratch.profiler().args(["list", "-p", &pid]));
        let session = Session::of(&scratch, target.pid(), "1");
        let outcome = list();
        assert!(outcome.stdout.contains("sampling"), "{way}: {outcome:?}");
        target.say(&format!("filter {way}"));
        assert_eq!(target.hear(), "ok");
        for _ in 0..2 {
            let outcome = list();
            let told = outcome.stdout.contains("not sampled: seccomp");
            assert!(told, "{way}: {outcome:?}");
            let outcome = run(scratch.profiler().args(["leaks", "-p", &pid]));
            assert_eq!(outcome.code, Some(1), "{way}: {outcome:?}");
            let told = outcome.stderr.contains("installed a seccomp filter");
            assert!(told, "{way}: {outcome:?}");
            work(&mut target);
        }
        let outcome = session.stop();
        let told = outcome.stderr.contains("installed a seccomp filter");
        assert!(told, "{way}: {outcome:?}");
        let status = target.finish();
        assert!(status.success(), "{way}: {status}");
    }
}

/// Memory that a program's own session may need later is reserved before a filter forbids the
/// request.
#[test]
fn a_table_has_room_before_a_filter_comes() {
    for way in WAYS {
        let scratch = Scratch::new();
        let program = scratch.compile("sandboxed.c", &[]);
        let mut command = scratch.preloaded(&program);
        command.env("MEM_PROFILER_START", "1");
        command.env("MEM_PROFILER_TABLE", "64M");
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        work(&mut target);
        let before = scratch.shared_bytes();
        assert!(before < 1 << 20, "{way}: {before} bytes");
        target.say(&format!("filter {way}"));
        assert_eq!(target.hear(), "ok");
        let after = scratch.shared_bytes();
        assert!(after > 4 << 20, "{way}: {after} bytes");
        work(&mut target);
        let status = target.finish();
        assert!(status.success(), "{way}: {status}");
    }
}
