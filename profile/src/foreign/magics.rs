//! Kinds of files that begin with fixed bytes.

/// A kind of file that is recognised by its first bytes.
pub(super) struct Magic {
    pub(super) start: &'static [u8],
    pub(super) advice: &'static str,
}

const fn magic(start: &'static [u8], advice: &'static str) -> Magic {
    Magic { start, advice }
}

const PERF_DATA: &str = "is a recording of perf, which perf itself turns into text: \
                         perf script -i {FILE} | mem_parser -";
pub(super) const HEAPTRACK: &str = "is a recording of heaptrack; turn it into folded stacks: \
                         heaptrack_print -f {FILE} -F out.folded; mem_parser out.folded";
pub(super) const PERF_REPORT: &str = "is what perf report prints; the stacks are in what perf script prints: \
                           perf script | mem_parser -";
pub(super) const MEMRAY: &str = "is a recording of memray, which only memray reads: memray flamegraph {FILE}; to profile \
                      Python here: mem_profiler run -- python3 PROGRAM";
const LOCKS: &str = "is a profile of locks as text; Go writes it for this program without debug=1, \
                     others: go tool pprof -proto {FILE} > x.pb.gz";
const TABLE: &str = "is a table made from a profile, not a profile; give the profile that it was \
                     made from";
const COVERAGE: &str = "is a record of which code ran, for coverage, not a profile; to profile \
                        the program here: mem_profiler cpu run -- PROGRAM";
const INSTRUMENTS: &str = "is a table that Instruments copied; turn it into folded stacks: \
                           stackcollapse-instruments.pl {FILE} > out.folded; mem_parser out.folded";
const ETW: &str = "is a table of Windows' event traces; export its stacks with PerfView, and fold them: \
                   xperf_to_collapsedstacks.py";
const BACKTRACE: &str = "is one stack of each thread, not a profile; to profile the process: mem_profiler \
                         cpu -p PID";
const ZIP: &str = "is a zip archive; unpack it, and give a profile in it: unzip {FILE}";
pub(super) const TAR: &str =
    "is a tar archive; unpack it, and give a profile in it: tar -xf {FILE}";

