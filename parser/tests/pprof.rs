//! Equal numbers: the same profile through `go tool pprof` and through us
//! gives the same text, but for the names of units. Needs the package golang-go.

mod units;

use std::fs::File;
use std::path::Path;
use std::process::Command;

use profile::{
    Function, Label, LabelValue, Line, Location, Mapping, NO_MAPPING, Profile, heap_sample_types,
    pprof, read,
};

use helpers::random::Random;
use units::{one_space, with_their_units};

/// Returns a profile with inlined functions, recursion, frames without names, and sizes. Some
/// values are negative if `negative` is set.
fn profile(seed: u64, negative: bool) -> Profile {
    let mut random = Random(seed);
    // Stacks cannot be built directly, so they are read from text.
    let mut text = String::from("heap profile: 1: 1 [2: 2] @ heapprofile\n");
    for _ in 0..300 {
        text += "1: 1 [1: 1] @";
        for _ in 0..1 + random.below(14) {
            text += &format!(" {:#x}", 0x40_0001 + random.below(60) * 16);
        }
        text.push('\n');
    }
    text += "MAPPED_LIBRARIES:\n00400000-00500000 r-xp 00000000 08:01 42 /usr/bin/server\n";
    let mut profile = read(text.as_bytes(), "made up").unwrap();
    profile.functions = (0..40u32)
        .map(|i| Function {
            name: format!("space::function_{}", i % 33),
            system_name: format!("_Zfunction_{i}"),
            file: format!("/source/file_{}.cc", i % 7),
            // pprof would list a file once for each start line.
            start_line: 0,
        })
        .collect();
    for location in &mut profile.locations {
        location.first_line = profile.lines.len() as u32;
        location.line_count = random.below(4) as u32;
        for _ in 0..location.line_count {
            let function = random.below(40) as u32;
            profile.lines.push(Line {
                function,
                line: 1 + random.below(90) as u32,
                column: 0,
            });
        }
    }
    profile.sample_types = heap_sample_types();
    profile.default_type = 3;
    profile.values.clear();
    for _ in 0..profile.stacks.len() {
        let objects = 1 + random.below(1000) as i64;
        let size = 8i64 << random.below(14);
        let live = random.below(objects as u64 + 1) as i64;
        let sign = if negative && random.below(3) == 0 {
            -1
        } else {
            1
        };
        profile
            .values
            .extend([objects, objects * size, live, live * size].map(|v| sign * v));
    }
    profile.facts.start_unix_ns = Some(1_795_235_047_389_055_465);
    profile.facts.duration_ns = Some(90_500_000_000);
    profile.block_sizes = (0..profile.stacks.len())
        .map(|_| 8i64 << random.below(14))
        .collect();
    profile
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?} cannot be run: {e}; install golang-go"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn ours(file: &Path, arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
    run(command
        .arg("-f")
        .arg(file)
        .args(arguments.split_whitespace()))
}

fn theirs(file: &Path, arguments: &str) -> String {
    let mut command = Command::new("go");
    command
        .args(["tool", "pprof", "-symbolize=none"])
        .env("TZ", "UTC")
        .args(arguments.split_whitespace());
    run(command.arg(file))
}

