//! pprof, CPU, folded and perf profiles; merging and subtracting.

use std::slice::from_ref;

use profile::merge::{BASE_LABEL, Base, merge, subtract};
use profile::{
    Detail, Format, Function, LabelValue, Line, Mapping, Profile, ProfileBuilder, pprof, read,
};
use proptest::prelude::*;

fn heap(base: u64, sizes: &[(u64, f64)]) -> Profile {
    let mut builder = ProfileBuilder::new(1);
    builder.module(Mapping {
        start: base,
        end: base + 0x10000,
        path: "/usr/bin/x".into(),
        ..Mapping::default()
    });
    for &(address, bytes) in sizes {
        let detail = Detail {
            alloc_samples: 1,
            alloc_objects: 1.0,
            alloc_bytes: bytes,
            ..Detail::default()
        };
        builder.stack([base + address, base + 0x8000], &detail);
    }
    builder.finish()
}

fn encoded(profile: &Profile) -> Vec<u8> {
    let mut out = Vec::new();
    pprof::write(profile, &mut out).unwrap();
    out
}

#[test]
fn pprof_profiles_round_trip() {
    let mut profile = heap(0x40_0000, &[(0x10, 100.0), (0x20, 200.0)]);
    profile.functions = vec![
        Function {
            name: "inner".into(),
            system_name: "_Zinner".into(),
            ..Function::default()
        },
        Function {
            name: "outer".into(),
            file: "/a.c".into(),
            start_line: 3,
            ..Function::default()
        },
    ];
    profile.lines = vec![
        Line {
            function: 0,
            line: 1,
            column: 2,
        },
        Line {
            function: 1,
            line: 4,
            column: 0,
        },
    ];
    profile.locations[0].line_count = 2;
    profile.comments = vec!["a comment".into()];
    profile.facts.start_unix_ns = Some(17);
    profile.block_sizes = vec![100, 200];
    let back = read(&encoded(&profile), "x.pb.gz").unwrap();
    assert_eq!(back.format, Format::Pprof);
    assert_eq!(back.sample_types, profile.sample_types);
    assert_eq!(back.default_type, 3);
    assert_eq!(back.values, profile.values);
    assert_eq!(back.stacks, profile.stacks);
    assert_eq!(back.lines_of(&back.locations[0]), &profile.lines[..]);
    assert_eq!(back.functions[1], profile.functions[1]);
    assert_eq!(back.mappings, profile.mappings);
    assert_eq!(back.comments, profile.comments);
    assert_eq!(back.facts.start_unix_ns, Some(17));
    assert_eq!(back.labels[1].value, LabelValue::Number(200, String::new()));
    assert_eq!(back.drop_frames, profile.drop_frames);
}

