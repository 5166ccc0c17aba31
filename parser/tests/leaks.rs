//! Leak suspects of a series of dumps, whose programs' behaviour is known.

mod expected;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profile::{AgeSpread, Detail, Facts, Function, Line, Profile, ProfileBuilder, dump};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_795_235_047 * SECOND;

fn parser(arguments: &[&str], files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .args(arguments)
        .arg("-f")
        .args(files)
        .output()
        .unwrap()
}

fn good(arguments: &[&str], files: &[PathBuf]) -> String {
    let output = parser(arguments, files);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns what a function of the simulated server holds after `minute` minutes: objects allocated,
/// of these freed, size, and how old live and freed ones are.
struct Behaviour {
    name: &'static str,
    size: f64,
    /// Seconds that freed objects lived.
    lifetime: f64,
    allocated: fn(f64) -> f64,
    live: fn(f64) -> f64,
}

const SERVER: [Behaviour; 4] = [
    Behaviour {
        name: "open_session",
        size: 300.0,
        lifetime: 4.0,
        allocated: |minute| 2000.0 * minute,
        live: |minute| 1800.0 * minute,
    },
    Behaviour {
        name: "fill_cache",
        size: 1500.0,
        lifetime: 0.0,
        allocated: |minute| if minute < 3.5 { 100.0 } else { 9000.0 },
        live: |minute| if minute < 3.5 { 100.0 } else { 9000.0 },
    },
    Behaviour {
        name: "load_tables",
        size: 64.0,
        lifetime: 0.0,
        allocated: |_| 500_000.0,
        live: |_| 500_000.0,
    },
    Behaviour {
        name: "render_page",
        size: 2200.0,
        lifetime: 0.02,
        allocated: |minute| 1e6 * minute,
        // Up and down with the traffic, without a trend.
        live: |minute| 900.0 + 400.0 * (minute * 2.4).sin(),
    },
];

/// Returns the server's dump after `minute` minutes, with symbols.
fn server(minute: f64, pid: u32) -> Profile {
    let mut builder = ProfileBuilder::new(1024);
    builder.facts(Facts {
        pid: Some(pid),
        start_unix_ns: Some(START),
        end_unix_ns: Some(START + (minute * 60.0) as u64 * SECOND),
        duration_ns: Some((minute * 60.0) as u64 * SECOND),
        ..Facts::default()
    });
    for (number, b) in SERVER.iter().enumerate() {
        let allocated = (b.allocated)(minute);
        let live = (b.live)(minute).round();
        let freed = allocated - live;
        let samples = |objects: f64| (objects * b.size / 1024.0) as u64;
        let variance = |objects: f64| objects * b.size * 1024.0;
        let detail = Detail {
            alloc_samples: samples(allocated),
            free_samples: samples(freed),
            alloc_objects: allocated,
            alloc_bytes: allocated * b.size,
            freed_objects: freed,
            freed_bytes: freed * b.size,
            live_age_ms_sum: live * minute * 30_000.0,
            freed_lifetime_ms_sum: freed * b.lifetime * 1e3,
            alloc_variance: variance(allocated),
            live_variance: variance(live),
            live_object_variance: variance(live) / (b.size * b.size),
            // The spread is as if births were distributed evenly over the session.
            age_spread: Some(AgeSpread {
                squares: variance(live) / (b.size * b.size) * (minute * 60_000.0).powi(2) / 12.0,
                deviations: 0.0,
            }),
            ..Detail::default()
        };
        builder.stack([0x1001 + 0x100 * number as u64, 0x9001], &detail);
    }
    named(builder.finish())
}

fn named(mut profile: Profile) -> Profile {
    let own = |number: usize| SERVER[number].name;
    // The second location is the caller of all.
    let names = [own(0), "main", own(1), own(2), own(3)];
    for (number, location) in profile.locations.iter_mut().enumerate() {
        profile.functions.push(Function {
            name: names[number].into(),
            system_name: names[number].into(),
            ..Function::default()
        });
        profile.lines.push(Line {
            function: number as u32,
            ..Line::default()
        });
        location.first_line = number as u32;
        location.line_count = 1;
    }
    profile
}

fn write(directory: &Path, name: &str, profile: &Profile) -> PathBuf {
    let path = directory.join(name);
    dump::write(profile, &mut File::create(&path).unwrap()).unwrap();
    path
}

fn series(directory: &Path) -> Vec<PathBuf> {
    let one = |minute: u32| {
        let name = format!("server.{minute}.heap");
        write(directory, &name, &server(f64::from(minute), 7))
    };
    // The dumps are not in order of time, because they contain their moments.
    [3, 1, 2, 6, 5, 4].map(one).to_vec()
}

/// Returns the allocating functions in the order of the suspects.
fn order(text: &str) -> Vec<&str> {
    let mut lines = text.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with("-----------+") {
            found.extend(lines.nth(1).map(str::trim));
        }
    }
    found
}

#[test]
fn the_table_is_as_in_the_golden_file() {
    let directory = tempfile::tempdir().unwrap();
    let text = good(&["--leaks"], &series(directory.path()));
    expected::compare("leaks.txt", &text);
}

