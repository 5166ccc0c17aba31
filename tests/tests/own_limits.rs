//! Programs that limit their own memory during a session: they get nearly as much as without a
//! session.

use mem_tests::{Scratch, run};

/// Returns the MB that the program gets; `sampled`: in a session of every allocation.
fn got(resource: &str, who: &str, is_sampled: bool) -> f64 {
    let scratch = Scratch::new();
    let program = scratch.compile("limits_itself.c", &["-O0"]);
    let mut command = scratch.preloaded(&program);
    if is_sampled {
        command
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", "1");
    }
    let outcome = run(command.args([resource, who]));
    assert_eq!(outcome.code, Some(0), "{resource}, {who}: {outcome:?}");
    outcome.stdout.trim().parse().expect("MB")
}

#[test]
fn what_a_session_reserves_does_not_count_towards_a_programs_own_limit() {
    for resource in ["as", "data"] {
        for who in ["self", "child"] {
            let (idle, sampled) = (got(resource, who, false), got(resource, who, true));
            assert!(
                sampled > 0.75 * idle,
                "{resource}, {who}: {sampled} MB, {idle} without a session"
            );
        }
    }
}
