//! Written dumps are read unchanged, and damaged ones are refused.

use profile::{
    BuildId, Cost, Detail, Facts, Format, Function, IntervalPeriod, Line, Mapping, Profile,
    ProfileBuilder, TABLE_FULL_ADDRESS, TRUNCATED_ADDRESS, dump, read,
};
use proptest::prelude::*;

fn written(profile: &Profile) -> Vec<u8> {
    let mut out = Vec::new();
    dump::write(profile, &mut out).unwrap();
    out
}

/// Returns the details of samples of these sizes, some of which are freed.
fn detail(sizes: &[(u64, bool)], interval: u64) -> Detail {
    let mut d = Detail::default();
    for &(size, freed) in sizes {
        let n = size as f64;
        let weight = if interval <= 1 {
            1.0
        } else {
            1.0 / (1.0 - (-n / interval as f64).exp())
        };
        d.alloc_samples += 1;
        d.alloc_objects += weight;
        d.alloc_bytes += weight * n;
        d.alloc_variance += weight * n * (weight * n - n);
        d.alloc_object_variance += weight * (weight - 1.0);
        if freed {
            d.free_samples += 1;
            d.freed_objects += weight;
            d.freed_bytes += weight * n;
            d.freed_lifetime_ms_sum += weight * 12.0;
        } else {
            d.live_age_ms_sum += weight * 40.0;
            d.live_variance += weight * n * (weight * n - n);
            d.live_object_variance += weight * (weight - 1.0);
        }
    }
    d
}

fn sample() -> Profile {
    let mut builder = ProfileBuilder::new(1024);
    builder.module(Mapping {
        start: 0x55d0_0000_0000,
        end: 0x55d0_0010_0000,
        file_offset: 0x2000,
        build_id: BuildId(vec![0xab, 0xcd]),
        path: "/usr/bin/a server".into(),
        past: false,
    });
    builder.module(Mapping {
        start: 0x7f00_0000_0000,
        end: 0x7f00_0010_0000,
        path: "/lib/unloaded.so".into(),
        past: true,
        ..Mapping::default()
    });
    builder.facts(Facts {
        pid: Some(4711),
        process: Some("a server".into()),
        exe: Some("/usr/bin/a server".into()),
        exe_build_id: BuildId(vec![0xab, 0xcd]),
        command_line: vec!["./a server".into(), "--line\nbreak\\x41".into(), "".into()],
        start_unix_ns: Some(1_700_000_000_000_000_000),
        duration_ns: Some(60_000_000_000),
        intervals: vec![
            IntervalPeriod {
                from_unix_ns: 1_700_000_000_000_000_000,
                interval: 2048,
                overhead: Some(19_712),
            },
            IntervalPeriod {
                from_unix_ns: 1_700_000_001_000_000_000,
                interval: 65536,
                overhead: None,
            },
        ],
        cost: Some(Cost {
            cpu_ns: 59_000_000_000,
            spent_ns: 1_180_000_000,
            error_ns: 59_000_000,
        }),
        trigger: Some("timer".into()),
        ended: Some("target died".into()),
        counters: [("samples".into(), 17), ("table full".into(), 0)].into(),
        allocator: [("resident".into(), 1 << 30)].into(),
        ..Facts::default()
    });
    let a = 0x55d0_0000_1000;
    builder.stack(
        [a, a + 0x20, a + 0x40],
        &detail(&[(64, false), (64, true)], 1024),
    );
    builder.stack(
        [a + 8, a + 0x20, TRUNCATED_ADDRESS],
        &detail(&[(16, false), (5000, false)], 1024),
    );
    builder.stack([TABLE_FULL_ADDRESS], &detail(&[(100, true)], 1024));
    builder.stack([], &detail(&[(100_000, false)], 1024));
    builder.finish()
}

#[test]
fn dumps_round_trip_exactly() {
    let profile = sample();
    let back = read(&written(&profile), "x.heap").unwrap();
    assert_eq!(back.format, Format::Dump);
    assert_eq!(back.values, profile.values);
    assert_eq!(back.stacks, profile.stacks);
    for (a, b) in back.details.iter().zip(&profile.details) {
        assert_eq!(
            (a.alloc_samples, a.free_samples),
            (b.alloc_samples, b.free_samples)
        );
        assert!((a.alloc_bytes - b.alloc_bytes).abs() < 0.001);
        assert!((a.live_variance - b.live_variance).abs() < 0.001);
    }
    let mut facts = back.facts.clone();
    assert_eq!(
        facts.maps_text,
        b"55d000000000-55d000100000 r-xp 00002000 00:00 0 /usr/bin/a server"
    );
    facts.maps_text.clear();
    assert_eq!(facts, profile.facts);
    assert_eq!(back.mappings, profile.mappings);
    assert_eq!(back.period_text(), "1024 to 65536");
    assert_eq!(
        written(&back),
        written(&read(&written(&back), "x.heap").unwrap())
    );
}

