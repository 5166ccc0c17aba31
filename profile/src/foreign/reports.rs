//! Reports that other tools print for people, which are recognised by words in them.

use super::{Words, words};

const STACKCOLLAPSE: &str = "is what dtrace prints; turn it into folded stacks: stackcollapse.pl {FILE} \
                             > out.folded; mem_parser out.folded";
const GDB: &str = "is what gdb prints; turn it into folded stacks: stackcollapse-gdb.pl {FILE} > \
                   out.folded; mem_parser out.folded";
const PYTHON_TIME: &str = "is a table for people, not a profile; to profile Python here: mem_profiler cpu \
                           run -- python3 PROGRAM";

/// Kinds of reports.
pub(super) const REPORTS: [Words; 21] = [
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
        &[b"Summary of events:"],
        "is what perf trace prints: system calls without stacks; those are in what perf record and \
         perf script print",
    ),
];
