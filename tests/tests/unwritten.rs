//! No program reports success if its output could not be written.

use std::fs::File;
use std::process::Command;

use mem_tests::{artifacts, run};

#[test]
fn help_that_goes_nowhere_is_an_error() {
    let programs = [
        (artifacts::profiler(), &["cpu", "--help"][..]),
        (artifacts::profiler(), &["--version"]),
        (artifacts::profiler(), &["completions", "bash"]),
        (artifacts::parser(), &["--help"]),
        (artifacts::parser(), &["--version"]),
        (artifacts::parser(), &["completions", "bash"]),
        (artifacts::server(), &["--help"]),
        (artifacts::server(), &["completions", "bash"]),
    ];
    for (program, arguments) in programs {
        let full = File::options().write(true).open("/dev/full");
        let mut command = Command::new(&program);
        command.args(arguments).stdout(full.expect("/dev/full"));
        let output = command.output().expect("the program");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{program:?}: {said}");
        assert!(said.contains("could not be written") || said.contains("cannot be written"));
        assert_eq!(said.lines().count(), 1, "{program:?}: {said}");
        // A reader that has seen enough is none.
        let line = format!("{} {} | head -c 1", program.display(), arguments.join(" "));
        let outcome = run(Command::new("bash").args(["-c", &format!("set -o pipefail; {line}")]));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
}
