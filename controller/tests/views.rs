//! Tests of `top`, `why`, completions and man pages.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use support::{Place, program, wait_for};

#[test]
fn top_once_shows_functions_by_live_bytes_and_ends_its_session() {
    let place = Place::new();
    let process = place.fake(&[]);
    let ran = place.run(&["top", "--once", "--delay", "0.3s"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains("FUNCTION") && ran.out.contains("KiB"),
        "{ran:?}"
    );
    assert_eq!(place.epoch(process.pid()), 0, "its session is over");
    let listed = place.run(&["list"]).out;
    assert!(
        !listed.contains("profile kept"),
        "no profile is kept: {listed}"
    );
}

#[test]
fn top_json_shows_a_running_session_and_leaves_it_running() {
    let place = Place::new();
    let process = place.fake(&[]);
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    let ran = place.run(&["top", "--json", "--delay", "0.3s"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["pid"], process.pid());
    let total = json["total"]["live_bytes"].as_f64().unwrap();
    let rows = json["functions"].as_array().unwrap();
    assert!(total > 0.0 && !rows.is_empty(), "{json}");
    // One of the two stacks keeps all that it allocated.
    assert_eq!(rows[0]["numbers"]["live_bytes"].as_f64(), Some(total));
    assert!(
        rows[0]["numbers"]["alloc_per_second"].as_f64().unwrap() > 0.0,
        "{json}"
    );
    assert_ne!(place.epoch(process.pid()), 0, "the session continues");
    session.signal(nix::sys::signal::Signal::SIGINT);
    session.end().succeeded();
}

#[test]
fn top_lists_the_candidates_if_several_processes_match() {
    let place = Place::new();
    let _processes = [place.fake(&[]), place.fake(&[])];
    place
        .run(&["top", "--once"])
        .failed_saying(&["choose one with -p", "fake_agent ("]);
}

#[test]
fn top_in_a_terminal_handles_keys_and_ends_its_session() {
    let place = Place::new();
    let process = place.fake(&[]);
    let size = nix::pty::Winsize {
        ws_row: 24,
        ws_col: 100,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = nix::pty::openpty(Some(&size), None).unwrap();
    let slave = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut command = place.profiler(&["top", "-o", &place.prefix(), "--delay", "0.2s"]);
    command
        .stdin(slave())
        .stdout(slave())
        .stderr(slave())
        .env("TERM", "xterm");
    let mut top = support::Process(command.spawn().unwrap());
    drop((command, pty.slave));
    let mut master = File::from(pty.master);
    let mut reader = master.try_clone().unwrap();
    let (sender, screen) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = reader.read(&mut buffer) {
            if sender.send(buffer[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    // The first screen is drawn in full; later ones only where they differ.
    let mut seen = String::new();
    wait_for("the table", || {
        screen
            .try_iter()
            .for_each(|part| seen.push_str(&String::from_utf8_lossy(&part)));
        seen.contains("FUNCTION") && seen.contains("fake_agent (")
    });
    master.write_all(b"w").unwrap();
    wait_for("a dump by key", || place.dumps().len() == 1);
    master.write_all(b"\tsp").unwrap();
    master.write_all(b"q").unwrap();
    let mut code = None;
    wait_for("its end", || {
        code = top.0.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(0));
    assert_eq!(place.epoch(process.pid()), 0);
}

#[test]
fn why_splits_the_resident_memory_of_a_real_process() {
    let place = Place::new();
    let script = "keep = [b'x' * 100000 for _ in range(200)]\nwhile True: x = [0] * 1000";
    let process = place.preload(&program(&["python3"]), &["-c", script]);
    place.run(&["-s", "1.5", "-o", &place.prefix()]).succeeded();
    let ran = place.run(&["why", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json[0]["pid"], process.pid());
    let live = json[0]["allocator"]["live"].as_u64().unwrap();
    let rss = json[0]["rss_bytes"].as_u64().unwrap();
    assert!(live > 20_000_000 && rss > live, "{json}");
    let text = place.run(&["why", "-p", "python*"]).out;
    for part in [
        "live heap",
        "fragmentation",
        "dirty pages",
        "stacks",
        "code",
        "agent",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn completions_and_man_pages_name_every_command() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = place.run(&["completions", shell]);
        assert_eq!(ran.code, Some(0));
        for word in ["recover", "every-growth", "top"] {
            assert!(ran.out.contains(word), "{shell} lacks {word}");
        }
    }
    let script = place.run(&["completions", "bash"]).out;
    let path = place.out().join("completions.bash");
    std::fs::write(&path, script).unwrap();
    assert!(
        Command::new("bash")
            .arg("-n")
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    let man = tempfile::tempdir().unwrap();
    let directory = man.path().to_str().unwrap();
    assert_eq!(place.run(&["man", directory]).code, Some(0));
    let pages = support::names(man.path());
    for page in ["mem_profiler.1", "mem_profiler-run.1", "mem_profiler-top.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    place
        .run(&["man", "/nonexistent"])
        .failed_saying(&["/nonexistent"]);
}
