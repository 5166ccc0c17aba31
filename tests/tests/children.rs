//! Children forked during a session: they continue the session, their profiles are written, and the
//! session ends in them when it ends in the parent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mem_tests::{Outcome, Scratch, Session, Target, run, sums, wait};

/// Objects of 1000 bytes that are not worth a segment.
const FEW: u32 = 10;
/// And those that are.
const MANY: u32 = 300;

/// A process whose children do what they are told.
struct Brood {
    program: PathBuf,
    target: Target,
}

impl Brood {
    fn start(scratch: &Scratch) -> Self {
        let program = scratch.compile("brood.c", &[]);
        let mut target = Target::start(&mut scratch.preloaded(&program));
        assert_eq!(target.hear(), "ready");
        Self { program, target }
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    fn tell(&mut self, line: &str) -> Option<u32> {
        self.target.say(line);
        let said = self.target.hear_until("ok");
        let child = said.iter().find_map(|line| line.strip_prefix("child "));
        child.and_then(|pid| pid.parse().ok())
    }

    fn fork(&mut self, objects: u32) -> u32 {
        self.tell(&format!("fork {objects}")).expect("a child")
    }

    /// Returns the objects in the dumps of each process, estimated.
    fn objects(&self, scratch: &Scratch, outcome: &Outcome) -> BTreeMap<u32, f64> {
        let dumps = outcome.dumps().into_iter().map(|dump| {
            let profile = profile::open(&scratch.files().join(dump)).expect("a dump");
            let found = sums(&profile, &[&self.program], "site_child");
            let objects = found.get("site_child");
            let objects = objects.map_or(0.0, |sum| sum.detail.alloc_objects);
            (profile.facts.pid.expect("a pid"), objects)
        });
        dumps.collect()
    }
}

fn command(scratch: &Scratch, args: &[&str]) -> Session {
    Session::start(scratch.profiler().args(args))
}

/// Returns the output of `list` about running sessions.
fn running(scratch: &Scratch) -> Vec<String> {
    let outcome = run(scratch.profiler().arg("list"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let lines = outcome
        .stdout
        .lines()
        .filter(|line| line.contains("sampling"));
    lines.map(str::to_owned).collect()
}

/// Returns the commands that sample a process until they are interrupted.
fn ways(pid: &str) -> [Vec<&str>; 5] {
    [
        vec!["-o", "p_"],
        vec!["-p", pid, "-o", "p_"],
        vec!["-p", "brood", "-o", "p_"],
        vec!["top", "--json", "--delay", "1h", "-p", pid],
        vec!["both", "-p", pid, "-o", "p_"],
    ]
}

/// Interrupts one of them.
fn end(session: Session, args: &[&str]) -> Outcome {
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
    outcome
}

/// A session that has begun in a program that forks.
struct Begun<'a> {
    scratch: &'a Scratch,
    brood: &'a mut Brood,
    session: Session,
    number: usize,
    args: &'a [&'a str],
}

/// Runs a test in a session of each kind.
fn in_each_way(scratch: &Scratch, mut test: impl FnMut(Begun)) {
    let mut brood = Brood::start(scratch);
    let pid = brood.pid().to_string();
    for (number, args) in ways(&pid).iter().enumerate() {
        let session = command(scratch, args);
        scratch.wait_for_sampling(brood.pid());
        test(Begun {
            scratch,
            brood: &mut brood,
            session,
            number,
            args,
        });
    }
}

#[test]
fn a_child_that_waited_begins_no_session_once_its_parents_is_over() {
    in_each_way(&Scratch::new(), |begun| {
        let Begun {
            scratch,
            brood,
            session,
            number,
            args,
        } = begun;
        let child = brood.fork(FEW);
        assert_eq!(scratch.segment(child), None, "it is not worth one");
        end(session, args);
        brood.tell(&format!("more {number} {MANY}"));
        assert!(scratch.segment(child).is_some(), "{args:?}");
        assert!(!scratch.is_sampling(child), "{args:?}");
        assert_eq!(running(scratch), [""; 0], "{args:?}");
    });
}

#[test]
fn a_child_that_waited_joins_a_session_that_still_runs() {
    let scratch = Scratch::new();
    let mut brood = Brood::start(&scratch);
    let session = Session::of(&scratch, brood.pid(), "1024");
    let child = brood.fork(FEW);
    brood.tell(&format!("more 0 {MANY}"));
    assert!(scratch.is_sampling(child));
    let outcome = session.stop();
    let objects = brood.objects(&scratch, &outcome);
    assert!(objects[&child] > 0.0, "{outcome:?}");
}

#[test]
fn a_child_that_waited_does_not_begin_a_later_session() {
    let scratch = Scratch::new();
    let mut brood = Brood::start(&scratch);
    let first = Session::of(&scratch, brood.pid(), "1024");
    let child = brood.fork(FEW);
    first.stop();
    let second = Session::of(&scratch, brood.pid(), "1024");
    brood.tell(&format!("more 0 {MANY}"));
    assert!(scratch.segment(child).is_some());
    assert!(!scratch.is_sampling(child));
    let outcome = second.stop();
    assert_eq!(brood.objects(&scratch, &outcome).len(), 1, "{outcome:?}");
}

#[test]
fn a_session_ends_in_all_processes_that_it_reached_by_fork() {
    let scratch = Scratch::new();
    in_each_way(&scratch, |begun| {
        let Begun {
            scratch,
            brood,
            session,
            number,
            args,
        } = begun;
        let child = brood.fork(MANY);
        let grandchild = brood.tell(&format!("grand {number} {MANY}"));
        let grandchild = grandchild.expect("a grandchild");
        for pid in [child, grandchild] {
            // One look is at the process alone.
            assert_eq!(scratch.is_sampling(pid), args[0] != "top", "{args:?}");
        }
        let outcome = end(session, args);
        assert_eq!(running(scratch), [""; 0], "{args:?}");
        if args[0] != "top" {
            let objects = brood.objects(scratch, &outcome);
            for pid in [child, grandchild] {
                assert!(objects[&pid] > 0.0, "{args:?}: {outcome:?}");
            }
        }
    });
    // Nothing is left for anybody to recover.
    let outcome = run(scratch.profiler().arg("list"));
    assert!(!outcome.stdout.contains("kept"), "{outcome:?}");
}

#[test]
fn children_forked_while_a_session_ends_do_not_continue_it() {
    let scratch = Scratch::new();
    let mut brood = Brood::start(&scratch);
    let session = Session::of(&scratch, brood.pid(), "1024");
    brood.target.say("storm 100");
    wait::until("some children", || {
        (scratch.segments().len() > 20).then_some(())
    });
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    brood.target.hear_until("ok");
    wait::until("all children", || {
        (scratch.segments().len() > 100).then_some(())
    });
    // Each is whole once its process is listed.
    wait::until("all children to be listed", || {
        let listed = run(scratch.profiler().arg("list")).stdout;
        (listed.matches("brood").count() > 100).then_some(())
    });
    assert_eq!(running(&scratch), [""; 0]);
}

#[test]
fn children_of_a_process_named_by_pid_are_collected() {
    let scratch = Scratch::new();
    let mut brood = Brood::start(&scratch);
    let before = brood.fork(FEW);
    let session = Session::of(&scratch, brood.pid(), "1");
    let (stays, ends, waits) = (brood.fork(MANY), brood.fork(MANY), brood.fork(0));
    // It was there before, and nobody asked for it.
    brood.tell(&format!("more 0 {MANY}"));
    brood.tell("end 2");
    wait::until("the dump of the child that has ended", || {
        let name = format!("prof_brood.{ends}.0001.heap");
        scratch.file(&name).exists().then_some(())
    });
    wait::until("its segment to go", || {
        scratch.segment(ends).is_none().then_some(())
    });
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let objects = brood.objects(&scratch, &outcome);
    assert_eq!(objects[&stays], f64::from(MANY), "{outcome:?}");
    assert_eq!(objects[&ends], f64::from(MANY), "{outcome:?}");
    assert_eq!(objects.len(), 3, "not {before}, nor {waits}: {outcome:?}");
}

/// The segment of a dead process can be removed while its child still waits.
#[test]
fn a_child_that_waits_is_not_in_the_way_of_its_dead_parents_segment() {
    let scratch = Scratch::new();
    let mut command = scratch.preloaded(scratch.compile("brood.c", &[]));
    command.env("MEM_PROFILER_START", "1");
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let parent = target.pid();
    target.say(&format!("fork {FEW}"));
    target.hear_until("ok");
    let segment = scratch.segment(parent).expect("a segment");
    target.say("leave");
    target.hear_until("ok");
    wait::until("its profile to be recovered", || {
        let _ = run(scratch.profiler().args(["recover", "-o", "r_"]));
        (!segment.exists()).then_some(())
    });
}
