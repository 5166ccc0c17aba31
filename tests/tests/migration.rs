//! Migration from other profilers: each command of the guide's tables, as it is written there, has
//! the described result on a real process.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use mem_tests::{Outcome, Scratch, Session, Target, artifacts, run, wait};
use profile::{Format, Profile};

/// A line of a table: the first command of its second column.
#[derive(Debug)]
struct Example {
    there: String,
    here: String,
}

fn examples() -> Vec<Example> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/migration.md");
    let text = fs::read_to_string(guide).expect("the page");
    let (tables, _) = text.split_once("\n## pprof\n").expect("the last part");
    let line = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (there, here) = (cells.next()?, cells.next()?);
        let command = here.split('`').nth(1)?;
        Some(Example {
            there: there.to_owned(),
            here: command.to_owned(),
        })
    };
    tables.lines().filter_map(line).collect()
}

/// Returns true if a line is of CPU time.
fn is_of_cpu(here: &str) -> bool {
    here.contains(" cpu ") || here.contains("CPU")
}

/// A program that runs, in a session where the line needs one, and a dump of it.
struct Stage {
    scratch: Scratch,
    program: PathBuf,
    target: Option<Target>,
    session: Option<Session>,
    dump: PathBuf,
}

/// Compiles a program whose source everybody may read, as root reads no other for `--list`.
fn compile_readable(scratch: &Scratch, source: &str) -> PathBuf {
    let original = artifacts::source(source);
    let copy = scratch.file(source);
    fs::copy(&original, &copy).expect("a source");
    let directory = copy.parent().expect("its directory");
    for (path, mode) in [(copy.as_path(), 0o644), (directory, 0o755)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("rights");
    }
    let programs = original.parent().expect("its directory");
    let map = format!(
        "-ffile-prefix-map={}={}",
        programs.display(),
        directory.display()
    );
    scratch.compile_as(source, "app", &[&map])
}

impl Stage {
    fn new(here: &str) -> Self {
        let scratch = Scratch::new();
        let source = if is_of_cpu(here) {
            "burn.c"
        } else {
            "migration.c"
        };
        let program = compile_readable(&scratch, source);
        for (name, text) in [
            ("app.py", "keep = [bytes(1000) for _ in range(20000)]\n"),
            ("known.txt", "leak:^nothing_of_this_name$\n"),
        ] {
            fs::write(scratch.file(name), text).expect("a file");
        }
        let mut stage = Self {
            scratch,
            program,
            target: None,
            session: None,
            dump: PathBuf::new(),
        };
        if here.contains("PID") {
            stage.start(
                [" dump ", " top ", " leaks "]
                    .iter()
                    .any(|c| here.contains(c)),
            );
        }
        if here.contains("DUMP") {
            stage.make(&["run", "-o", "made_", "--", "./app"], ".heap");
        }
        if here.contains("CPU") {
            stage.make(
                &["cpu", "run", "-F", "999", "-o", "made_", "--", "./app"],
                ".cpu",
            );
        }
        stage
    }

    fn start(&mut self, in_session: bool) {
        let mut command = self.scratch.preloaded(&self.program);
        let mut target = Target::start(command.env("STAYS", "1"));
        assert_eq!(target.hear(), "ready");
        if in_session {
            self.session = Some(Session::of(&self.scratch, target.pid(), "1024"));
            // A dump is to hold more than the first allocation.
            wait::until("samples", || self.has_samples(target.pid()).then_some(()));
        }
        self.target = Some(target);
    }

    fn has_samples(&self, pid: u32) -> bool {
        let mut command = self.scratch.profiler();
        command.args(["dump", "-p", &pid.to_string(), "-o"]);
        command.arg(self.scratch.file("early_"));
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.profile().total(1) > 1 << 20
    }

    fn make(&mut self, arguments: &[&str], ending: &str) {
        let made = run(self.scratch.profiler().args(arguments));
        assert_eq!(made.code, Some(0), "{made:?}");
        self.dump = self.files("made_", ending).pop().expect("a profile");
    }

    fn dumps(&self, prefix: &str) -> Vec<PathBuf> {
        self.files(prefix, ".heap")
    }

