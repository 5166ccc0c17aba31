//! Trouble around a session: killed controllers; targets that stop, end or lose their segment;
//! changed clocks; closed terminals.

use std::fs::{self, File};
use std::io::{Error, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mem_tests::tracing::{Fate, kill_at};
use mem_tests::{Scratch, Session, Steps, artifacts, run, sums, wait};

/// Checks that a directory holds whole dumps, and nothing else.
fn assert_whole(directory: &Path) -> usize {
    let entries: Vec<_> = fs::read_dir(directory)
        .expect("a directory")
        .flatten()
        .collect();
    for entry in &entries {
        let path = entry.path();
        profile::open(&path).expect("whole, or not there at all");
    }
    entries.len()
}

/// Kills a command of the controller before each of its last system calls in turn, from
/// where it takes its snapshot on, and before some of those that prepare this. After each
/// there is a whole dump or none, and the next controller does its work.
fn killed_at_every_step(args: &[&str]) {
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("MEM_PROFILER_START", "1");
    });
    program.step("keep 2000");
    program.step("churn");
    let pid = program.pid().to_string();
    let directory = scratch.file("dumps");
    let prefix = directory.join("p_");
    let killed_at = |calls: usize| {
        fs::create_dir(&directory).expect("a new directory");
        let mut command = scratch.profiler();
        command.args(args).args(["-p", &pid, "-o"]).arg(&prefix);
        let fate = kill_at(&mut command, calls);
        let found = assert_whole(&directory);
        let next = ["-s", "0.002", "-p", &pid, "-o"];
        let next = run(scratch.profiler().args(next).arg(&prefix));
        assert_eq!(next.code, Some(0), "after {calls} calls: {next:?}");
        assert!(assert_whole(&directory) > found, "after {calls} calls");
        fs::remove_dir_all(&directory).expect("our own");
        (fate, found)
    };
    let (fate, found) = killed_at(usize::MAX / 4);
    let Fate::Ended(0, all) = fate else {
        panic!("unhindered it succeeds: {fate:?}")
    };
    assert!(found > 0 && all > 100, "{all} system calls, {found} dumps");
    // The number of calls depends on the size of the profile and the number of checks by then.
    let calls = (0..all - 70).step_by(25).chain(all - 70..all + 10);
    let killed = calls.filter(|calls| killed_at(*calls).0 == Fate::Killed);
    assert!(killed.count() > 20);
}

#[test]
fn a_dump_killed_at_any_step_is_whole_or_not_there() {
    killed_at_every_step(&["dump"]);
}

#[test]
fn a_session_killed_at_any_step_is_taken_over_by_the_next() {
    killed_at_every_step(&["-s", "0.002"]);
}

#[test]
fn processes_that_come_and_go_do_not_fail_a_session() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let mut storm = scratch.preloaded("sh");
    storm.args(["-c", "while :; do /bin/true; done"]);
    let storm = mem_tests::Target::start(&mut storm);
    wait::until("the storm", || scratch.segment(storm.pid()).map(|_| ()));
    for _ in 0..15 {
        program.step("keep 5");
        let outcome = run(scratch
            .profiler()
            .args(["-s", "0.02", "-c", "1", "-o", "storm_"]));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
}

#[test]
fn a_zombie_is_dumped_once_and_then_not_there() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 77");
    program.target.signal(libc::SIGKILL);
    // Nobody has waited for it yet.
    let outcome = session.wait();
    assert!(
        outcome
            .stdout
            .contains("died during the session of SIGKILL"),
        "{outcome:?}"
    );
    let found = sums(&outcome.profile(), &[&program.program], "site_");
    assert_eq!(found["site_main"].detail.live_objects(), 77.0);
    let stat = fs::read_to_string(format!("/proc/{}/stat", program.pid())).expect("a zombie");
    assert!(stat.contains(") Z "), "{stat}");
    let pid = program.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    outcome.refused(
        1,
        &[
            &pid,
            "the process has ended (it is a zombie until its parent",
        ],
    );
}

