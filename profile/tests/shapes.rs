//! Files with every compression and container that users give them, and files of other tools.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use profile::{Format, Profile, read};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Returns a zstd frame that readers skip, as `pzstd` writes.
fn skippable(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_le_bytes();
    [&[0x50, 0x2a, 0x4d, 0x18], &length[..], bytes].concat()
}

const HEAP: &[u8] = b"heap profile: 2: 300 [3: 900] @ heapprofile\n 2: 300 [3: 900] @ 0x10 0x20\n";
const JEMALLOC: &[u8] =
    b"heap_v2/1\n  t*: 1: 100 [0: 0]\n@ 0x10 0x20\n  t*: 1: 100 [0: 0]\n\nMAPPED_LIBRARIES:\n";
const FOLDED: &[u8] = b"main;a 3\nmain;b 4\n";
const PERF: &[u8] = b"app 1 2.5: 100 cpu-clock: \n\t55d0 work+0x1 (/opt/app)\n\n";

/// Returns a pprof profile of a stack of one function with the value 30. Its fields are in the
/// order of `numbers`.
fn pprof(numbers: &[u8]) -> Vec<u8> {
    let fields: [(u8, &[&[u8]]); 7] = [
        (1, &[b"\x08\x01\x10\x02"]),
        (2, &[b"\x0a\x01\x01\x12\x01\x1e"]),
        (3, &[b"\x08\x01"]),
        (
            4,
            &[b"\x08\x01\x10\x01\x18\x90\x01\x22\x04\x08\x01\x10\x0a"],
        ),
        (5, &[b"\x08\x01\x10\x03\x18\x03"]),
        (6, &[b"", b"cpu", b"nanoseconds", b"main.work"]),
        (11, &[b"\x08\x01\x10\x02"]),
    ];
    let mut out = Vec::new();
    for number in numbers {
        let (_, contents) = fields.iter().find(|(n, _)| n == number).unwrap();
        for content in *contents {
            out.extend([(number << 3) | 2, content.len() as u8]);
            out.extend(*content);
        }
    }
    // The period, which Go's writer puts before the samples.
    out.extend([12 << 3, 1]);
    out
}

