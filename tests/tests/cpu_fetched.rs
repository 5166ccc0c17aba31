//! Programs that fetch the signals that they block, as daemons do, and often all signals: they do
//! not get those of the session's timers.

use mem_tests::{Scratch, run};

#[test]
fn the_timers_signals_are_not_for_a_program_that_fetches_all() {
    let scratch = Scratch::new();
    let program = scratch.compile("fetching.c", &["-pthread"]);
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", "timers", "-o"]);
    command.arg(scratch.file("p_")).arg("--").arg(&program);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("fetched"), "{outcome:?}");
}

#[test]
fn where_there_are_no_timers_the_calls_are_the_c_librarys() {
    let scratch = Scratch::new();
    let program = scratch.compile("fetching.c", &["-pthread"]);
    let outcome = run(&mut scratch.preloaded(&program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}
