//! Warnings fit two lines of a terminal with 80 columns.

use mem_tests::{Scratch, Session, Target, run};

/// Columns of two lines.
const MAX_COLUMNS: usize = 160;

#[test]
fn warnings_about_allocators_are_short() {
    for flags in [
        &["-DPREFIX="][..],
        &["-DPREFIX=", "-DHIDDEN"],
        &["-DPREFIX=tc_", "-DHIDDEN"],
        &[
            "-DPREFIX=je_",
            "-s",
            "-DHIDDEN",
            "-DMESSAGE=\"<jemalloc>: x\"",
        ],
    ] {
        let scratch = Scratch::new();
        let program = scratch.compile("own_malloc.c", flags);
        let mut target = Target::start(&mut scratch.preloaded(program));
        assert_eq!(target.hear(), "ready");
        let session = Session::of(&scratch, target.pid(), "1024");
        target.say("allocate 10000");
        target.hear();
        let outcome = session.stop();
        let list = run(scratch
            .profiler()
            .args(["why", "-p", &target.pid().to_string()]));
        let lines = outcome.stderr.lines().chain(list.stderr.lines());
        let warnings: Vec<_> = lines.filter(|line| line.contains("warning: ")).collect();
        assert!(!warnings.is_empty(), "{flags:?}: {outcome:?}");
        for warning in warnings {
            assert!(warning.chars().count() <= MAX_COLUMNS, "{warning}");
            assert!(!warning.contains("build it"), "{warning}");
        }
        target.finish_well();
    }
}
