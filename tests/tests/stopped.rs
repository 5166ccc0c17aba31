//! Stopped processes (SIGSTOP): requests wait, and each command says so.

use mem_tests::{Scratch, Session, Target, run, wait};

#[test]
fn commands_say_that_a_process_is_stopped() {
    let scratch = Scratch::new();
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid();
    let session = Session::of(&scratch, pid, "1");
    target.say("go 200 4 1024");
    target.hear_until("done");
    target.signal(libc::SIGSTOP);
    wait::until("it to be stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.contains(") T ").then_some(())
    });
    let hint = format!("it is stopped (kill -CONT {pid} continues it)");
    for command in ["why", "leaks"] {
        let outcome = run(scratch.profiler().args([command, "-p", &pid.to_string()]));
        assert!(outcome.stderr.contains(&hint), "{outcome:?}");
    }
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains(&hint), "{outcome:?}");
    target.signal(libc::SIGCONT);
    let outcome = Session::of(&scratch, pid, "1").stop();
    assert!(!outcome.stderr.contains("stopped"), "{outcome:?}");
    target.finish_well();
}
