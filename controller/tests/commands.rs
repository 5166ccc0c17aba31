//! Tests of the commands with processes that maintain a segment as the agent does.

mod support;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use support::{Place, Ran, wait_for};

fn json(ran: &Ran) -> Vec<serde_json::Value> {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn list_shows_state_interval_and_time_left() {
    let place = Place::new();
    let process = place.fake(&[]);
    let rows = json(&place.run(&["list", "--json"]));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["pid"], process.pid());
    assert_eq!(
        (&rows[0]["state"], &rows[0]["name"]),
        (&"idle".into(), &"fake_agent".into())
    );
    assert_eq!(rows[0]["agent_version"], "0.0.0-fake");
    let session = place.spawn(&["-s", "60", "-c", "4096", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    let rows = json(&place.run(&["list", "--json"]));
    assert_eq!(
        (&rows[0]["state"], &rows[0]["interval"]),
        (&"sampling".into(), &4096.into())
    );
    let left = rows[0]["seconds_left"].as_f64().unwrap();
    assert!((1.0..=60.0).contains(&left), "{left}");
    let table = place.run(&["list"]).out;
    assert!(
        table.lines().next().unwrap().trim().starts_with("PID") && table.contains("sampling"),
        "{table}"
    );
    session.signal(Signal::SIGINT);
    session.end().succeeded();
}

#[test]
fn dump_leaves_the_session_running_and_stop_ends_it() {
    let place = Place::new();
    let process = place.fake(&[]);
    place
        .run(&["dump", "-o", &place.prefix()])
        .failed_saying(&["nothing was sampled yet"]);
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    assert_eq!(
        place
            .run(&["dump", "-o", &place.prefix()])
            .succeeded()
            .len(),
        1
    );
    assert_ne!(place.epoch(process.pid()), 0, "the session continues");
    assert_eq!(
        place
            .run(&["stop", "-o", &place.prefix(), "-p", "fake*"])
            .succeeded()
            .len(),
        1
    );
    assert_eq!(place.epoch(process.pid()), 0);
    // The controller that started the session notices and reports that, and ends with its own dump.
    let ended = session.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("not for the whole session"), "{ended:?}");
    assert_eq!(place.dumps().len(), 3);
    let triggers: Vec<Option<String>> = place
        .dumps()
        .iter()
        .map(|name| {
            profile::open(&place.out().join(name))
                .unwrap()
                .facts
                .trigger
        })
        .collect();
    assert!(triggers.contains(&Some("on demand".into())), "{triggers:?}");
    assert!(triggers.contains(&Some("stopped".into())), "{triggers:?}");
}

#[test]
fn the_profile_of_a_dead_process_is_listed_recovered_and_cleaned() {
    let place = Place::new();
    let process = place.fake(&[]);
    let pid = process.pid();
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(pid) != 0);
    std::thread::sleep(Duration::from_millis(50));
    session.signal(Signal::SIGKILL);
    process.signal(Signal::SIGKILL);
    drop((session, process));
    let rows = json(&place.run(&["list", "--json"]));
    assert_eq!(rows[0]["state"], "dead, profile kept");
    let cleaned = place.run(&["clean"]);
    assert!(cleaned.out.contains("removed 0 segments"), "{cleaned:?}");
    assert!(
        cleaned.err.contains("1 segment holds a profile"),
        "{cleaned:?}"
    );
    let ran = place.run(&["recover", "-o", &place.prefix()]);
    assert!(
        ran.succeeded()[0].contains("ended during the session"),
        "{ran:?}"
    );
    assert_eq!(place.dumps(), [format!("p_fake_agent.{pid}.0001.heap")]);
    assert_eq!(place.segments(), Vec::<String>::new());
    place
        .run(&["recover", "-o", &place.prefix()])
        .failed_saying(&["nothing to recover"]);
}

#[test]
fn clean_keeps_a_profile_that_is_being_written() {
    let place = Place::new();
    let process = place.fake(&[]);
    let pid = process.pid();
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(pid) != 0);
    session.signal(Signal::SIGKILL);
    process.signal(Signal::SIGKILL);
    drop((session, process));
    let segments = place.segments();
    let file = File::open(place.shm().join(&segments[0])).unwrap();
    // A controller that writes the dump holds this lock.
    file.lock().unwrap();
    for arguments in [&["clean"][..], &["clean", "--all"]] {
        let cleaned = place.run(arguments);
        assert!(cleaned.out.contains("removed 0 segments"), "{cleaned:?}");
        assert!(
            cleaned.err.contains("writes out its profile"),
            "{cleaned:?}"
        );
        assert!(!cleaned.err.contains("clean --all"), "{cleaned:?}");
    }
    drop(file);
    let cleaned = place.run(&["clean", "--all"]);
    assert!(cleaned.out.contains("removed 1 segment,"), "{cleaned:?}");
}