#[test]
fn dumps_can_contain_symbols() {
    let mut profile = sample();
    profile.functions = vec![
        Function {
            name: "a<b>\tc".into(),
            system_name: "_Za".into(),
            ..Function::default()
        },
        Function {
            name: "main".into(),
            file: "/src/main.c".into(),
            start_line: 3,
            ..Function::default()
        },
    ];
    profile.lines = vec![
        Line {
            function: 0,
            line: 7,
            column: 1,
        },
        Line {
            function: 1,
            line: 9,
            column: 0,
        },
    ];
    profile.locations[1].line_count = 2;
    let back = read(&written(&profile), "x.heap").unwrap();
    assert_eq!(back.functions[0].name, "a<b>\tc");
    assert_eq!(back.functions[1], profile.functions[1]);
    assert_eq!(back.lines_of(&back.locations[1]), &profile.lines[..]);
    assert!(back.lines_of(&back.locations[0]).is_empty());
}

#[test]
fn a_truncated_dump_is_refused() {
    let dump = written(&sample());
    for length in 0..dump.len() {
        let error = match read(&dump[..length], "cut.heap") {
            Err(error) => error.to_string(),
            // The newline after the end marker is not needed.
            Ok(_) => panic!("{length} of {} bytes were accepted", dump.len()),
        };
        assert!(error.contains("cut.heap"), "{error}");
        assert!(length < 13 || error.contains("line "), "{length}: {error}");
    }
    assert!(read(&dump, "whole.heap").is_ok());
}

#[test]
fn a_dump_without_comments_is_read_with_rounding_errors_only() {
    let profile = sample();
    let text = String::from_utf8(written(&profile)).unwrap();
    let plain: String = text
        .lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| l.to_owned() + "\n")
        .collect();
    let back = read(plain.as_bytes(), "x.heap").unwrap();
    assert_eq!(back.format, Format::HeapText);
    for column in 0..4 {
        let a = back.total(column);
        let b = profile.total(column);
        // Each line's scaled values are truncated.
        assert!((a - b).abs() <= 6, "column {column}: {a} for {b}");
    }
}

#[test]
fn equal_stacks_are_recognised_in_any_notation() {
    let dump = |second: &str| {
        format!(
            "heap profile: 2: 32 [2: 32] @ heap_v2/1\n# mem-profiler dump 2\n\
             1: 16 [1: 16] @ 0xa0 0xb0\n1: 16 [1: 16] @ {second}\n# s 2 0 2 32\n\n\
             MAPPED_LIBRARIES:\n\n# mem-profiler facts 2\n# end\n"
        )
    };
    for again in ["0xa0 0xb0", "0xA0  0x00b0"] {
        let profile = read(dump(again).as_bytes(), "a.heap").unwrap();
        assert_eq!(profile.stacks.len(), 1, "{again}");
        assert_eq!(profile.values_of(0), [2, 32, 2, 32]);
    }
    for other in ["0xa0", "0xa0 0xb1", "0xa0 0xb0 0xc0"] {
        let error = read(dump(other).as_bytes(), "a.heap").unwrap_err();
        assert!(
            error.to_string().contains("lack their exact values"),
            "{error}"
        );
    }
}