#[test]
fn a_truncated_pprof_profile_is_refused() {
    let bytes = encoded(&heap(0x40_0000, &[(0x10, 100.0)]));
    for length in 0..bytes.len() {
        let error = read(&bytes[..length], "cut.pb.gz").unwrap_err().to_string();
        assert!(error.contains("cut.pb.gz"), "{error}");
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn cpu_profiles_are_read_and_truncated_ones_refused() {
    let mut bytes = words(&[0, 3, 0, 10_000, 0]);
    bytes.extend(words(&[2, 3, 0x40_1000, 0x40_9999, 0x40_2000]));
    bytes.extend(words(&[1, 3, 0x40_3000, 0x40_9999, 0x40_2000]));
    bytes.extend(words(&[0, 1, 0]));
    bytes.extend(b"00400000-00500000 r-xp 00000000 08:01 42 /usr/bin/x\n");
    let profile = read(&bytes, "cpu").unwrap();
    assert_eq!(profile.format, Format::CpuProfile);
    assert_eq!(profile.values, [2, 20_000_000, 1, 10_000_000]);
    let addresses: Vec<u64> = profile
        .stacks
        .get(0)
        .iter()
        .map(|&f| profile.locations[f as usize].address)
        .collect();
    // The frame of the signal handler, which all stacks share, is gone; so is
    // the next one, which they share as well.
    assert_eq!(addresses, [0x40_1000]);
    assert_eq!(profile.mappings.len(), 1);
    for length in 40..bytes.len() - 53 {
        assert!(read(&bytes[..length], "cpu").is_err(), "{length}");
    }
}

#[test]
fn folded_stacks_are_read() {
    let profile = read(b"# comment\nmain;a b;c 3\nmain;a b 4\n\n", "x.folded").unwrap();
    assert_eq!(profile.format, Format::Folded);
    assert_eq!(profile.values, [3, 4]);
    let name = |stack: usize, at: usize| {
        let location = profile.locations[profile.stacks.get(stack)[at] as usize];
        profile.functions[profile.lines_of(&location)[0].function as usize]
            .name
            .clone()
    };
    assert_eq!(
        (name(0, 0), name(0, 2), name(1, 0)),
        ("c".into(), "main".into(), "a b".into())
    );
    let compared = read(b"main;a 3 4\n", "x.folded").unwrap();
    assert_eq!(compared.values, [3, 4]);
    let error = read(b"main;a 3\nmain\n", "x.folded")
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn perf_script_text_is_read() {
    let text = "# captured\nmy prog 12/13 [001] 123.456: 250000 cycles:u: \n\
        \t    55d0 do work(int)+0x10 (/usr/bin/my prog)\n\
        \t    7f00 [unknown] (/usr/lib/libc.so.6)\n\n\
        my prog 12 123.5: cycles:u: \n\t 55d0 do work(int)+0x20 (/usr/bin/my prog)\n";
    let profile = read(text.as_bytes(), "perf.txt").unwrap();
    assert_eq!(profile.format, Format::PerfScript);
    // The period is missing once: what the samples stand for is not known.
    assert_eq!(
        (profile.sample_types.len(), &profile.values[..]),
        (1, &[1, 1][..])
    );
    let names: Vec<&str> = profile.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["do work(int)", "libc.so.6", "my prog"]);
    assert_eq!(profile.stacks.get(1).len(), 2);
}

/// Returns the profile of an output of `perf script` with samples of these events, each with its
/// period.
fn perf_script(events: &[(&str, i64)]) -> Profile {
    let sample = |&(event, period): &(&str, i64)| {
        format!(
            "prog 7 [000] 12.5: {period:>10} {event}: \n\
             \tffffffff81000010 do_fault+0x10 ([kernel.kallsyms])\n\
             \t  55d0 work+0x1 (/usr/bin/prog)\n\n"
        )
    };
    let text: String = events.iter().map(sample).collect();
    read(text.as_bytes(), "perf.txt").unwrap()
}

fn columns(profile: &Profile) -> Vec<(&str, &str)> {
    let types = profile.sample_types.iter();
    types.map(|t| (t.kind.as_str(), t.unit.as_str())).collect()
}

#[test]
fn periods_of_a_clock_are_cpu_time() {
    let profile = perf_script(&[("cpu-clock:uhpppH", 10_101_010), ("cpu-clock:uhpppH", 5)]);
    assert_eq!(
        columns(&profile),
        [("samples", "count"), ("cpu", "nanoseconds")]
    );
    assert_eq!(profile.values, [1, 10_101_010, 1, 5]);
    assert_eq!(profile.default_type, 1);
    // Both clocks measure the same time, so their sum would be twice as much.
    let both = perf_script(&[("cpu-clock", 10), ("task-clock", 5)]);
    let expected = [
        ("samples", "count"),
        ("cpu-clock", "nanoseconds"),
        ("task-clock", "nanoseconds"),
    ];
    assert_eq!(columns(&both), expected);
    assert_eq!(both.values, [1, 10, 0, 1, 0, 5]);
    let waiting = perf_script(&[("offcpu-time", 7)]);
    assert_eq!(columns(&waiting)[1], ("offcpu-time", "nanoseconds"));
    assert_eq!(waiting.default_type, 1);
}

#[test]
fn events_with_other_units_are_separate() {
    let events = [
        ("cycles:P", 700),
        ("cpu/instructions/u", 300),
        ("cpu/cycles/", 50),
    ];
    let profile = perf_script(&events);
    let expected = [
        ("samples", "count"),
        ("cycles", "count"),
        ("instructions", "count"),
    ];
    assert_eq!(columns(&profile), expected);
    assert_eq!(profile.values, [1, 700, 0, 1, 0, 300, 1, 50, 0]);
    // The first event is shown: numbers of samples of different events cannot be added.
    assert_eq!(profile.default_type, 1);
    let switches = perf_script(&[("sched:sched_switch", 1)]);
    assert_eq!(columns(&switches)[1], ("sched:sched_switch", "count"));
    assert_eq!(switches.default_type, 0);
    let modes = perf_script(&[("cycles:u", 7), ("cycles", 9), ("cycles:kpp", 2)]);
    let kinds: Vec<&str> = columns(&modes).iter().map(|column| column.0).collect();
    assert_eq!(kinds, ["samples", "cycles:u", "cycles", "cycles:k"]);
}

#[test]
fn events_without_periods_are_columns_of_samples() {
    let text = "app 16273 [004] 4.1: syscalls:sys_enter_brk: brk: 0x00000000\n\
        app 16273 [004] 4.2: syscalls:sys_exit_brk: 0x1fc09000\n\
        app 16273 [004] 4.3: syscalls:sys_exit_brk: 0x1fc09000\n\
        app 16273 [004] 4.4:  700 cycles: 401000 work+0x1 (/opt/app)\n";
    let profile = read(text.as_bytes(), "perf.txt").unwrap();
    let kinds: Vec<&str> = columns(&profile).iter().map(|column| column.0).collect();
    let [enter, exit] = ["syscalls:sys_enter_brk", "syscalls:sys_exit_brk"];
    assert_eq!(kinds, ["samples", enter, exit, "cycles"]);
    let totals: Vec<i64> = (0..4).map(|column| profile.total(column)).collect();
    assert_eq!(totals, [4, 1, 2, 700]);
    // Arguments of a tracepoint are no frames.
    let mut names = samples(text);
    assert_eq!(names.pop().unwrap(), ["work", "app"]);
    assert_eq!(names, [["app"]; 3]);
}

/// Names of each sample's frames, innermost first, the command last; `_k` marks the kernel's.
fn samples(text: &str) -> Vec<Vec<String>> {
    let profile = read(text.as_bytes(), "perf.txt").unwrap();
    assert_eq!(profile.format, Format::PerfScript, "{text}");
    let name = |&frame: &u32| {
        let location = &profile.locations[frame as usize];
        let function = profile.functions
            [profile.lines[location.first_line as usize].function as usize]
            .name
            .as_str();
        let suffix = if profile.is_kernel_location(location) {
            "_k"
        } else {
            ""
        };
        format!("{function}{suffix}")
    };
    let stacks = profile.values.chunks(profile.sample_types.len());
    (0..stacks.len())
        .map(|index| profile.stacks.get(index).iter().map(name).collect())
        .collect()
}

#[test]
fn every_form_of_a_sample_is_read() {
    let chained = "\t    1163 work+0x1a (/opt/spin)\n\t    11cb main+0x43 (/opt/spin)\n\n";
    for head in [
        "spin  5265 66586.647348:   10000000 cpu-clock: ",
        "spin  5265 66586.647348:   10000000 ",
        "spin  5265 66586.647348: cpu-clock: ",
        "spin  5265/5266 [003] 66586.647348: cpu-clock: ",
        "spin  5265 10000000 cpu-clock: ",
        "spin  5265 cpu-clock: ",
        "spin  5265 ",
        "spin 66586.647348: cpu-clock: ",
        "spin [003] 66586.647348: cpu-clock: ",
        "spin cpu-clock: ",
        "spin ",
    ] {
        let text = format!("{head}\n{chained}{head}\n{chained}");
        assert_eq!(samples(&text), [["work", "main", "spin"]; 2], "{text}");
    }
    for head in ["", " 5265 ", "66586.647348: ", "  10000000 ", "cpu-clock: "] {
        let text = format!("{head}\n{chained}{head}\n{chained}");
        assert_eq!(samples(&text), [["work", "main"]; 2], "{text}");
    }
    for line in [
        "            spin  9779   893.580611:    5025125 cpu-clock:      55f0ebe7a151 work+0x18 (/opt/spin)",
        "            spin  9779   893.580611:    5025125 cpu-clock:      55f0ebe7a151 work+0x18",
        "            spin  9779   893.580611:    5025125      55f0ebe7a151 work (/opt/spin)",
        "            spin  9779   893.580611:      401136 work (/opt/spin)",
        "            spin  9779      55f0ebe7a151 work",
        "            spin      55f0ebe7a151 work",
        "            spin      401136 work+0x10 (/opt/spin)",
        "              dd  9779   893.580611:    5025125 cpu-clock:      55f0ebe7a151 work (/bin/dd)",
    ] {
        let command = line.split_whitespace().next().unwrap();
        let text = format!("{line}\n{line}\n");
        assert_eq!(samples(&text), [["work", command]; 2], "{text}");
    }
    for line in [
        "     55f0ebe7a151 work (/opt/spin)",
        "     401136 work (/opt/spin)",
        " 9779      55f0ebe7a151 work",
    ] {
        let text = format!("{line}\n{line}\n");
        assert_eq!(samples(&text), [["work"]; 2], "{text}");
    }
}

#[test]
fn other_output_of_perf_is_skipped() {
    let annotated = "swapper 0 0.0: PERF_RECORD_MMAP -1/0: [0xff(0x12) @ 0xff]: x [kernel.kallsyms]_text\n\
        spin 7 1.5: PERF_RECORD_COMM exec: spin:7/7\n\
        spin 7 2.5: 5025125 cpu-clock: \n\
        \t    1151 work+0x18 (/opt/spin)\n  spin.c:2\n\
        \t    1160 main+0x10 (/opt/spin)\n  libc.so.6[2724a]\n\n\
        |2        long work(long n) { return n; }\n\
        spin 7 3.5: 5025125 cpu-clock: \n\
        \t    1151 work+0x18 (/opt/spin)\n\
        \t    1160 main+0x10 (/opt/spin)\n insn: 48 01 c2\n\
        spin 7 4.5: PERF_RECORD_EXIT(7:7):(5:5)\n";
    assert_eq!(samples(annotated), [["work", "main", "spin"]; 2]);
    let flat = "   spin 7 3.5: 10 cpu-clock:  55f0ebe7a151 work+0x18 (/opt/spin) insn: 48 01 c2\n";
    assert_eq!(samples(flat), [["work", "spin"]]);
    let tracepoints = "   zonesvr 16273 [004] 42055630.368972: syscalls:sys_enter_brk: brk: 0x00000000\n\
        spin 7 [000] 6.3: syscalls:sys_enter_write: fd: 0x1, buf: 0x56, count: 0x0\n\
        \t  f8350 write+0x10 (/usr/lib/libc.so.6)\n";
    assert_eq!(
        samples(tracepoints),
        [vec!["zonesvr"], vec!["write", "spin"]]
    );
}

/// What precedes a call chain in the sample's own line is no frame.
#[test]
fn fields_before_a_call_chain_are_skipped() {
    let chain =
        "\n\t            1151 work+0x18 (/opt/spin)\n\t            1160 main (/opt/spin)\n\n";
    for head in [
        "spin 7 U       345.719952:    1003009 cpu-clock: ",
        "spin 7 [001] K 345.719952:    1003009 cpu-clock: ",
        "spin 7 U    1003009 cpu-clock: ",
        "spin 7 345.719952:    1003009 cpu-clock:u:                0",
        "spin 7 345.719952:    1003009 cpu-clock:u:     7ffe12345678",
        "spin 7 345.719952:    1003009 cpu-clock:u:     7ffe12345678                0",
    ] {
        let text = format!("{head}{chain}").repeat(2);
        let profile = read(text.as_bytes(), "x").unwrap();
        assert_eq!(samples(&text), [["work", "main", "spin"]; 2], "{head}");
        assert_eq!(profile.values, [1, 1_003_009].repeat(2), "{head}");
    }
    let text = format!("24258    1003009 {chain}").repeat(2);
    assert_eq!(samples(&text), [["work", "main"]; 2]);
    for head in [
        "            spin 26126 U       377.647092:    1003009 cpu-clock:u:      558e5e4d01ec work",
        "            spin 26126 U    1003009 cpu-clock:u:      558e5e4d01ec work+0x1c (/opt/spin)",
    ] {
        let text = format!("{head}\n").repeat(2);
        assert_eq!(samples(&text), [["work", "spin"]; 2], "{head}");
    }
    let text = "26081    1015698      5644bdd1e1ec work\n".repeat(2);
    assert_eq!(samples(&text), [["work"]; 2]);
    let profile = read(text.as_bytes(), "x").unwrap();
    assert_eq!(profile.sample_types[1].kind, "events");
    assert_eq!(profile.values, [1, 1_015_698].repeat(2));
}

#[test]
fn instructions_are_no_samples() {
    let sample =
        "spin 7 345.7: 1003009 cpu-clock: \n\t 11df work (/opt/spin)\n ilen: 3 insn: 48 89 c2\n";
    let profile = read(sample.repeat(3).as_bytes(), "x").unwrap();
    assert_eq!(profile.values, [1, 1_003_009].repeat(3));
    let branches = "spin 7 345.7: 1003009 cpu-clock: 401136 work (/opt/spin)\n\
        \t000055d0c8e1a1d0\tinsn: 0f 1f 84 00 # PRED 3 cycles\n";
    assert_eq!(samples(&branches.repeat(2)), [["work", "spin"]; 2]);
}

#[test]
fn namespaces_of_processes_are_skipped() {
    let text = "perf-exec     0     0.000000: PERF_RECORD_NAMESPACES 7/7 - nr_namespaces: 7\n\
        \t\t[0/net: 4/0xeffffff9, 1/uts: 4/0xeffffffe, 2/ipc: 4/0xefffffff, \n\
        \t\t 4/user: 4/0xeffffffd, 5/mnt: 4/0xeffffff8]\n\
        spin 7 382.9:    1003009 cpu-clock:u: \n\t 11ec work+0x1c (/opt/spin)\n\n";
    assert_eq!(samples(text), [["work", "spin"]]);
}

#[test]
fn a_header_alone_holds_no_samples() {
    let header = "# ========\n# captured on    : Mon Nov 30 20:21:58 2026\n# ========\n#\n";
    let error = read(header.as_bytes(), "x.txt").unwrap_err().to_string();
    assert!(error.contains("holds no samples of perf"), "{error}");
    assert!(error.contains("--header-only"), "{error}");
}

/// Names of functions may end in a colon, as events do.
#[test]
fn folded_stacks_are_no_events() {
    for text in [
        "main;a: 3\nmain;b: 4\n",
        "main;a b: 3\nmain;b: 4\n",
        "a: 3\nb: 4\n",
    ] {
        let profile = read(text.as_bytes(), "x").unwrap();
        assert_eq!(profile.format, Format::Folded, "{text}");
        assert_eq!(profile.values, [3, 4], "{text}");
    }
}

#[test]
fn fields_around_a_frame_are_skipped() {
    for fields in [
        "401000 work+0x18 (/opt/spin+0x1151)",
        "401000 work+0x18 (/opt/spin)\tmovq %rax, %rbx",
        "401000 work+0x18 (/opt/spin)  0x401000/0x401020/P/-/-/1  0x401020/0x401000/P/-/-/3",
        "401000 work+0x18 (/opt/spin) ABI:2    AX:0x0    BX:0x7ffe",
        "401000 work+0x18 (/opt/spin) =>           401020 other+0x0 (/opt/spin)",
        "401000 work+0x18 =>           401020 other+0x0",
        "call                   401000 work+0x10 (/opt/spin) =>           401020 other+0x0 (/x)",
        "7ffe1234abcd     401000 work+0x18 (/opt/spin)",
        "7ffe1234abcd     401000 work+0x18",
        "7ffe1234abcd  5080184 |OP LOAD|LVL L1 hit|TLB L1 or L2 hit|LCK No  12  401000 work (/opt/spin)",
    ] {
        let text = format!("spin 7 [001] 3.5: 1 mem-loads:uP:  {fields}\n").repeat(2);
        assert_eq!(samples(&text), [["work", "spin"]; 2], "{text}");
    }
    for line in [
        " ABI:2    AX:0x0    BX:0x7ffe",
        " /user.slice/a.scope",
        " 0x401000/0x401020/P/-/-/1/COND/-  0x401020/0x401000/P/-/-/3//- ",
        "\tadd %rax, %rbx",
        "\t\tmovq %rax, %rbx",
    ] {
        let sample =
            format!("spin 7 [001] 3.5: 1 cycles: \n\t401000 work+0x18 (/opt/spin)\n{line}\n\n");
        assert_eq!(samples(&sample.repeat(2)), [["work", "spin"]; 2], "{line}");
    }
    let dated =
        "spin 7 [001] 2026-05-01 12:00:01.580611: 1 cycles: \n\t401000 work (/opt/spin)\n\n";
    assert_eq!(samples(dated), [["work", "spin"]]);
}

#[test]
fn frames_of_simpleperf_are_indented_or_not() {
    let text = "RenderThread\t12/14 [002] 68.449896: 1000000 cpu-clock:\n\
        \x20       7b3a1234\twork (/data/app/lib.so)\n\
        \x20       7b3a5678\tmain (/data/app/lib.so)\n\n\
        Render Thread 2\t12/15 [002] 68.459896: 1000000 cpu-clock:\n\
        ffffffc012345678\tschedule ([kernel.kallsyms])\n\
        \x20       7b3a1234\tlib.so[+1234] (/data/app/lib.so)\n\n";
    let expected = [
        ["work", "main", "RenderThread"],
        ["schedule_k", "lib.so", "Render Thread 2"],
    ];
    assert_eq!(samples(text), expected);
}

#[test]
fn modules_of_32_bit_kernels_are_the_kernels() {
    let frame = |module: &str| format!("\tbf012345 f{} ({module})\n", module.len());
    let modules = [
        "[brcmfmac]",
        "[vectors]",
        "[heap]",
        "[kernel.kallsyms]",
        "[anon:x]",
        "[vdso]",
    ];
    let text: String = modules.iter().map(|module| frame(module)).collect();
    let expected = ["f10_k", "f9", "f6", "f17_k", "f8", "f6", "app"];
    assert_eq!(
        samples(&format!("app 7 1.5: 1 cycles: \n{text}\n")),
        [expected]
    );
}

#[test]
fn modules_are_distinguished_from_names() {
    let text = "app 100 100.5: 1000 cpu-clock:u: \n\
        \t7f1200001000 [unknown] (/memfd:doublemapper (deleted))\n\
        \t7f1200002000 work(int) (/opt/app (deleted))\n\
        \t7f1200003000\tsimple::perf() (/data/app.so)\n\
        \tc0012345 schedule ([kernel.kallsyms])\n\
        \tbf012345 [unknown] (/lib/modules/5.4/ext4.ko)\n\
        \t7f1200004000 operator()(long)\n\
        \t7f1200005000\n";
    let expected = [
        "memfd:doublemapper",
        "work(int)",
        "simple::perf()",
        "schedule_k",
        "ext4.ko_k",
        "operator()(long)",
        "7f1200005000",
        "app",
    ];
    assert_eq!(samples(text), [expected]);
}

#[test]
fn events_with_different_units_are_separate() {
    let profile = perf_script(&[
        ("cpu_core/cycles/u", 700),
        ("cpu_atom/cycles/", 30),
        ("cpu_core/instructions/", 5),
        ("cpu/event=0x3c,umask=0x1/", 2),
    ]);
    let names: Vec<&str> = columns(&profile).iter().map(|column| column.0).collect();
    let expected = [
        "samples",
        "cpu_core/cycles",
        "cpu_atom/cycles",
        "cpu_core/instructions",
        "event=0x3c,umask=0x1",
    ];
    assert_eq!(names, expected);
    let clock = perf_script(&[("cpu-clock/call-graph=fp/", 7), ("cpu-clock", 1)]);
    assert_eq!(columns(&clock)[1], ("cpu", "nanoseconds"));
}

#[test]
fn terms_of_an_event_count_unless_they_are_about_sampling() {
    for (events, expected) in [
        (
            &[
                "cpu/cycles,freq=4000/",
                "cpu/cycles,period=1000/u",
                "cycles/call-graph=dwarf/P",
            ][..],
            &["cycles", "cycles:u"][..],
        ),
        // Cycles and operations are different things.
        (
            &["ibs_op//", "ibs_op/cnt_ctl=1/", "ibs_op/period=9/"],
            &["ibs_op", "ibs_op/cnt_ctl=1"],
        ),
        (
            &["cpu/mem-loads,ldlat=30/P", "cpu/mem-loads,ldlat=3/P"],
            &["mem-loads,ldlat=30", "mem-loads,ldlat=3"],
        ),
        (
            &["mem:0x601040/4:rw:u", "mem:0x601048/4:rw:u", "intel_pt//u"],
            &["mem:0x601040/4:rw", "mem:0x601048/4:rw", "intel_pt"],
        ),
        (
            &["cycles:G", "cycles:HG", "cycles:H"],
            &["cycles:G", "cycles"],
        ),
    ] {
        let samples: Vec<(&str, i64)> = events.iter().map(|&event| (event, 1)).collect();
        let profile = perf_script(&samples);
        let kinds: Vec<&str> = columns(&profile).iter().skip(1).map(|c| c.0).collect();
        assert_eq!(kinds, expected, "{events:?}");
    }
}

#[test]
fn a_dummy_event_is_not_the_one_shown() {
    let profile = perf_script(&[("dummy:HG", 1), ("cpu_atom/cycles/P", 70)]);
    assert_eq!(columns(&profile)[profile.default_type].0, "cpu_atom/cycles");
}

/// `perf record -e 'syscalls:*'` records hundreds of events.
#[test]
fn events_beyond_the_columns_are_counted_together() {
    let names: Vec<String> = (0..40).map(|n| format!("sched:event_{n}")).collect();
    let events: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 7)).collect();
    let profile = perf_script(&events);
    let columns = columns(&profile);
    assert_eq!(columns.len(), 1 + 16 + 1);
    assert_eq!(
        (columns[16].0, columns[17]),
        ("sched:event_15", ("other-events", "count"))
    );
    assert_eq!(
        (profile.total(0), profile.total(16), profile.total(17)),
        (40, 7, 24)
    );
}

