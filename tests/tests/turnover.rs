//! Memory that was live at the end of the session is live in the dump, however soon afterwards it
//! is freed.

use mem_tests::wait::until;
use mem_tests::{Scratch, Session, Target, run};
use profile::Profile;

/// Objects that the program always has.
const LIVE: f64 = 1000.0;

fn start(scratch: &Scratch) -> Target {
    let program = scratch.compile("turnover.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    target
}

fn replace(target: &mut Target) {
    target.say("replace");
    assert_eq!(target.hear(), "replaced");
}

fn dump(scratch: &Scratch, pid: &str) -> Profile {
    let prefix = scratch.file("dump_");
    let mut command = scratch.profiler();
    run(command.args(["dump", "-p", pid, "-o"]).arg(prefix)).profile()
}

fn check(profile: &Profile) {
    let objects = (0..profile.stacks.len())
        .filter(|&stack| profile.block_sizes[stack] == 1000)
        .map(|stack| profile.details[stack].live_objects());
    let live: f64 = objects.sum();
    // Each thread may have been between an object's malloc and the free of the one before it.
    assert!((live - LIVE).abs() <= 2.0, "{live} objects are live");
}

#[test]
fn frees_after_the_stop_are_not_counted() {
    let scratch = Scratch::new();
    let mut targets: Vec<Target> = (0..3).map(|_| start(&scratch)).collect();
    let prefix = scratch.file("prof_");
    let session = Session::start(scratch.profiler().args(["-c", "1", "-o"]).arg(&prefix));
    for target in &mut targets {
        scratch.wait_for_sampling(target.pid());
        replace(target);
    }
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let dumps = outcome.dumps();
    assert_eq!(dumps.len(), targets.len(), "{outcome:?}");
    let profiles = dumps
        .iter()
        .map(|dump| profile::open(dump).expect("a dump"));
    let profiles: Vec<Profile> = profiles.collect();
    profiles.iter().for_each(check);
}

#[test]
fn frees_after_the_deadline_are_not_counted() {
    let scratch = Scratch::new();
    let mut target = start(&scratch);
    let pid = target.pid().to_string();
    let mut command = scratch.profiler();
    let args = ["-s", "3", "-c", "1", "-p", &pid, "-o"];
    let mut session = Session::start(command.args(args).arg(scratch.file("prof_")));
    scratch.wait_for_sampling(target.pid());
    replace(&mut target);
    // Nobody ends it now but the agent.
    session.signal(libc::SIGKILL);
    until("the controller's end", || session.is_over().then_some(()));
    until("the session's end", || {
        (!scratch.is_sampling(target.pid())).then_some(())
    });
    replace(&mut target);
    check(&dump(&scratch, &pid));
}

#[test]
fn a_dump_records_the_stop_even_if_it_is_written_later() {
    let scratch = Scratch::new();
    let mut target = start(&scratch);
    let pid = target.pid().to_string();
    let session = Session::of(&scratch, target.pid(), "1");
    replace(&mut target);
    session.stop();
    // Collected; it may be dumped again.
    let first = dump(&scratch, &pid);
    replace(&mut target);
    let second = dump(&scratch, &pid);
    check(&second);
    assert_eq!(first.details, second.details);
    assert_eq!(first.facts.duration_ns, second.facts.duration_ns);
}
