//! Input that lies, through every output: an answer or an error, and nothing of it executed
//! or obeyed.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

mod formats;

/// Returns the flags of every format, and one more table.
fn outputs() -> Vec<String> {
    let mut outputs = formats::options();
    outputs.push("--top --lines --cum --trim=false".to_owned());
    outputs
}

fn parser(file: &Path, options: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
    command
        .args(["-p", "/usr/bin/true", "--force", "-f"])
        .arg(file)
        .args(options.split(' '))
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), None, "{command:?}: {stderr}");
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{command:?}: {stderr}"
    );
    output
}

/// Returns the seeds of the fuzz targets, and the inputs that they found.
fn inputs() -> Vec<PathBuf> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let targets = fs::read_dir(seeds).unwrap();
    let files = targets.flat_map(|target| fs::read_dir(target.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn every_output_survives_every_kind_of_input() {
    let mut shown = 0;
    for file in inputs() {
        for options in outputs() {
            let output = parser(&file, &options);
            shown += usize::from(output.status.success());
            assert!(
                output.status.success() || output.stdout.is_empty(),
                "{file:?}"
            );
        }
    }
    assert!(shown > 100, "only {shown} were shown");
}

/// Runs all outputs on a profile of folded stacks, but for those that need a heap or CPU profile.
fn all_outputs(folded: &[u8]) -> Vec<(String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.folded");
    fs::write(&file, folded).unwrap();
    let show = |options: String| {
        let output = parser(&file, &options);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {stderr}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (options, text)
    };
    let mut outputs = outputs();
    let need_more = [
        "--gperftools",
        "--leaks",
        "--rss",
        "--sizes",
        "--symbolize",
        "--temporary",
        "--threads",
        "--timeline",
    ];
    outputs.retain(|options| !need_more.contains(&options.as_str()));
    outputs.into_iter().map(show).collect()
}

#[test]
fn recursion_and_cycles_of_calls() {
    let cycle = "a;b;c;a;b;c;a;b;c;d 7\nd;c;b;a;d;c;b;a 5\na;a;a;a 3\n";
    for (options, text) in all_outputs(cycle.as_bytes()) {
        assert!(!text.is_empty(), "{options}");
        if options == "--top" {
            // Every stack goes through `a`, and counts once, however often `a` is in it.
            assert!(
                text.contains("         8 53.33% 53.33%         15   100%  a"),
                "{text}"
            );
        }
    }
}

#[test]
fn stacks_of_ten_thousand_frames() {
    let deep = |name: &str| -> String { (0..10_000).map(|i| format!("{name}{i};")).collect() };
    let folded = format!("{}leaf 3\n{}leaf 4\n", deep("f"), deep("g"));
    for (options, text) in all_outputs(folded.as_bytes()) {
        assert!(text.len() < 64 << 20, "{options}: {} bytes", text.len());
    }
}

#[test]
fn sums_saturate() {
    let most = i64::MAX;
    let folded = format!("a;b {most}\na;c {most}\nd;e -{most}\nd;f -{most}\nd;g -{most}\n");
    for (options, text) in all_outputs(folded.as_bytes()) {
        assert!(!text.is_empty(), "{options}");
    }
}

#[test]
fn negative_counts_are_shown_as_such() {
    for (options, text) in all_outputs(b"main;less -300\nmain;more 100\n") {
        if options == "--top" {
            assert!(text.contains("      -300 "), "{text}");
        }
    }
}

/// Names that would be markup, script, formulas, lines or commands of a terminal.
const NAMES: [&[u8]; 9] = [
    b"<script>alert(1)</script>",
    b"]]></script><svg onload=alert(1)>",
    b"\"'&lt;\\\"',;",
    b"=cmd|' /C calc'!A0",
    b"\x1b[31mred\x1b]0;title\x07",
    b"\xff\xfe\x80not utf-8",
    b"right\xe2\x80\xaeto left",
    b"with\ttab\rand return",
    b"\x7f\xc2\x9bcontrol",
];

#[test]
fn odd_names_are_kept() {
    let mut folded = b"main;start 1\n".to_vec();
    for name in NAMES {
        let name: Vec<u8> = name
            .iter()
            .map(|&c| if c == b';' { b':' } else { c })
            .collect();
        folded.extend(b"main;");
        folded.extend(name);
        folded.extend(b" 10\n");
    }
    for (options, text) in all_outputs(&folded) {
        if options == "--proto" {
            continue;
        }
        // Lines of CSV end in both.
        let text = text.replace("\r\n", "\n");
        let control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        assert!(
            !text.contains(control),
            "{options} lets control characters through"
        );
        let markup = matches!(options.as_str(), "--svg" | "--flame" | "--html");
        for tag in ["<script>alert", "<svg onload"] {
            assert!(
                !(markup && text.contains(tag)),
                "{options} lets {tag} through"
            );
        }
    }
}

#[test]
fn a_binary_that_is_not_a_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/heap_text/kind1");
    for binary in [
        directory.path(),
        &fifo,
        Path::new("/dev/zero"),
        Path::new("/nonexistent"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_mem_parser"))
            .args(["-t", "-f"])
            .arg(&seed)
            .arg("-p")
            .arg(binary)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(binary.to_str().unwrap()), "{message}");
        assert!(output.stdout.is_empty());
    }
}