/// Our arguments, and pprof's for the same output.
const CASES: [(&str, &str); 26] = [
    ("-t", "-top"),
    ("-t --cum", "-top -cum"),
    ("-t -n 10", "-top -nodecount=10"),
    ("-t --alloc_objects", "-top -sample_index=alloc_objects"),
    ("-t --alloc_space", "-top -sample_index=alloc_space"),
    ("-t --inuse_objects", "-top -sample_index=inuse_objects"),
    ("-t --lines", "-top -lines"),
    ("-t --files", "-top -files"),
    ("-t --addresses", "-top -addresses"),
    ("-t --noinlines", "-top -noinlines"),
    ("-t --trim=false", "-top -trim=false"),
    ("-t --nodefraction 0.3", "-top -nodefraction=0.3"),
    ("-t --unit MB", "-top -unit=MB"),
    ("-t --divide_by 3", "-top -divide_by=3"),
    ("-t --compact_labels", "-top -compact_labels"),
    ("-t --focus function_1", "-top -focus=function_1"),
    ("-t --ignore function_1$", "-top -ignore=function_1$"),
    ("-t --hide file_3", "-top -hide=file_3"),
    ("-t --show function_2", "-top -show=function_2"),
    ("-t --show_from function_2", "-top -show_from=function_2"),
    ("-t --tagfocus 1kb:", "-top -tagfocus=1kb:"),
    (
        "-t --focus function_1 --relative_percentages",
        "-top -focus=function_1 -relative_percentages",
    ),
    ("--tree", "-tree"),
    ("--peek function_1", "-peek function_1"),
    ("--traces", "-traces"),
    ("--callgrind", "-callgrind"),
];

fn compare(profile: &Profile, cases: &[(&str, &str)]) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.pb.gz");
    pprof::write(profile, &mut File::create(&file).unwrap()).unwrap();
    for (our_arguments, their_arguments) in cases {
        let our = ours(&file, our_arguments);
        let their = theirs(&file, their_arguments);
        assert!(
            their.lines().count() > 3,
            "{their_arguments} gives nothing: {their}"
        );
        let (our, their) = (with_their_units(&our), one_space(&their));
        assert_eq!(our, their, "{our_arguments} differs from {their_arguments}");
    }
}

#[test]
fn every_text_matches_pprof() {
    compare(&profile(0x1234_5678, false), &CASES);
}

#[test]
fn negative_values_match_pprof() {
    compare(&profile(0x9876_5432, true), &CASES[..6]);
}

#[test]
fn comparisons_match_pprof() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, seed| {
        let path = directory.path().join(name);
        pprof::write(&profile(seed, false), &mut File::create(&path).unwrap()).unwrap();
        path
    };
    let after = write("after.pb.gz", 77);
    let before = write("before.pb.gz", 78);
    let before = before.to_str().unwrap();
    let cases = [
        ("base", "-t", "-top"),
        ("diff_base", "-t", "-top"),
        ("base", "--tree", "-tree"),
        ("diff_base", "--traces", "-traces"),
    ];
    for (option, our_output, output) in cases {
        let our = ours(&after, &format!("{our_output} --{option} {before}"));
        let their = theirs(&after, &format!("{output} -{option} {before}"));
        assert_eq!(with_their_units(&our), one_space(&their), "--{option}");
        assert!(our.contains('-'), "no negative difference: {our}");
    }
    for sort in ["", " -cum"] {
        let ours_sort = sort.replace('-', "--");
        let compared = format!("base {before}");
        let our = ours(
            &after,
            &format!("-t{ours_sort} --drop_negative --{compared}"),
        );
        let their = theirs(&after, &format!("-top{sort} -drop_negative -{compared}"));
        let (named, spaced) = (with_their_units(&our), one_space(&their));
        assert_eq!(named, spaced, "--drop_negative{sort}");
        assert!(our.lines().count() > 9, "nothing is left: {our}");
        let negative = |line: &str| line.trim_start().starts_with('-');
        assert!(!our.lines().any(negative), "{our}");
    }
}

