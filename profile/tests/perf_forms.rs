//! Forms of `perf script` with names that look like other fields, and with lines that are no
//! samples. Written as perf 4 to 6 print them; `tests/tests/perf_forms.rs` has perf print others.

use profile::{Format, Profile, read};

fn perf(text: &str) -> Profile {
    let profile = read(text.as_bytes(), "perf.txt").unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(profile.format, Format::PerfScript, "{text}");
    profile
}

/// Names of each sample's frames, innermost first, the command last.
fn samples(text: &str) -> Vec<Vec<String>> {
    let profile = perf(text);
    let name = |&frame: &u32| {
        let line = profile.locations[frame as usize].first_line as usize;
        profile.functions[profile.lines[line].function as usize]
            .name
            .clone()
    };
    (0..profile.stacks.len())
        .map(|index| profile.stacks.get(index).iter().map(name).collect())
        .collect()
}

/// Returns the total of each column but the number of samples, by its name.
fn totals(profile: &Profile) -> Vec<(String, i64)> {
    let types = profile.sample_types.iter().enumerate().skip(1);
    types
        .map(|(column, kind)| (kind.kind.clone(), profile.total(column)))
        .collect()
}

const CHAIN: &str =
    "\t            1151 work+0x18 (/opt/spin)\n\t            1160 main (/opt/spin)\n";

/// Names of threads, which any program may set to anything.
const COMMANDS: [&str; 19] = [
    "Worker 3",
    "a b: [x] 12/3",
    "foo: bar",
    "x:",
    "C1: 2",
    "nginx: master",
    "a: 12 b",
    "a/b:c:",
    "cycles:u",
    "kworker/0:1-ev",
    "(sd-pam)",
    ":1234",
    "12",
    "12 34",
    "[a]",
    "Thread (pooled)",
    "ip 401000",
    "D=1;x",
    "\u{e9}\u{65e5}\u{672c}",
];

#[test]
fn names_of_threads_are_no_other_fields() {
    for command in COMMANDS {
        for fields in [
            "7 [001] 3.5: 1000 cycles:u: ",
            "10729 [001] 26703.5: 1000 cycles:u: ",
            "10729 26703.5: 1000 cycles:u: ",
            "10729 1000 cycles:u: ",
            "7/8 [001] 3.5: 1000 cycles:u: ",
            "7 3.5: 1000 cycles:u: ",
            "7 1000 cycles:u: ",
            "[001] 3.5: 1000 cycles:u: ",
        ] {
            // Without a process ID, a number at the end of a name looks like one.
            if fields.starts_with('[') && command.ends_with(|c: char| c.is_ascii_digit()) {
                continue;
            }
            let text = format!("{command} {fields}\n{CHAIN}\n").repeat(2);
            assert_eq!(samples(&text), [["work", "main", command]; 2], "{text}");
            let expected = [("cycles".to_owned(), 2000)];
            assert_eq!(totals(&perf(&text)), expected, "{text}");
        }
        let flat = "7 [001] 3.5: 1000 cycles:u:      55d0c8e1a1d0 work+0x1 (/opt/spin)";
        let text = format!("{command:>16} {flat}\n").repeat(2);
        assert_eq!(samples(&text), [["work", command]; 2], "{text}");
        let record = format!("{command} 7 3.4: PERF_RECORD_COMM: {command}:7/7\n");
        let text = format!("{record}{command} 7 3.5: 1000 cycles:u: \n{CHAIN}\n");
        assert_eq!(samples(&text), [["work", "main", command]], "{text}");
    }
}

/// Arguments of tracepoints, among them the names of threads.
const TRACEPOINTS: [&str; 11] = [
    "sched:sched_switch: prev_comm=a: b prev_pid=7 ==> next_comm=x next_pid=0",
    "syscalls:sys_enter_openat: dfd: 0xffffff9c, filename: 0x7f1234567890, flags: 0x0",
    "raw_syscalls:sys_enter: NR 1 (1, 7ffe12345678, 12, 0, 0, 0)",
    "block:block_rq_issue: 8,0 W 4096 () 12345 + 8 [kworker/0:1]",
    "printk:console: [   12.345678] foo: bar",
    "lock:contention_begin: 0xffff888100000000 (flags=SPIN)",
    "sdt_libc:memory_heap_new: (7f1234567890) arg1=0",
    "probe_app:work__return: (401000 <- 401020) ret=0x0",
    "net:netif_rx: dev=eth0 skbaddr=0xffff888 len=52 name=(/x)",
    "task:task_rename: pid=7 oldcomm=a newcomm=x: 12 1.5: oom_score_adj=0",
    "evil:print: a 12 [000] 1.5: cycles:",
];

#[test]
fn arguments_of_tracepoints_are_no_fields() {
    for tracepoint in TRACEPOINTS {
        let (event, arguments) = tracepoint.split_once(": ").unwrap();
        for fields in ["7 [001] 3.5:", "7 [001] 3.5:          1"] {
            let line = format!("            spin {fields} {tracepoint}\n");
            assert_eq!(samples(&line.repeat(2)), [["spin"]; 2], "{line}");
            let chained = format!("spin {fields} {tracepoint}\n{CHAIN}\n").repeat(2);
            assert_eq!(samples(&chained), [["work", "main", "spin"]; 2], "{line}");
        }
        let without_event = format!("            spin 7 [001] 3.5: {arguments}\n").repeat(2);
        assert_eq!(samples(&without_event), [["spin"]; 2], "{without_event}");
        // The event is all that is known.
        let alone = format!("3.5: {tracepoint}\n").repeat(2);
        assert_eq!(samples(&alone), [[event]; 2], "{alone}");
    }
}

