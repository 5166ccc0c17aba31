//! Other programs read our CPU profiles with our numbers: `go tool pprof` and google-pprof, of
//! gperftools' format and of pprof's. Needs the packages golang-go and google-perftools.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use profile::cpu::{CpuBuilder, Frame, Sampling, gperftools};
use profile::{Mapping, Profile, cpu, open, pprof};

const BASE: u64 = 0x55d0_0000_0000;
const PERIOD_NS: u64 = 10_000_000;

/// Returns a profile of these stacks, innermost frame first, at 100 samples per second.
fn profile(stacks: &[(Vec<Frame>, u64, u64)]) -> Profile {
    let mut builder = CpuBuilder::new(Sampling {
        engine: "perf_event".into(),
        rate: 100,
        ..Sampling::default()
    });
    builder.module(Mapping {
        start: BASE,
        end: BASE + 0x10_0000,
        path: "/usr/bin/true".into(),
        ..Mapping::default()
    });
    for (frames, samples, ns) in stacks {
        let locations: Vec<_> = frames.iter().map(|&f| builder.location(f)).collect();
        builder.stack(&locations, *samples, *ns, 0);
    }
    builder.finish()
}

fn user(at: u64) -> Frame<'static> {
    Frame::User(BASE + at)
}

/// Returns stacks whose times are multiples of the period: below a main function, with kernel
/// frames, and of time that was not sampled.
fn whole() -> Vec<(Vec<Frame<'static>>, u64, u64)> {
    let main = || user(0x2000);
    let stack = |frames, periods| (frames, periods, periods * PERIOD_NS);
    vec![
        stack(vec![user(0x1000), main()], 70),
        stack(vec![user(0x1100), user(0x1200), main()], 20),
        stack(
            vec![
                Frame::Kernel("copy_page"),
                Frame::Kernel("do_fault"),
                user(0x1300),
                main(),
            ],
            7,
        ),
        stack(vec![user(0x1400), Frame::Truncated], 2),
        (vec![Frame::NotSampled], 0, PERIOD_NS),
    ]
}

/// Runs a program that must succeed, and gives what it prints.
fn run(command: &str, arguments: &[&str], package: &str) -> String {
    let output = Command::new(command)
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("{command} cannot be run: {e}; install {package}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Stacks of lookup addresses, innermost first, with their samples and nanoseconds.
type Stacks = BTreeMap<Vec<u64>, (i64, i64)>;

/// Returns the stacks that `go tool pprof` reads.
fn go(file: &Path) -> Stacks {
    let path = file.to_str().unwrap();
    let text = run(
        "go",
        &["tool", "pprof", "-raw", "-symbolize=none", path],
        "golang-go",
    );
    let section = |from: &str, to: &str| {
        let start = text
            .find(from)
            .unwrap_or_else(|| panic!("no {from} in {text}"));
        let rest = &text[start + from.len()..];
        rest[..rest.find(to).unwrap()].to_owned()
    };
    let locations: BTreeMap<u64, u64> = section("Locations\n", "Mappings\n")
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.trim().split_once(": 0x")?;
            let address = rest.split(' ').next()?;
            Some((number.parse().ok()?, u64::from_str_radix(address, 16).ok()?))
        })
        .collect();
    let mut stacks = Stacks::new();
    for line in section("Samples:\n", "Locations\n").lines() {
        let Some((values, frames)) = line.split_once(": ") else {
            continue;
        };
        let values: Vec<i64> = values
            .split_whitespace()
            .map(|v| v.parse().unwrap())
            .collect();
        let frames = frames
            .split_whitespace()
            .map(|n| locations[&n.parse().unwrap()]);
        let sum = stacks.entry(frames.collect()).or_default();
        *sum = (sum.0 + values[0], sum.1 + values[1]);
    }
    stacks.retain(|_, values| *values != (0, 0));
    stacks
}

/// Returns the stacks that our own reader reads.
fn ours(file: &Path) -> Stacks {
    let profile = open(file).unwrap();
    let mut stacks = Stacks::new();
    for (number, frames) in profile.stacks.iter().enumerate() {
        let frames = frames
            .iter()
            .map(|&f| profile.locations[f as usize].address);
        let values = profile.values_of(number);
        let sum = stacks.entry(frames.collect()).or_default();
        *sum = (sum.0 + values[0], sum.1 + values[1]);
    }
    stacks.retain(|_, values| *values != (0, 0));
    stacks
}

/// Writes a profile in gperftools' format, into a directory that has to be kept.
fn legacy(profile: &Profile) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.prof");
    gperftools::write(profile, &mut File::create(&file).unwrap()).unwrap();
    (directory, file)
}

/// Returns the part of [`whole`] that the format can represent.
fn expected() -> Stacks {
    let main = BASE + 0x2000;
    let kernel = 0x400;
    let stack = |frames: &[u64], n: i64| (frames.to_vec(), (n, n * PERIOD_NS as i64));
    [
        stack(&[BASE + 0x1000, main], 70),
        stack(&[BASE + 0x1100, BASE + 0x1200, main], 20),
        stack(&[kernel, BASE + 0x1300, main], 7),
        stack(&[BASE + 0x1400, 0x100], 2),
        stack(&[0x300], 1),
    ]
    .into()
}

/// Returns the address of a pseudo-frame in the file.
fn aside(address: u64) -> u64 {
    match address {
        0..0x1000 => address + (1 << 60),
        other => other,
    }
}

