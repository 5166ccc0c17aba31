//! Processes that another command samples for a moment when a session finds them.

use std::path::Path;
use std::process::Stdio;

use mem_tests::session::copy_program;
use mem_tests::{Scratch, Session, Target};

fn start(scratch: &Scratch, program: &Path) -> Target {
    let mut command = scratch.preloaded(program);
    command.arg("objects").arg(scratch.file("file"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    target
}

/// The session joins once the other command has ended: it is none that lasts.
#[test]
fn a_session_waits_for_a_probe() {
    let scratch = Scratch::new();
    let compiled = scratch.compile("memory_kinds.c", &["-O1", "-pthread"]);
    // A name that no other run of this test has.
    let name = format!("probed{}", std::process::id());
    let program = scratch.file(&name);
    copy_program(&compiled, &program);
    let first = start(&scratch, &program);
    let mut command = scratch.profiler();
    command.args(["-p", &name, "-o"]).arg(scratch.file("d_"));
    let session = Session::start(&mut command);
    scratch.wait_for_sampling(first.pid());
    // It does not look for processes until the other command samples the new one.
    session.signal(libc::SIGSTOP);
    let second = start(&scratch, &program);
    let pid = second.pid().to_string();
    let mut command = scratch.profiler();
    let probe = Session::start(command.args(["top", "--once", "--delay", "4", "-p", &pid]));
    scratch.wait_for_sampling(second.pid());
    session.signal(libc::SIGCONT);
    let outcome = probe.wait();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("of the last 4"), "{outcome:?}");
    scratch.wait_for_sampling(second.pid());
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.dumps().len(), 2, "{outcome:?}");
    assert!(
        outcome.stderr.contains("joins the session later"),
        "{outcome:?}"
    );
    drop((first, second));
}