#[test]
fn clean_removes_only_segments_of_dead_processes() {
    let place = Place::new();
    let live = place.fake(&[]);
    let dead = place.fake(&["exit-after", "1"]);
    wait_for("its end", || {
        json(&place.run(&["list", "--all", "--json"]))
            .iter()
            .any(|r| r["state"] == "dead")
    });
    let ran = place.run(&["clean"]);
    assert!(ran.out.starts_with("removed 1 segment,"), "{ran:?}");
    let left = place.segments();
    assert_eq!(left.len(), 1);
    assert!(left[0].contains(&format!(".{}.", live.pid())));
    drop(dead);
}

#[test]
fn times_and_allocation_trigger_dumps_and_old_ones_are_removed() {
    let place = Place::new();
    let process = place.fake(&[]);
    let prefix = place.prefix();
    let ran = place.run(&["-s", "1", "-o", &prefix, "--every", "0.2s", "--keep", "2"]);
    assert!(ran.succeeded().len() >= 4, "{ran:?}");
    assert_eq!(place.dumps().len(), 2, "only the newest are kept");
    let pid = process.pid().to_string();
    let ran = place.run(&[
        "-s",
        "1",
        "-o",
        &prefix,
        "--every-alloc",
        "200K",
        "-p",
        &pid,
    ]);
    let lines = ran.succeeded();
    assert!(lines.len() >= 3, "{ran:?}");
    let trigger = profile::open(lines[0].as_ref())
        .unwrap()
        .facts
        .trigger
        .unwrap();
    assert!(trigger.ends_with(" allocated"), "{trigger}");
}

#[test]
fn growth_and_signals_trigger_dumps() {
    let place = Place::new();
    let process = place.fake(&[]);
    let arguments = [
        "-o",
        &place.prefix(),
        "--every-growth",
        "300K",
        "--signal",
        "SIGUSR2",
    ];
    let session = place.spawn(&arguments);
    wait_for("growth", || !place.dumps().is_empty());
    let before = place.dumps().len();
    session.signal(Signal::SIGUSR2);
    let by_signal = || {
        place.dumps().iter().skip(before).any(|name| {
            let profile = profile::open(&place.out().join(name)).unwrap();
            profile
                .facts
                .trigger
                .is_some_and(|t| t.contains("signal SIGUSR2"))
        })
    };
    wait_for("the signal's dump", by_signal);
    session.signal(Signal::SIGINT);
    let ran = session.end();
    let first = profile::open(ran.succeeded()[0].as_ref()).unwrap();
    assert!(
        first
            .facts
            .trigger
            .unwrap()
            .starts_with("live heap grown to")
    );
    assert_eq!(first.facts.ended.as_deref(), Some("running"));
    drop(process);
}