#[test]
fn samples_without_addresses_are_counted() {
    for (line, expected) in [
        ("            spin 7 3.5:       1000 cycles:u: ", "spin"),
        ("            spin 7 3.5: ", "spin"),
        ("3.5: cycles:u: ", "cycles:u"),
        (" ffffffff8139be59 do_it", "do_it"),
        ("10713          1  ffffffff8139be59 do_it", "do_it"),
        (
            "    spin 10713   0 3.5:      sched:sched_exit: pid=10713",
            "spin",
        ),
    ] {
        let text = format!("{line}\n").repeat(2);
        assert_eq!(samples(&text), [[expected]; 2], "{text}");
    }
}

/// Lines of other fields, of errors and of statistics.
#[test]
fn lines_that_are_no_samples_are_skipped() {
    let error = " instruction trace error type 1 time 18.6 cpu 1 pid 7 tid 7 ip 0x7f1234567890 \
                 code 5: Failed to get instruction\n";
    let dump: String = (0..64)
        .map(|row| {
            format!(
                "                  {:04x}: 74 21 00 00 00 00 00 00  t!......\n",
                row * 8
            )
        })
        .collect();
    let bpf = format!(
        "      BPF output: {}      BPF string: \"x\"\n",
        dump.trim_start()
    );
    for other in [
        error,
        &bpf,
        "            spin 7 [001] 3.5:        metric:        0.59  insn per cycle\n",
        "\n\tmain+16:\n\t0000000000401000\tpushq  %rbp\n\t0000000000401001\tcallq  0x401020 \t# PRED\n\
         \twork:\n\t0000000000401020\tretq \t# MISPRED 1 cycles\n\tffffffff81000010\tmovq (%rax), %rbx\n",
    ] {
        let sample = format!("spin 7 [001] 3.5: 10 cycles: \n{CHAIN}");
        let text = format!("{sample}{other}\n").repeat(2);
        assert_eq!(samples(&text), [["work", "main", "spin"]; 2], "{text}");
        let flat = "spin 7 [001] 3.5: 10 cycles:      401000 work+0x18 (/opt/spin)\n";
        let text = format!("{flat}{other}").repeat(2);
        assert_eq!(samples(&text), [["work", "spin"]; 2], "{text}");
        assert_eq!(totals(&perf(&text)), [("cycles".to_owned(), 20)]);
    }
    let first = format!("{error}spin 7 [001] 3.5: 10 cycles: \n{CHAIN}\n");
    assert_eq!(samples(&first), [["work", "main", "spin"]]);
}

#[test]
fn traces_of_the_processor_have_frames_at_unknown_places() {
    for (fields, expected) in [
        (
            "branches:uH:   tr strt             0 [unknown] ([unknown]) =>     7f1234567890 f (/x)",
            "[unknown]",
        ),
        (
            "branches:uH:   tr end  syscall         7f1234567890 write+0x10 (/lib/c) =>   0 [unknown] ([unknown])",
            "write",
        ),
        (
            "cbr:  cbr: 24 freq: 2405 MHz (156%)                0 [unknown] ([unknown])",
            "[unknown]",
        ),
        (
            "ptwrite:  IP: 0 payload: 0x123456789abcdef0      401000 work+0x18 (/opt/spin)",
            "work",
        ),
        (
            "instructions:uH:      401000 work+0x18 (/opt/spin)\t IPC: 0.81 (36/44) ",
            "work",
        ),
    ] {
        let text = format!("            spin 7 [001] 3.5: 1 {fields}\n").repeat(2);
        assert_eq!(samples(&text), [[expected, "spin"]; 2], "{text}");
    }
}

/// `-F +machine_pid,+vcpu` of a guest.
#[test]
fn guests_are_no_part_of_the_command() {
    for guest in ["VM: 13376 VCPU:003 ", "VM:13376 VCPU:003 ", "VM:13376 "] {
        let text = format!("{guest}spin 7 [001] 3.5: 1000 cycles:u: \n{CHAIN}\n").repeat(2);
        assert_eq!(samples(&text), [["work", "main", "spin"]; 2], "{text}");
    }
}

/// Of several events, the one of the processor's time is shown, whichever is printed first.
#[test]
fn the_event_of_time_is_shown_first() {
    for (events, expected) in [
        (&[("page-faults", 1), ("cpu-clock:u", 900)][..], "cpu-clock"),
        (&[("instructions", 5000), ("cycles:P", 900)], "cycles"),
        (
            &[("cpu_atom/cycles/", 3), ("cpu_core/cycles/", 900)],
            "cpu_core/cycles",
        ),
        (
            &[
                ("sched:sched_exec", 1),
                ("sched:sched_wakeup", 1),
                ("sched:sched_wakeup", 1),
            ],
            "sched:sched_wakeup",
        ),
        (
            &[("dummy:HG", 1), ("dummy:HG", 1), ("page-faults", 1)],
            "page-faults",
        ),
    ] {
        let text: String = events
            .iter()
            .map(|(event, period)| format!("spin 7 3.5: {period:>10} {event}: \n{CHAIN}\n"))
            .collect();
        let profile = perf(&text);
        let shown = &profile.sample_types[profile.default_type].kind;
        assert_eq!(shown, expected, "{events:?}");
    }
}
