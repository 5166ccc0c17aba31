//! Tests of a session without a command, with processes that maintain a segment as the agent does:
//! results and errors.

mod support;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use shm_protocol::ABI_VERSION;
use support::{Place, Process, wait_for};

/// Returns the objects and bytes in a dump, allocated and in use.
fn totals(path: &Path) -> [i64; 4] {
    let profile = profile::open(path).unwrap();
    [0, 1, 2, 3].map(|column| profile.total(column))
}

#[test]
fn a_session_writes_the_counts_of_the_segment() {
    let place = Place::new();
    let process = place.fake(&[]);
    let ran = place.run(&["-s", "0.4", "-c", "1024", "-o", &place.prefix()]);
    let lines = ran.succeeded();
    let expected = place
        .out()
        .join(format!("p_fake_agent.{}.0001.heap", process.pid()));
    assert_eq!(lines, [expected.to_str().unwrap()]);
    let [objects, bytes, live_objects, live_bytes] = totals(&expected);
    assert!(
        objects > 100 && bytes == objects * 1000,
        "{objects} {bytes}"
    );
    assert!(
        live_objects * 2 == objects && live_bytes * 2 == bytes,
        "{live_objects}"
    );
    let profile = profile::open(&expected).unwrap();
    assert_eq!((profile.stacks.len(), profile.period), (2, 1024));
    let facts = &profile.facts;
    assert_eq!(facts.pid, Some(process.pid()));
    assert_eq!(facts.process.as_deref(), Some("fake_agent"));
    assert_eq!(facts.sequence, Some(1));
    assert_eq!(facts.ended.as_deref(), Some("live"));
    let duration = facts.duration_ns.unwrap();
    assert!(
        (350_000_000..5_000_000_000).contains(&duration),
        "{duration}"
    );
    assert!(
        profile
            .mappings
            .iter()
            .any(|m| m.path.ends_with("fake_agent"))
    );
    assert_eq!(place.epoch(process.pid()), 0, "sampling is off again");
}

#[test]
fn numbering_continues_in_each_session() {
    let place = Place::new();
    let process = place.fake(&[]);
    let pid = process.pid().to_string();
    for number in 1..=3 {
        place
            .run(&["-s", "0.1", "-o", &place.prefix(), "-p", &pid])
            .succeeded();
        assert_eq!(place.dumps().len(), number);
    }
    assert_eq!(place.dumps()[2], format!("p_fake_agent.{pid}.0003.heap"));
}

#[test]
fn without_a_length_a_signal_ends_the_session() {
    let place = Place::new();
    let process = place.fake(&[]);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let session = place.spawn(&["-o", &place.prefix(), "-p", "fake_agent"]);
        wait_for("sampling", || place.epoch(process.pid()) != 0);
        session.signal(signal);
        let ran = session.end();
        assert_eq!(ran.succeeded().len(), 1, "{signal}");
        assert_eq!(place.epoch(process.pid()), 0, "{signal}");
    }
}

