//! Other viewers read our dumps with our totals: `go tool pprof`, google-pprof
//! and jeprof. Needs the packages golang-go, google-perftools and
//! libjemalloc-dev.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use profile::{
    Detail, Facts, Mapping, Profile, ProfileBuilder, TABLE_FULL_ADDRESS, TRUNCATED_ADDRESS, dump,
};

const STACKS: u64 = 200;

/// Returns a profile with stacks of objects of one size and of mixed sizes, of which some are
/// freed, and with every fact that a dump can contain.
fn profile(interval: u64) -> Profile {
    let mut builder = ProfileBuilder::new(interval);
    let base = 0x55d0_0000_0000;
    builder.module(Mapping {
        start: base,
        end: base + 0x100_0000,
        path: "/usr/bin/true".into(),
        ..Mapping::default()
    });
    builder.facts(Facts {
        pid: Some(4711),
        command_line: vec![
            "a=b".into(),
            "1: 2 [3: 4] @ 0x1".into(),
            "10-20 r-xp".into(),
        ],
        counters: [("samples".into(), 5)].into(),
        ..Facts::default()
    });
    builder.stack([TABLE_FULL_ADDRESS], &detail(1, interval));
    for i in 0..STACKS {
        let frames = [
            base + 0x1000 + i * 16,
            base + 0x8000 + i % 7 * 16,
            TRUNCATED_ADDRESS,
        ];
        builder.stack(frames, &detail(i, interval));
    }
    builder.finish()
}

fn detail(i: u64, interval: u64) -> Detail {
    let mut d = Detail::default();
    for sample in 0..2 + i % 23 {
        let size = if i.is_multiple_of(3) {
            64 + i
        } else {
            8 << ((i + sample * 5) % 14)
        } as f64;
        let weight = if interval == 1 {
            1.0
        } else {
            1.0 / (1.0 - (-size / interval as f64).exp())
        };
        d.alloc_samples += 1;
        d.alloc_objects += weight;
        d.alloc_bytes += weight * size;
        if sample % 4 == 1 {
            d.free_samples += 1;
            d.freed_objects += weight;
            d.freed_bytes += weight * size;
        }
    }
    d
}

fn run(command: &str, arguments: &[&str], package: &str) -> String {
    let output = Command::new(command)
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("{command} cannot be run: {e}; install {package}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the number that follows `before`.
fn number(text: &str, before: &str) -> i64 {
    let at = text
        .find(before)
        .unwrap_or_else(|| panic!("no {before:?} in {text}"))
        + before.len();
    let digits: String = text[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

/// Checks that a tool's sum differs from ours only by rounding. Each tool rounds down each of two
/// lines per stack; objects differ further because sizes of small records are rounded.
fn assert_close(tool: &str, column: &str, got: i64, want: i64) {
    let lines = 2 * STACKS as i64 + 2;
    let slack = if column.ends_with("objects") {
        want / 500
    } else {
        0
    };
    assert!(
        (got - want).abs() <= lines + slack,
        "{tool} {column}: {got}, ours {want}"
    );
}

fn compare(interval: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.heap");
    let profile = profile(interval);
    dump::write(&profile, &mut File::create(&path).unwrap()).unwrap();
    for (column, value_type) in profile.sample_types.iter().enumerate() {
        let kind = value_type.kind.as_str();
        let want = profile.total(column);
        assert_close("go tool pprof", kind, go(&path, kind), want);
        for (tool, package) in [
            ("google-pprof", "google-perftools"),
            ("jeprof", "libjemalloc-dev"),
        ] {
            assert_close(tool, kind, perl(tool, package, &path, kind), want);
        }
    }
}

/// Returns the total of a column that `go tool pprof` reports.
fn go(path: &Path, kind: &str) -> i64 {
    let index = format!("-sample_index={kind}");
    let path = path.to_str().unwrap();
    let text = run(
        "go",
        &[
            "tool",
            "pprof",
            "-top",
            "-unit=B",
            "-symbolize=none",
            &index,
            path,
        ],
        "golang-go",
    );
    assert!(
        text.contains("[truncated]") || text.contains("true"),
        "{text}"
    );
    number(&text, "% of ")
}

/// Returns the total of a column that a viewer in Perl reports.
fn perl(tool: &str, package: &str, path: &Path, kind: &str) -> i64 {
    let kind = format!("--{kind}");
    let arguments = [
        "--text",
        "--show_bytes",
        &kind,
        "/usr/bin/true",
        path.to_str().unwrap(),
    ];
    number(&run(tool, &arguments, package), "Total: ")
}

#[test]
fn totals_are_equal_when_every_allocation_is_sampled() {
    compare(1);
}

#[test]
fn totals_are_equal_when_sampled_finely() {
    compare(1024);
}

#[test]
fn totals_are_equal_when_sampled_coarsely() {
    compare(512 << 10);
}