/// Returns a difference of two profiles in which some functions cancel out: they are not listed, but
/// calls of them are. `cancels` has as much more below `gains` as it has less below `loses`; `even`
/// has more of one size and as much less of another.
fn cancelling() -> Profile {
    let calls = [
        ("cancels", "gains", 5000),
        ("cancels", "loses", -5000),
        ("even", "keeps", 700),
        ("even", "keeps", -700),
        ("own", "keeps", 900_000),
        ("own", "gains", 40_000),
    ];
    let mut text = String::from("heap profile: 1: 1 [2: 2] @ heapprofile\n");
    for call in 0..calls.len() {
        text += &format!(
            "1: 1 [2: 2] @ {:#x} {:#x}\n",
            0x1001 + call * 16,
            0x2001 + call * 16
        );
    }
    text += "MAPPED_LIBRARIES:\n";
    let mut profile = read(text.as_bytes(), "made up").unwrap();
    profile.sample_types = heap_sample_types();
    profile.default_type = 3;
    profile.values = calls.iter().flat_map(|c| [1, c.2, 1, c.2]).collect();
    profile.block_sizes.clear();
    let names = calls.iter().flat_map(|call| [call.0, call.1]);
    for (number, (location, name)) in profile.locations.iter_mut().zip(names).enumerate() {
        profile.functions.push(Function {
            name: name.into(),
            system_name: name.into(),
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

#[test]
fn calls_to_cancelled_out_functions_match_pprof() {
    let cases = [
        ("-t", "-top"),
        ("--tree", "-tree"),
        ("--tree --trim=false", "-tree -trim=false"),
        ("--peek .", "-peek ."),
        ("--traces", "-traces"),
    ];
    compare(&cancelling(), &cases);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.pb.gz");
    pprof::write(&cancelling(), &mut File::create(&file).unwrap()).unwrap();
    let tree = ours(&file, "--tree");
    assert!(
        tree.contains("|   cancels") && tree.contains("|   even"),
        "{tree}"
    );
    // Pictures and files for other programs have no end for these calls.
    for output in ["--dot", "-s", "--callgrind", "--json", "--html", "--flame"] {
        ours(&file, output);
    }
}

#[test]
fn our_proto_output_gives_the_same_table() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.pb.gz");
    pprof::write(&profile(99, false), &mut File::create(&file).unwrap()).unwrap();
    let again = directory.path().join("again.pb.gz");
    ours(&file, &format!("--proto -o {}", again.display()));
    assert_eq!(theirs(&again, "-top"), theirs(&file, "-top"));
    assert_eq!(theirs(&again, "-traces"), theirs(&file, "-traces"));
}

#[test]
fn label_lists_match_pprof() {
    let mut profile = profile(5, false);
    for stack in (0..profile.stacks.len() as u32).step_by(3) {
        let text = LabelValue::Text(format!("worker {}", stack % 4));
        profile.labels.push(Label {
            stack,
            key: "thread".into(),
            value: text,
        });
    }
    compare(
        &profile,
        &[
            ("--traces", "-traces"),
            (
                "-t --tagfocus thread=worker.[13]",
                "-top -tagfocus=thread=worker.[13]",
            ),
            ("-t --tagignore worker", "-top -tagignore=worker"),
        ],
    );
}

#[test]
fn frames_without_mapping_or_name_are_unknown() {
    let mut text = String::from("heap profile: 1: 1 [1: 1] @ heapprofile\n");
    text += "7: 7 [7: 7] @ 0x10001 0x20001\n3: 3 [3: 3] @ 0x30001\nMAPPED_LIBRARIES:\n";
    text += "00020000-00021000 r-xp 00000000 08:01 42 /usr/lib/libx.so\n";
    let profile = read(text.as_bytes(), "made up").unwrap();
    let unmapped = |l: &&Location| {
        l.mapping == NO_MAPPING
            && profile
                .mappings
                .iter()
                .all(|m: &Mapping| !m.contains(l.address))
    };
    assert_eq!(profile.locations.iter().filter(unmapped).count(), 2);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.pb.gz");
    pprof::write(&profile, &mut File::create(&file).unwrap()).unwrap();
    let their = theirs(&file, "-top");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
    let our = run(command
        .arg("-f")
        .arg(&file)
        .args(["-p", "/usr/bin/true", "--force", "-t"]));
    let rows = |text: &str| {
        text.lines()
            .skip_while(|l| !l.contains("flat%"))
            .map(String::from)
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(&our), rows(&their));
    assert!(
        our.contains("<unknown>") && our.contains("[libx.so]"),
        "{our}"
    );
}