#[test]
fn kernel_frames_are_recognised_by_address() {
    let profile = perf_script(&[("cpu-clock", 1)]);
    let frames = profile.stacks.get(0).iter();
    let kernel: Vec<bool> = frames
        .map(|&f| profile.is_kernel_location(&profile.locations[f as usize]))
        .collect();
    assert_eq!(kernel, [true, false, false]);
}

#[test]
fn merging_joins_equal_stacks_wherever_the_program_was_loaded() {
    let a = heap(0x40_0000, &[(0x10, 100.0), (0x20, 200.0)]);
    let b = heap(0x7f00_0000, &[(0x10, 1000.0), (0x30, 3000.0)]);
    let sum = merge(&[a.clone(), b.clone()]).unwrap();
    assert_eq!(sum.stacks.len(), 3);
    assert_eq!(sum.mappings.len(), 1);
    assert_eq!(sum.values_of(0), [2, 1100, 2, 1100]);
    assert_eq!(sum.details[0].alloc_samples, 2);
    let difference = subtract(from_ref(&a), from_ref(&b), Base::Difference).unwrap();
    assert_eq!(difference.values_of(0), [0, -900, 0, -900]);
    assert_eq!(difference.total(3), 300 - 4000);
    let comparison = subtract(&[a], &[b], Base::Comparison).unwrap();
    assert_eq!(comparison.stacks.len(), 4);
    assert_eq!(comparison.labels[0].key, BASE_LABEL);
}

#[test]
fn profiles_without_common_values_do_not_merge() {
    let folded = read(b"main;a 3\n", "x.folded").unwrap();
    let error = merge(&[heap(0x40_0000, &[]), folded])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("inuse_space") && error.contains("samples"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn any_bytes_give_a_profile_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes, "x");
    }

    #[test]
    fn mangled_protobuf_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)
    ) {
        let mut packed = encoded(&heap(0x40_0000, &[(0x10, 100.0), (0x20, 200.0)]));
        let mut bytes = Vec::new();
        let mut unpack = flate2::read::GzDecoder::new(&packed[..]);
        std::io::Read::read_to_end(&mut unpack, &mut bytes).unwrap();
        packed.clear();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read(&bytes, "x.pb");
    }
}