#[test]
fn steady_growth_comes_first_whatever_the_others_hold() {
    let directory = tempfile::tempdir().unwrap();
    let files = series(directory.path());
    let text = good(&["--leaks"], &files);
    assert_eq!(
        order(&text),
        ["open_session", "load_tables", "fill_cache", "render_page"]
    );
    let verdict = |name: &str| {
        let at = text.find(&format!("             {name}\n")).unwrap();
        let row = text[..at].lines().last().unwrap();
        row.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!(verdict("open_session"), "steady");
    assert_eq!(verdict("fill_cache"), "once");
    assert_eq!(verdict("load_tables"), "level");
    assert_eq!(verdict("render_page"), "unclear");
    // With one dump, only ages are known.
    let one = good(&["--leaks", "-n", "1"], &files[..1]);
    assert_eq!(order(&one), ["load_tables"]);
}

#[test]
fn a_base_is_an_earlier_dump() {
    let directory = tempfile::tempdir().unwrap();
    let files = series(directory.path());
    let base = files[1].to_str().unwrap();
    let text = good(&["--leaks", "--base", base], &files[..1]);
    assert!(text.contains("Leak suspects of 2 dumps in 120 s"), "{text}");
    assert_eq!(order(&text)[0], "open_session", "{text}");
}

#[test]
fn objects_freed_at_once_have_a_lifetime() {
    let directory = tempfile::tempdir().unwrap();
    let mut profile = server(3.0, 7);
    for detail in &mut profile.details {
        detail.freed_lifetime_ms_sum = 0.0;
        detail.live_age_ms_sum = 0.0;
        detail.age_spread = Some(AgeSpread::default());
    }
    let file = write(directory.path(), "young.heap", &profile);
    let text = good(&["--leaks"], &[file]);
    // Freed objects have a lifetime, live ones an age. Ages within one tick are not exact, unless
    // all objects are sampled.
    for end in ["      < 4 ms", "       never"] {
        for error in ["     0", "< 4 ms"] {
            let row = format!("< 4 ms    {error}{end}");
            let rows = text.lines().filter(|line| line.ends_with(&row));
            assert_eq!(rows.count(), 1, "{row}: {text}");
        }
    }
}

#[test]
fn dumps_of_two_processes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let other = write(directory.path(), "other.heap", &server(2.0, 8));
    let mut files = series(directory.path());
    files.push(other);
    let output = parser(&["--leaks"], &files);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("other.heap") && message.contains("processes 7 and 8"),
        "{message}"
    );
}

/// At its exit a program frees what its destructors free: its growth before is as without.
#[test]
fn the_dump_of_the_exit_is_no_moment_of_the_series() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut files = series(directory.path());
    let growth = good(&["--leaks"], &files);
    let mut last = server(7.0, 7);
    last.facts.ended = Some("target exited: 0".to_owned());
    for detail in &mut last.details {
        detail.free_samples = detail.alloc_samples;
        detail.freed_objects = detail.alloc_objects;
        detail.freed_bytes = detail.alloc_bytes;
    }
    files.push(write(directory.path(), "exit.heap", &last));
    let with_exit = good(&["--leaks"], &files);
    let (remark, others): (Vec<&str>, Vec<&str>) = with_exit
        .lines()
        .partition(|line| line.starts_with("Left out: the dump of the exit"));
    assert_eq!(remark.len(), 1, "{with_exit}");
    assert_eq!(others, growth.lines().collect::<Vec<_>>());
    // A killed program has freed nothing: that dump is the last moment.
    let mut killed = server(7.0, 7);
    killed.facts.ended = Some("target died: SIGKILL".to_owned());
    *files.last_mut().expect("a dump") = write(directory.path(), "killed.heap", &killed);
    let text = good(&["--leaks"], &files);
    assert!(!text.contains("Left out"), "{text}");
    // Two dumps alone are compared, whatever the second is of.
    files.drain(..files.len() - 2);
    files[1] = directory.path().join("exit.heap");
    let text = good(&["--leaks"], &files);
    assert!(
        text.contains("of 2 dumps") && !text.contains("Left out"),
        "{text}"
    );
}

/// A session in which nothing was allocated says so in every view, and that it has no older memory.
#[test]
fn views_of_a_session_without_allocations_say_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let of_minute = |minute: u64| {
        let mut builder = ProfileBuilder::new(1024);
        builder.facts(Facts {
            pid: Some(7),
            start_unix_ns: Some(START),
            end_unix_ns: Some(START + minute * 60 * SECOND),
            duration_ns: Some(minute * 60 * SECOND),
            counters: [("samples".to_owned(), 0)].into(),
            ..Facts::default()
        });
        write(
            directory.path(),
            &format!("{minute}.heap"),
            &builder.finish(),
        )
    };
    let files = [of_minute(1), of_minute(2)];
    for view in ["--leaks", "-t", "--sizes"] {
        let text = good(&[view, "--force"], &files[1..]);
        assert_eq!(text.matches("No sample was taken").count(), 1, "{text}");
    }
    let text = good(&["--leaks", "--force"], &files);
    assert_eq!(text.matches("No sample was taken").count(), 1, "{text}");
    let text = good(
        &["--leaks"],
        &[write(directory.path(), "x.heap", &server(1.0, 8))],
    );
    assert!(!text.contains("No sample was taken"), "{text}");
}

