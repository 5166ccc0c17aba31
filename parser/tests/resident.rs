//! The report on resident memory by owner.

mod expected;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use profile::{Detail, Facts, ProfileBuilder, dump};

mod invoke;

use invoke::parser;

const MIB: u64 = 1 << 20;

const MAPS: &str = "555500000000-555500100000 r-xp 00000000 08:01 5 /usr/bin/server\n\
    555500100000-555500180000 rw-p 00100000 08:01 5 /usr/bin/server\n\
    7f0000000000-7f0010000000 rw-p 00000000 00:00 0 \n\
    7f0010000000-7f0020000000 ---p 00000000 00:00 0 \n\
    7f0020000000-7f0024000000 rw-s 00000000 00:1a 7 /dev/shm/mem_profiler.7.1.0\n\
    7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0 [stack]\n";

fn write(directory: &Path, facts: Facts) -> PathBuf {
    let mut builder = ProfileBuilder::new(1024);
    builder.facts(facts);
    let bytes = 150.0 * MIB as f64;
    let detail = Detail {
        alloc_samples: 1000,
        alloc_objects: 1000.0,
        alloc_bytes: bytes,
        alloc_variance: bytes * 1024.0,
        live_variance: bytes * 1024.0,
        ..Detail::default()
    };
    builder.stack([0x5555_0000_1001], &detail);
    let path = directory.join("x.heap");
    dump::write(&builder.finish(), &mut File::create(&path).unwrap()).unwrap();
    path
}

fn facts() -> Facts {
    let map = |pairs: &[(&str, u64)]| {
        let pair = |&(name, value): &(&str, u64)| (name.to_owned(), value * MIB / 16);
        pairs.iter().map(pair).collect()
    };
    Facts {
        exe: Some("/usr/bin/server".into()),
        end_unix_ns: Some(1_795_235_047_000_000_000),
        allocator: map(&[
            ("allocated", 2640),
            ("active", 2720),
            ("metadata", 20),
            ("resident", 2800),
            ("retained", 160),
        ]),
        memory: map(&[
            ("rss_anon", 2850),
            ("rss_file", 90),
            ("rss_shmem", 24),
            ("peak", 3200),
            ("swap", 0),
        ]),
        maps_text: MAPS.into(),
        ..Facts::default()
    }
}

#[test]
fn the_table_is_as_in_the_golden_file() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write(directory.path(), facts());
    let output = parser(&["--rss", "-f", dump.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    expected::compare("rss.txt", &String::from_utf8(output.stdout).unwrap());
}

#[test]
fn dumps_without_some_metadata_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let reported = |facts: Facts| {
        let dump = write(directory.path(), facts);
        let output = parser(&["--rss", "-f", dump.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{message}");
        String::from_utf8(output.stdout).unwrap()
    };
    let heap = reported(Facts {
        memory: Default::default(),
        ..facts()
    });
    assert!(
        heap.contains("of the heap alone") && heap.contains("fragmentation"),
        "{heap}"
    );
    assert!(!heap.contains("shared memory"), "{heap}");
    let process = reported(Facts {
        allocator: Default::default(),
        ..facts()
    });
    assert!(
        process.contains("185.25 MiB") && process.contains("files"),
        "{process}"
    );
    assert!(!process.contains("fragmentation"), "{process}");
}

#[test]
fn figures_of_another_moment_are_marked() {
    let directory = tempfile::tempdir().unwrap();
    let reported = |facts: Facts| {
        let dump = write(directory.path(), facts);
        let output = parser(&["--rss", "-f", dump.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let end = facts().end_unix_ns.unwrap();
    let at = |taken| Facts {
        allocator_unix_ns: Some(taken),
        duration_ns: Some(60_000_000_000),
        ..facts()
    };
    assert!(!reported(at(end - 900_000_000)).contains("figures are of"));
    let old = reported(at(end - 12_000_000_000));
    assert!(
        old.contains("figures are of 12 s before the samples'"),
        "{old}"
    );
    let new = reported(at(end + 12_000_000_000));
    assert!(
        new.contains("figures are of 12 s after the samples'"),
        "{new}"
    );
    // The process has ended: only the modules of its stacks are known.
    let ended = reported(Facts {
        memory: Default::default(),
        maps_text: format!("{}\n", MAPS.lines().next().unwrap()).into(),
        ..at(end - 12_000_000_000)
    });
    assert!(
        ended.contains("of the heap alone, 12 s before the samples':"),
        "{ended}"
    );
    assert!(!ended.contains("Address space"), "{ended}");
    // The allocator's figures are from shortly after the start of the process.
    let mut early = at(end);
    early.allocator.insert("allocated".to_owned(), 4096);
    let early = reported(early);
    assert!(
        early.contains(" by the samples, all of it since"),
        "{early}"
    );
    assert!(!early.contains("of it older"), "{early}");
}

#[test]
fn dumps_without_the_information_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.folded");
    fs::write(&path, "main;work 3\n").unwrap();
    let path = path.to_str().unwrap();
    let output = parser(&["--rss", "-f", path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--rss needs a dump"));
    let output = parser(&["--rss", "-f", path, "-f", path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("one moment"));
}