    fn files(&self, prefix: &str, ending: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.scratch.files())
            .expect("our own")
            .flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        let ours = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(prefix) && name.ends_with(ending)
        };
        paths.retain(ours);
        paths.sort();
        paths
    }

    fn profiles(&self, prefix: &str) -> Vec<Profile> {
        let paths = self.dumps(prefix);
        let open = |path: &PathBuf| profile::open(path).expect("a whole dump");
        paths.iter().map(open).collect()
    }

    /// Returns the line with our names in it, and in shorter time.
    fn command(&self, here: &str) -> Command {
        let text = |path: &Path| path.to_str().expect("a path of ours").to_owned();
        let pid = self.target.as_ref().map_or(0, Target::pid).to_string();
        // Our paths come last: what stands in them is not the line's.
        let line = here
            .replace("-s 60", "-s 0.3")
            .replace("--every 10s", "--every 100ms")
            .replace("PID", &pid)
            .replace("DUMP", "\u{1}")
            .replace("CPU", "\u{1}")
            .replace("/tmp/", "\u{2}")
            .replace("/usr/local/lib/libmem_agent.so", &text(&artifacts::agent()))
            .replace("mem_profiler ", &(text(&artifacts::profiler()) + " "))
            .replace("mem_parser ", &(text(&artifacts::parser()) + " "))
            .replace('\u{1}', &text(&self.dump))
            .replace('\u{2}', &(text(self.scratch.files()) + "/"));
        let mut command = Command::new("sh");
        // If variables precede a command, `exec` would take the first variable for the command.
        let first = line.split(' ').next().unwrap_or_default();
        let exec = if first.contains('=') { "" } else { "exec " };
        command
            .args(["-c", &format!("{exec}{line}")])
            .env("MEM_PROFILER_DIR", self.scratch.shared())
            .current_dir(self.scratch.files())
            .stdin(std::process::Stdio::null());
        command
    }
}

/// Runs a line; where it waits for a signal, sends that until it is heeded. Where it writes dumps by
/// itself, the program goes on until there is one.
fn perform(stage: &Stage, example: &Example) -> Outcome {
    let hold = stage.scratch.file("hold");
    let mut command = stage.command(&example.here);
    let writes_by_itself = example.here.contains("--every");
    if writes_by_itself {
        command.env("HOLD", &hold);
    }
    let mut session = Session::start(&mut command);
    if writes_by_itself {
        wait::until("the first dump", || {
            (session.is_over() || !stage.dumps("p_").is_empty()).then_some(())
        });
        fs::write(&hold, "").expect("a file");
    }
    if example.here.contains("--signal SIGUSR2") {
        // The program runs, so its controller heeds the signal.
        wait::until("the program's segment", || {
            // The run's directory contains another directory, which contains the segments.
            let run = stage.scratch.segments().pop()?;
            let inner = fs::read_dir(run).ok()?.next()?.ok()?;
            fs::read_dir(inner.path()).ok()?.next().map(|_| ())
        });
        // The dump, or the reason for its absence, is checked below.
        wait::until("the signal's dump", || {
            if session.is_over() || !stage.dumps("p_").is_empty() {
                return Some(());
            }
            session.signal(libc::SIGUSR2);
            None
        });
    }
    session.wait()
}

/// Requirements on a command's dumps, besides that they are whole.
fn check_dumps(example: &Example, profiles: &[Profile]) {
    let here = &example.here;
    let triggers: Vec<String> = profiles
        .iter()
        .filter_map(|p| p.facts.trigger.clone())
        .collect();
    for (option, trigger) in [
        ("--every-alloc", " allocated"),
        ("--every-growth", "live heap grown to "),
        ("--every 10s", "every 100ms"),
        ("--signal", "signal SIGUSR2"),
        ("--peak", "high-water mark, "),
    ] {
        let found = triggers.iter().any(|text| text.contains(trigger));
        assert_eq!(found, here.contains(option), "{example:?}: {triggers:?}");
    }
    let after = here
        .split(" -c ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let interval = match after {
        None if here.contains("--leak-check") => 1,
        None => 1024,
        Some("512K") => 512 << 10,
        Some(number) => number.parse().expect("a number of bytes"),
    };
    let last = profiles.last().expect("a dump");
    assert_eq!(last.period, interval, "{example:?}");
    assert!(last.total(1) > 1 << 20, "{example:?}: {}", last.total(1));
    if here.contains("run -c 1 ") {
        // Every allocation: what was kept is known to the byte.
        let kept = 120.0 * f64::from(1 << 20);
        let live = |p: &Profile| p.details.iter().map(|d| d.live_bytes()).sum::<f64>();
        assert!(
            (kept..kept + 65536.0).contains(&live(last)),
            "{example:?}: {}",
            live(last)
        );
    }
}

