//! `perf record` and `mem_profiler cpu` in the same seconds: both must find the shares that the
//! program knows, within the random error of as many samples.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cpu::{COMPLETE, Read, truth};
use mem_tests::{Scratch, Session, Target, wait};

/// CPU time of the program, in seconds.
const SECONDS: &str = "4";
const RATE: &str = "999";
/// How likely this may fail by chance.
const CHANCE: f64 = 1e-9;
/// Shares that are compared: ten functions, three times, above and below.
const COMPARED: f64 = 60.0;

/// Samples by function.
type Counts = BTreeMap<String, f64>;

fn total(counts: &Counts, start: &str) -> f64 {
    let some = counts.iter().filter(|(name, _)| name.starts_with(start));
    some.map(|(_, count)| count).sum()
}

fn share(counts: &Counts, name: &str) -> f64 {
    let start = &name[..name.find('_').expect("a kind of function") + 1];
    counts.get(name).unwrap_or(&0.0) / total(counts, start)
}

/// Returns the negative logarithm of the chance of what is asserted, for each comparison.
fn rarity() -> f64 {
    (COMPARED / CHANCE).ln()
}

/// Returns true if so many samples may have this share of a function by chance (Chernoff's bound of
/// the binomial distribution).
fn may_be(found: f64, expected: f64, samples: f64) -> bool {
    let part = |found: f64, expected: f64| match found {
        0.0 => 0.0,
        _ => found * (found / expected).ln(),
    };
    let divergence = part(found, expected) + part(1.0 - found, 1.0 - expected);
    divergence * samples <= rarity()
}

/// Returns how far apart two shares may be that are estimated from so many samples each
/// (Bernstein's inequality).
fn apart(expected: f64, samples: [f64; 2]) -> f64 {
    let variance = expected * (1.0 - expected) * (1.0 / samples[0] + 1.0 / samples[1]);
    let least = samples[0].min(samples[1]);
    (2.0 * variance * rarity()).sqrt() + 2.0 * rarity() / (3.0 * least)
}

/// Counts each sample for all of its functions of the program.
fn add(counts: &mut Counts, names: impl Iterator<Item = String>, samples: f64) {
    for name in names.filter(|name| name.starts_with("part_") || name.starts_with("by_")) {
        *counts.entry(name).or_default() += samples;
    }
}

fn ours(read: &Read, program: &Path) -> Counts {
    let binaries = [mem_tests::code::Code::of(program)];
    let mut counts = Counts::new();
    for (stack, samples, _) in read.stacks() {
        let names = mem_tests::code::names(&read.profile, stack, &binaries);
        add(
            &mut counts,
            names.into_iter().map(str::to_owned),
            samples as f64,
        );
    }
    counts
}

/// Starts `perf record` and waits until its events are open.
fn perf(target: &Target, data: &Path) -> Session {
    let mut command = Command::new("perf");
    command.args([
        "record",
        "-q",
        "-e",
        "task-clock",
        "-F",
        RATE,
        "--call-graph",
        "dwarf",
    ]);
    command
        .args(["-p", &target.pid().to_string(), "-o"])
        .arg(data);
    opened(Session::start(&mut command))
}

/// Returns a session whose events are open: more than those that own its rings.
fn opened(session: Session) -> Session {
    let directory = format!("/proc/{}/fd", session.pid());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    wait::until("events", || {
        let files = std::fs::read_dir(&directory).ok()?.flatten();
        let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        let is_event = |name: &PathBuf| name.to_string_lossy().contains("perf_event");
        (names.filter(is_event).count() >= processors).then_some(())
    });
    session
}

/// Returns what `perf script` prints, by our reader.
fn theirs(scratch: &Scratch, data: &Path) -> Counts {
    let text = scratch.file("perf.txt");
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "-i"]).arg(data);
    let printed = File::create(&text).expect("a file");
    let status = command.stdout(printed).status().expect("perf");
    assert!(status.success(), "{status}");
    let profile = profile::open(&text).expect("what perf prints");
    assert_eq!(profile.sample_types[1].kind, "cpu");
    let mut counts = Counts::new();
    for (at, stack) in profile.stacks.iter().enumerate() {
        let names = stack.iter().map(|id| {
            let location = profile.locations[*id as usize];
            let line = profile.lines[location.first_line as usize];
            profile.functions[line.function as usize].name.clone()
        });
        add(&mut counts, names, profile.values_of(at)[0] as f64);
    }
    counts
}

#[test]
fn perf_finds_the_same_shares_in_the_same_seconds() {
    let scratch = Scratch::new();
    let program = scratch.compile("mixture.c", &[]);
    let mut command = Command::new(&program);
    let piped = command
        .arg(SECONDS)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(piped);
    assert_eq!(target.hear(), "ready");
    let data = scratch.file("perf.data");
    let peer = perf(&target, &data);
    let mut command = scratch.profiler();
    command.args([
        "cpu",
        "--engine",
        "perf",
        "-F",
        RATE,
        "-p",
        &target.pid().to_string(),
        "-o",
    ]);
    let session = opened(Session::start(command.arg(scratch.file("p_"))));
    target.say("go");
    let known = truth(&target.finish_output());
    let read = Read::only(&session.wait());
    let outcome = peer.wait();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    read.assert_complete(COMPLETE);
    let (ours, theirs) = (ours(&read, &program), theirs(&scratch, &data));
    let seconds: f64 = SECONDS.parse().expect("a number");
    for (who, found) in [("ours", &ours), ("perf", &theirs)] {
        let samples = total(found, "part_");
        println!("{who}: {samples} samples");
        // A busy machine may lose some.
        assert!(samples > 500.0 * seconds, "{who}: {found:?}");
        for name in known.keys() {
            let (said, expected) = (share(found, name), share(&known, name));
            println!("{who}, {name}: {said:.4} of {expected:.4}");
            assert!(
                may_be(said, expected, samples),
                "{who}, {name}: {said} of {expected}"
            );
        }
    }
    // The two are of different moments, so that their errors add up.
    for name in known.keys() {
        let (one, other) = (share(&ours, name), share(&theirs, name));
        let expected = share(&known, name);
        let samples = [&ours, &theirs].map(|found| total(found, "part_"));
        let most = apart(expected, samples);
        assert!((one - other).abs() <= most, "{name}: {one} and {other}");
    }
}
