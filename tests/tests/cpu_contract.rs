//! gperftools' CPU profiler and ours in its place: the same program makes the same calls, with the
//! same variables and signals, with the real library and with the agent.

use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::cpu::seconds;
use mem_tests::{Outcome, Scratch, run};

/// Whose functions the program calls.
const BOTH: [Library; 2] = [Library::Theirs, Library::Ours];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Theirs,
    Ours,
}

impl Library {
    /// Returns the expected range if ours has so many seconds. Their library counts signals. On a
    /// busy machine, one signal stands for several; in real time there are more, see
    /// [`IN_REAL_TIME`].
    fn bounds(self, ours: RangeInclusive<f64>) -> RangeInclusive<f64> {
        match self {
            Self::Ours => ours,
            Self::Theirs => 0.005..=f64::INFINITY,
        }
    }
}

/// What the program does in one thread, and never sleeps. There the library is compared by real
/// time: its timer of CPU time goes by the kernel's ticks, and a process that another one
/// interrupts just before each tick has no sample.
const IN_REAL_TIME: [&str; 3] = ["calls", "killed", "switch"];

struct Stage {
    scratch: Scratch,
    program: PathBuf,
    file: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let scratch = Scratch::new();
        Self {
            program: scratch.compile("profiler_contract.c", &["-pthread"]),
            file: scratch.file("contract.prof"),
            scratch,
        }
    }

    /// Runs the program; its profile is in `self.file`.
    fn run(&self, library: Library, arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
        let _ = fs::remove_file(&self.file);
        let mut command = match library {
            Library::Ours => self.scratch.preloaded(&self.program),
            Library::Theirs => {
                let mut command = Command::new(&self.program);
                command.env("LD_PRELOAD", "libprofiler.so.0");
                if IN_REAL_TIME.contains(&arguments[0]) {
                    command.env("CPUPROFILE_REALTIME", "1");
                }
                command
            }
        };
        run(command.args(arguments).envs(variables.iter().copied()))
    }

    /// Lets the program make profiles by its own calls.
    fn call(&self, library: Library, what: &str) -> Outcome {
        self.run(library, &[what, &self.file.to_string_lossy()], &[])
    }

    /// Profiles the whole run.
    fn whole(&self, library: Library, what: &str, variable: (&str, &str)) -> Outcome {
        let file = self.file.to_string_lossy().into_owned();
        let outcome = self.run(library, &[what], &[("CPUPROFILE", &file), variable]);
        assert_eq!(outcome.code, Some(0), "{library:?}: {outcome:?}");
        outcome
    }

    fn seconds(&self, function: &str) -> f64 {
        seconds(&self.program, &self.file, &format!(" {function}"))
    }
}

#[test]
fn every_function_does_what_it_does_there() {
    let stage = Stage::new();
    for what in ["calls", "filter"] {
        let [theirs, ours] = BOTH.map(|library| stage.call(library, what));
        assert_eq!(theirs.code, Some(0), "{theirs:?}");
        assert_eq!(ours.code, Some(0), "{ours:?}");
        assert_eq!(theirs.stdout, ours.stdout, "{ours:?}");
    }
}

/// The reported number of samples is that of the file, within one that came after the request.
#[test]
fn samples_are_counted_as_they_come() {
    let stage = Stage::new();
    let outcome = stage.call(Library::Ours, "calls");
    let number = |text: &str, before: &str| {
        let rest = text.split(before).nth(1).expect("a number after it");
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse::<i64>().ok()
    };
    let gathered = number(&outcome.stderr, "gathered: ").expect("what the program was told");
    let mut lines = outcome.stderr.lines();
    let said = lines.find(|line| line.contains(" samples of "));
    let written = said.and_then(|said| number(said, ".prof: "));
    let written = written.expect("what the file has");
    assert!((gathered..=gathered + 2).contains(&written), "{outcome:?}");
}

#[test]
fn a_filter_leaves_threads_out() {
    let stage = Stage::new();
    for library in BOTH {
        let outcome = stage.call(library, "filter");
        let [wanted, unwanted] = ["first_work", "second_work"].map(|name| stage.seconds(name));
        // There one timer serves all threads, so that they share what comes, if anything does.
        if library == Library::Ours {
            assert!((0.3..=0.5).contains(&wanted), "{wanted} {outcome:?}");
        }
        assert!(unwanted == 0.0, "{library:?}: {unwanted} {outcome:?}");
    }
}

#[test]
fn what_is_written_out_outlives_the_process() {
    let stage = Stage::new();
    for library in BOTH {
        let outcome = stage.call(library, "killed");
        assert_eq!(outcome.stdout, "start: 1\n", "{library:?}: {outcome:?}");
        assert_eq!(outcome.code, None, "killed: {outcome:?}");
        // The file that is flushed there has no maps.
        let bytes = fs::read(&stage.file).expect("a file");
        assert!(bytes.len() > 40 + 8 * 3, "{library:?}: {}", bytes.len());
        if library == Library::Ours {
            let found = stage.seconds("first_work");
            assert!((0.3..=0.5).contains(&found), "{found} {outcome:?}");
        }
    }
}