#[test]
fn the_high_water_mark_of_a_process_that_dies_is_written() {
    let place = Place::new();
    let process = place.fake(&[]);
    let session = place.spawn(&["-s", "60", "-o", &place.prefix(), "--peak"]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    std::thread::sleep(Duration::from_millis(300));
    process.signal(Signal::SIGKILL);
    drop(process);
    let ran = session.end();
    let lines = ran.succeeded();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(lines[0].contains("high-water mark"), "{ran:?}");
    let path = lines[0].split(" (").next().unwrap();
    let peak = profile::open(path.as_ref()).unwrap();
    assert!(peak.total(3) > 0);
    assert!(peak.facts.trigger.unwrap().starts_with("high-water mark, "));
}

#[test]
fn resident_memory_triggers_a_dump_once() {
    let place = Place::new();
    let _process = place.fake(&[]);
    let ran = place.run(&["-s", "0.5", "-o", &place.prefix(), "--on-rss", "1K"]);
    assert_eq!(
        ran.succeeded().len(),
        2,
        "one when it was found above, one at the end: {ran:?}"
    );
}

#[test]
fn a_disk_that_fills_up_costs_neither_older_dumps_nor_the_session() {
    let place = Place::new();
    let _process = place.fake(&[]);
    // A script mounts a small file system for the output, fills it up and empties it again.
    let script = r#"
        set -e
        mount -t tmpfs -o size=4m none "$OUT"
        "$@" & session=$!
        until ls "$OUT" | grep -q heap; do sleep 0.02; done
        cat /dev/zero > "$OUT/filler" 2>/dev/null || true
        until grep -q "too little space" "$ERR"; do sleep 0.02; done
        rm "$OUT/filler"
        before=$(ls "$OUT" | wc -l)
        until [ "$(ls "$OUT" | wc -l)" -gt "$before" ]; do sleep 0.02; done
        kill -TERM $session
        wait $session
        cp "$OUT"/* "$SAVED"
    "#;
    let saved = tempfile::tempdir().unwrap();
    let err = saved.path().with_extension("err");
    let flags = if nix::unistd::geteuid().is_root() {
        "-m"
    } else {
        "-Urm"
    };
    let mut command = std::process::Command::new("timeout");
    command
        .args([
            "60",
            "unshare",
            flags,
            "sh",
            "-c",
            script,
            "sh",
            env!("CARGO_BIN_EXE_mem_profiler"),
        ])
        .args(["-o", &place.prefix(), "--every", "0.2s"])
        .env("MEM_PROFILER_DIR", place.shm())
        .env("OUT", place.out())
        .env("SAVED", saved.path())
        .env("ERR", &err)
        .stderr(std::fs::File::create(&err).unwrap());
    let output = command.output().unwrap();
    let stderr = std::fs::read_to_string(&err).unwrap();
    std::fs::remove_file(&err).unwrap();
    assert!(output.status.success(), "{output:?} {stderr}");
    assert!(
        stderr.contains("the output directory has too little space")
            && stderr.contains("sampling continues"),
        "{stderr}"
    );
    let dumps = support::names(saved.path());
    assert!(dumps.len() >= 2, "{dumps:?}");
    for name in dumps {
        assert!(
            profile::open(&saved.path().join(&name)).unwrap().total(0) > 0,
            "{name}"
        );
    }
}

#[test]
fn a_vanished_output_directory_loses_nothing() {
    let place = Place::new();
    let process = place.fake(&[]);
    let session = place.spawn(&["-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    std::thread::sleep(Duration::from_millis(50));
    std::fs::remove_dir(place.out()).unwrap();
    session.signal(Signal::SIGINT);
    let ran = session.end();
    let fetch = format!("mem_profiler dump -p {} -o PREFIX", process.pid());
    ran.failed_saying(&["its profile is kept", &fetch]);
    std::fs::create_dir(place.out()).unwrap();
    let pid = process.pid().to_string();
    place
        .run(&["dump", "-p", &pid, "-o", &place.prefix()])
        .succeeded();
    assert_eq!(json(&place.run(&["list", "--json"]))[0]["state"], "idle");
}

#[test]
fn a_list_of_many_agents_is_complete() {
    let place = Place::new();
    let processes: Vec<_> = (0..50).map(|_| place.fake(&[])).collect();
    let listed = json(&place.run(&["list", "--json"]));
    let pid = |row: &serde_json::Value| row["pid"].as_u64().unwrap() as u32;
    let mut found: Vec<u32> = listed.iter().map(pid).collect();
    let mut expected: Vec<u32> = processes.iter().map(support::Process::pid).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Returns the paths of dumps in the output of a session.
fn paths(text: &str) -> impl Iterator<Item = &Path> {
    let ends_as_dump = |word: &&str| word.ends_with(".heap");
    text.split_whitespace().filter(ends_as_dump).map(Path::new)
}

#[test]
fn the_summary_names_only_existing_dumps() {
    let place = Place::new();
    let _process = place.fake(&[]);
    let ran = place.run(&[
        "-s",
        "1",
        "-o",
        &place.prefix(),
        "--every",
        "0.2s",
        "--keep",
        "2",
    ]);
    assert!(ran.succeeded().len() > 2, "{ran:?}");
    let table = ran.err.lines().filter(|line| !line.contains("next:"));
    let named: Vec<_> = table.flat_map(paths).collect();
    assert_eq!(named.len(), 2, "{ran:?}");
    assert!(named.iter().all(|path| path.exists()), "{ran:?}");
}

#[test]
fn with_a_directory_as_prefix_dumps_are_created_in_it() {
    let place = Place::new();
    let process = place.fake(&[]);
    let out = place.out();
    let directory = out.to_str().unwrap().trim_end_matches('/');
    let ran = place.run(&["-s", "0.2", "-o", directory]);
    let expected = format!("{directory}/fake_agent.{}.0001.heap", process.pid());
    assert_eq!(ran.succeeded(), [expected]);
    assert_eq!(place.dumps().len(), 1);
}

#[test]
fn list_fails_for_a_name_without_a_process() {
    let place = Place::new();
    let process = place.fake(&[]);
    let ran = place.run(&["list", "-p", "nosuch"]);
    ran.failed_saying(&["nosuch: no process has this name"]);
    let pid = process.pid().to_string();
    let ran = place.run(&["list", "-p", &pid, "-p", "nosuch"]);
    ran.failed_saying(&["nosuch: no process has this name"]);
    assert!(ran.out.contains(&pid), "the other one is shown: {ran:?}");
    assert_eq!(place.run(&["list", "-p", &pid]).code, Some(0));
}

#[test]
fn invalid_numbers_are_explained() {
    let place = Place::new();
    for (arguments, message) in [
        (["-s", "-1"], "above zero, such as 60, 1.5, 5m or 2h"),
        (["-s", "x"], "above zero, such as 60, 1.5, 5m or 2h"),
        (["-c", "-1"], "expected a number of bytes"),
        (["--on-cgroup", "90"], "a share is written 90%"),
    ] {
        let ran = place.run(&arguments);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(message), "no {message:?} in {ran:?}");
    }
}
