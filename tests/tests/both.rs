//! `mem_profiler both`: heap and CPU time of one process at the same time.

use std::path::PathBuf;
use std::process::Command;

use mem_tests::cpu::{COMPLETE, Read};
use mem_tests::target::cpu_seconds;
use mem_tests::{Scratch, Session, Target, run, sums, wait};

/// Returns a running `turnover` under the agent, which waits for a line of input before it works.
fn turnover(scratch: &Scratch) -> (Target, PathBuf) {
    let program = scratch.compile("turnover.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    (target, program)
}

/// The dump and the CPU profile are of the same process and time, and a page is made of both.
#[test]
fn heap_and_cpu_time_are_sampled_side_by_side() {
    let scratch = Scratch::new();
    let (mut target, program) = turnover(&scratch);
    target.say("begin");
    target.hear();
    let mut command = scratch.profiler();
    let pid = target.pid().to_string();
    command.args(["both", "-p", &pid, "-F", "999", "--html", "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    scratch.wait_for_sampling(target.pid());
    // The events of CPU time are opened after the heap's session began.
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

/// A waiting process has a heap, but uses no CPU time. This is a valid result, with a page.
#[test]
fn an_idle_process_is_no_failure() {
    let scratch = Scratch::new();
    let (target, _) = turnover(&scratch);
    let pid = target.pid().to_string();
    for page in [&[][..], &["--html"]] {
        let mut command = scratch.profiler();
        command.args(["both", "-s", "0.2", "-p", &pid]).args(page);
        let outcome = run(command.arg("-o").arg(scratch.file("p_")));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let said = ["no samples of its", "Sample for longer"];
        assert!(said.iter().all(|part| outcome.stderr.contains(part)));
        assert!(!outcome.stderr.contains("nothing was sampled"));
        assert!(outcome.stdout.ends_with("memory data!\n"), "{outcome:?}");
        let dumps = outcome.dumps();
        assert_eq!(dumps.len(), 1, "{outcome:?}");
        match page.is_empty() {
            true => assert!(outcome.stderr.contains("next: mem_parser "), "{outcome:?}"),
            false => assert!(dumps[0].with_extension("html").exists(), "{outcome:?}"),
        }
    }
}

/// Without a heap to sample, a message suggests to sample only CPU time.
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

/// If another session already samples the heap, nothing is sampled, and no other message is
/// printed.
#[test]
fn both_are_refused_together() {
    let scratch = Scratch::new();
    let (target, _) = turnover(&scratch);
    let session = Session::of(&scratch, target.pid(), "1024");
    let pid = target.pid().to_string();
    let mut command = scratch.profiler();
    command.args(["both", "-s", "1", "-p", &pid, "-o"]);
    let outcome = run(command.arg(scratch.file("p_")));
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    outcome.refused(1, &["mem_profiler (pid", "is already running a session"]);
    session.stop();
}
