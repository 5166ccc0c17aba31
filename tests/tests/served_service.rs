//! The server as the unit for systemd runs it: with its own options, system calls and capabilities,
//! for processes of another user.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use mem_tests::units::{another_users, confined, values};
use mem_tests::{Group, Package, Scratch, Server, run, wait};

/// Returns the unit's text.
fn unit() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/board/systemd/mem-profiler-serve.service");
    fs::read_to_string(file).expect("a unit")
}

#[test]
fn all_that_is_asked_for_is_permitted() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, "mem-profiler");
    let mut busy = another_users(&scratch, &package, "/usr/bin/yes", "busy");
    let _busy = Group::start(busy.stdout(Stdio::null()));
    wait::until("the agent", || {
        let list = run(scratch.profiler().arg("list")).stdout;
        list.contains("busy").then_some(())
    });

    let unit = unit();
    let words = values(&unit, "ExecStart");
    let words: Vec<_> = words.iter().map(|word| word.replace("%%", "%")).collect();
    let program = words[0].replace(
        "/opt/mem-profiler",
        package.home().to_str().expect("a path"),
    );
    assert_eq!(words[1..3], ["serve", "--listen"], "{words:?}");
    let options: Vec<_> = words[4..].iter().map(String::as_str).collect();
    let mut command = confined(&scratch, &unit);
    command
        .arg(program)
        .env("MEM_PROFILER_DIR", scratch.shared());
    let server = Server::by(command, &options);

    let processes = server.get("/api/processes").expect(200);
    assert!(processes.contains("busy"), "{processes}");
    let cpu = server.get("/debug/pprof/profile?seconds=1&name=busy");
    cpu.expect(200);
    let profile = cpu.profile();
    let time = profile.sample_types.iter().position(|t| t.kind == "cpu");
    let seconds = profile.total(time.expect("a column of CPU time")) as f64 / 1e9;
    assert!(seconds > 0.1, "it runs all the time: {seconds} s");
    for path in [
        "/debug/pprof/heap?name=busy",
        "/debug/pprof/heap?name=busy&seconds=1",
        "/metrics",
        "/",
    ] {
        server.get(path).expect(200);
    }
    server.stop();
}
