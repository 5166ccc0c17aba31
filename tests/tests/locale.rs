//! Output in a terminal without UTF-8 is plain ASCII. Files and pipes get the same output in every
//! locale.

use std::process::Command;

use mem_tests::{Outcome, Scratch, Session, Steps, artifacts, run};

/// A locale, and whether a terminal is plain ASCII in it.
const LOCALES: [(&[(&str, &str)], bool); 4] = [
    (&[("LC_ALL", "C")], true),
    (&[("LC_ALL", "C.UTF-8"), ("LANG", "C")], false),
    (&[("LC_CTYPE", "POSIX"), ("LANG", "C.UTF-8")], true),
    (&[("LANG", "C.UTF-8")], false),
];

/// Runs a command line on a terminal, in a locale.
fn on_terminal(scratch: &Scratch, line: &str, locale: &[(&str, &str)]) -> Outcome {
    let mut command = Command::new("script");
    command
        .args(["-qefc", line, "/dev/null"])
        .current_dir(scratch.files())
        .env("MEM_PROFILER_DIR", scratch.shared())
        .env("TERM", "xterm")
        .env_remove("LC_ALL")
        .env_remove("LC_CTYPE")
        .env_remove("LANG")
        .envs(locale.iter().copied());
    run(&mut command)
}

#[test]
fn progress_is_ascii_where_the_locale_is_not_utf8() {
    let scratch = Scratch::new();
    let program = Steps::start(&scratch);
    let line = |options: &str| {
        let profiler = artifacts::profiler();
        format!(
            "{} {options} -p {} -o p_",
            profiler.display(),
            program.pid()
        )
    };
    for (locale, is_ascii) in LOCALES {
        let outcome = on_terminal(&scratch, &line("-s 1"), locale);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stdout.contains(" left, "), "{outcome:?}");
        assert_eq!(
            outcome.stdout.is_ascii(),
            is_ascii,
            "{locale:?}: {outcome:?}"
        );
    }
}

#[test]
fn charts_are_ascii_on_such_a_terminal_and_the_same_in_files() {
    let scratch = Scratch::new();
    let parser = artifacts::parser();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 1000");
    let dump = session.stop().dump();
    let dump = scratch.files().join(dump);
    let line = format!(
        "{} --force -f {} --timeline",
        parser.display(),
        dump.display()
    );
    for (locale, is_ascii) in LOCALES {
        let outcome = on_terminal(&scratch, &line, locale);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert_eq!(
            outcome.stdout.is_ascii(),
            is_ascii,
            "{locale:?}: {outcome:?}"
        );
        let file = format!("{line} > piped");
        assert_eq!(on_terminal(&scratch, &file, locale).code, Some(0));
        let piped = std::fs::read_to_string(scratch.file("piped")).expect("a report");
        assert!(piped.contains('█'), "{locale:?}: {piped}");
    }
}
