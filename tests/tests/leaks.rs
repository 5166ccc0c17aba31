//! Leak suspects in dumps of a real program whose leak is known.

use std::path::PathBuf;

use mem_tests::{Scratch, Session, Target, run};

/// Returns a server that leaks 300 bytes at one of ten requests, 600 kB a second, and a series of
/// dumps of it.
fn serve(scratch: &Scratch) -> (PathBuf, Vec<PathBuf>) {
    let program = scratch.compile("server.c", &[]);
    let mut server = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(server.hear(), "ready");
    let session = Session::of(scratch, server.pid(), "256");
    let pid = server.pid().to_string();
    let mut step = |line: &str| {
        server.say(line);
        server.hear_until("ok");
    };
    let mut dumps = Vec::new();
    step("tables 3000");
    step("serve");
    for round in 0..8 {
        // The cache is filled between two dumps, and then stays.
        if round == 4 {
            step("cache 4000");
        }
        step(&format!("until {}", (round + 1) * 5000));
        let prefix = scratch.file(&format!("round{round}_"));
        let mut profiler = scratch.profiler();
        let outcome = run(profiler.args(["dump", "-p", &pid, "-o"]).arg(prefix));
        dumps.push(outcome.dump());
    }
    session.stop();
    server.finish_well();
    (program, dumps)
}

/// Returns the allocating functions and what their growth is called, in the order of the suspects.
/// Those of the program itself come after their line of source.
fn suspects(text: &str) -> Vec<(String, String)> {
    let mut lines = text.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if !line.starts_with("-----------+") {
            continue;
        }
        let (Some(row), Some(site), Some(name)) = (lines.next(), lines.next(), lines.next()) else {
            break;
        };
        let site = site.trim();
        assert!(
            site.starts_with("at ") && site.contains("/server.c:"),
            "{text}"
        );
        let last = row.split_whitespace().last().unwrap_or("");
        found.push((name.trim().to_owned(), last.to_owned()));
    }
    found
}

#[test]
fn the_leak_is_ranked_first_however_much_others_hold() {
    let scratch = Scratch::new();
    let (program, dumps) = serve(&scratch);
    let mut parser = scratch.parser();
    let parser = parser.args(["--leaks", "-p"]).arg(&program);
    let outcome = run(parser.arg("-f").args(&dumps));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let found = suspects(&outcome.stdout);
    let verdict = |name: &str| {
        let own = found.iter().find(|(function, _)| function == name);
        own.unwrap_or_else(|| panic!("no {name}: {found:?}"))
            .1
            .as_str()
    };
    assert_eq!(found[0].0, "open_session", "{}", outcome.stdout);
    let at = outcome
        .stdout
        .lines()
        .find(|line| line.trim().starts_with("at "));
    let at = at.expect("the leak's line");
    assert!(at.ends_with(" in open_session"), "{at}");
    assert_eq!(verdict("open_session"), "steady", "{}", outcome.stdout);
    assert_eq!(verdict("fill_cache"), "once", "{}", outcome.stdout);
    assert_eq!(verdict("load_tables"), "level", "{}", outcome.stdout);
}