fn check(example: &Example) {
    let stage = Stage::new(&example.here);
    let outcome = perform(&stage, example);
    let checks = ["--leak-check", "HEAPCHECK="]
        .iter()
        .any(|c| example.here.contains(c));
    // The program forgets what it does not free.
    assert_eq!(
        outcome.code,
        Some(i32::from(checks)),
        "{example:?}: {outcome:?}"
    );
    assert!(
        !checks || outcome.stderr.contains("Direct leak"),
        "{outcome:?}"
    );
    for (variable, said) in [
        ("HEAP_CHECK_IDENTIFY_LEAKS", "leaked 1048576 byte object 0x"),
        ("HEAP_CHECK_TEST_POINTER", "Found leaks without pointer"),
    ] {
        let is_asked = example.here.contains(variable);
        assert_eq!(outcome.stderr.contains(said), is_asked, "{outcome:?}");
    }
    let pid = stage.target.as_ref().map_or(0, Target::pid).to_string();
    if example.here.starts_with("mem_parser") {
        let drawn = fs::read_to_string(stage.scratch.file("p_.svg")).unwrap_or_default();
        let empty = example.here.contains("--base");
        let shown = drawn.contains("site_migration") || outcome.stdout.contains("site_migration");
        assert_eq!(shown, !empty, "{example:?}: {outcome:?}");
        assert!(!empty || outcome.stdout.contains("flat%"), "{outcome:?}");
    } else if example.here.contains(" list ") {
        assert!(outcome.stdout.contains(&pid), "{example:?}: {outcome:?}");
    } else if example.here.contains(" top ") {
        assert!(
            outcome.stdout.contains("site_migration"),
            "{example:?}: {outcome:?}"
        );
    } else if example.here.contains(" leaks ") {
        assert!(
            outcome.stdout.contains(": no leaks, of what")
                || outcome.stdout.contains(": no sign of a leak in "),
            "{example:?}: {outcome:?}"
        );
    } else if example.here.starts_with("LD_PRELOAD") {
        assert!(
            !outcome.stderr.contains("ld.so"),
            "{example:?}: {outcome:?}"
        );
        assert!(outcome.stdout.contains("ready"), "{example:?}: {outcome:?}");
        assert!(
            stage.scratch.segments().is_empty(),
            "{example:?}: it left nothing"
        );
    } else if example.here.contains(" cpu ") {
        let files = stage.files("p_", ".cpu");
        let profile = profile::open(files.first().expect("a profile")).expect("a whole one");
        assert_eq!(profile.format, Format::Cpu, "{example:?}");
        assert!(profile.total(0) > 0, "{example:?}: {outcome:?}");
        let rate = profile.facts.cpu.map(|sampling| sampling.rate);
        let asked = example.here.contains("-F 100").then_some(100).or(Some(99));
        assert_eq!(rate, asked, "{example:?}");
    } else {
        let prefix = if example.here.contains("/tmp/jeprof") {
            "jeprof."
        } else {
            "p_"
        };
        let profiles = stage.profiles(prefix);
        let ours: Vec<Profile> = match example.here.contains("python3") {
            true => profiles
                .into_iter()
                .filter(|p| p.total(1) > 1 << 20)
                .collect(),
            false => profiles,
        };
        check_dumps(example, &ours);
    }
    if let Some(session) = stage.session {
        assert_eq!(session.stop().code, Some(0), "{example:?}");
    }
}

#[test]
fn each_line_of_the_guides_tables_does_what_it_says() {
    let examples = examples();
    assert!(examples.len() >= 30, "the tables are there: {examples:?}");
    for word in [
        "HEAPPROFILE",
        "prof_gdump",
        "heaptrack ",
        "memray run",
        "HEAPCHECK",
        "HEAP_CHECK_IDENTIFY_LEAKS",
        "LSAN_OPTIONS=suppressions",
        "perf record",
        "CPUPROFILE",
    ] {
        assert!(
            examples.iter().any(|example| example.there.contains(word)),
            "{word}"
        );
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(example) = examples.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(example);
                }
            });
        }
    });
}
