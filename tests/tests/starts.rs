//! What the agent costs programs that end at once, in numbers that no other load of the machine changes: page
//! faults of a start and of a forked child, and instructions of a start.

use std::path::Path;
use std::process::Command;

use mem_tests::{Scratch, artifacts};

/// Bound of the page faults that the agent adds to a start: 72 to 75, and a few for where the loader puts it.
const MAX_FAULTS: i64 = 80;
/// Bound of the instructions that the agent adds to a start, the loader's for it included.
const MAX_INSTRUCTIONS: i64 = 420_000;

/// How a program is started.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    Idle,
    /// Sampled from its first allocation on.
    Sampled,
}

/// Returns a command that starts a program in one of these ways, through `with` and its arguments, in an empty
/// environment.
fn command(scratch: &Scratch, way: Way, with: &[&str]) -> Command {
    let mut command = Command::new(with[0]);
    command.args(&with[1..]).env_clear();
    command.env("MEM_PROFILER_DIR", scratch.shared());
    if !matches!(way, Way::Plain) {
        command.env("LD_PRELOAD", artifacts::agent());
    }
    if matches!(way, Way::Sampled) {
        command.env("MEM_PROFILER_START", "1");
    }
    command
}

/// Returns what a command that succeeds prints.
fn output_of(mut command: Command) -> String {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What is counted of a program in each way.
struct Counts {
    plain: i64,
    idle: i64,
    sampled: i64,
}

impl Counts {
    fn of(count: impl Fn(Way) -> i64) -> Self {
        Self {
            plain: count(Way::Plain),
            idle: count(Way::Idle),
            sampled: count(Way::Sampled),
        }
    }

    /// Fails if the agent adds more than this to a program, idle or sampled.
    fn assert_added(&self, what: &str, idle: i64, sampled: i64) {
        let Self { plain, .. } = self;
        let seen = format!(
            "{what}: {plain} without the agent, {} idle, {} in a session",
            self.idle, self.sampled
        );
        println!("{seen}");
        assert!(
            self.idle - plain <= idle && self.sampled - plain <= sampled,
            "{seen}"
        );
    }
}

/// Returns the median of several measurements: where the kernel and the loader put things differs.
fn median(measure: impl FnMut() -> i64) -> i64 {
    const MEASUREMENTS: usize = 15;
    let mut values: Vec<i64> = std::iter::repeat_with(measure).take(MEASUREMENTS).collect();
    values.sort_unstable();
    values[MEASUREMENTS / 2]
}

/// Page faults that a forked child takes before it ends.
fn faults_of_a_child(scratch: &Scratch, program: &Path, way: Way) -> i64 {
    let program = program.to_str().expect("a path");
    median(|| {
        let text = output_of(command(scratch, way, &[program]));
        let of_child = text.split(' ').next().expect("a number");
        of_child.parse().expect("a number")
    })
}

#[test]
fn a_child_that_ends_at_once_shares_its_pages_with_what_it_writes_anyway() {
    let scratch = Scratch::new();
    let program = scratch.compile("child_faults.c", &[]);
    let counts = Counts::of(|way| faults_of_a_child(&scratch, &program, way));
    counts.assert_added("page faults of a child", 3, 4);
}

/// Page faults of a program that ends at once.
fn faults_of_a_start(scratch: &Scratch, way: Way) -> i64 {
    median(|| {
        let child = command(scratch, way, &["/bin/true"]).spawn();
        let pid = child.expect("true").id() as libc::pid_t;
        let mut status = 0;
        // SAFETY: zeros are a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: fills two variables of ours, and reaps our own child, for which nobody else waits.
        let reaped = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
        assert_eq!((reaped, status), (pid, 0));
        usage.ru_minflt
    })
}

#[test]
fn a_start_writes_to_few_pages() {
    let scratch = Scratch::new();
    let counts = Counts::of(|way| faults_of_a_start(&scratch, way));
    counts.assert_added("page faults of a start", MAX_FAULTS, MAX_FAULTS + 5);
}

/// Instructions of a program that ends at once, in its own process, the kernel's not included.
fn instructions_of_a_start(scratch: &Scratch, way: Way) -> i64 {
    let valgrind = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "/bin/true",
    ];
    let mut command = command(scratch, way, &valgrind);
    command.env("PATH", "/usr/bin:/bin");
    let text = output_of(command);
    let collected = text.split("Collected :").nth(1).expect("callgrind's total");
    let number = collected.split_whitespace().next().expect("a number");
    number.parse().expect("a number")
}

#[test]
fn a_start_takes_few_instructions() {
    let scratch = Scratch::new();
    let counts = Counts::of(|way| instructions_of_a_start(&scratch, way));
    counts.assert_added(
        "instructions of a start",
        MAX_INSTRUCTIONS,
        MAX_INSTRUCTIONS,
    );
}