#[test]
fn suspects_need_a_heap_profile() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.folded");
    fs::write(&path, "main;work 3\n").unwrap();
    let output = parser(&["--leaks"], &[path]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("needs a heap profile"), "{message}");
}

/// Returns the system clock after `minute` minutes, in ns of Unix time, if it is set in between.
struct Set {
    what: &'static str,
    shown: fn(u64) -> u64,
}

const SETS: [Set; 2] = [
    Set {
        what: "from 1970",
        shown: |minute| match minute {
            1..=3 => minute * 60 * SECOND,
            _ => START + minute * 60 * SECOND,
        },
    },
    Set {
        what: "three days back",
        shown: |minute| {
            let back = if minute > 3 { 3 * 86_400 } else { 0 };
            START + minute * 60 * SECOND - back * SECOND
        },
    },
];

/// Returns the dump after `minute` minutes, where the system clock was set during the session. The
/// session began `boot` ns after the boot.
fn under_set_clock(minute: u64, set: &Set, boot: Option<u64>) -> Profile {
    let mut profile = server(minute as f64, 7);
    let facts = &mut profile.facts;
    facts.boot_id = Some("4f2ad9c4-7d4a-4d6b-8a63-4f0a6d9d3c11".to_owned());
    facts.start_unix_ns = Some((set.shown)(1) - 60 * SECOND);
    facts.end_unix_ns = Some((set.shown)(minute));
    facts.end_boot_ns = boot.map(|boot| boot + minute * 60 * SECOND);
    profile
}

/// Writes the series of a clock that was set, in the order of the shell.
fn set_series(directory: &Path, set: &Set, boot: Option<u64>) -> Vec<PathBuf> {
    let one = |minute| {
        let name = format!("server.{minute}.heap");
        write(directory, &name, &under_set_clock(minute, set, boot))
    };
    (1..=6).map(one).collect()
}

#[test]
fn growth_is_right_if_the_system_clock_is_set() {
    let directory = tempfile::tempdir().unwrap();
    let steady = good(&["--leaks"], &series(directory.path()));
    let rows = |text: &str| text[text.find("      score").unwrap()..].to_owned();
    for set in &SETS {
        for boot in [None, Some(20 * SECOND)] {
            let files = set_series(directory.path(), set, boot);
            let text = good(&["--leaks"], &files);
            let what = set.what;
            assert_eq!(rows(&text), rows(&steady), "{what}");
            assert!(
                text.contains("Leak suspects of 6 dumps in 300 s"),
                "{what}: {text}"
            );
            assert_eq!(
                text.matches("The system clock was set").count(),
                1,
                "{what}: {text}"
            );
        }
    }
    assert!(!steady.contains("clock"), "{steady}");
}

#[test]
fn differences_have_the_true_time_if_the_system_clock_is_set() {
    let directory = tempfile::tempdir().unwrap();
    for set in &SETS {
        for boot in [None, Some(20 * SECOND)] {
            let files = set_series(directory.path(), set, boot);
            let base = files[1].to_str().unwrap();
            let text = good(&["-t", "--base", base], &files[5..]);
            let what = set.what;
            assert!(text.contains("Duration: 240s"), "{what}: {text}");
            assert_eq!(
                text.matches("The system clock was set").count(),
                1,
                "{what}: {text}"
            );
            let json = good(&["--json", "--base", base], &files[5..]);
            assert!(json.contains("The system clock was set"), "{what}");
            assert!(
                json.contains("\"duration_ns\":240000000000"),
                "{what}: {json}"
            );
            let page = good(&["--html", "--base", base], &files[5..]);
            assert!(page.contains("The system clock was set"), "{what}");
            // The last dump is used, and the duration of a sum is that of all samples.
            let text = good(&["-t"], &files);
            assert!(text.contains("Duration: 360s"), "{what}: {text}");
            let text = good(&["-t", "--force"], &files);
            assert!(!text.contains("Duration: 0"), "{what}: {text}");
            assert!(text.contains("The system clock was set"), "{what}: {text}");
        }
    }
}

#[test]
fn dumps_of_two_boots_are_not_compared_by_the_time_since_the_boot() {
    let directory = tempfile::tempdir().unwrap();
    let mut early = server(1.0, 7);
    let mut late = server(6.0, 7);
    late.facts.end_boot_ns = Some(SECOND);
    late.facts.boot_id = Some("b".to_owned());
    early.facts.end_boot_ns = Some(900 * SECOND);
    early.facts.boot_id = Some("a".to_owned());
    let files = [("early.heap", early), ("late.heap", late)];
    let files = files.map(|(name, profile)| write(directory.path(), name, &profile));
    let text = good(&["--leaks", "--force"], &files);
    assert!(text.contains("Leak suspects of 2 dumps in 300 s"), "{text}");
    assert!(!text.contains("The system clock"), "{text}");
}