#[test]
fn gperftools_files_have_our_stacks_in_every_reader() {
    let (_directory, file) = legacy(&profile(&whole()));
    assert_eq!(ours(&file), expected());
    let of_others = expected().into_iter().map(|(frames, values)| {
        let frames: Vec<u64> = frames.into_iter().map(aside).collect();
        (frames, values)
    });
    assert_eq!(go(&file), of_others.collect());
}

#[test]
fn a_second_frame_common_to_all_stacks_is_kept() {
    let mut stacks = whole();
    stacks.retain(|(frames, ..)| frames.len() == 2 && frames[1] != Frame::Truncated);
    let more = (1..200).map(|i| (vec![user(0x3000 + i), user(0x2000)], 1, PERIOD_NS));
    stacks.extend(more);
    let (_directory, file) = legacy(&profile(&stacks));
    let all = ours(&file);
    assert_eq!(all.len(), 200);
    assert!(all.keys().all(|frames| frames.len() == 2));
    assert_eq!(go(&file), all);
    let cum = google(&file);
    assert_eq!(cum[&(BASE + 0x2000)], 269, "{cum:?}");
}

/// Returns, by address, the samples that google-pprof counts for a function and its callees.
fn google(file: &Path) -> BTreeMap<u64, i64> {
    let path = file.to_str().unwrap();
    let arguments = ["--text", "--addresses", "--cum", "/usr/bin/true", path];
    let text = run("google-pprof", &arguments, "google-perftools");
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = words.get(5)?.trim_start_matches("0x");
        let address = u64::from_str_radix(address, 16).ok()?;
        Some((address, words[3].parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn google_pprof_counts_our_samples() {
    let (_directory, file) = legacy(&profile(&whole()));
    let cum = google(&file);
    let expected = [
        (BASE + 0x1000, 70),
        (BASE + 0x1100, 20),
        (BASE + 0x1200, 20),
        (BASE + 0x2000, 97),
        (aside(0x400), 7),
        (aside(0x300), 1),
    ];
    for (address, samples) in expected {
        assert_eq!(cum.get(&address), Some(&samples), "{address:x} in {cum:x?}");
    }
}

#[test]
fn every_subtree_is_exact_to_one_period() {
    // Weights are not whole periods, as with clocks.
    let stacks: Vec<_> = (0..2000u64)
        .map(|i| {
            let frames = vec![user(i), user(0x8000 + i % 50), user(0x9000 + i % 5)];
            (frames, 1, (i * 7_919) % 20_000_000)
        })
        .collect();
    let profile = profile(&stacks);
    let (_directory, file) = legacy(&profile);
    let mut trees: BTreeMap<u64, i64> = BTreeMap::new();
    for (i, (_, _, ns)) in stacks.iter().enumerate() {
        *trees.entry(BASE + 0x9000 + i as u64 % 5).or_default() += *ns as i64;
    }
    let read = ours(&file);
    for (root, want) in trees {
        let own = read
            .iter()
            .filter(|(frames, _)| frames.last() == Some(&root));
        let got: i64 = own.map(|(_, (_, ns))| ns).sum();
        assert!(
            (got - want).abs() <= PERIOD_NS as i64,
            "{root:x}: {got}, {want}"
        );
    }
    let total: i64 = read.values().map(|(_, ns)| ns).sum();
    assert!((total - profile.total(1)).abs() <= PERIOD_NS as i64 / 2);
}

#[test]
fn profiles_are_written_as_they_were_read() {
    let (_directory, file) = legacy(&profile(&whole()));
    let (_again, second) = legacy(&open(&file).unwrap());
    assert_eq!(
        std::fs::read(&second).unwrap(),
        std::fs::read(&file).unwrap()
    );
}

#[test]
fn protobuf_keeps_every_number_and_name() {
    let profile = profile(&whole());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.pb.gz");
    pprof::write(&profile, &mut File::create(&file).unwrap()).unwrap();
    let path = file.to_str().unwrap();
    let arguments = ["tool", "pprof", "-top", "-symbolize=none", path];
    let text = run("go", &arguments, "golang-go");
    assert!(text.contains("Type: cpu"), "{text}");
    assert!(text.contains("100% of 1000ms total"), "{text}");
    assert!(text.contains("copy_page"), "{text}");
}

#[test]
fn profiles_that_the_format_cannot_hold_are_refused() {
    let refused = |profile: &Profile| {
        gperftools::write(profile, &mut Vec::new())
            .unwrap_err()
            .to_string()
    };
    let heap = profile::read(
        b"heap profile: 0: 0 [0: 0] @ heap_v2/1\n\nMAPPED_LIBRARIES:\n",
        "x",
    );
    assert!(refused(&heap.unwrap()).contains("no column of nanoseconds"));
    let mut negative = profile(&whole());
    negative.values[1] = -1;
    assert!(refused(&negative).contains("a difference"));
    let mut named = profile(&whole());
    named.locations.iter_mut().for_each(|l| l.address = 0);
    named
        .locations
        .iter_mut()
        .for_each(|l| l.mapping = profile::NO_MAPPING);
    named.locations[0].line_count = 1;
    assert!(refused(&named).contains("names without addresses"));
    assert!(cpu::write(&named, &mut Vec::new()).is_err());
}
