//! What strangers put into the shared directory, and processes that mean ill, against the
//! commands: they harm neither the commands nor other processes' segments.

mod support;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use forge::{Forged, give_to_nobody, is_root, start_of};
use nix::sys::signal::Signal;
use support::{Place, Ran, wait_for};

fn states(place: &Place) -> Vec<(u64, String)> {
    let ran = place.run(&["list", "--all", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let rows: Vec<serde_json::Value> = serde_json::from_str(&ran.out).unwrap();
    let mut states: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                row["pid"].as_u64().unwrap(),
                row["state"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    states.sort();
    states
}

#[test]
fn a_planted_file_costs_no_live_process_its_segment() {
    let place = Place::new();
    let live = place.fake(&[]);
    let (pid, start) = (live.pid(), start_of(live.pid()));
    let own = place.segments();
    let stranger = Forged {
        inside: (1, 1),
        created_ns: u64::MAX,
        ..Forged::of(pid, start)
    };
    let twin = Forged {
        created_ns: u64::MAX,
        image: 8,
        ..Forged::of(pid, start)
    };
    let newer = Forged {
        image: 9,
        ..Forged::of(pid, start)
    };
    for forged in [stranger, twin, newer] {
        let path = forged.make(&place.shm());
        if is_root() {
            give_to_nobody(&path);
        }
    }
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(pid) != 0);
    for _ in 0..2 {
        let ran = place.run(&["clean", "--all"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(place.segments().contains(&own[0]), "{ran:?}");
        assert_ne!(place.epoch(pid), 0, "its session continues");
    }
    let states = states(&place);
    assert!(
        states.contains(&(u64::from(pid), "sampling".into())),
        "{states:?}"
    );
    session.signal(Signal::SIGINT);
    let ran = session.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        ran.out
            .lines()
            .filter(|line| line.ends_with(".heap"))
            .count(),
        1,
        "{ran:?}"
    );
}

#[test]
fn another_pid_namespace_removes_nothing() {
    let place = Place::new();
    let live = place.fake(&[]);
    let dead = Forged::of_dead().make(&place.shm());
    let mut left = Forged::of_dead();
    left.namespace = 1;
    let left = left.make(&place.shm());
    let root: &[&str] = if is_root() { &[] } else { &["-Ur"] };
    for proc in [&[][..], &["--mount-proc"]] {
        let mut command = Command::new("unshare");
        command
            .args(root)
            .args(["--pid", "--fork"])
            .args(proc)
            .arg(env!("CARGO_BIN_EXE_mem_profiler"))
            .args(["clean", "--all"])
            .env("MEM_PROFILER_DIR", place.shm());
        let ran = Ran::of(command.output().unwrap());
        assert!(ran.out.contains("removed 0 segments"), "{ran:?}");
        assert!(ran.err.contains("segments are kept"), "{ran:?}");
        assert_eq!(place.segments().len(), 3, "{ran:?}");
    }
    // Here all processes can be seen, or those of our namespace at least.
    let ran = place.run(&["clean", "--all"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!dead.exists(), "{ran:?}");
    assert!(
        !left.exists() || forge::namespace() != 0xEFFF_FFFC,
        "{ran:?}"
    );
    assert!(place.segments()[0].contains(&format!(".{}.", live.pid())));
}

#[test]
fn what_a_living_process_maps_is_not_a_dead_ones() {
    let place = Place::new();
    let path = Forged::of_dead().make_with_stacks(&place.shm(), 1, 3);
    let holder = place.fake(&["holds", path.to_str().unwrap()]);
    let said = format!("process {} still maps it", holder.pid());
    let ran = place.run(&["clean", "--all"]);
    assert!(ran.err.contains(&said) && path.exists(), "{ran:?}");
    place
        .run(&["recover", "-o", &place.prefix()])
        .failed_saying(&[&said]);
    assert!(path.exists() && place.dumps().is_empty());
    drop(holder);
    place.run(&["recover", "-o", &place.prefix()]).succeeded();
    assert!(!path.exists());
}

#[test]
fn a_process_of_another_container_is_not_ours_of_the_same_pid_and_start() {
    let place = Place::new();
    let live = place.fake(&[]);
    let (pid, start) = (live.pid(), start_of(live.pid()));
    let other = Forged {
        namespace: 1,
        ..Forged::of(pid, start)
    };
    let other = other.make(&place.shm());
    let pid = u64::from(pid);
    let expected = [(pid, "dead".to_owned()), (pid, "idle".to_owned())];
    assert_eq!(states(&place), expected);
    place.run(&["clean"]);
    assert_eq!(place.segments().len(), if other.exists() { 2 } else { 1 });
    assert!(states(&place).contains(&expected[1]));
}

#[test]
fn planted_files_exhaust_no_descriptors() {
    let place = Place::new();
    let live = place.fake(&[]);
    let forged = Forged::of_dead();
    for image in 0..1500 {
        Forged {
            image,
            ..Forged::of(forged.named.0, forged.named.1)
        }
        .make(&place.shm());
    }
    let limited = |arguments: &[&str]| {
        let script = "ulimit -n 64; exec \"$@\"";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_mem_profiler")])
            .args(arguments)
            .env("MEM_PROFILER_DIR", place.shm());
        Ran::of(command.output().unwrap())
    };
    let ran = limited(&["list", "--all", "--json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(rows.len(), 1501, "{}", ran.err);
    limited(&["-s", "0.2", "-o", &place.prefix()]).succeeded();
    let ran = limited(&["clean"]);
    assert!(ran.out.starts_with("removed 1500 segments,"), "{ran:?}");
    assert_eq!(place.segments().len(), 1);
    drop(live);
}

#[test]
fn what_was_killed_while_it_made_its_segment_is_removed() {
    let place = Place::new();
    let live = place.fake(&[]);
    let stub = |(pid, start): (u32, u64), image: u32, bytes: usize, seconds_ago: u64| {
        let path = place
            .shm()
            .join(format!("mem_profiler.{pid}.{start}.{image}"));
        std::fs::write(&path, vec![0; bytes]).unwrap();
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(seconds_ago);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(then).unwrap();
        path
    };
    let dead = Forged::of_dead().named;
    let gone = [0, 100, 4096, 3 * 4096, 1 << 20].map(|bytes| stub(dead, bytes as u32, bytes, 60));
    // Its process may be about to write it, or to make another try.
    let young = stub(dead, 8, 0, 0);
    let of_living = stub((live.pid(), start_of(live.pid())), 8, 0, 60);
    let ran = place.run(&["list"]);
    let of_dead = format!(".{}.", dead.0);
    assert!(
        ran.code == Some(0) && !ran.err.contains(&of_dead),
        "{ran:?}"
    );
    let ran = place.run(&["clean"]);
    assert!(ran.out.starts_with("removed 5 segments"), "{ran:?}");
    assert!(gone.iter().all(|path| !path.exists()), "{ran:?}");
    assert!(young.exists() && of_living.exists(), "{ran:?}");
}

#[test]
fn the_profile_in_a_truncated_segment_is_not_reported_as_kept() {
    let place = Place::new();
    let live = place.fake(&[]);
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(live.pid()) != 0);
    let segment = place.shm().join(&place.segments()[0]);
    let file = std::fs::File::options().write(true).open(segment).unwrap();
    file.set_len(4096).unwrap();
    session.signal(Signal::SIGINT);
    let ran = session.end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("its profile is lost"), "{ran:?}");
    assert!(!ran.err.contains("is kept"), "{ran:?}");
}

#[test]
fn a_flood_of_names_hides_no_process_and_takes_one_line() {
    let place = Place::new();
    for image in 0..20_000 {
        let name = format!("mem_profiler.{}.{image}.0", 3_900_000 + image);
        std::fs::File::create(place.shm().join(name)).unwrap();
    }
    let live = place.fake(&[]);
    for arguments in [
        &["list"][..],
        &["-s", "0.2", "-o", &place.prefix()],
        &["recover"],
    ] {
        let ran = place.run(arguments);
        let lines = ran
            .err
            .lines()
            .filter(|line| line.contains("mem_profiler.39"));
        assert!(lines.count() <= 1, "{}", ran.err.len());
        if arguments[0] != "recover" {
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
    }
    let ran = place.run(&["list"]);
    assert!(ran.out.contains(&live.pid().to_string()), "{ran:?}");
    drop(live);
}

#[test]
fn a_few_written_bytes_become_no_huge_dump() {
    let place = Place::new();
    let forged = Forged {
        bytes: 64 << 20,
        ..Forged::of_dead()
    };
    let path = forged.make_with_stacks(&place.shm(), 1000, 5000);
    let written = std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
    assert!(written < 400 << 10, "{written}");
    let ran = place.run(&["recover", "-o", &place.prefix()]);
    ran.succeeded();
    assert!(ran.err.contains("stacks are truncated"), "{ran:?}");
    let dump = place.out().join(&place.dumps()[0]);
    let bytes = dump.metadata().unwrap().len();
    assert!(bytes < 64 * written, "{bytes} of {written}");
    let profile = profile::open(&dump).unwrap();
    assert_eq!(profile.details.len(), 1000, "no stack is lost");
}

#[test]
fn dumps_are_their_owners_alone() {
    let place = Place::new();
    let _live = place.fake(&[]);
    place.run(&["-s", "0.2", "-o", &place.prefix()]).succeeded();
    let dump = place.out().join(&place.dumps()[0]);
    assert_eq!(dump.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// Text that clears the screen, ends the line, reorders and hides, and is not UTF-8.
const HOSTILE: &[u8] = b"\x1b[2J\r\n\x07\xc2\x9b31m\x7f\xe2\x80\xae\xe2\x80\x8b\xff";

#[test]
fn hostile_names_do_not_reach_the_terminal_raw() {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let hostile = std::ffi::OsStr::from_bytes(HOSTILE);
    let shm = parent.path().join(hostile);
    std::fs::create_dir(&shm).unwrap();
    let program = shm.join(hostile);
    // By another process: what this one has open for writing, another test's child may have open
    // for a moment longer, and it could not be executed.
    let mut copy = Command::new("cp");
    let copied = copy
        .arg(support::example("fake_agent"))
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    let comm = "\u{1b}[2J\n\u{9b}\u{202e}";
    let start = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("MEM_PROFILER_DIR", &shm);
        support::ready(&mut command)
    };
    let live = start(&["called", comm]);
    let dead = start(&["exit-after", "1"]);
    let forged = Forged {
        comm: HOSTILE[..15].to_vec(),
        exe: [b"/x/", HOSTILE].concat(),
        ..Forged::of_dead()
    };
    forged.make_with_stacks(&shm, 3, 3);
    Forged {
        inside: (1, 1),
        image: 9,
        ..Forged::of_dead()
    }
    .make(&shm);
    let prefix = parent.path().join(hostile).join(hostile);
    let nowhere = parent.path().join("none").join(hostile);
    let pid = live.pid().to_string();
    let said = |arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mem_profiler"));
        command.args(arguments).env("MEM_PROFILER_DIR", &shm);
        let output = command.output().unwrap();
        (
            arguments.to_vec().join(hostile),
            [output.stdout, output.stderr].concat(),
        )
    };
    let (o, p) = (prefix.as_os_str(), std::ffi::OsStr::new("-p"));
    let word = |text: &'static str| std::ffi::OsStr::new(text);
    let (no, pid) = (nowhere.as_os_str(), std::ffi::OsStr::new(&pid));
    let all: Vec<_> = [
        &[word("list")][..],
        &[word("list"), word("--json")],
        &[word("-s"), word("0.2"), word("-o"), o],
        &[word("-s"), word("0.2"), word("-o"), no],
        &[word("dump"), word("-o"), o],
        &[word("stop"), word("-o"), o],
        &[word("why")],
        &[word("why"), word("--json")],
        &[word("top"), word("--once"), p, pid],
        &[word("top"), word("--json"), p, pid],
        &[word("top"), word("--once"), p, word("\u{1b}[2J")],
        &[
            word("run"),
            word("-o"),
            o,
            word("--"),
            program.as_os_str(),
            word("exit-after"),
            word("1"),
        ],
        &[word("run"), word("-o"), o, word("--"), no],
        &[
            word("run"),
            word("--agent"),
            no,
            word("-o"),
            o,
            word("--"),
            word("true"),
        ],
        &[word("man"), no],
        &[word("recover"), word("-o"), o],
        &[word("clean"), word("--all")],
    ]
    .iter()
    .map(|arguments| said(arguments))
    .collect();
    for (arguments, said) in &all {
        let text = std::str::from_utf8(said).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
        let raw = |c: char| {
            c != '\n' && c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        };
        assert!(!text.contains(raw), "{arguments:?}: {text:?}");
        for line in text.lines() {
            assert!(!line.starts_with("31m"), "{arguments:?}: {text:?}");
        }
    }
    // It was shown all the same, so the test looked at something.
    let shown = all
        .iter()
        .filter(|(_, said)| said.windows(4).any(|w| w == b"\\x1b"));
    assert!(shown.count() > 8);
    drop((live, dead));
}

/// Waits for the directory of a run that root started.
fn directory_of_run(place: &Place) -> std::path::PathBuf {
    let inside = |path: std::path::PathBuf, prefix: &str| {
        let entries = std::fs::read_dir(path).ok()?.flatten();
        let mut named = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
        named.next().map(|entry| entry.path())
    };
    let mut found = None;
    wait_for("the directory of the run", || {
        found =
            inside(place.shm(), "mem_profiler.run.").and_then(|outer| inside(outer, "segments."));
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn run_takes_its_descendants_alone() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (_open, agent) = support::open_to_all(&support::agent());
    let run = place.spawn(&[
        "run",
        "-c",
        "1",
        "--min",
        "0",
        "-o",
        &place.prefix(),
        "--agent",
        agent.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        // A child that became another user is taken all the same.
        "setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'sleep 0.5; : $(seq 99)'; \
         exec sleep 60",
    ]);
    let directory = directory_of_run(&place);
    for (directory, command) in [
        (directory.parent().unwrap(), "ls"),
        (directory.parent().unwrap(), "touch"),
        (&directory, "ls"),
    ] {
        let path = match command {
            "touch" => directory.join("x"),
            _ => directory.to_owned(),
        };
        let mut stranger = Command::new("setpriv");
        stranger
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", command])
            .arg(path);
        assert!(
            !stranger.output().unwrap().status.success(),
            "{command} {directory:?}"
        );
    }
    // Whoever knows the name all the same.
    for image in 0..50 {
        let mut forged = Forged::of_dead();
        (forged.image, forged.bytes) = (image, 64 << 20);
        let path = forged.make_with_stacks(&place.out(), 2, 3);
        std::os::unix::fs::chown(&path, Some(65533), Some(65533)).unwrap();
        std::fs::rename(&path, directory.join(path.file_name().unwrap())).unwrap();
    }
    let seqs = |name: &String| name.contains("seq.");
    wait_for("the other user's last child", || {
        place.dumps().iter().any(seqs)
    });
    run.signal(Signal::SIGTERM);
    let ran = run.end();
    assert!(
        !place.dumps().iter().any(|name| name.contains("forged")),
        "{ran:?}"
    );
    assert!(
        ran.err
            .contains("50 segments in this run's directory are ignored"),
        "{ran:?}"
    );
}

#[test]
fn top_is_not_held_up_by_what_a_process_calls_its_symbols() {
    let place = Place::new();
    let live = place.fake(&[]);
    let pid = live.pid().to_string();
    let map = std::path::PathBuf::from(format!("/tmp/perf-{pid}.map"));
    let named = "400000 1000 jit_outer\n401000 1000 jit_\x1b[2J\n";
    let make: [(&str, &dyn Fn()); 4] = [
        ("a list", &|| std::fs::write(&map, named).unwrap()),
        ("a pipe", &|| {
            nix::unistd::mkfifo(&map, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
        ("a device", &|| {
            std::os::unix::fs::symlink("/dev/zero", &map).unwrap()
        }),
        ("no end", &|| {
            let file = std::fs::File::create(&map).unwrap();
            file.set_len(10 << 30).unwrap();
        }),
    ];
    for (what, make) in make {
        make();
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "90", env!("CARGO_BIN_EXE_mem_profiler")])
            .args(["top", "--once", "-p", &pid])
            .env("MEM_PROFILER_DIR", place.shm());
        let ran = Ran::of(command.output().unwrap());
        std::fs::remove_file(&map).unwrap();
        assert_eq!(ran.code, Some(0), "{what}: {ran:?}");
        assert_eq!(ran.out.contains("jit_outer"), what == "a list", "{ran:?}");
        assert!(!ran.out.contains('\x1b'), "{ran:?}");
    }
}

#[test]
fn a_segment_that_is_removed_in_a_session_still_gives_its_dump() {
    let place = Place::new();
    let live = place.fake(&[]);
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(live.pid()) != 0);
    // As logind does at the user's logout.
    std::fs::remove_file(place.shm().join(&place.segments()[0])).unwrap();
    session.signal(Signal::SIGINT);
    assert_eq!(session.end().succeeded().len(), 1);
    let pid = live.pid().to_string();
    place
        .run(&["-s", "1", "-o", &place.prefix(), "-p", &pid])
        .failed_saying(&["runs without the agent"]);
}
