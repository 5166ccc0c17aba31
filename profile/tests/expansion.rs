//! Small files that unpack to, or stand for, much more are refused before they take much memory.
//! Each is read in a process of its own, whose memory is measured.

use std::io::Write;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Maximum memory that reading one input may take.
const MAX_KIB: u64 = 256 << 10;
/// Names the file that the child is to read.
const VARIABLE: &str = "HEAP_FORMAT_TEST_FILE";

/// Returns a protobuf message in field `number`.
fn message(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![(number << 3) | 2];
    out.extend(length(content.len() as u64));
    out.extend(content);
    out
}

fn length(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// Returns the header of a message in field `number` with this claimed length.
fn open(number: u8, bytes: u64) -> Vec<u8> {
    [vec![(number << 3) | 2], length(bytes)].concat()
}

/// Returns inputs: a name, the beginning, and bytes that are repeated after it.
fn cases() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let value_type = message(1, &[0x08, 1, 0x10, 2]);
    let names = [message(6, b""), message(6, b"space"), message(6, b"bytes")].concat();
    let start = [value_type.clone(), names].concat();
    let after = |more: Vec<u8>| [start.clone(), more].concat();
    let line = message(4, &[0x08, 1]);
    let label = message(3, &[0x08, 1, 0x18, 1]);
    let text =
        |kind: &str, rest: &str| format!("heap profile: 1: 1 [1: 1] @ {kind}\n{rest}").into();
    let function = message(5, &[0x08, 1]);
    let location = message(4, &[0x08, 1]);
    vec![
        ("zeros", vec![], vec![0]),
        ("one string", after(open(6, 1 << 40)), vec![b'a']),
        ("strings", start.clone(), message(6, b"")),
        ("sample types", start.clone(), value_type),
        ("samples", start.clone(), message(2, &[0x10, 1])),
        ("mappings", start.clone(), message(3, &[])),
        ("functions", start.clone(), message(5, &[])),
        ("locations", start.clone(), message(4, &[])),
        ("comments", start.clone(), message(13, &[1; 100])),
        ("lines", after(function), message(4, &line.repeat(1000))),
        (
            "frames",
            after(location),
            message(2, &[&[0x10, 1, 0x0a, 100][..], &[1; 100]].concat()),
        ),
        (
            "labels",
            start.clone(),
            message(2, &[&[0x10, 1][..], &label.repeat(1000)].concat()),
        ),
        (
            "stacks",
            text("heapprofile", ""),
            b"1: 1 [1: 1] @ 0x1 0x2\n".to_vec(),
        ),
        (
            "long stack",
            text("heapprofile", "1: 1 [1: 1] @"),
            b" 0x1".to_vec(),
        ),
        (
            "sampled stacks",
            text("heap_v2/1024", ""),
            b"1: 1 [1: 1] @ 0x1\n".to_vec(),
        ),
        (
            "mapped files",
            text("heapprofile", "1: 1 [1: 1] @ 0x1\nMAPPED_LIBRARIES:\n"),
            b"00400000-00401000 r-xp 00000000 00:01 1 /a\n".to_vec(),
        ),
        (
            "jemalloc's stacks",
            b"heap_v2/524288\n  t*: 1: 1 [1: 1]\n".to_vec(),
            b"@ 0x1\n  t*: 1: 1 [1: 1]\n".to_vec(),
        ),
    ]
}

/// Returns a gzip member with the beginning and this many of the repeated bytes.
fn pack(start: &[u8], unit: &[u8], bytes: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(start).unwrap();
    let block = unit.repeat((1 << 16) / unit.len() + 1);
    for _ in 0..bytes / block.len() + 1 {
        encoder.write_all(&block).unwrap();
    }
    encoder.finish().unwrap()
}

/// Reads a file in a child process. Returns the result as text, and the child's peak memory in KiB.
fn read_in_child(file: &[u8]) -> (String, u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, file).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(VARIABLE, &path)
        .output()
        .unwrap();
    let text_shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text_shown
        .lines()
        .find_map(|line| line.split_once("result: "));
    let line = line.unwrap_or_else(|| panic!("{output:?}")).1;
    let (kib, how) = line.split_once(' ').unwrap();
    (how.to_owned(), kib.parse().unwrap())
}

