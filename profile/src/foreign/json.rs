//! Kinds of JSON, recognised by their keys.

use super::{Words, words};

/// Kinds of JSON, the most specific first.
const JSON: [Words; 25] = [
    words(
        &[b"speedscope.app"],
        "is a profile for speedscope (JSON); mem_parser reads what py-spy -f raw and rbspy \
         -f collapsed write",
    ),
    words(
        &[b"\"snapshot\"", b"\"node_fields\""],
        "is a heap snapshot of V8 (JSON), which Chrome's DevTools open. For native memory: \
         mem_profiler run -- node --perf-basic-prof PROGRAM",
    ),
    words(
        &[b"\"head\"", b"\"callUID\""],
        "is a .cpuprofile of an old V8, which Chrome's DevTools open; from here: what node \
         --cpu-prof writes, or mem_profiler cpu run -- node",
    ),
    words(
        &[b"\"shared\"", b"\"frames\"", b"\"profiles\""],
        "is a profile for speedscope (JSON); mem_parser reads what py-spy -f raw and rbspy \
         -f collapsed write",
    ),
    words(
        &[b"\"total_samples\"", b"\"frames\""],
        "is a profile of stackprof (JSON); stackprof --stackcollapse writes folded stacks, which are \
         read here",
    ),
    words(
        &[b"\"alloc_samples\"", b"\"elapsed_time_sec\""],
        "is a profile of Scalene (JSON); to profile Python here: mem_profiler run -- python3 PROGRAM",
    ),
    words(
        &[b"\"main()\"", b"\"ct\"", b"\"wt\""],
        "is a profile of PHP's xhprof (JSON): pairs of functions without stacks. From here: \
         mem_profiler cpu run -- php PROGRAM",
    ),
    words(
        &[b"\"jemalloc\"", b"\"version\""],
        "is jemalloc's statistics (JSON), not a heap profile: those are written with \
         MALLOC_CONF=prof:true,prof_final:true",
    ),
    words(
        &[b"\"linux-perf-json-version\""],
        "is a recording that perf converted to JSON; the stacks are in what perf script prints: \
         perf script | mem_parser -",
    ),
    words(
        &[b"\"counter-value\""],
        "is what perf stat prints: counts without stacks; those are in what perf record and perf \
         script print",
    ),
    words(
        &[
            b"\"total_num_allocations\"",
            b"\"allocator_type_distribution\"",
        ],
        "is memray's statistics (JSON), not a profile; to profile Python here: mem_profiler run -- \
         python3 PROGRAM",
    ),
    words(
        &[b"\"costs\"", b"\"functions\""],
        "is a call graph for gprof2dot (JSON), not a profile; give the profile that it was made \
         from",
    ),
    words(
        &[b"\"root_frame\""],
        "is a profile of pyinstrument (JSON); to profile Python here: mem_profiler cpu run -- \
         python3 PROGRAM",
    ),
    words(
        &[b"\"frame_tree\""],
        "is a session of pyinstrument (JSON); to profile Python here: mem_profiler cpu run -- \
         python3 PROGRAM",
    ),
    words(
        &[b"\"attached_probes\""],
        "is what bpftrace -f json prints; without -f json, stackcollapse-bpftrace.pl turns its \
         stacks into folded ones, which are read here",
    ),
    words(
        &[b"\"recording\"", b"\"jdk."],
        "is what jfr print --json shows of a recording; fold its stacks: jfrconv --alloc -o \
         collapsed RECORDING out.folded (--cpu: time)",
    ),
    words(
        &[b"\"traceEvents\""],
        "is a trace for Chrome (JSON), which https://ui.perfetto.dev opens; of V8, .cpuprofile and \
         .heapprofile are read here",
    ),
    words(
        &[b"\"ph\"", b"\"ts\""],
        "is a trace for Chrome (JSON), which https://ui.perfetto.dev opens; of V8, .cpuprofile and \
         .heapprofile are read here",
    ),
    words(
        &[b"\"dhatFileVersion\""],
        "is a profile of DHAT (JSON), which Valgrind's dh_view.html opens",
    ),
    words(
        &[b"\"preprocessedProfileVersion\""],
        "is a profile for Firefox's profiler (JSON), which https://profiler.firefox.com opens; it \
         also reads what mem_parser --proto writes",
    ),
    words(
        &[b"\"meta\"", b"\"threads\""],
        "is a profile for Firefox's profiler (JSON), which https://profiler.firefox.com opens; it \
         also reads what mem_parser --proto writes",
    ),
    words(
        &[b"\"flamebearer\""],
        "is a flame graph of Pyroscope (JSON); download the profile as pprof instead",
    ),
    words(
        &[b"\"resourceProfiles\""],
        "is a profile of OpenTelemetry (JSON), which is not read here; export it as pprof",
    ),
    words(
        &[b"\"children\"", b"\"value\""],
        "is a flame graph (JSON), not a profile; give the profile that it was made from",
    ),
    words(
        &[],
        "is JSON of a kind that is not read here; profiles are read as pprof (.pb.gz) or as folded \
         stacks",
    ),
];

/// Returns advice for JSON.
pub(super) fn advice(text: &[u8]) -> Option<&'static str> {
    let is_json = match text {
        [b'{', rest @ ..] => rest
            .trim_ascii_start()
            .first()
            .is_none_or(|c| b"\"}".contains(c)),
        [b'[', rest @ ..] => rest
            .trim_ascii_start()
            .first()
            .is_none_or(|c| b"{]\"[".contains(c)),
        _ => false,
    };
    if !is_json {
        return None;
    }
    let occurs = |word: &[u8]| memchr::memmem::find(text, word).is_some();
    let found = JSON
        .iter()
        .find(|kind| kind.all.iter().all(|word| occurs(word)));
    found.map(|kind| kind.advice)
}
