//! Tests with planted files in the shared directory and with hostile processes: these harm neither
//! the commands nor other processes' segments.

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
fn planted_files_do_not_remove_a_live_processs_segment() {
    let place = Place::new();
    let live = place.fake(&[]);
    let pid = live.pid();
    let start = start_of(pid);
    let own_segments = place.segments();
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
        assert!(place.segments().contains(&own_segments[0]), "{ran:?}");
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
fn clean_removes_nothing_from_another_pid_namespace() {
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
    // From here, all processes are visible, or at least those of our namespace.
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
fn a_dead_processs_segment_is_kept_while_another_maps_it() {
    let place = Place::new();
    let path = Forged::of_dead().make_with_stacks(&place.shm(), 1, 3);
    let holder = place.fake(&["holds", path.to_str().unwrap()]);
    let message = format!("process {} still maps it", holder.pid());
    let ran = place.run(&["clean", "--all"]);
    assert!(ran.err.contains(&message) && path.exists(), "{ran:?}");
    place
        .run(&["recover", "-o", &place.prefix()])
        .failed_saying(&[&message]);
    assert!(path.exists() && place.dumps().is_empty());
    drop(holder);
    place.run(&["recover", "-o", &place.prefix()]).succeeded();
    assert!(!path.exists());
}

#[test]
fn processes_with_equal_pid_and_start_in_two_namespaces_are_distinguished() {
    let place = Place::new();
    let live = place.fake(&[]);
    let pid = live.pid();
    let start = start_of(pid);
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
fn planted_files_do_not_exhaust_descriptors() {
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
fn incomplete_segments_of_killed_processes_are_removed() {
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
    // The process may be about to fill the file in, or to try again.
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
fn many_planted_names_hide_no_process_and_are_reported_in_one_line() {
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
fn a_small_segment_cannot_cause_a_huge_dump() {
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
fn dumps_are_readable_only_by_their_owner() {
    let place = Place::new();
    let _live = place.fake(&[]);
    place.run(&["-s", "0.2", "-o", &place.prefix()]).succeeded();
    let dump = place.out().join(&place.dumps()[0]);
    assert_eq!(dump.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// Name with control sequences that clear the screen, end the line, and reorder or hide text, and
/// with invalid UTF-8.
const HOSTILE: &[u8] = b"\x1b[2J\r\n\x07\xc2\x9b31m\x7f\xe2\x80\xae\xe2\x80\x8b\xff";

#[test]
fn hostile_names_are_escaped_on_the_terminal() {
    let parent = tempfile::tempdir_in("/dev/shm").unwrap();
    let hostile = std::ffi::OsStr::from_bytes(HOSTILE);
    let shm = parent.path().join(hostile);
    std::fs::create_dir(&shm).unwrap();
    let program = shm.join(hostile);
    // Copied by another process: a file that this process has open for writing may stay open in
    // another test's child for a moment, and could not be executed.
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
    let output_of = |arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mem_profiler"));
        command.args(arguments).env("MEM_PROFILER_DIR", &shm);
        let output = command.output().unwrap();
        (
            arguments.to_vec().join(hostile),
            [output.stdout, output.stderr].concat(),
        )
    };
    let o = prefix.as_os_str();
    let p = std::ffi::OsStr::new("-p");
    let word = |text: &'static str| std::ffi::OsStr::new(text);
    let no = nowhere.as_os_str();
    let pid = std::ffi::OsStr::new(&pid);
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
    .map(|arguments| output_of(arguments))
    .collect();
    for (arguments, output) in &all {
        let text = std::str::from_utf8(output).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
        let raw = |c: char| {
            c != '\n' && c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        };
        assert!(!text.contains(raw), "{arguments:?}: {text:?}");
        for line in text.lines() {
            assert!(!line.starts_with("31m"), "{arguments:?}: {text:?}");
        }
    }
    // The names were displayed in escaped form, so the test has examined them.
    let shown = all
        .iter()
        .filter(|(_, output)| output.windows(4).any(|w| w == b"\\x1b"));
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
fn run_samples_only_its_descendants() {
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
        // A child that became another user is sampled, too.
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
    // Plants segments as somebody who knows the hidden name nevertheless.
    for image in 0..50 {
        let mut forged = Forged::of_dead();
        forged.image = image;
        forged.bytes = 64 << 20;
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
fn hostile_perf_maps_do_not_block_top() {
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
    for (kind, make) in make {
        make();
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "90", env!("CARGO_BIN_EXE_mem_profiler")])
            .args(["top", "--once", "-p", &pid])
            .env("MEM_PROFILER_DIR", place.shm());
        let ran = Ran::of(command.output().unwrap());
        std::fs::remove_file(&map).unwrap();
        assert_eq!(ran.code, Some(0), "{kind}: {ran:?}");
        assert_eq!(ran.out.contains("jit_outer"), kind == "a list", "{ran:?}");
        assert!(!ran.out.contains('\x1b'), "{ran:?}");
    }
}

#[test]
fn a_segment_removed_during_a_session_is_still_dumped() {
    let place = Place::new();
    let live = place.fake(&[]);
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(live.pid()) != 0);
    // logind removes the files of a user who logs out.
    std::fs::remove_file(place.shm().join(&place.segments()[0])).unwrap();
    session.signal(Signal::SIGINT);
    assert_eq!(session.end().succeeded().len(), 1);
    let pid = live.pid().to_string();
    place
        .run(&["-s", "1", "-o", &place.prefix(), "-p", &pid])
        .failed_saying(&["runs without the agent"]);
}