#[test]
#[ignore = "for the other tests, which start it"]
fn child() {
    let Some(path) = std::env::var_os(VARIABLE) else {
        return;
    };
    let how = match profile::open(path.as_ref()) {
        Ok(profile) => format!("{} stacks", profile.stacks.len()),
        Err(error) => error.to_string(),
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    println!("\nresult: {peak} {how}");
}

#[test]
fn endless_compressed_data_are_refused_early() {
    for (name, start, unit) in cases() {
        let bomb = pack(&start, &unit, 128 << 20);
        let (how, kib) = read_in_child(&bomb);
        assert!(!how.ends_with(" stacks"), "{name}: {how}");
        assert!(kib < MAX_KIB, "{name}: {kib} KiB, {how}");
        println!("{name}: {kib} KiB, {how}");
    }
}

/// Returns a zstd frame with a window that expands to any size: its blocks repeat one byte.
fn zstd_bomb(start: &[u8], blocks: usize) -> Vec<u8> {
    const RUN: u32 = 128 << 10;
    /// Window of 64 MiB, the largest that is accepted.
    const WINDOW: u8 = 16 << 3;
    let header = |size: u32, kind: u32| ((size << 3) | (kind << 1)).to_le_bytes();
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, WINDOW];
    frame.extend(&header(start.len() as u32, 0)[..3]);
    frame.extend(start);
    for _ in 0..blocks {
        frame.extend(&header(RUN, 1)[..3]);
        frame.push(b'1');
    }
    frame
}

#[test]
fn endless_zstd_data_are_refused_early() {
    let pprof = message(1, &[0x08, 1, 0x10, 2]);
    let pprof = [pprof, open(6, 1 << 40)].concat();
    let starts: [&[u8]; 4] = [
        &pprof,
        b"main;a ",
        b"heap profile: 1: 1 [1: 1] @ heapprofile\n",
        b"x",
    ];
    for start in starts {
        let bomb = zstd_bomb(start, 100_000);
        let packed_bomb = pack(&bomb, b"\0", 1);
        for file in [bomb, packed_bomb] {
            let (how, kib) = read_in_child(&file);
            assert!(!how.ends_with(" stacks"), "{how}");
            assert!(kib < MAX_KIB, "{kib} KiB, {how}");
            println!("{kib} KiB, {how}");
        }
    }
}

#[test]
fn nested_decompression_bombs_are_refused_early() {
    for (name, start, unit) in cases().into_iter().take(3) {
        let inner = pack(&start, &unit, 64 << 20);
        let (how, kib) = read_in_child(&pack(&inner, b"\0", 8 << 20));
        assert!(!how.ends_with(" stacks"), "{name}: {how}");
        assert!(kib < MAX_KIB, "{name}: {kib} KiB, {how}");
    }
}

#[test]
fn a_large_bomb_takes_no_more_than_a_small_one() {
    let start = message(1, &[0x08, 1, 0x10, 2]);
    let first = pack(&start, &open(6, 1 << 40), 1);
    let zeros = pack(b"", &[0], 256 << 20);
    // More than 10 MB, in many members.
    let bomb = [first, zeros.repeat(48)].concat();
    let (how, kib) = read_in_child(&bomb);
    assert!(bomb.len() > 10 << 20 && !how.ends_with(" stacks"), "{how}");
    assert!(kib < MAX_KIB, "{kib} KiB, {how}");
}

#[test]
fn inputs_that_expand_too_much_are_refused() {
    for (name, start, unit) in cases()
        .into_iter()
        .filter(|case| case.1.starts_with(&[0x0a]))
    {
        // Within the limit for every file.
        let (how, kib) = read_in_child(&pack(&start, &unit, 24 << 20));
        assert!(kib < MAX_KIB, "{name}: {kib} KiB, {how}");
        println!("{name}: {kib} KiB, {how}");
    }
}