/// The header contains the period.
#[test]
fn rates_are_limited_as_there() {
    let stage = Stage::new();
    let values = [
        "1",
        "250",
        " 50",
        "50 ",
        "50x",
        "4000",
        "4001",
        "99999999999",
        "0",
        "-5",
        "",
    ];
    for value in values {
        let [theirs, ours] = BOTH.map(|library| {
            stage.whole(library, "idle", ("CPUPROFILE_FREQUENCY", value));
            fs::read(&stage.file).expect("a profile")[..40].to_vec()
        });
        assert_eq!(theirs, ours, "{value:?}");
    }
}

#[test]
fn waiting_counts_where_real_time_is_asked_for() {
    let stage = Stage::new();
    for library in BOTH {
        let outcome = stage.whole(library, "sleep", ("CPUPROFILE_REALTIME", "1"));
        // Its stack ends there.
        let asleep = seconds(&stage.program, &stage.file, "clock_nanosleep");
        assert!(
            library.bounds(0.3..=f64::INFINITY).contains(&asleep),
            "{library:?}: {asleep} {outcome:?}"
        );
        let outcome = stage.whole(library, "sleep", ("CPUPROFILE_FREQUENCY", "100"));
        let asleep = seconds(&stage.program, &stage.file, "clock_nanosleep");
        assert!(asleep < 0.1, "{library:?}: {asleep} {outcome:?}");
    }
}

#[test]
fn each_thread_has_its_own_time() {
    let stage = Stage::new();
    for library in BOTH {
        let variable = ("CPUPROFILE_PER_THREAD_TIMERS", "1");
        let outcome = stage.whole(library, "threads", variable);
        for function in ["first_work", "second_work"] {
            let found = stage.seconds(function);
            // Of two threads that share a processor, chance tells which is met how often: of 80
            // samples 40, and 18 more or less in one case of 16,000.
            assert!(
                library.bounds(0.22..=0.58).contains(&found),
                "{library:?}: {found} {outcome:?}"
            );
        }
    }
}

/// The profile covers the time between two signals and is in the first file. The program does not
/// notice the signals.
#[test]
fn a_signal_keeps_the_programs_errno() {
    let stage = Stage::new();
    let signal = libc::SIGUSR2.to_string();
    let [theirs, ours] = BOTH.map(|library| {
        let outcome = stage.whole(library, "switch", ("CPUPROFILESIGNAL", &signal));
        let switched = PathBuf::from(format!("{}.0", stage.file.display()));
        let [inside, outside] = ["first_work", "second_work"]
            .map(|name| seconds(&stage.program, &switched, &format!(" {name}")));
        assert!(
            library.bounds(0.3..=0.5).contains(&inside),
            "{library:?}: {inside}"
        );
        assert!(outside < 0.05, "{library:?}: {outside}");
        fs::remove_file(switched).expect("the profile");
        outcome.stdout
    });
    assert_eq!(theirs, "errno: 77, enabled: 1\nerrno: 77, enabled: 0\n");
    assert_eq!(theirs, ours);
    // A profile that fails does not change it either.
    let nowhere = ("CPUPROFILE", "/no/such/directory/file");
    let variables = [nowhere, ("CPUPROFILESIGNAL", &signal[..])];
    let outcome = stage.run(Library::Ours, &["switch"], &variables);
    assert_eq!(
        outcome.stdout, "errno: 77, enabled: 0\nerrno: 77, enabled: 0\n",
        "{outcome:?}"
    );
}

/// Returns all names that the real library has, of functions and of variables.
fn names() -> BTreeSet<String> {
    let library = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let library = library.join("libprofiler.so.0");
    let lines = |command: &mut Command| {
        let output = command.arg(&library).output().expect("binutils");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let functions = lines(Command::new("nm").args(["-D", "--defined-only"]));
    let functions = functions.lines().filter_map(|line| line.split(' ').nth(2));
    let functions = functions.filter(|name| name.starts_with("Profil"));
    let variables = lines(&mut Command::new("strings"));
    let is_variable = |line: &&str| {
        let is_part = |c: char| c == '_' || c.is_ascii_uppercase();
        line.starts_with("CPUPROFILE") && line.chars().all(is_part)
    };
    let variables = variables.lines().filter(is_variable);
    functions.chain(variables).map(str::to_owned).collect()
}

#[test]
fn the_guides_say_what_becomes_of_every_name() {
    let names = names();
    assert!(names.len() >= 16, "{names:?}");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for guide in ["guide/cpu.md", "guide/zh/cpu.md"] {
        let text = fs::read_to_string(docs.join(guide)).expect("a guide");
        let mut told = BTreeSet::new();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let first = line.split(" | ").next().unwrap_or_default();
            let code = first.split('`').skip(1).step_by(2);
            told.extend(
                code.filter_map(|code| code.split('=').next())
                    .map(str::to_owned),
            );
        }
        let missing: Vec<_> = names.difference(&told).collect();
        assert!(missing.is_empty(), "{guide}: {missing:?}");
    }
}