#[test]
fn a_stopped_terminal_does_not_delay_a_session() {
    use nix::sys::termios::{FlowArg, tcflow};
    let place = Place::new();
    let process = place.fake(&[]);
    let pty = nix::pty::openpty(None, None).unwrap();
    let slave = || Stdio::from(pty.slave.try_clone().unwrap());
    // Stops the terminal's output, as Ctrl-S does.
    tcflow(&pty.slave, FlowArg::TCOOFF).unwrap();
    let mut command = place.profiler(&["-s", "1", "-o", &place.prefix()]);
    command.stdin(slave()).stdout(slave()).stderr(slave());
    let mut session = Process(command.env("TERM", "xterm").spawn().unwrap());
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    wait_for("its dump", || place.dumps().len() == 1);
    assert!(
        session.0.try_wait().unwrap().is_none(),
        "results wait for the terminal"
    );
    tcflow(&pty.slave, FlowArg::TCOON).unwrap();
    drop((command, pty.slave));
    let mut shown = String::new();
    let mut buffer = [0; 4096];
    let mut master = File::from(pty.master);
    // Reading returns an error once the other end is closed.
    while let Ok(n @ 1..) = master.read(&mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    assert_eq!(session.0.wait().unwrap().code(), Some(0));
    assert!(shown.contains(" left, "), "{shown}");
    assert!(shown.contains("succeeded in collecting"), "{shown}");
}

#[test]
fn several_processes_start_together() {
    let place = Place::new();
    let processes: Vec<_> = (0..20).map(|_| place.fake(&[])).collect();
    let ran = place.run(&["-s", "0.3", "-o", &place.prefix()]);
    assert_eq!(ran.succeeded().len(), processes.len());
    let starts: Vec<u64> = place
        .dumps()
        .iter()
        .map(|name| profile::open(&place.out().join(name)).unwrap())
        .map(|profile| profile.facts.start_unix_ns.unwrap())
        .collect();
    let spread = starts.iter().max().unwrap() - starts.iter().min().unwrap();
    assert!(spread < 10_000_000, "{spread} ns");
}

#[test]
fn a_process_that_dies_is_dumped_from_its_segment() {
    let place = Place::new();
    let process = place.fake(&[]);
    let pid = process.pid();
    let start = Instant::now();
    let session = place.spawn(&["-s", "100", "-o", &place.prefix(), "-p", "fake_agent"]);
    wait_for("sampling", || place.epoch(pid) != 0);
    std::thread::sleep(Duration::from_millis(100));
    process.signal(Signal::SIGKILL);
    drop(process);
    let ran = session.end();
    let lines = ran.succeeded();
    assert!(
        lines[0].ends_with(&format!(
            "(fake_agent ({pid}) died during the session of SIGKILL)"
        )),
        "{ran:?}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(50),
        "it ended with its last process"
    );
    let dump = place.out().join(format!("p_fake_agent.{pid}.0001.heap"));
    assert!(totals(&dump)[0] > 0);
    assert_eq!(
        profile::open(&dump).unwrap().facts.ended.as_deref(),
        Some("target died: SIGKILL")
    );
    assert_eq!(
        place.segments(),
        Vec::<String>::new(),
        "nothing is left behind"
    );
}

#[test]
fn the_session_of_a_killed_controller_ends_and_its_data_are_kept() {
    let place = Place::new();
    let process = place.fake(&[]);
    let session = place.spawn(&["-s", "0.5", "-o", &place.prefix(), "-p", "fake_agent"]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    std::thread::sleep(Duration::from_millis(100));
    session.signal(Signal::SIGKILL);
    drop(session);
    assert_eq!(place.dumps(), Vec::<String>::new());
    wait_for("the deadline", || place.epoch(process.pid()) == 0);
    let ran = place.run(&["-s", "0.1", "-o", &place.prefix(), "-p", "fake_agent"]);
    assert_eq!(
        ran.succeeded().len(),
        2,
        "the earlier session's dump and its own"
    );
    assert!(
        ran.err.contains("an earlier session had left its data"),
        "{ran:?}"
    );
}

#[test]
fn a_second_controller_is_refused_with_pid_and_time() {
    let place = Place::new();
    let process = place.fake(&[]);
    let session = place.spawn(&["-s", "60", "-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    let message = format!(
        "mem_profiler (pid {}) is already running a session",
        session.pid()
    );
    let ran = place.run(&["-s", "1", "-o", &place.prefix()]);
    ran.failed_saying(&[&message, " s left", &process.pid().to_string()]);
    session.signal(Signal::SIGINT);
    session.end().succeeded();
}

#[test]
fn each_reason_for_a_missing_agent_is_reported() {
    let place = Place::new();
    let run = |name: &str| place.run(&["-s", "1", "-o", &place.prefix(), "-p", name]);
    place
        .run(&["-s", "1", "-o", &place.prefix()])
        .failed_saying(&["no process", "LD_PRELOAD"]);
    run("999999999").failed_saying(&["999999999", "there is no such process"]);
    run("no-such-name").failed_saying(&["no-such-name", "no process has this name"]);
    let sleep = support::Process(
        std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap(),
    );
    let pid = sleep.pid().to_string();
    run(&pid).failed_saying(&[&pid, "without the agent", "LD_PRELOAD"]);
    assert_eq!(place.dumps(), Vec::<String>::new());
}

#[test]
fn one_failure_does_not_affect_the_others() {
    let place = Place::new();
    let process = place.fake(&[]);
    let pid = process.pid().to_string();
    let prefix = place.prefix();
    let ran = place.run(&["-s", "0.1", "-o", &prefix, "-p", &pid, "-p", "no-such-name"]);
    ran.failed_saying(&["no process has this name", "1 written, 1 failed"]);
    assert!(
        ran.out.contains("0001.heap") && !ran.out.contains("succeeded"),
        "{ran:?}"
    );
}

#[test]
fn the_owner_of_another_users_process_is_named() {
    use std::os::unix::process::CommandExt;
    let place = Place::new();
    let process = place.fake(&[]);
    // A process of another user: ours as seen by `nobody`, or root's as seen by us.
    let (pid, become_nobody) = match nix::unistd::geteuid().is_root() {
        true => (process.pid(), true),
        false => (1, false),
    };
    let (_open, profiler) = support::open_to_all(env!("CARGO_BIN_EXE_mem_profiler").as_ref());
    let mut command = std::process::Command::new(profiler);
    command
        .args(["-s", "1", "-o", "/tmp/p_", "-p", &pid.to_string()])
        .env("MEM_PROFILER_DIR", place.shm());
    if become_nobody {
        command.uid(65534).gid(65534);
    }
    let output = command.output().expect("another user runs the copy");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("belongs to user root"), "{text}");
}

#[test]
fn a_program_that_never_calls_the_agent_is_reported() {
    let place = Place::new();
    let process = place.fake(&["silent"]);
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        let fields = stat[stat.rfind(')').unwrap() + 2..].split(' ');
        let used = fields.skip(11).take(2);
        used.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
    };
    let session = place.spawn(&["-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(process.pid()) != 0);
    let before = ticks();
    // Waits for CPU time, so that the test does not depend on the machine's load.
    wait_for("its work", || ticks() > before + 20);
    session.signal(Signal::SIGINT);
    let ran = session.end();
    ran.succeeded();
    assert!(
        ran.err.contains("0 calls seen") && ran.err.contains("linked into it"),
        "{ran:?}"
    );
}

#[test]
fn other_versions_and_damage_are_refused() {
    let place = Place::new();
    for (arguments, says) in [
        (
            &["version", "77"][..],
            format!("its agent speaks protocol version 77, this program {ABI_VERSION}"),
        ),
        (
            &["truncate"],
            "its size of 4096 bytes is not that of a segment".to_owned(),
        ),
        (&["corrupt"], "does not begin like a segment".to_owned()),
    ] {
        let process = place.fake(arguments);
        let pid = process.pid().to_string();
        place
            .run(&["-s", "1", "-o", &place.prefix(), "-p", &pid])
            .failed_saying(&[&says, &pid]);
    }
    assert_eq!(place.dumps(), Vec::<String>::new());
}

#[test]
fn an_unusable_output_directory_is_reported_before_the_session() {
    let place = Place::new();
    let process = place.fake(&[]);
    let ran = place.run(&["-s", "60", "-o", "/nonexistent/p_"]);
    ran.failed_saying(&["/nonexistent/", "does not exist"]);
    assert_eq!(place.epoch(process.pid()), 0);
}

#[test]
fn bad_usage_exits_with_2() {
    let place = Place::new();
    for arguments in [
        &["-c", "0"][..],
        &["-s", "-1"],
        &["-s", "x"],
        &["--nonsense"],
        &["-p", ""],
    ] {
        assert_eq!(place.run(arguments).code, Some(2), "{arguments:?}");
    }
}

#[test]
fn new_processes_join_a_session() {
    let place = Place::new();
    let first = place.fake(&[]);
    let session = place.spawn(&["-o", &place.prefix()]);
    wait_for("sampling", || place.epoch(first.pid()) != 0);
    let second = place.fake(&[]);
    wait_for("the new one to join", || place.epoch(second.pid()) != 0);
    session.signal(Signal::SIGINT);
    assert_eq!(session.end().succeeded().len(), 2);
}

#[test]
fn a_stopped_process_is_dumped() {
    let place = Place::new();
    let process = place.fake(&[]);
    process.signal(Signal::SIGSTOP);
    let ran = place.run(&["-s", "0.2", "-o", &place.prefix()]);
    process.signal(Signal::SIGCONT);
    assert_eq!(ran.succeeded().len(), 1);
    assert!(
        !ran.err.contains("0 calls"),
        "a process that cannot run is no suspect: {ran:?}"
    );
}
