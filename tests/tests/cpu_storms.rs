//! CPU time of threads and processes that end before they can be examined: each engine reports the
//! time that it has not seen, and the sums are complete.

use std::fs::File;

use mem_tests::cpu::{Read, truth};
use mem_tests::{Outcome, Scratch, run};

/// How far sums may be off: a program says what it used before it ends.
const NEARLY: f64 = 0.05;

/// What events may count beyond the kernel's clocks where a host takes processors away. Children
/// that were counted twice would be far beyond it.
const STOLEN: f64 = 1.5;

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= NEARLY * other
}

#[test]
fn threads_that_end_at_once_are_reported_and_counted() {
    let scratch = Scratch::new();
    let program = scratch.compile("births.c", &["-O1", "-pthread"]);
    let line = scratch.file("line");
    std::fs::write(&line, "\n").expect("a file");
    for engine in ["perf", "timers", "ptrace"] {
        let mut command = scratch.profiler();
        command.args(["cpu", "run", "--engine", engine, "-F", "250", "-o"]);
        command.arg(scratch.file("p_")).arg("--").arg(&program);
        let outcome = run(command.stdin(File::open(&line).expect("a file")));
        let read = Read::only(&outcome);
        let lines = outcome.stdout.lines().filter(|line| *line != "ready");
        let said = truth(&lines.collect::<Vec<_>>().join("\n"))["cpu"];
        assert!(is_near(read.total(), said), "{} {said}", read.total());
        // The threads take more than half of the time, and live for a tenth of a period.
        assert!(read.sampled() < 0.7 * said, "{} {said}", read.sampled());
        let advice = match engine {
            // It looks for new threads now and then, however often it samples.
            "ptrace" => "--engine perf does",
            _ => "sample more often (-F 2500)",
        };
        assert!(outcome.stderr.contains(advice), "{outcome:?}");
    }
}

/// Seconds in a message.
fn seconds(text: &str) -> f64 {
    let (number, unit) = text.trim().split_once(' ').expect("a time and its unit");
    let number: f64 = number.parse().expect("a number");
    match unit {
        "s" => number,
        "ms" => number / 1e3,
        _ => panic!("{text}"),
    }
}

/// Returns the time of all profiles that a session names, and of all that it has no sample of.
fn told(outcome: &Outcome) -> f64 {
    let written = |line: &str| {
        let (_, rest) = line
            .split_once(" samples of ")
            .or_else(|| line.split_once(" sample of "))?;
        let (time, _) = rest.split_once(" of CPU time;")?;
        Some(seconds(time))
    };
    // The line covers processes that were seen and those that were not, or only the latter.
    let silent = |line: &str| {
        let time = match line.split_once(" of CPU time in all)") {
            Some((before, _)) => before.rsplit_once('(')?.1,
            None => {
                let (before, _) = line.split_once(" of CPU time went to processes that ended")?;
                before.rsplit_once(": ")?.1
            }
        };
        Some(seconds(time))
    };
    let lines = outcome.stderr.lines();
    lines
        .filter_map(|line| written(line).or_else(|| silent(line)))
        .sum()
}

/// The time of children that no engine saw is known from their parents' waits.
#[test]
fn the_time_of_children_that_end_at_once_is_reported() {
    let scratch = Scratch::new();
    let program = scratch.compile("litter.c", &["-O1"]);
    for engine in ["perf", "ptrace"] {
        let mut command = scratch.profiler();
        command.args(["cpu", "run", "--engine", engine, "-F", "20", "-o"]);
        let outcome = run(command.arg(scratch.file("p_")).arg("--").arg(&program));
        let (told, said) = (told(&outcome), truth(&outcome.stdout)["cpu"] / 1e9);
        // On a virtual machine events count what the host took as well, and the kernel's clocks do
        // not, to which nobody can compare those of a process that has ended.
        let most = if engine == "perf" {
            STOLEN * said
        } else {
            (1.0 + NEARLY) * said
        };
        let least = (1.0 - NEARLY) * said;
        assert!(
            least <= told && told <= most,
            "{engine}: {told} {said} {outcome:?}"
        );
        // Ptrace asks now and then who the children are: hardly any is still there.
        let unseen = outcome.stderr.contains("ended before they were seen");
        assert_eq!(unseen, engine == "ptrace", "{outcome:?}");
    }
}
