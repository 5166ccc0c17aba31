//! Performs the commands of the guide as they are written, and checks what they show. The other
//! commands are listed with the reason.

mod listed;
mod stage;

use std::collections::BTreeSet;
use std::fs;

use mem_tests::pages::{Page, files};
use mem_tests::{Session, run, wait};

use listed::*;
use stage::Stage;

#[test]
fn each_command_is_performed_or_listed_with_a_reason() {
    let pages = files(&[":(glob)docs/guide/*.md", "docs/hunt/README.md"]);
    let guide: Vec<_> = pages
        .iter()
        .flat_map(|path| Page::read(path).commands())
        .collect();
    let guide: BTreeSet<&str> = guide.iter().map(String::as_str).collect();
    let scenes = [
        INSTALLING,
        SESSIONS,
        WITHIN,
        REDIS,
        CPU,
        SERVER,
        POST_MORTEM,
        BUILDS,
        UNPACKING,
        BOARD,
    ];
    let mut known: Vec<&str> = scenes
        .concat()
        .iter()
        .map(|(command, _)| *command)
        .collect();
    known.extend(BACKGROUND);
    known.extend(ELSEWHERE.iter().map(|(command, _)| command));
    let count = known.len();
    let known: BTreeSet<&str> = known.into_iter().collect();
    assert_eq!(known.len(), count, "none is listed twice");
    let new: Vec<_> = guide.difference(&known).collect();
    assert!(new.is_empty(), "not listed in this test: {new:#?}");
    let gone: Vec<_> = known.difference(&guide).collect();
    assert!(gone.is_empty(), "not in the guide: {gone:#?}");
}

#[test]
fn each_command_does_what_the_guide_shows() {
    let mut stage = Stage::new();
    stage.perform(INSTALLING);
    for made in [
        "etc/bash_completion.d/mem_profiler",
        "usr/local/share/man/man1/mem_profiler.1",
    ] {
        assert!(
            fs::metadata(stage.scratch.file(made)).is_ok_and(|file| file.len() > 0),
            "{made}"
        );
    }
    stage.start_servers();
    stage.profile_server("rss_");
    stage.perform(SESSIONS);
    let session = Session::of(&stage.scratch, stage.pid("20028"), "1024");
    // It loses a session of its users once it has a thousand.
    wait::until("something lost", || {
        let leaks = run(&mut stage.shell("mem_profiler leaks -p server", ""));
        leaks.stdout.contains("lost in").then_some(())
    });
    stage.perform(WITHIN);
    assert_eq!(session.wait().code, Some(0));
    stage.profile_redis();
    stage.perform(REDIS);
    let load = stage.load_redis();
    stage.perform(CPU);
    drop(load);
    stage.perform(SERVER);
    let job = stage.start(BACKGROUND[1]);
    stage.is_listed(&job, "sampling");
    stage.names.push(("29621", job));
    stage.perform(POST_MORTEM);
    stage.build_twice();
    stage.perform(BUILDS);
    stage.pack();
    stage.perform(UNPACKING);
    stage.start_planner();
    stage.perform(BOARD);
}