fn binary_cpu() -> Vec<u8> {
    let words: [u64; 11] = [0, 3, 0, 10_000, 0, 2, 1, 0x40_1000, 0, 1, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Asserts that both profiles hold the same numbers.
fn same(name: &str, wrapped: &[u8], plain: &Profile) {
    let profile = read(wrapped, name).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(profile.format, plain.format, "{name}");
    assert_eq!(profile.values, plain.values, "{name}");
    assert_eq!(profile.functions, plain.functions, "{name}");
}

const V8: &[u8] =
    br#"{"head":{"callFrame":{"functionName":"work","url":"/a.js","lineNumber":1},"selfSize":9}}"#;

#[test]
fn every_format_is_read_in_every_wrapping() {
    let pprof = pprof(&[1, 2, 3, 4, 5, 6]);
    let cpu = binary_cpu();
    let files: [(&str, &[u8]); 7] = [
        ("heap text", HEAP),
        ("V8", V8),
        ("jemalloc", JEMALLOC),
        ("folded", FOLDED),
        ("perf", PERF),
        ("pprof", &pprof),
        ("gperftools", &cpu),
    ];
    for (name, file) in files {
        let plain = read(file, name).unwrap();
        assert!(!plain.values.is_empty(), "{name}");
        same(&format!("{name}.gz"), &gzip(file), &plain);
        same(&format!("{name}.gz.gz"), &gzip(&gzip(file)), &plain);
        same(&format!("{name}.zst"), &zstd(file), &plain);
        same(&format!("{name}.gz.zst"), &zstd(&gzip(file)), &plain);
        let (a, b) = file.split_at(file.len() / 2);
        let frames = [skippable(b"note"), zstd(a), skippable(b""), zstd(b)].concat();
        same(&format!("{name} in frames"), &frames, &plain);
        same(
            &format!("{name} in members"),
            &[gzip(a), gzip(b)].concat(),
            &plain,
        );
    }
    let deep = (0..5).fold(FOLDED.to_vec(), |file, _| gzip(&file));
    let error = read(&deep, "deep.gz").unwrap_err().to_string();
    assert!(error.contains("more than 4 times"), "{error}");
}

#[test]
fn damaged_and_empty_compressed_data_are_refused() {
    for pack in [gzip, zstd] {
        let packed = pack(&FOLDED.repeat(1000));
        for length in [5, packed.len() / 2, packed.len() - 1] {
            assert!(read(&packed[..length], "cut").is_err(), "{length}");
        }
        let error = read(&pack(b""), "x").unwrap_err().to_string();
        assert!(error.contains("is empty once it is unpacked"), "{error}");
    }
    let mut wrong = zstd(&FOLDED.repeat(1000));
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    let error = read(&wrong, "x.zst").unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
}

#[test]
fn fields_of_protobuf_may_come_in_any_order() {
    let expected = read(&pprof(&[1, 2, 3, 4, 5, 6]), "x").unwrap();
    assert_eq!(expected.format, Format::Pprof);
    assert_eq!(expected.values, [30]);
    for order in [
        [11, 1, 2, 3, 4, 5, 6],
        [6, 5, 4, 3, 2, 1, 11],
        [4, 1, 11, 2, 3, 6, 5],
        [5, 3, 1, 11, 2, 4, 6],
    ] {
        same(&format!("{order:?}"), &pprof(&order), &expected);
        same(&format!("{order:?}.gz"), &gzip(&pprof(&order)), &expected);
    }
    // Folded stacks whose first characters could be fields.
    for text in [
        "\n\nmain;a 5\n",
        "\"a b\";c 5\n",
        "2;x 5\n",
        "*;b 5\n",
        "ZZ;b 5\n",
        "8 8\n",
    ] {
        let profile = read(text.as_bytes(), text).unwrap();
        assert_eq!(profile.format, Format::Folded, "{text:?}");
    }
}

/// pprof reads them as well.
#[test]
fn protobuf_may_begin_with_fields_that_the_format_does_not_know() {
    let plain = pprof(&[1, 2, 3, 4, 5, 6]);
    let expected = read(&plain, "x").unwrap();
    for (name, first) in [
        ("bytes", &b"\xa2\x06\x05hello"[..]),
        ("a number", b"\xa0\x01\x96\x01"),
        ("eight bytes", b"\x81\x01\x01\x02\x03\x04\x05\x06\x07\x08"),
        ("four bytes", b"\x85\x01\x01\x02\x03\x04"),
        ("a comment", b"\x68\x01"),
        ("comments, packed", b"\x6a\x02\x01\x02"),
        ("an empty message", b"\x5a\x00"),
        ("several", b"\xa0\x01\x01\xa2\x06\x02\x12\x34\x68\x01"),
    ] {
        let extended = [first, &plain].concat();
        same(name, &extended, &expected);
        same(&format!("{name}, packed"), &gzip(&extended), &expected);
    }
    // A message that begins with a field of its own extension.
    let mut inside = pprof(&[2, 3, 4, 5, 6]);
    inside.splice(0..0, *b"\x0a\x07\xa0\x01\x07\x08\x01\x10\x02");
    same("in a message", &inside, &expected);
    // Bytes that are fields, but none of a profile's.
    let error = read(b"\xa0\x01\x96\x01\xa0\x01\x96\x01", "other").unwrap_err();
    assert!(error.to_string().contains("is not a profile"), "{error}");
}

/// Pseudo-frames of this project have addresses that other profiles may have, too.
#[test]
fn code_at_low_addresses_is_no_pseudo_frame() {
    let mut low = pprof(&[1, 2, 3, 4, 5, 6]);
    let at = low
        .windows(3)
        .position(|bytes| bytes == b"\x18\x90\x01")
        .expect("an address");
    low.splice(at + 1..at + 3, *b"\x80\x04");
    let profile = read(&low, "x").unwrap();
    let location = profile.locations[0];
    assert!(
        profile::marker_at(location.address).is_none(),
        "{location:?}"
    );
    let line = profile.lines_of(&location)[0];
    assert_eq!(profile.functions[line.function as usize].name, "main.work");
}

#[test]
fn lines_of_a_log_before_a_heap_profile_are_skipped() {
    let notes = "<jemalloc>: Leak approximation summary: ~100 bytes\nWARNING: x\n\n";
    for file in [HEAP, JEMALLOC] {
        let plain = read(file, "plain").unwrap();
        let noted = [notes.as_bytes(), file].concat();
        same("notes", &noted, &plain);
        same("notes.gz", &gzip(&noted), &plain);
        same("crlf", &[b"starting\r\n", file].concat(), &plain);
    }
}

#[test]
fn symbols_before_a_profile_are_used() {
    // A leaf is looked up at the return address minus one.
    let names = "--- symbol\nbinary=/opt/app\n0x000000000000000f inlined--leaf\n0x20 main\n0x30 0x30\n---\n";
    let names_of = |profile: &Profile| {
        let frames = profile.stacks.get(0).iter();
        let lines = frames.flat_map(|&f| profile.lines_of(&profile.locations[f as usize]).to_vec());
        lines
            .map(|line| profile.functions[line.function as usize].name.clone())
            .collect::<Vec<_>>()
    };
    for (marker, file) in [("heap", HEAP), ("heap", JEMALLOC), ("growth", HEAP)] {
        let text = [names.as_bytes(), format!("--- {marker}\n").as_bytes(), file].concat();
        let profile = read(&text, "raw").unwrap();
        assert_eq!(names_of(&profile), ["inlined", "leaf", "main"]);
        assert_eq!(profile.values, read(file, "plain").unwrap().values);
    }
    let cpu_names = "--- symbol\nbinary=/opt/app\n0x401000 work\n---\n--- profile\n";
    let cpu = read(&[cpu_names.as_bytes(), &binary_cpu()].concat(), "raw").unwrap();
    assert_eq!(
        (names_of(&cpu), cpu.values.len()),
        (vec!["work".to_owned()], 2)
    );
    // google-pprof writes this for a heap profile: bytes, without a trailer.
    let words: [u64; 8] = [0, 3, 0, 1, 0, 1600, 1, 0x40_1000];
    let raw: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let heap = read(&[cpu_names.as_bytes(), &raw].concat(), "raw").unwrap();
    assert_eq!(
        (names_of(&heap), heap.values[0], heap.default_type),
        (vec!["work".to_owned()], 1600, 0)
    );
    for cut in [
        "--- symbol\n0x20 main\n",
        "--- symbol\n---\n",
        "--- symbol\n---\n--- heap\n",
    ] {
        assert!(read(cut.as_bytes(), "cut").is_err(), "{cut:?}");
    }
}

#[test]
fn fractions_keep_their_shares() {
    let text = b"main;a 0.25\nmain;b 0.30\nmain;c 0.45\nmain;d 1.5\n";
    let profile = read(text, "x.folded").unwrap();
    assert_eq!(profile.values, [25, 30, 45, 150]);
    assert_eq!(profile.sample_types[0].unit, "count/100");
    let whole = read(b"a 1.0\nb 2.0\n", "x.folded").unwrap();
    assert_eq!(
        (&whole.values[..], whole.sample_types[0].unit.as_str()),
        (&[1, 2][..], "count")
    );
    let tiny = read(b"a 5e-05\nb 1e-3\nc 2e1\n", "x.folded").unwrap();
    assert_eq!(tiny.values, [5, 100, 2_000_000]);
    let compared = read(b"a 1.5 2\nb 0 0.125\n", "x.folded").unwrap();
    assert_eq!(compared.values, [1500, 2000, 0, 125]);
    // Seconds of a quick program, joules, differences.
    let small = read(b"a 1.2e-11\nb -3e-12\nc 0.000000000001\n", "x.folded").unwrap();
    assert_eq!(small.values, [12, -3, 1]);
    assert_eq!(small.sample_types[0].unit, "count/1000000000000");
    let error = read(b"a 1e-30\nb 0\n", "x.folded").unwrap_err().to_string();
    assert!(error.contains("too small; multiply them"), "{error}");
}

#[test]
fn counts_have_decimal_commas_or_groups_of_digits() {
    let values = |text: &str| read(text.as_bytes(), "x.folded").map(|profile| profile.values);
    assert_eq!(
        values("m;a 0,25\nm;b 1,5\nm;c 1,234\n").unwrap(),
        [250, 1500, 1234]
    );
    assert_eq!(
        values("m;a 1,234\nm;b 1,234,567\nm;c 5\n").unwrap(),
        [1234, 1_234_567, 5]
    );
    assert_eq!(
        values("m;a 1,234\nm;b 1,234.25\nm;c 5\n").unwrap(),
        [123_400, 123_425, 500]
    );
    let beyond = values("main;a 18446744073709551615\n").unwrap_err();
    assert!(!beyond.to_string().contains("LC_ALL"), "{beyond}");
    for (text, expected) in [
        ("m;a 1,234\nm;b 5\n", "LC_ALL=C"),
        (
            "m;a 0,5\nm;b 1,234,567\n",
            "line 2: has a comma of another meaning",
        ),
        (
            "m;a 1.234,5\nm;b 2\n",
            "\"1.234,5\"; write numbers as 1234.5",
        ),
        ("m;a 1'234\n", "\"1'234\"; write numbers as 1234.5"),
        (
            "m;a 1 234\nm;b 5 000\n",
            "line 2: has digits grouped by a space",
        ),
        (
            "     12 main;a\n",
            "its counts are at the start, as uniq -c prints them",
        ),
        ("# mode: wall\nmain;a 1,2,3\n", "only in \"1,2,3\""),
        ("main;a\nmain;b\n", "does not end in a count, only in \"a\""),
        ("main;a 25%\n", "does not end in a count, only in \"25%\""),
        ("main;a 5\nmain;b 5ms\n", "line 2: does not end in a count"),
        ("\n \n", "holds only blank lines"),
    ] {
        let error = values(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn text_of_windows_is_read_or_told() {
    let plain = read(FOLDED, "plain").unwrap();
    let marked = [b"\xef\xbb\xbf", FOLDED].concat();
    same("marked", &marked, &plain);
    same("marked.gz", &gzip(&marked), &plain);
    let lines = String::from_utf8_lossy(FOLDED).replace('\n', "\r\n");
    same("crlf", lines.as_bytes(), &plain);
    let old = String::from_utf8_lossy(FOLDED).replace('\n', "\r");
    let error = read(old.as_bytes(), "x.txt").unwrap_err().to_string();
    assert!(
        error.contains("tr '\\r' '\\n' < x.txt | mem_parser -"),
        "{error}"
    );
    let units: Vec<u16> = String::from_utf8_lossy(FOLDED).encode_utf16().collect();
    let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    for text in [
        [b"\xff\xfe", &little[..]].concat(),
        little.repeat(2),
        big.repeat(2),
    ] {
        let error = read(&text, "x.txt").unwrap_err().to_string();
        assert!(
            error.contains("iconv -f UTF-16 -t UTF-8 x.txt | mem_parser -"),
            "{error}"
        );
    }
}

#[test]
fn commands_for_compressed_files_name_what_is_in_them() {
    for (file, name, expected) in [
        (
            &b"PERFILE2\0"[..],
            "perf.data.gz",
            "perf script -i perf.data |",
        ),
        (
            b"PERFILE2\0",
            "perf.data.gz",
            ", after gzip -dk perf.data.gz",
        ),
        (
            b"PERFILE2\0",
            "x",
            "perf script -i x | mem_parser -, once it is unpacked",
        ),
        (
            b"v 10200 3\nx 13 /usr/bin/app\n",
            "h.gz",
            "heaptrack_print -f h.gz",
        ),
    ] {
        let error = read(&gzip(file), name).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Go names the functions in comments after each stack; those that are inlined have one address.
#[test]
fn heap_text_of_go_has_its_names() {
    let text = "heap profile: 3: 30 [5: 50] @ heap/1048576\n\
        1: 10 [2: 20] @ 0x401001 0x402001 0x404001\n\
        #\t0x401000\tmain.grab+0x10\t/src/a.go:3\n\
        #\t0x401000\tmain.main+0x20\t\t/src/a b:c.go:9\n\
        #\t0x402000\truntime.main+0x2b7\t/go/proc.go:250\n\n\
        2: 20 [3: 30] @ 0x401001 0x403001\n\
        #\t0x401000\tmain.grab+0x10\t/src/a.go:3\n\
        #\t0x401000\tmain.main+0x20\t\t/src/a b:c.go:9\n\
        #\t0x403000\n\n\n\
        # runtime.MemStats\n# Alloc = 12345\n# MaxRSS = 18841600\n";
    let profile = read(text.as_bytes(), "heap").unwrap();
    let named = |index: usize| -> Vec<(String, u32)> {
        let location = profile.locations[profile.stacks.get(0)[index] as usize];
        let lines = profile.lines_of(&location).iter();
        let function = |line: &profile::Line| profile.functions[line.function as usize].clone();
        lines.map(|line| (function(line).name, line.line)).collect()
    };
    let of = |name: &str, line| (name.to_owned(), line);
    assert_eq!(named(0), [of("main.grab", 3), of("main.main", 9)]);
    assert_eq!(named(1), [of("runtime.main", 250)]);
    assert_eq!(named(2), [of("runtime.goexit", 0)]);
    assert_eq!(profile.functions.len(), 4);
    assert_eq!(profile.functions[1].file, "/src/a b:c.go");
}

/// Text that begins like a sample of perf, or like folded stacks, and is neither.
#[test]
fn reports_of_other_tools_are_refused_with_advice() {
    let reports: [(&str, &str); 74] = [
        (
            "0x108@perf.data [0x50]: event: 69\n.\n. ... raw event: size 80 bytes\n.  0000:  45 00\n",
            "perf script -D",
        ),
        (
            "# started on Mon Nov 30 09:10:00 2026\n\n\n Performance counter stats for './a':\n",
            "perf stat",
        ),
        (
            "{\"counter-value\" : \"12.3\", \"unit\" : \"msec\"}\n",
            "perf stat",
        ),
        (
            "     0.000 ( 0.005 ms): cat/123 openat(dfd: CWD) = 3\n",
            "perf trace",
        ),
        (
            " Summary of events:\n\n cat (123), 76 events, 93.8%\n",
            "perf trace",
        ),
        (
            "\n ---\n  Task   |   Runtime ms  |  Count   | Avg delay ms\n",
            "perf sched",
        ),
        ("{\n\"linux-perf-json-version\": 1,\n", "perf converted"),
        (
            "---\nCommand:            ./a\nMassif arguments:   (none)\n",
            "ms_print",
        ),
        (
            "#-----------\nsnapshot=0\n#-----------\ntime=0\nmem_heap_B=0\n",
            "ms_print FILE",
        ),
        (
            "---\nProfile data file 'cg.out' (creator: callgrind-3.19.0)\n",
            "callgrind_annotate",
        ),
        (
            "reading file \"a.zst\" - please wait\nDebuggee command was: ./a\n",
            "heaptrack_print -f",
        ),
        (
            "\u{1f4cf} Total allocations:\n\t1631\n\n\u{1f4ca} Histogram of allocation size:\n\tmin: 1.000B\n",
            "memray",
        ),
        (
            "allocator,num_allocations,size,tid,thread_name\nMALLOC,1,2,1,0x1\n",
            "memray",
        ),
        (
            "{\"total_num_allocations\": 3, \"allocator_type_distribution\": {}}",
            "memray",
        ),
        (
            "{\"version\": 0, \"costs\": [], \"functions\": []}",
            "gprof2dot",
        ),
        ("{\"start_time\": 1.0, \"root_frame\": {}}", "pyinstrument"),
        ("{\"frame_tree\": [], \"x\": 1}", "pyinstrument"),
        (
            "\n  _  Recorded: 09:48:17  Samples:  157\n Duration: 1.5  CPU time: 0.2\n",
            "table for people",
        ),
        (
            "         1234 function calls in 0.100 seconds\n\n   Ordered by: standard name\n",
            "table for people",
        ),
        (
            "   ncalls  tottime  percall  cumtime  percall filename:lineno(function)\n",
            "table for people",
        ),
        (
            "[09:00:01] Top 2 stacks with outstanding allocations:\n\t4096 bytes in 1 allocations from stack\n\t\t0x00007f8a00112233\tmain+0x6d [prog]\n",
            "mem_profiler leaks",
        ),
        (
            "Sampling at 49 Hertz of all threads by user stack... Hit Ctrl-C to end.\n    b'leaf'\n",
            "bcc's profile",
        ),
        (
            "dtrace: description 'profile-997 ' matched 1 probe\n",
            "stackcollapse.pl FILE",
        ),
        (
            "CPU     ID                    FUNCTION:NAME\n\n   app`main+0x3\n    12\n",
            "stackcollapse.pl FILE",
        ),
        (
            "\nThread 2 (Thread 0x7f8a (LWP 12)):\n#0  0x00007f2000 in read ()\n",
            "stackcollapse-gdb.pl FILE",
        ),
        (
            "2026-01-01 10:00:00\nFull thread dump OpenJDK 64-Bit Server VM:\n",
            "stackcollapse-jstack.pl FILE",
        ),
        (
            "Process 123: python3 a.py\nPython v3.11.2 (/usr/bin/python3.11)\n",
            "py-spy record",
        ),
        (
            "% time     seconds  usecs/call     calls    errors syscall\n",
            "strace",
        ),
        (
            "Analysis of sampling app (pid 123) every 1 millisecond\n",
            "stackcollapse-sample.awk FILE",
        ),
        (
            "Weight\tSelf Weight\t\tSymbol Name\n1.00 s  100.0%\t0 s\t \tapp\n",
            "Instruments",
        ),
        (
            "--- contention:\ncycles/second=2000000000\n1000 2 @ 0x43e1e5\n",
            "go tool pprof -proto",
        ),
        (
            "--- mutex:\ncycles/second=2000000000\n1000 2 @ 0x43e1e5\n",
            "locks",
        ),
        ("--- heapz 1 ---\nformat: java\nresolution: bytes\n", "Java"),
        (
            "goroutine 1 [running]:\nmain.main()\n\t/a/b.go:3 +0x1d\n",
            "goroutines",
        ),
        (
            "threadcreate profile: total 4\n4 @\n#\t0x0\n",
            "without debug=1",
        ),
        (
            "goos: linux\ngoarch: amd64\nBenchmarkFoo-2   1000   1234 ns/op\n",
            "-memprofile FILE",
        ),
        (
            "            bash-123   [000] d..2. 123.456: sched_switch: prev_comm=bash\n",
            "ftrace prints",
        ),
        (
            "# tracer: function_graph\n#\n# CPU  DURATION\n 0)   1.234 us    |  schedule();\n",
            "ftrace prints",
        ),
        (
            "Tracing 1 functions for \"c:malloc\"... Hit Ctrl-C to end.\n^C\n  malloc\n  work\n    120\n\n",
            "stackcollapse.pl FILE",
        ),
        (
            "    finish_task_switch\n    schedule\n    -                bash (123)\n        1234\n",
            "offcputime -f",
        ),
        (
            "sample:\n  event_type: cpu-cycles:u\n  time: 34\n  event_count: 1000\n",
            "report_sample.py -i perf.data | mem_parser -",
        ),
        (
            "Attaching 1 probe...\n@[\n    malloc+0\n    main+20\n, app]: 12\n",
            ": stackcollapse-bpftrace.pl FILE > out.folded",
        ),
        (
            "@bytes[\n    malloc+0\n]: 12\n",
            "@[/' FILE | stackcollapse-bpftrace.pl > out.folded",
        ),
        (
            "Attaching 1 probe...\n\n@bytes: \n[4, 8)     2 |@@@@     |\n",
            "without stacks; a map by stack has them",
        ),
        (
            "{\"type\": \"attached_probes\", \"data\": {\"probes\": 1}}\n{\"type\": \"map\"}\n",
            "without -f json, stackcollapse-bpftrace.pl",
        ),
        (
            "     usecs               : count     distribution\n         0 -> 1          : 3\n",
            "profile -f and offcputime -f",
        ),
        (
            "-----\n Callsite                     | Total_alloc/Per | Total_req/Per   | Hit\n",
            "perf script | mem_parser -",
        ),
        (
            "                Name   acquired  contended     avg wait   total wait\n",
            "perf script | mem_parser -",
        ),
        (
            "# PID, TID, IP, ADDR, LOCAL WEIGHT, DSRC, SYMBOL\n",
            "perf script | mem_parser -",
        ),
        (
            " num     #instances         #bytes  class name (module)\n-----\n   1:  12  34  [B\n",
            "jfrconv --alloc -o collapsed",
        ),
        (
            "jdk.ExecutionSample {\n  startTime = 10:00:00.000\n",
            "jfrconv --alloc -o collapsed RECORDING",
        ),
        (
            "{\"recording\": {\"events\": [{\"type\": \"jdk.ExecutionSample\"}]}}",
            "jfrconv --alloc -o collapsed RECORDING",
        ),
        (
            "Total allocations:\n\t1234\n\nTotal memory allocated:\n\t5.0MB\n",
            "memray's statistics",
        ),
        (
            "Cmdline: simpleperf record\nArch: arm64\nSamples of events: cpu-cycles\n",
            "report_sample.py -i perf.data | mem_parser -",
        ),
        (
            "12:   ./app\n0000555555554000      4K r---- app\n0000555555555000      4K r-x-- app\n",
            "what pmap prints",
        ),
        (
            "startup\ttime=123\nexperiment\tselected=a.c:12\n",
            "coz plot",
        ),
        (
            "{\"head\":{\"functionName\":\"(root)\",\"callUID\":1},\"startTime\":1}",
            "mem_profiler cpu run -- node",
        ),
        (
            "{\"exporter\":\"speedscope@1.2\",\"shared\":{\"frames\":[]},\"profiles\":[]}",
            "speedscope",
        ),
        (
            "{\"version\":1.2,\"mode\":\"cpu\",\"frames\":{\"1\":{\"total_samples\":2}}}",
            "stackprof --stackcollapse",
        ),
        (
            "{\"alloc_samples\":0,\"args\":[],\"elapsed_time_sec\":1.2}",
            "Scalene",
        ),
        (
            "{\"main()==>foo\":{\"ct\":1,\"wt\":10},\"main()\":{\"ct\":1,\"wt\":20}}",
            "xhprof",
        ),
        ("{\"jemalloc\":{\"version\":\"5.3.0\"}}", "prof_final:true"),
        (
            "<?xml version=\"1.0\"?>\n<trace-query-result>\n<node xpath=\"//x\">",
            "inferno-collapse-xctrace FILE",
        ),
        ("<?xml version=\"1.0\"?>\n<StackWindow>", "PerfView"),
        ("<malloc version=\"1\">\n<heap nr=\"0\">\n", "malloc_info"),
        (
            "Running Time\tSelf (ms)\t\tSymbol Name\n",
            "stackcollapse-instruments.pl FILE",
        ),
        (
            "\"Weight\",\"Self Weight\",\"\",\"Symbol Name\"\n",
            "Instruments",
        ),
        (
            "Function Stack,CPU Time:Self,Module\nTotal,1,x\n",
            "inferno-collapse-vtune FILE",
        ),
        ("OS Version: 10.0.19041\nTimeStamp, 1\n", "Windows"),
        (
            "Line #,Process,Stack,Count,Weight (in view) (ms)\n",
            "Windows",
        ),
        (
            "PID 123 - process\nTID 123:\n#0  0x0000 read\n",
            "mem_profiler cpu -p PID",
        ),
        ("JOB \"app -p\"\nDATE \"Tue\"\n", "hp2ps -c FILE"),
        ("*version\n3\ndata-file-overflow=false\n", "Android Studio"),
        ("Arena 0:\nsystem bytes     =     135168\n", "malloc_stats"),
    ];
    for (file, expected) in reports {
        let error = read(file.as_bytes(), "FILE").unwrap_err().to_string();
        assert!(error.starts_with("FILE: is "), "{file}: {error}");
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // memray writes this by default: compressed with LZ4.
    let packed = b"\x04\x22\x4d\x18\x40\x40\xc0\x0f\0\0\0\xf1memray\0\x0c\0\0\0";
    let error = read(packed, "FILE").unwrap_err().to_string();
    assert!(error.contains("memray flamegraph FILE"), "{error}");
}

#[test]
fn files_of_other_tools_are_refused_with_advice() {
    let tar = [&[b'a'; 257][..], b"ustar\0"].concat();
    let elf = |kind: u8| {
        [
            b"\x7fELF\x02\x01\x01".as_slice(),
            &[0; 9],
            &[kind, 0, 62, 0],
        ]
        .concat()
    };
    let core = elf(4);
    let library = elf(3);
    let bytehound = [
        b"\x01\x80\0\0\0".as_slice(),
        b"\x40\x7b/usr/bin/x x86_64",
        &[0; 120],
    ]
    .concat();
    let tracemalloc = b"\x80\x04\x95\0\0\0\0\0\0\0\0\x8c\x0btracemalloc\x94\x8c\x08Snapshot";
    let files: Vec<(&[u8], &[&str])> =
        vec![
        (b"MDMP\x93\xa7\0\0", &["minidump", "mem_profiler -p PID"]),
        (b"\x14\0\0\0!FastSerialization.1", &["dotnet-gcdump report FILE"]),
        (b"\x04\x08{\x0f:\x0cversionf\x081.2", &["stackprof --stackcollapse FILE"]),
        (b"\xc1\x1f\xfc\xc1aaaa", &["babeltrace2"]),
        (b"adcg*33B", &["coverage"]),
        (b"\x81rforpl\xff\x09\0", &["coverage"]),
        (b"MOJO\x04", &["mojo2austin FILE"]),
        (
            b"PERFILE2\x68\0\0\0",
            &["perf script -i FILE | mem_parser -"],
        ),
        (
            b"v 10200 3\nx 13 /usr/bin/app\nX 9 app\n",
            &["heaptrack_print -f FILE -F"],
        ),
        (b"memray\0\x0b\0", &["memray flamegraph FILE"]),
        (b"FLR\0\0\x02\0\0", &["jfrconv", "collapsed FILE"]),
        (
            b"{\"snapshot\":{\"meta\":{\"node_fields\":[\"type\"",
            &["heap snapshot"],
        ),
        (
            b"\xef\xbb\xbf {\n \"$schema\":\"https://www.speedscope.app/file-format-schema.json\"",
            &["speedscope", "py-spy -f raw"],
        ),
        (b"{\"x\": 1}", &["is JSON of a kind"]),
        (b"[{\"ph\":\"X\",\"ts\":1}]", &["ui.perfetto.dev"]),
        (
            b"desc: (none)\ncmd: ./a\ntime_unit: i\n#-----\nsnapshot=0\n",
            &["massif", "ms_print FILE"],
        ),
        (
            b"# callgrind format\nversion: 1\ncreator: callgrind-3.19\nevents: Ir\n",
            &["callgrind_annotate FILE"],
        ),
        (
            b"version: 1\ncreator: callgrind-3.19.0\npid: 1\ncmd:  ./a\nevents: Ir\nfn=(1) main\n",
            &["callgrind"],
        ),
        (tracemalloc, &["tracemalloc", "Snapshot.load('FILE')"]),
        (&core, &["core dump", "mem_profiler -p PID"]),
        (&library, &["is a program (ELF)", "-p"]),
        (&tar, &["tar -xf FILE"]),
        (b"PK\x03\x04\x14\0", &["unzip FILE"]),
        (b"\xfd7zXZ\0\0", &["xz -dc FILE | mem_parser -"]),
        (b"<!DOCTYPE html>\n<html><body>502", &["web page", "error"]),
        (
            b"<!DOCTYPE html>\n<html><title>app - mem_parser</title>",
            &["page that mem_parser made"],
        ),
        (
            b"<?xml version=\"1.0\"?>\n<svg xmlns=",
            &["picture (SVG)", "the dump that it was"],
        ),
        (
            b"55d0-55e0 r-xp 00001000 08:01 42 /usr/bin/x\n",
            &["/proc/PID/maps"],
        ),
        (b"___ Begin jemalloc statistics ___\n", &["prof:true"]),
        (
            b"==123== Memcheck, a memory error detector\n==123== 10 bytes in 1 blocks are lost\n",
            &["report of Valgrind", "run --leak-check"],
        ),
        (
            b"\n=====\n==1==ERROR: LeakSanitizer: detected memory leaks\n\nDirect leak of 1\n",
            &["report of a sanitizer", "run --leak-check"],
        ),
        (
            b"-----\nMALLOC:   12345 (    0.0 MiB) Bytes in use\nMALLOC: +     0 Bytes\n",
            &["tcmalloc's statistics", "HEAPPROFILE"],
        ),
        (b"gmon\x01\0\0\0", &["gprof PROGRAM FILE"]),
        (
            b"Flat profile:\n\nEach sample counts as 0.01 seconds.\n  %   cumulative\n",
            &["table of gprof"],
        ),
        (
            b"Attaching 1 probe...\n\n@[\n    malloc+0\n    main+3\n]: 5\n",
            &["stackcollapse-bpftrace.pl FILE"],
        ),
        (&bytehound, &["bytehound server FILE"]),
        (
            b"desc: I1 cache:  32768 B\ncmd: ./s\nevents: Ir\n",
            &["cg_annotate FILE"],
        ),
        (
            b"PeriodType: space bytes\nPeriod: 512\nSamples:\n",
            &["pprof -raw"],
        ),
        (
            b"Type: cpu\nShowing nodes accounting for 1\n",
            &["is a table"],
        ),
        (
            b"{\"version\":1,\"program\":null,",
            &["mem_parser --json wrote"],
        ),
        (b"v8-version,11,3,244,8\n", &["node --prof-process FILE"]),
        (
            b"= Start\n@ ./a:[0x401136] + 0x5581 0x64\n",
            &["mtrace PROGRAM FILE"],
        ),
        (
            b"# Total Lost Samples: 0\n#\n# Samples: 1K\n",
            &["perf report prints"],
        ),
        (
            b" Performance counter stats for './a':\n",
            &["perf stat prints"],
        ),
        (
            b"import time: self [us] | cumulative | imported package\nimport time: 3 | 3 | nt\n",
            &["importtime"],
        ),
        (
            b"Filename: x.py\n\nLine #    Mem usage    Increment  Occurrences\n",
            &["memory_profiler"],
        ),
    ];
    for (file, expected) in files {
        for (name, file) in [
            ("FILE", file.to_vec()),
            ("FILE", gzip(file)),
            ("FILE", zstd(file)),
        ] {
            let error = read(&file, name).unwrap_err().to_string();
            for part in expected {
                assert!(error.contains(part), "{part}: {error}");
            }
            assert!(
                error.starts_with("FILE: is ") && !error.contains("{F"),
                "{error}"
            );
        }
    }
    // If the input is a pipe, the suggested commands name it as such.
    let error = read(b"PERFILE2\0", profile::STANDARD_INPUT)
        .unwrap_err()
        .to_string();
    assert!(error.contains("perf script -i - |"), "{error}");
}

/// A name in a binary profile is not the first line of another tool's report.
#[test]
fn names_do_not_make_a_profile_a_report() {
    for words in ["Performance counter stats for", "ERROR: LeakSanitizer"] {
        let name = "x".repeat(words.len());
        let folded = format!("main;{name} 3\n");
        let profile = profile::read(folded.as_bytes(), "names.folded").expect("folded stacks");
        let mut packed = Vec::new();
        profile::pprof::write(&profile, &mut packed).expect("memory takes all");
        let mut proto = Vec::new();
        let mut unpacking = flate2::read::GzDecoder::new(&packed[..]);
        std::io::Read::read_to_end(&mut unpacking, &mut proto).expect("gzip");
        let at = memchr::memmem::find(&proto, name.as_bytes()).expect("the name");
        proto[at..at + words.len()].copy_from_slice(words.as_bytes());
        let read = profile::read(&proto, "names.pb").expect(words);
        assert_eq!(read.values, profile.values);
    }
}