#[test]
fn a_stopped_process_is_started_dumped_and_left_stopped() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 12");
    program.target.signal(libc::SIGSTOP);
    let found = sums(&session.stop().profile(), &[&program.program], "site_");
    assert_eq!(found["site_main"].detail.live_objects(), 12.0);
    let pid = program.pid().to_string();
    let outcome = run(scratch
        .profiler()
        .args(["-s", "0.05", "-o", "prof_", "-p", &pid]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    assert!(stat.contains(") T "), "{stat}");
    program.target.signal(libc::SIGCONT);
    program.step("keep 1");
}

#[test]
fn a_segment_deleted_in_a_session_still_gives_its_dump() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 5");
    fs::remove_file(scratch.segment(program.pid()).expect("a segment")).expect("ours");
    program.step("keep 6");
    let found = sums(&session.stop().profile(), &[&program.program], "site_");
    assert_eq!(found["site_main"].detail.live_objects(), 11.0);
    let pid = program.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    outcome.refused(1, &[&pid, "was deleted: restart it"]);
    program.step("keep 7");
    program.target.finish_well();
}

#[test]
fn a_clock_that_is_set_changes_no_session() {
    let scratch = Scratch::new();
    let shim = scratch.compile_as("jumping_clock.c", "jumping_clock.so", &["-shared", "-fPIC"]);
    let both = format!("{}:{}", artifacts::agent().display(), shim.display());
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("LD_PRELOAD", both);
    });
    program.step("churn");
    let mut command = scratch.profiler();
    command
        .args(["-s", "1", "--every", "300ms", "-o", "clock_"])
        .env("LD_PRELOAD", shim);
    let start = std::time::Instant::now();
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(start.elapsed().as_secs() < 30, "it ended by its own clock");
    let dumps = outcome.dumps();
    assert!((3..=4).contains(&dumps.len()), "{outcome:?}");
    for dump in dumps {
        let facts = profile::open(&scratch.files().join(dump))
            .expect("whole")
            .facts;
        let duration = facts.duration_ns.expect("a length");
        assert!(
            (200_000_000..20_000_000_000).contains(&duration),
            "{duration}"
        );
    }
}

/// A controller; it is killed with this value.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        // Worst case it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a terminal of our own; the other end is a command's.
fn terminal() -> (File, File) {
    let close_on_exec = libc::O_CLOEXEC | libc::O_NOCTTY;
    let size = winsize(24, 80);
    let mut name = [0; 64];
    // SAFETY: the descriptor is what the calls before it made; a name and a size of ours.
    let master = unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | close_on_exec);
        let made = libc::grantpt(master) == 0
            && libc::unlockpt(master) == 0
            && libc::ptsname_r(master, name.as_mut_ptr(), name.len()) == 0
            && libc::ioctl(master, libc::TIOCSWINSZ, &raw const size) == 0;
        assert!(made, "{}", Error::last_os_error());
        File::from_raw_fd(master)
    };
    let name: Vec<u8> = name
        .iter()
        .map(|c| *c as u8)
        .take_while(|c| *c != 0)
        .collect();
    let name = String::from_utf8(name).expect("a path");
    let mut options = File::options();
    let options = options.read(true).write(true).custom_flags(close_on_exec);
    (master, options.open(name).expect("the other end"))
}

