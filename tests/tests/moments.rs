//! Memory over time: the moments in a dump are those of the program, exactly at `-c 1`.

use std::fs;
use std::path::{Path, PathBuf};

use mem_tests::code::{self, Code};
use mem_tests::{Scratch, Session, Target, run, wait};
use profile::{Moment, Profile, StackBytes};

/// The program that holds memory in steps, in a session that dumps when it gets a signal.
struct Stairs {
    scratch: Scratch,
    program: PathBuf,
    target: Target,
    session: Session,
}

impl Stairs {
    fn start(interval: &str) -> Self {
        let scratch = Scratch::new();
        let program = scratch.compile("stairs.cpp", &[]);
        let mut target = Target::start(&mut scratch.preloaded(&program));
        assert_eq!(target.hear(), "ready");
        let pid = target.pid().to_string();
        let args = ["-c", interval, "-p", &pid, "-o", "prof_"];
        let trigger = ["--signal", "SIGUSR2"];
        let session = Session::start(scratch.profiler().args(args).args(trigger));
        scratch.wait_for_sampling(target.pid());
        Self {
            scratch,
            program,
            target,
            session,
        }
    }

    fn step(&mut self, line: &str) {
        self.target.say(line);
        assert_eq!(self.target.hear(), "ok");
    }

    /// Returns the dumps so far, in their order. One that is being written has no name yet.
    fn dumps(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.scratch.files()).expect("the directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut dumps: Vec<PathBuf> = paths
            .filter(|p| p.extension() == Some("heap".as_ref()))
            .collect();
        dumps.sort();
        dumps
    }

    /// Requests a dump, and returns it.
    fn dump(&self) -> Profile {
        let before = self.dumps().len();
        self.session.signal(libc::SIGUSR2);
        let dump = || self.dumps().into_iter().nth(before);
        read(&wait::until("a dump", dump))
    }

    /// Waits until the controller has recorded the stacks at a moment for which `holds` is true.
    /// Returns a dump with that moment, and the moment.
    fn recorded(&self, what: &str, holds: impl Fn(&Moment) -> bool) -> (Profile, Moment) {
        wait::until(what, || {
            let profile = self.dump();
            let mut moments = profile.moments.iter();
            let found = moments.rfind(|m| m.stacks.is_some() && holds(m)).cloned();
            found.map(|moment| (profile, moment))
        })
    }
}

fn read(dump: &Path) -> Profile {
    profile::open(dump).expect("a dump that can be read")
}

/// Returns what a function's stacks held at a moment.
fn held_by(profile: &Profile, moment: &Moment, program: &Path, function: &str) -> u64 {
    let binaries = [Code::of(program)];
    let is_of = |held: &&StackBytes| {
        let stack = profile.stacks.get(held.stack as usize);
        code::names(profile, stack, &binaries).contains(&function)
    };
    let stacks = moment.stacks.as_ref().expect("stacks");
    stacks.iter().filter(is_of).map(|held| held.bytes).sum()
}

fn check_end(profile: &Profile) {
    let end = profile.moments.last().expect("moments");
    assert_eq!(end.live, profile.total(3) as u64);
    assert_eq!(end.allocated, profile.total(1) as u64);
    assert_eq!(Some(end.at_ns), profile.facts.duration_ns);
    assert_eq!(profile.moments[0], Moment::default(), "the start");
    assert!(profile.moments.is_sorted_by_key(|m| m.at_ns));
}

#[test]
fn each_step_of_a_staircase_is_recorded_exactly() {
    let mut stairs = Stairs::start("1");
    let mut allocated = 0;
    for (step, live, up, side) in [
        ("up 1000000", 1_000_000, 1_000_000, 0),
        ("side 300000", 1_300_000, 1_000_000, 300_000),
        ("up 2000000", 3_300_000, 3_000_000, 300_000),
        ("down 1", 1_300_000, 1_000_000, 300_000),
        ("down 1", 300_000, 0, 300_000),
        ("up 5", 300_005, 5, 300_000),
    ] {
        stairs.step(step);
        let (what, bytes) = step.split_once(' ').expect("two words");
        allocated += bytes.parse::<u64>().expect("bytes") * u64::from(what != "down");
        let is_step = |m: &Moment| m.live == live && m.allocated == allocated;
        let (profile, moment) = stairs.recorded(step, is_step);
        assert_eq!(
            held_by(&profile, &moment, &stairs.program, "site_up"),
            up,
            "{step}"
        );
        assert_eq!(
            held_by(&profile, &moment, &stairs.program, "site_side"),
            side,
            "{step}"
        );
        assert_eq!(moment.unlisted_bytes(), 0);
        assert!(moment.resident > Some(live));
        check_end(&profile);
    }
    let outcome = stairs.session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let last = outcome.dumps().pop().expect("dumps");
    let profile = read(&stairs.scratch.files().join(last));
    check_end(&profile);
    // The last dump has the peak, and no moment that never was.
    let lives: Vec<u64> = profile.moments.iter().map(|m| m.live).collect();
    assert_eq!(lives.iter().max(), Some(&3_300_000));
    let steps = [0, 1_000_000, 1_300_000, 3_300_000, 300_000, 300_005];
    assert!(lives.iter().all(|live| steps.contains(live)), "{lives:?}");
}

#[test]
fn a_process_that_is_killed_leaves_its_timeline() {
    let mut stairs = Stairs::start("1");
    stairs.step("up 70000");
    stairs.recorded("the step", |m| m.live == 70_000);
    stairs.target.kill();
    let outcome = stairs.session.wait();
    let last = outcome.dumps().pop().expect("dumps");
    let profile = read(&stairs.scratch.files().join(last));
    assert_eq!(profile.facts.ended.as_deref(), Some("target died: SIGKILL"));
    check_end(&profile);
    assert!(
        profile
            .moments
            .iter()
            .any(|m| m.stacks.is_some() && m.live == 70_000)
    );
    assert_eq!(profile.moments.last().map(|m| m.resident), Some(None));
}

#[test]
fn an_unwatched_session_has_no_moments() {
    let scratch = Scratch::new();
    let program = scratch.compile("stairs.cpp", &[]);
    let mut command = scratch.preloaded(&program);
    let mut target = Target::start(command.env("MEM_PROFILER_START", "1"));
    assert_eq!(target.hear(), "ready");
    target.say("up 1000000");
    assert_eq!(target.hear(), "ok");
    let pid = target.pid().to_string();
    let outcome = run(scratch.profiler().args(["dump", "-p", &pid, "-o", "now_"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let dump = scratch.files().join(outcome.dump());
    assert_eq!(read(&dump).moments, []);
}

#[test]
fn a_program_that_is_started_has_its_timeline_too() {
    let scratch = Scratch::new();
    let program = scratch.compile("stairs.cpp", &[]);
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", "1", "-o", "prof_", "--"])
        .arg(&program);
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    target.say("up 1000000");
    assert_eq!(target.hear(), "ok");
    target.say("down 1");
    target.finish_well();
    let mut entries = fs::read_dir(scratch.files())
        .expect("the directory")
        .flatten();
    let dump = entries.find(|e| e.path().extension() == Some("heap".as_ref()));
    let profile = read(&dump.expect("a dump").path());
    let end = profile.moments.last().expect("moments");
    assert_eq!(end.allocated, profile.total(1) as u64);
    // The agent's clock may not have moved from the start to the end.
    let begins = profile.moments[0] == Moment::default();
    assert!(begins || end.at_ns == 0, "{:?}", profile.moments);
}
