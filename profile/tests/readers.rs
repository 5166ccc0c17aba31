//! Text formats of other profilers, and what is refused.

use profile::{Format, read};

const MAPS: &str = "\nMAPPED_LIBRARIES:\n00400000-00500000 r-xp 00000000 08:01 42 /usr/bin/x\n";

#[test]
fn gperftools_heapprofile_is_exact() {
    let text = format!(
        "heap profile:      2:     3000 [     5:     7000] @ heapprofile\n\
              1:     1000 [     4:     5000] @ 0x401000 0x402000\n\
              1:     2000 [     1:     2000] @ 0x401100\n{MAPS}"
    );
    let profile = read(text.as_bytes(), "x").unwrap();
    assert_eq!(profile.format, Format::HeapText);
    assert_eq!(profile.values, [4, 5000, 1, 1000, 1, 2000, 1, 2000]);
    assert_eq!(profile.locations[0].address, 0x400fff);
    assert_eq!(profile.locations[0].mapping, 0);
    assert_eq!(profile.stacks.get(1).len(), 1);
}

#[test]
fn sampled_text_is_scaled_line_by_line_as_pprof_does() {
    let text = format!(
        "heap profile: 3: 1050624 [3: 1050624] @ heap_v2/524288\n\
         1: 1048576 [1: 1048576] @ 0x401000\n2: 2048 [2: 2048] @ 0x401000\n{MAPS}"
    );
    let profile = read(text.as_bytes(), "x").unwrap();
    assert_eq!(
        profile.sample_types.len(),
        2,
        "equal totals mean that nothing was counted twice"
    );
    assert_eq!(profile.values, [1, 1212696, 1025, 1049600]);
}

#[test]
fn the_oldest_kind_has_half_its_period() {
    let text = format!("heap profile: 1: 64 [1: 64] @ heap/1024\n1: 64 [1: 64] @ 0x401000\n{MAPS}");
    let profile = read(text.as_bytes(), "x").unwrap();
    assert_eq!(profile.period, 512);
    assert_eq!(profile.values, [8, 544]);
}

#[test]
fn growth_is_exact() {
    let text = format!(
        "heap profile: 1: 1048576 [1: 1048576] @ growth\n1: 1048576 [1: 1048576] @ 0x401000\n{MAPS}"
    );
    assert_eq!(read(text.as_bytes(), "x").unwrap().values, [1, 1048576]);
}

#[test]
fn jemalloc_contexts_are_scaled_and_threads_skipped() {
    let text = format!(
        "heap_v2/524288\n  t*: 2: 1050624 [0: 0]\n  t0: 2: 1050624 [0: 0] a name\n\
         @ 0x401000 0x402000\n  t*: 1: 1048576 [0: 0]\n  t0: 1: 1048576 [0: 0]\n\
         @ 0x401000\n  t*: 2: 2048 [0: 0]\n{MAPS}"
    );
    let profile = read(text.as_bytes(), "x").unwrap();
    assert_eq!(profile.format, Format::Jemalloc);
    assert_eq!(profile.values, [1, 1212696, 1025, 1049600]);
    assert_eq!(profile.mappings.len(), 1);
}

#[test]
fn jemalloc_text_cut_before_its_maps_is_refused() {
    let text =
        "heap_v2/524288\n  t*: 2: 1050624 [0: 0]\n@ 0x401000 0x402000\n  t*: 1: 1048576 [0: 0]\n";
    for length in 1..text.len() {
        let error = read(&text.as_bytes()[..length], "je.heap")
            .unwrap_err()
            .to_string();
        assert!(error.contains("je.heap"), "{error}");
    }
}

#[test]
fn faults_name_file_and_line() {
    let cases = [
        ("", "x: is empty"),
        ("#!/bin/sh\n", "x: is a script, not a profile"),
        ("heap profile: 1: 2 [3\n", "x: line 1: "),
        (
            "heap profile: 1: 2 [1: 2] @ unheard_of\n",
            "x: line 1: has the unknown",
        ),
        (
            "heap profile: 1: 2 [1: 2] @ heapprofile\nnonsense\n",
            "x: line 2: ",
        ),
        (
            "heap profile: 1: 2 [1: 2] @ heapprofile\n1: 2 [1: 2] @ 0xzz\n",
            "x: line 2: ",
        ),
        (
            "heap profile: 3: 2 [3: 2] @ heapprofile\n1: 2 [1: 2] @ 0x1\n",
            "x: line 2: the file ends",
        ),
        (
            "heap profile: 1: 99999999999999999999 [1: 2] @ heapprofile\n",
            "x: line 1: ",
        ),
        ("heap_v2/524288\n@ 0x1\n", "x: line 2: "),
        ("heap_v2/nonsense\n", "x: line 1: "),
    ];
    for (text, expected) in cases {
        let error = read(text.as_bytes(), "x").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

/// pprof and jeprof do not scale without a distance between samples.
#[test]
fn a_header_without_a_distance_is_not_scaled() {
    for kind in ["heap_v2", "heapz_v2", "heap", ""] {
        let text = format!("heap profile: 2: 300 [3: 900] @ {kind}\n 2: 300 [3: 900] @ 0x401000\n");
        let profile = read(text.as_bytes(), "x").unwrap();
        assert_eq!(profile.values, [3, 900, 2, 300], "{kind}");
    }
}
