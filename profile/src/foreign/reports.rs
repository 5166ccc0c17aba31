//! Reports that other tools print for people, which are recognised by words in them.

use super::{Words, words};

const STACKCOLLAPSE: &str = "is what dtrace prints; turn it into folded stacks: stackcollapse.pl {FILE} \
                             > out.folded; mem_parser out.folded";
const GDB: &str = "is what gdb prints; turn it into folded stacks: stackcollapse-gdb.pl {FILE} > \
                   out.folded; mem_parser out.folded";
const PYTHON_TIME: &str = "is a table for people, not a profile; to profile Python here: mem_profiler cpu \
                           run -- python3 PROGRAM";

const PERF_TABLE: &str = "is a table that perf made of a recording; the stacks are in what perf script prints: \
                          perf script | mem_parser -";

/// Advice for [`is_stackcount`].
pub(super) const STACKCOUNT: &str = "is what bcc's stackcount or offcputime prints for people; offcputime -f prints folded \
     stacks; for stackcount: stackcollapse.pl {FILE} > out.folded; mem_parser out.folded";

/// Kinds of reports.
pub(super) const REPORTS: [Words; 30] = [
    words(
        &[b"raw event: size "],
        "is a recording as perf script -D dumps it; without -D, it prints the stacks: perf script \
         | mem_parser -",
    ),
    words(
        &[b"Performance counter stats for"],
        "is what perf stat prints: counts without stacks; those are in what perf record and perf \
         script print",
    ),
    words(
        &[b"# started on "],
        "is what perf stat prints: counts without stacks; those are in what perf record and perf \
         script print",
    ),
    words(
        &[b"Massif arguments:"],
        "is a table that ms_print made of a profile of Valgrind's massif; to profile the program \
         here: mem_profiler run -- PROGRAM",
    ),
    words(
        &[b"\nmem_heap_B="],
        "is a profile of Valgrind's massif, which ms_print shows: ms_print {FILE}; to profile the \
         program here: mem_profiler run -- PROGRAM",
    ),
    words(
        &[b"Profile data file '"],
        "is a table that callgrind_annotate made; to profile the program here: mem_profiler cpu \
         run -- PROGRAM",
    ),
    words(
        &[b"Debuggee command was:"],
        "is a table that heaptrack_print made; folded stacks are read here: heaptrack_print -f \
         RECORDING -F out.folded; mem_parser out.folded",
    ),
    words(
        &[b"Total allocations:", b"Histogram of allocation size"],
        "is memray's statistics, not a profile; to profile Python here: mem_profiler run -- python3 \
         PROGRAM",
    ),
    words(&[b" function calls", b"Ordered by:"], PYTHON_TIME),
    words(&[b"ncalls  tottime"], PYTHON_TIME),
    words(&[b"Recorded: ", b"Samples: ", b"CPU time:"], PYTHON_TIME),
    words(
        &[b" stacks with outstanding allocations:"],
        "is what bcc's memleak prints, not a profile; to find leaks here: mem_profiler leaks -p PID",
    ),
    words(
        &[b"Sampling at ", b" Hertz of "],
        "is what bcc's profile prints for people; with -f it prints folded stacks, which are read \
         here",
    ),
    words(&[b"dtrace: description "], STACKCOLLAPSE),
    words(&[b"FUNCTION:NAME"], STACKCOLLAPSE),
    words(&[b"Thread ", b" (LWP ", b"#0  "], GDB),
    words(
        &[b"Full thread dump "],
        "is a thread dump of Java; turn it into folded stacks: stackcollapse-jstack.pl {FILE} > \
         out.folded; mem_parser out.folded",
    ),
    words(
        &[b"Process ", b"\nPython v"],
        "is what py-spy dump prints: one stack of each thread; py-spy record -f raw writes folded \
         stacks, which are read here",
    ),
    words(
        &[b"usecs/call"],
        "is strace's table of system calls, not a profile; to profile the program here: \
         mem_profiler cpu run -- PROGRAM",
    ),
    words(
        &[b"Avg delay ms"],
        "is what perf sched prints; stacks are in what perf script prints: perf script | mem_parser -",
    ),
    words(
        &[b": count ", b" distribution"],
        "is a histogram of numbers as bcc prints it, without stacks; profile -f and offcputime -f \
         print folded stacks, which are read here",
    ),
    words(&[b"Callsite ", b"Total_alloc/Per"], PERF_TABLE),
    words(&[b"acquired  contended"], PERF_TABLE),
    words(&[b"# PID, TID, IP, ADDR,"], PERF_TABLE),
    words(
        &[b"#instances", b"#bytes"],
        "is a histogram of Java's classes, without stacks; Java Flight Recorder has them: \
         jfrconv --alloc -o collapsed makes folded stacks",
    ),
    words(
        &[b"jdk.", b"startTime = "],
        "is what jfr print shows of a recording; make folded stacks of that: jfrconv --alloc -o \
         collapsed RECORDING out.folded (--cpu for time)",
    ),
    words(
        &[b"Total allocations:", b"Total memory allocated:"],
        "is memray's statistics, not a profile; to profile Python here: mem_profiler run -- python3 \
         PROGRAM",
    ),
    words(
        &[b"Cmdline: ", b"Samples of events: "],
        "is what simpleperf report prints; the stacks are in what its report_sample.py prints: \
         report_sample.py -i perf.data | mem_parser -",
    ),
    words(
        &[b"K r----", b"K r-x--"],
        "is what pmap prints: sizes of mappings, not a profile; to profile the process: mem_profiler \
         -p PID",
    ),
    words(
        &[b"Summary of events:"],
        "is what perf trace prints: system calls without stacks; those are in what perf record and \
         perf script print",
    ),
];