#[test]
fn threads_and_size_classes_of_one_stack_share_its_lines() {
    let mut builder = ProfileBuilder::new(1024);
    let detail_of = |sizes: &[(u64, bool)]| Detail {
        short_lived_objects: 0.5,
        ..detail(sizes, 1024)
    };
    builder.stack([0x1001, 0x2001], &detail_of(&[(20, true), (30, false)]));
    builder.thread(1);
    builder.stack([0x1001, 0x2001], &detail_of(&[(2000, true)]));
    builder.thread(2);
    builder.stack([0x1001, 0x2001], &detail_of(&[(70, false); 3]));
    builder.stack([0x3001], &detail_of(&[(5, true)]));
    builder.facts(Facts {
        threads: ["main", "wor\u{202e}k er"]
            .map(|name| profile::Thread {
                tid: 7,
                name: name.into(),
            })
            .to_vec(),
        ..Facts::default()
    });
    let profile = builder.finish();
    let text = String::from_utf8(written(&profile)).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(" @ 0x")).collect();
    // Objects of different sizes take two lines.
    assert_eq!(lines.len(), 3, "{text}");
    let back = read(text.as_bytes(), "a.heap").unwrap();
    assert_eq!(back.stacks.len(), 4);
    assert_eq!(back.threads, [1, 2, 0, 0]);
    assert_eq!(back.facts.threads, profile.facts.threads);
    let labels: Vec<_> = back
        .labels
        .iter()
        .map(|label| label.value.clone())
        .collect();
    let text = |name: &str| profile::LabelValue::Text(name.into());
    let others = text(profile::OTHER_THREADS);
    let names = [
        text("main"),
        text("wor\u{202e}k er"),
        others.clone(),
        others,
    ];
    assert_eq!(labels, names);
    for column in 0..4 {
        assert_eq!(back.total(column), profile.total(column));
    }
    assert_eq!(written(&back), written(&profile));
    // Without the exact values, this is what other tools read.
    let plain: String = String::from_utf8(written(&profile))
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    let plain = read(plain.as_bytes(), "a.heap").unwrap();
    for column in 0..4 {
        let a = plain.total(column);
        let b = profile.total(column);
        assert!((a - b).abs() <= 3, "column {column}: {a} for {b}");
    }
}

#[test]
fn lines_without_values_are_not_repeated() {
    let dump = |again: &str| {
        format!(
            "heap profile: 2: 32 [2: 32] @ heap_v2/1\n# mem-profiler dump 3\n\
             2: 32 [2: 32] @ 0xa0 0xb0\n# s 1 0 1 16\n{again}\n\n\
             MAPPED_LIBRARIES:\n\n# mem-profiler facts 3\n# end\n"
        )
    };
    let read = |again: &str| read(dump(again).as_bytes(), "a.heap");
    assert_eq!(read("# s 1 0 1 16").unwrap().total(3), 32);
    for malformed in ["# s", "# s 1", "# s 1 0 1 16 0 0 0 0 0 0 0 0 0 -1"] {
        assert!(read(malformed).is_err(), "{malformed}");
    }
    let thread = read("# s 1 0 1 16 0 0 0 0 0 0 0 0 0 9").unwrap();
    assert_eq!((thread.threads, thread.labels.len()), (vec![0, 9], 0));
    // Values that are all zero are written, since they mark the line as a repetition.
    let freed = read("# s 2 1 0").unwrap();
    let back = profile::read(&written(&freed)[..], "b.heap").unwrap();
    assert_eq!(back.details, freed.details);
}

#[test]
fn parallel_records_give_the_same_text() {
    let profile = sample();
    let part = || {
        dump::Part::new(
            profile.details.iter().map(|d| (*d, 1)),
            profile.period as u64,
        )
    };
    let text = dump::Text::with_parts(&profile, vec![part()]).unwrap();
    let mut out = Vec::new();
    (0..text.pieces()).for_each(|piece| text.piece(piece, &mut out));
    assert!(out == written(&profile));
    // Too few or too many parts are refused.
    for parts in [vec![], vec![part(), part()]] {
        assert!(dump::Text::with_parts(&profile, parts).is_err());
    }
}

proptest! {
    #[test]
    fn any_profile_comes_back(
        stacks in prop::collection::vec(
            (
                prop::collection::vec(1u64..u64::MAX, 0..12),
                prop::collection::vec((1u64..1 << 30, any::<bool>()), 1..20),
            ),
            0..20,
        ),
        log_interval in 0u32..22,
    ) {
        let interval = 1 << log_interval;
        let mut builder = ProfileBuilder::new(interval);
        for (addresses, sizes) in &stacks {
            builder.stack(addresses.iter().copied(), &detail(sizes, interval));
        }
        let profile = builder.finish();
        let back = read(&written(&profile), "x.heap").unwrap();
        prop_assert_eq!(&back.stacks, &profile.stacks);
        for (a, b) in back.values.iter().zip(&profile.values) {
            prop_assert!((a - b).abs() <= 1);
        }
    }

    #[test]
    fn mangled_dumps_never_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let mut dump = written(&sample());
        let at = at.index(dump.len());
        dump[at] = byte;
        let _ = read(&dump, "x.heap");
    }
}