fn winsize(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Starts the controller on a terminal, as its session's leader.
fn started_on(slave: File, mut command: Command) -> Controller {
    let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
    command.stdin(end()).stdout(end()).stderr(end());
    let take = || {
        // SAFETY: async-signal-safe calls: a session of its own, with this terminal.
        match unsafe { (libc::setsid(), libc::ioctl(0, libc::TIOCSCTTY, 0)) } {
            (-1, _) | (_, -1) => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(take) };
    Controller(command.spawn().expect("the controller"))
}

/// Returns the output on a terminal, at least up to this text, or to the end if the text is empty.
fn shown_until(master: &mut File, text: &str) -> String {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let got = match master.read(&mut buffer) {
            // Nobody has the other end any more.
            Err(error) if text.is_empty() && error.raw_os_error() == Some(libc::EIO) => 0,
            got => got.expect("what it shows"),
        };
        seen.extend_from_slice(&buffer[..got]);
        let shown = String::from_utf8_lossy(&seen);
        if got == 0 || (!text.is_empty() && shown.contains(text)) {
            return shown.into_owned();
        }
    }
}

#[test]
fn alone_on_a_terminal_it_samples_what_there_is_until_ctrl_c() {
    let scratch = Scratch::new();
    // Nothing to sample: what could be done.
    let (mut master, slave) = terminal();
    let mut child = started_on(slave, scratch.profiler());
    let shown = shown_until(&mut master, "");
    assert!(shown.contains("mem_profiler run --html"), "{shown}");
    let status = child.0.wait().expect("a child");
    assert_eq!(status.code(), Some(0), "{shown}");

    let mut program = Steps::start(&scratch);
    let pid = program.pid();
    let (mut master, slave) = terminal();
    let mut child = started_on(slave, scratch.profiler());
    scratch.wait_for_sampling(pid);
    program.step("keep 50");
    let shown = shown_until(&mut master, "Ctrl-C ends it");
    let told = format!("sampling steps ({pid}) until Ctrl-C");
    assert!(shown.contains(&told), "{shown}");
    master.write_all(b"\x03").expect("a key");
    let shown = shown_until(&mut master, "");
    assert!(shown.contains("succeeded in collecting"), "{shown}");
    let status = child.0.wait().expect("a child");
    assert_eq!(status.code(), Some(0), "{shown}");
    let dump = scratch.file(&format!("custom_prof.steps.{pid}.0001.heap"));
    let profile = profile::open(&dump).expect("the data");
    assert_eq!(profile.period, 1024);
    program.target.finish_well();
}

#[test]
fn a_terminal_resized_changes_nothing_and_closed_ends_the_session_with_its_data() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let (mut master, slave) = terminal();
    let mut command = scratch.profiler();
    let pid = program.pid().to_string();
    command.args(["-c", "1", "-o", "pty_", "-p", &pid]);
    let mut child = started_on(slave, command);
    scratch.wait_for_sampling(program.pid());
    program.step("keep 50");
    shown_until(&mut master, "Ctrl-C ends it");
    let size = winsize(5, 20);
    // SAFETY: a size to read.
    let resized = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(resized, 0);
    program.step("keep 50");
    assert!(
        scratch.is_sampling(program.pid()),
        "a new size is no reason to end"
    );
    // The window is closed.
    drop(master);
    let status = wait::until("its end", || child.0.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(0), "{status}");
    let dump = scratch.file(&format!("pty_steps.{pid}.0001.heap"));
    let profile = profile::open(&dump).expect("the data");
    let found = sums(&profile, &[&program.program], "site_");
    assert_eq!(found["site_main"].detail.live_objects(), 100.0);
    program.target.finish_well();
}

#[test]
fn a_relative_directory_of_segments_is_the_same_for_both_sides() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.file("segments")).expect("a new directory");
    let directory = scratch.files().to_owned();
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command
            .env("MEM_PROFILER_DIR", "segments")
            .current_dir(&directory);
    });
    let mut command = scratch.profiler();
    command.env("MEM_PROFILER_DIR", "segments");
    let pid = program.pid().to_string();
    let outcome = run(command.args(["-s", "0.05", "-o", "prof_", "-p", &pid]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    program.step("keep 1");
    program.target.finish_well();
}

#[test]
fn a_closed_output_does_not_end_a_session() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    let mut command = scratch.profiler();
    command.args(["-c", "1", "-o", "prof_", "-p", &pid]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Controller(command.spawn().expect("the controller"));
    scratch.wait_for_sampling(program.pid());
    // Nobody reads any more.
    drop((child.0.stdout.take(), child.0.stderr.take()));
    program.step("keep 9");
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(child.0.id() as i32, libc::SIGTERM) };
    let status = wait::until("its end", || child.0.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(0), "{status}");
    let dump = scratch.file(&format!("prof_steps.{pid}.0001.heap"));
    let found = sums(
        &profile::open(&dump).expect("its dump"),
        &[&program.program],
        "site_",
    );
    assert_eq!(found["site_main"].detail.live_objects(), 9.0);
    program.target.finish_well();
}