/// Returns true for events as the kernel prints them, with flags between processor and time:
/// `bash-123   [000] d..2. 123.456: sched_switch: …`.
pub(super) fn is_ftrace(text: &[u8]) -> bool {
    let is_comment = |line: &[u8]| line.starts_with(b"#") || line.trim_ascii().is_empty();
    if text.starts_with(b"# tracer: ") {
        return true;
    }
    let Some(line) = text.split(|&c| c == b'\n').find(|line| !is_comment(line)) else {
        return false;
    };
    let words: Vec<&[u8]> = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .collect();
    let is_processor = |word: &[u8]| word.starts_with(b"[") && word.ends_with(b"]");
    let is_flags = |word: &[u8]| {
        (4..=6).contains(&word.len())
            && word.contains(&b'.')
            && word.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'.')
            && !word[0].is_ascii_digit()
    };
    words
        .windows(2)
        .any(|pair| is_processor(pair[0]) && is_flags(pair[1]))
}

/// Returns advice for what bpftrace prints: maps by stack, or of numbers.
pub(super) fn bpftrace_advice(text: &[u8]) -> Option<&'static str> {
    let is_name = |name: &[u8]| name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_');
    let map = |line: &'_ [u8]| {
        let name = line.strip_prefix(b"@")?.strip_suffix(b"[")?;
        is_name(name).then_some(name.is_empty())
    };
    let is_end = |line: &[u8]| memchr::memmem::find(line, b"]: ").is_some();
    let mut lines = text.split(|&c| c == b'\n');
    let first = lines.clone().find(|line| !line.trim_ascii().is_empty())?;
    let is_unnamed = lines.find_map(map);
    match is_unnamed.filter(|_| lines.any(is_end)) {
        Some(true) => Some(
            "is a histogram of stacks by bpftrace; turn it into folded stacks: \
             stackcollapse-bpftrace.pl {FILE} > out.folded; mem_parser out.folded",
        ),
        // The script knows maps without a name only.
        Some(false) => Some(
            "is a histogram of stacks by bpftrace; turn it into folded stacks: sed \
             's/^@[a-z0-9_]*\\[/@[/' {FILE} | stackcollapse-bpftrace.pl > out.folded; mem_parser \
             out.folded",
        ),
        None => {
            let is_head = first.starts_with(b"Attaching ") || first.starts_with(b"Attached ");
            let is_head = is_head && memchr::memmem::find(first, b" probe").is_some();
            is_head.then_some(
                "is what bpftrace prints, without stacks; a map by stack has them, @[ustack] = \
                 count(): fold it by stackcollapse-bpftrace.pl",
            )
        }
    }
}

/// Returns true for a stack of names, one a line, with the count below it, indented further, as bcc's
/// tools print it.
pub(super) fn is_stackcount(text: &[u8]) -> bool {
    let mut lines = text.split(|&c| c == b'\n').filter(|line| {
        !line.is_empty() && !line.starts_with(b"Tracing ") && !line.starts_with(b"^C")
    });
    let depth = |line: &[u8]| line.len() - line.trim_ascii_start().len();
    let Some(first) = lines.next() else {
        return false;
    };
    let is_name = |line: &&[u8]| depth(line) == depth(first) && !line.contains(&b'\t');
    let count = lines.find(|line| !is_name(line));
    let is_count = |line: &[u8]| {
        depth(line) > depth(first) && line.trim_ascii().iter().all(u8::is_ascii_digit)
    };
    matches!(depth(first), 2 | 4) && count.is_some_and(is_count)
}

/// Returns true if the first line is a system call as perf trace prints it:
/// `     0.012 ( 0.005 ms): cat/123 read(`.
pub(super) fn is_perf_trace(text: &[u8]) -> bool {
    let line = text.split(|&c| c == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let is_time =
        |word: &[u8]| word.contains(&b'.') && word.iter().all(|c| c.is_ascii_digit() || *c == b'.');
    words.next().is_some_and(is_time)
        && words.next().is_some_and(|word| word.starts_with(b"("))
        && words.any(|word| word == b"ms):")
}