/// Kinds of binary files, and of text with a fixed first line.
pub(super) const MAGICS: [Magic; 81] = [
    magic(
        b"gmon\x01",
        "is a recording of gprof, which gprof itself shows: gprof PROGRAM {FILE}; to profile the \
         program here: mem_profiler cpu run -- PROGRAM",
    ),
    magic(b"PERFILE2", PERF_DATA),
    magic(b"adcg", COVERAGE),
    magic(b"gcda", COVERAGE),
    magic(b"\x81rforpl\xff", COVERAGE),
    magic(b"\xffrpforl\x81", COVERAGE),
    magic(b"\xfflprofi\x81", COVERAGE),
    magic(
        b"startup\ttime=",
        "is a profile of Coz, which its viewer shows: coz plot",
    ),
    magic(b"2ELIFREP", PERF_DATA),
    magic(b"PERFFILE", PERF_DATA),
    magic(
        b"SIMPLEPERF",
        "is a recording of simpleperf, which its report_sample.py turns into text: \
         report_sample.py -i {FILE} | mem_parser -",
    ),
    magic(b"memray\0", MEMRAY),
    magic(
        b"FLR\0",
        "is a recording of Java's Flight Recorder; make folded stacks: jfrconv --alloc -o collapsed \
         {FILE} out.folded (--cpu for time)",
    ),
    magic(
        b"JAVA PROFILE 1.0",
        "is a heap dump of Java (hprof): objects, but not where they were allocated; Eclipse MAT \
         opens it",
    ),
    magic(
        b"Nettrace",
        "is a trace of .NET, which dotnet-trace shows: dotnet-trace report {FILE} topN",
    ),
    magic(
        b"go 1.",
        "is an execution trace of Go, which Go itself shows: go tool trace {FILE}; a heap profile \
         is at /debug/pprof/heap",
    ),
    magic(
        b"goroutine profile:",
        "is a list of goroutines as text; the same without debug=1 is read here",
    ),
    magic(
        b"desc: I1 cache",
        "is a profile of cachegrind, which cg_annotate shows: cg_annotate {FILE}",
    ),
    magic(
        b"desc:",
        "is a profile of Valgrind's massif, which ms_print shows: ms_print {FILE}; to profile the \
         program here: mem_profiler run -- PROGRAM",
    ),
    magic(
        b"--- Execution profile ---",
        "is a summary of async-profiler; request folded stacks: -o collapsed",
    ),
    magic(
        b"___ Begin jemalloc statistics ___",
        "is jemalloc's statistics, not a heap profile: those are written with \
         MALLOC_CONF=prof:true,prof_final:true",
    ),
    magic(
        b"allocator,num_allocations,",
        "is a table of memray, not a profile; to profile Python here: mem_profiler run -- python3 \
         PROGRAM",
    ),
    magic(b"Weight\tSelf Weight", INSTRUMENTS),
    magic(
        b"JOB \"",
        "is a heap profile of GHC, which hp2ps shows: hp2ps -c {FILE}",
    ),
    magic(
        b"MOJO",
        "is a recording of Austin; turn it into folded stacks: mojo2austin {FILE} out.folded; \
         mem_parser out.folded",
    ),
    magic(
        b"*version\n",
        "is a trace of Android's method profiler, which Android Studio opens; use simpleperf and its \
         report_sample.py",
    ),
    magic(
        b"SLOW\x03\0",
        "is a trace of Android's method profiler, which Android Studio opens; use simpleperf and its \
         report_sample.py",
    ),
    magic(
        b"sample:\n  event_type:",
        "is what simpleperf report-sample prints; use its script: report_sample.py -i perf.data | \
         mem_parser -",
    ),
    magic(
        b"\x14\0\0\0!FastSerialization",
        "is a heap dump of .NET (gcdump), which dotnet-gcdump shows: dotnet-gcdump report {FILE}",
    ),
    magic(
        b"MDMP",
        "is a minidump, without allocations: a debugger opens it; to profile a running program: \
         mem_profiler -p PID",
    ),
    magic(
        b"Ftrace!\0",
        "is a file of uftrace, which itself makes folded stacks: uftrace dump --flame-graph > out.folded; \
         mem_parser out.folded",
    ),
    magic(
        b"tracy\0",
        "is a trace of Tracy, which its own viewer opens; samples of CPU time are taken here with: \
         mem_profiler cpu -p PID",
    ),
    magic(
        b"\xc1\x1f\xfc\xc1",
        "is a trace of LTTng (CTF), which babeltrace2 prints; samples of CPU time are taken here with: \
         mem_profiler cpu -p PID",
    ),
    magic(
        b"\x04\x08{",
        "is a profile of Ruby's stackprof, which itself makes folded stacks: stackprof --stackcollapse \
         {FILE} > out.folded; mem_parser out.folded",
    ),
    magic(
        b"Function Stack,",
        "is a table of VTune; turn it into folded stacks: inferno-collapse-vtune {FILE} > out.folded; \
         mem_parser out.folded",
    ),
    magic(
        b"Level,Function Name,",
        "is a table of Visual Studio's profiler; turn it into folded stacks: inferno-collapse-vsprof {FILE} \
         > out.folded; mem_parser out.folded",
    ),
    magic(b"OS Version: ", ETW),
    magic(b"Line #,", ETW),
    magic(b"Running Time", INSTRUMENTS),
    magic(b"Bytes Used", INSTRUMENTS),
    magic(b"\"Weight\",", INSTRUMENTS),
    magic(b"PID ", BACKTRACE),
    magic(b"Thread 1 (", BACKTRACE),
    magic(
        b"Arena 0:\n",
        "is what glibc's malloc_stats prints, not a heap profile; to profile the program here: \
         mem_profiler -p PID",
    ),
    magic(
        b"heap stats: ",
        "is mimalloc's statistics, not a heap profile; to profile the program here: mem_profiler -p PID",
    ),
    magic(
        b"Analysis of sampling ",
        "is what sample prints on macOS; turn it into folded stacks: stackcollapse-sample.awk {FILE} \
         > out.folded; mem_parser out.folded",
    ),
    magic(b"--- contention", LOCKS),
    magic(b"--- mutex", LOCKS),
    magic(
        b"threadcreate profile:",
        "is a list of threads as text; the same without debug=1 is read here",
    ),
    magic(
        b"--- heapz ",
        "is a heap profile of Java with names as text; jfrconv -o collapsed makes folded stacks of \
         recordings of Java's Flight Recorder",
    ),
    magic(
        b"--- threadz ",
        "is a list of threads, not a profile; to profile a process: mem_profiler cpu -p PID",
    ),
    magic(
        b"goroutine ",
        "is a list of goroutines as text; a heap profile is at /debug/pprof/heap",
    ),
    magic(
        b"goos: ",
        "is what go test prints; its profiles come with -memprofile FILE and -cpuprofile FILE",
    ),
    magic(b"File: ", TABLE),
    magic(b"Total: ", TABLE),
    magic(b"Type: ", TABLE),
    magic(b"function,flat (", TABLE),
    magic(
        b"PeriodType: ",
        "is a profile as pprof -raw prints it, which nothing reads; give the profile that it was \
         made from",
    ),
    magic(
        b"{\"version\":1,\"program\":",
        "is what mem_parser --json wrote, which it does not read; give the dump that it was made \
         from",
    ),
    magic(
        b"MemTotal: ",
        "is a table of the machine's memory (/proc/meminfo), not a profile; mem_profiler list shows \
         processes",
    ),
    magic(
        b"v8-version,",
        "is a log of V8's profiler, which node itself shows: node --prof-process {FILE}",
    ),
    magic(
        b"= Start",
        "is a log of glibc's mtrace, which mtrace shows: mtrace PROGRAM {FILE}; to find leaks here: \
         mem_profiler run --leak-check -- PROGRAM",
    ),
    magic(
        b"CMDLINE ",
        "is a recording of Python's memory_profiler, which mprof shows: mprof plot {FILE}",
    ),
    magic(
        b" Performance counter stats for",
        "is what perf stat prints: counts without stacks; those are in what perf record and perf \
         script print",
    ),
    magic(
        b" Percent |",
        "is what perf annotate prints; the stacks are in what perf script prints: perf script | \
         mem_parser -",
    ),
    magic(
        b"digraph ",
        "is a call graph (DOT), not a profile; draw it with dot -Tsvg {FILE}, or give the profile \
         that it was made from",
    ),
    magic(
        b"rbspy",
        "is rbspy's raw format; rbspy turns it into folded stacks: rbspy report -f collapsed -i \
         {FILE} -o out.folded",
    ),
    magic(b"PK\x03\x04", ZIP),
    magic(b"PK\x05\x06", ZIP),
    magic(
        b"\xfd7zXZ\0",
        "is compressed with xz; unpack it first: xz -dc {FILE} | mem_parser -",
    ),
    magic(
        b"BZh",
        "is compressed with bzip2; unpack it first: bzip2 -dc {FILE} | mem_parser -",
    ),
    magic(
        b"\x04\x22\x4d\x18",
        "is compressed with lz4; unpack it first: lz4 -dc {FILE} | mem_parser -",
    ),
    magic(
        b"\x1f\x9d",
        "is compressed with compress; unpack it first: zcat {FILE} | mem_parser -",
    ),
    magic(
        b"7z\xbc\xaf\x27\x1c",
        "is a 7z archive; unpack it, and give a profile in it: 7z x {FILE}",
    ),
    magic(
        b"\x89PNG",
        "is a picture (PNG), not a profile; give the profile that it was made from",
    ),
    magic(
        b"%PDF-",
        "is a document (PDF), not a profile; give the profile that it was made from",
    ),
    magic(
        b"!<arch>\n",
        "is a static library, not a profile; name the program with -p, and the dump with -f",
    ),
    magic(
        b"SQLite format 3\0",
        "is an SQLite database, not a profile; export the profile from the program that wrote it",
    ),
    magic(b"# To display the perf.data header info", PERF_REPORT),
    magic(b"# Total Lost Samples", PERF_REPORT),
    magic(
        b"#!",
        "is a script, not a profile; to profile it: mem_profiler run -- {FILE}",
    ),
];
