//! Programs as people run them: redis-server, python3, one written in Rust.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::table::{find, table};
use mem_tests::{Scratch, Session, Target, artifacts, run, sums, wait};
use profile::Profile;

/// Returns the bytes that redis-server says it has in use.
fn used_memory(port: &str) -> f64 {
    let info = tool("redis-cli", ["-p", port, "info", "memory"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|n| n.trim().parse().ok())
        .expect("a number of bytes")
}

#[test]
fn redis_server_under_load() {
    let scratch = Scratch::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("a port").port().to_string();
    drop(free);
    let mut command = scratch.preloaded("redis-server");
    command.args([
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    let server = Target::start(command.current_dir(scratch.files()));
    wait::until("redis-server to answer", || {
        let ping = run(Command::new("redis-cli")
            .args(["-p", &port, "ping"])
            .stdin(Stdio::null()));
        (ping.stdout.trim() == "PONG").then_some(())
    });
    let before = used_memory(&port);
    let session = Session::of(&scratch, server.pid(), "1024");
    let load = [
        "-p", &port, "-q", "-t", "set", "-n", "60000", "-r", "30000", "-d", "200",
    ];
    tool("redis-benchmark", load);
    let used = used_memory(&port) - before;
    let outcome = session.stop();
    let dump = outcome.dump();
    assert!(
        dump.ends_with(format!("prof_redis-server.{}.0001.heap", server.pid())),
        "{dump:?}"
    );

    // redis counts what its allocator hands out: sizes rounded up, by a quarter at most.
    let profile = outcome.profile();
    let live: f64 = profile.details.iter().map(|d| d.live_bytes()).sum();
    assert!(live > 5e6, "{live} live, {used} by redis's own count");
    assert!(
        (used * 0.75..used * 1.05).contains(&live),
        "{live} live, {used} by redis's own count"
    );
    let rows = table(&scratch, Path::new("/usr/bin/redis-server"), &dump, &[]);
    let (main, add) = (find(&rows, "main"), find(&rows, "dbAdd"));
    assert!(
        main.cum > 0.99 * live,
        "everything is below main: {main:?} of {live}"
    );
    assert!(add.cum > 0.0 && add.cum < main.cum, "{add:?}");
}

/// Returns the leak's own totals: bytes, and their variance when sampled every `interval`.
fn leak(objects: u32, interval: f64) -> (f64, f64) {
    let sizes = (0..objects).map(|i| f64::from(100 + i % 1000 % 801));
    sizes.fold((0.0, 0.0), |(bytes, variance), n| {
        let weight = 1.0 / (1.0 - (-n / interval).exp());
        (bytes + n, variance + n * n * (weight - 1.0))
    })
}

/// Runs python3 with a leak in a library; gives the dump's and the table's idea of it.
fn python(environment: &[(&str, &str)]) -> (Profile, f64, f64) {
    let scratch = Scratch::new();
    let library = scratch.compile_as("leak.c", "libleak.so", &["-shared", "-fPIC"]);
    let python = Path::new("/usr/bin/python3");
    let mut command = scratch.preloaded(python);
    command
        .arg(artifacts::source("leaky.py"))
        .arg(&library)
        .envs(environment.iter().copied());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1024");
    target.say("20000");
    assert_eq!(target.hear(), "done");
    let outcome = session.stop();
    let profile = outcome.profile();
    let found = sums(&profile, &[&library], "site_");
    let rows = table(&scratch, python, &outcome.dump(), &[]);
    target.finish_well();
    (
        profile,
        found["site_leak"].detail.live_bytes(),
        find(&rows, "site_leak").cum,
    )
}

#[test]
fn a_leak_in_a_c_extension_of_python_is_found_and_measured() {
    for environment in [&[][..], &[("PYTHONMALLOC", "malloc")]] {
        let (profile, live, shown) = python(environment);
        let (truth, variance) = leak(20000, 1024.0);
        // Seven standard errors: by chance once in 1e11 runs.
        let allowed = 7.0 * variance.sqrt();
        assert!(
            (live - truth).abs() < allowed,
            "{live}, {truth} in truth, ±{allowed}"
        );
        assert!(
            (shown - live).abs() <= profile.stacks.len() as f64,
            "{shown} shown of {live}"
        );
        // python's own objects: all of them where it uses malloc, else the larger ones.
        let all: f64 = profile.details.iter().map(|d| d.alloc_bytes).sum();
        let least = if environment.is_empty() { 1.01 } else { 2.0 };
        assert!(
            all > least * truth,
            "{all} allocated, {truth} of these leaked"
        );
    }
}

#[test]
fn a_rust_program_with_threads_and_inlined_functions() {
    let scratch = Scratch::new();
    let program = scratch.compile("leaky.rs", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("5000");
    assert_eq!(target.hear(), "done");
    let dump = session.stop().dump();
    let bytes = table(&scratch, &program, &dump, &[]);
    assert_eq!(
        find(&bytes, "leaky::Keeper::keep_boxes").cum,
        5000.0 * 320.0
    );
    assert_eq!(
        find(&bytes, "leaky::Keeper::keep_strings").cum,
        5000.0 * 250.0
    );
    assert_eq!(
        find(&bytes, "leaky::inlined_helper (inline)").cum,
        5000.0 * 250.0
    );
    let objects = table(&scratch, &program, &dump, &["--inuse_objects"]);
    assert_eq!(find(&objects, "leaky::Keeper::keep_boxes").cum, 5000.0);
    target.finish_well();
}
