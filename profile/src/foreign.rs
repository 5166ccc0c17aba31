//! Recognises files that are not profiles in a supported format, and advises what to do with them.

mod json;
mod magics;
mod reports;

use self::magics::{HEAPTRACK, MAGICS, MEMRAY, PERF_REPORT, TAR};
use self::reports::{
    REPORTS, STACKCOUNT, bpftrace_advice, is_ftrace, is_perf_trace, is_stackcount,
};
use crate::error::Fault;
use crate::kind;

/// Placeholder for the file's name in advice.
const FILE: &str = "{FILE}";

/// Fills the file's name into advice. Standard input is called `-`, as in a command.
pub(crate) fn with_name(advice: &str, name: &str) -> String {
    let shown = if name == crate::STANDARD_INPUT {
        "-"
    } else {
        name
    };
    advice.replace(FILE, shown)
}

/// Fills the name of a compressed file into advice on its contents. Few programs read compressed
/// files, so commands name the decompressed file, and the user has to unpack it first.
pub(crate) fn with_packed_name(advice: &str, name: &str) -> String {
    let suffix = [".gz", ".zst", ".tgz", ".zstd"]
        .iter()
        .find(|suffix| name.ends_with(**suffix));
    let is_piped = name == crate::STANDARD_INPUT;
    if advice == HEAPTRACK || advice == TAR || !advice.contains(FILE) || is_piped {
        return with_name(advice, name);
    }
    match suffix {
        Some(suffix) => {
            let unpack = if suffix.starts_with(".z") {
                "zstd -dk"
            } else {
                "gzip -dk"
            };
            let inner = name.strip_suffix(suffix).unwrap_or(name);
            format!("{}, after {unpack} {name}", advice.replace(FILE, inner))
        }
        None => format!("{}, once it is unpacked", advice.replace(FILE, name)),
    }
}

/// A kind of text that is recognised by words near its start.
struct Words {
    /// Words that must all occur.
    all: &'static [&'static [u8]],
    advice: &'static str,
}

const fn words(all: &'static [&'static [u8]], advice: &'static str) -> Words {
    Words { all, advice }
}

/// Returns advice for a file of another kind that starts like this: what it is, and what to do with
/// it. Returns `None` for what may be a profile.
pub(crate) fn recognise(start: &[u8]) -> Option<Fault> {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let text = text.trim_ascii_start();
    let known = MAGICS.iter().find(|magic| start.starts_with(magic.start));
    let known = known
        .map(|magic| magic.advice)
        .filter(|_| !is_folded(start));
    let advice = known
        .map(|advice| if is_memray(start) { MEMRAY } else { advice })
        .or_else(|| elf_advice(start))
        .or_else(|| json::advice(text))
        .or_else(|| markup_advice(text))
        .or_else(|| callgrind_advice(start))
        .or_else(|| report_advice(text))
        .or_else(|| is_stackcount(start).then_some(STACKCOUNT))
        .or_else(|| python_object_advice(start))
        .or_else(|| is_heaptrack(start).then_some(HEAPTRACK))
        .or_else(|| is_bytehound(start).then_some(BYTEHOUND))
        .or_else(|| (start.get(257..262) == Some(b"ustar")).then_some(TAR))
        .or_else(|| is_maps(text).then_some(MAPS))
        .or_else(|| has_carriage_returns(start).then_some(CARRIAGE_RETURNS))
        .or_else(|| is_utf_16(start).then_some(UTF_16))?;
    Some(Fault::Foreign(advice))
}

/// Returns the fault for a file of unknown kind.
pub(crate) fn unknown_kind(start: &[u8]) -> Fault {
    if let Some(fault) = missing_count(start) {
        return fault;
    }
    let shown: String = String::from_utf8_lossy(start).chars().take(24).collect();
    Fault::whole(format!(
        "is not a profile: it begins with {shown:?}; heap dumps, pprof's profiles, folded stacks and \
         perf script's text are read"
    ))
}

/// Returns the fault if the first line looks like a folded stack without a count at its end.
fn missing_count(start: &[u8]) -> Option<Fault> {
    let is_comment = |line: &[u8]| line.starts_with(b"#") || line.trim_ascii().is_empty();
    let line = start
        .split(|&c| c == b'\n')
        .find(|line| !is_comment(line))?;
    let text = std::str::from_utf8(line).ok()?.trim();
    let is_stack = text.contains(';') && !text.ends_with([';', '{', '}']) && !text.contains('\0');
    if !is_stack {
        return None;
    }
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_digit());
    if text
        .split_once(' ')
        .is_some_and(|(first, _)| is_number(first))
    {
        return Some(Fault::Foreign(COUNTS_FIRST));
    }
    let word = text.rsplit([' ', '\t', ';']).next()?;
    let is_grouped = word.starts_with(|c: char| c.is_ascii_digit())
        && word
            .chars()
            .all(|c| c.is_ascii_digit() || ".,'_".contains(c))
        && !is_number(word);
    let shown: String = word.chars().take(24).collect();
    let advice = if is_grouped {
        "; write numbers as 1234.5, for example with LC_ALL=C"
    } else {
        ""
    };
    Some(Fault::whole(format!(
        "looks like folded stacks, but its first line does not end in a count, only in \
         {shown:?}{advice}"
    )))
}

const COUNTS_FIRST: &str = "looks like folded stacks, but its counts are at the start, as uniq -c prints \
                            them; put them at the end: awk '{n = $1; $1 = \"\"; print $0, n}' {FILE} | \
                            mem_parser -";

const CARRIAGE_RETURNS: &str = "has lines that end in CR alone; convert them first: tr '\\r' '\\n' < {FILE} | \
                                mem_parser -";

/// Returns true for text whose lines end as those of old Macintoshes.
fn has_carriage_returns(start: &[u8]) -> bool {
    start.trim_ascii_end().contains(&b'\r') && !start.contains(&b'\n') && kind::is_text(start)
}

const UTF_16: &str = "is text in UTF-16, as PowerShell writes it; convert it first: iconv -f UTF-16 \
                      -t UTF-8 {FILE} | mem_parser -";

/// Returns true for ASCII text in UTF-16: every other byte is 0.
fn is_utf_16(start: &[u8]) -> bool {
    if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        return true;
    }
    let head = &start[..start.len().min(32)];
    let is_text = |pair: &[u8], zero: usize| pair[zero] == 0 && pair[1 - zero].is_ascii_graphic();
    head.len() == 32
        && (0..2).any(|zero| head.chunks_exact(2).filter(|p| is_text(p, zero)).count() > 12)
}

/// Returns true if the first line may be a folded stack, whose first function has any name.
fn is_folded(start: &[u8]) -> bool {
    let line = start.split(|&c| c == b'\n').next().unwrap_or_default();
    let is_text = !line.contains(&0);
    let count = line.trim_ascii().rsplit(|&c| c == b' ').next();
    let is_count = count.is_some_and(|c| !c.is_empty() && c.iter().all(u8::is_ascii_digit));
    is_text && is_count && line.contains(&b';')
}

/// Returns true for a recording of memray that is compressed with LZ4, the default. Its first bytes
/// are not repetitive, so LZ4 stores them as literals.
fn is_memray(start: &[u8]) -> bool {
    /// Maximum size of LZ4's headers and memray's signature, in bytes.
    const HEADERS: usize = 32;
    let head = &start[..start.len().min(HEADERS)];
    head.starts_with(b"\x04\x22\x4d\x18") && memchr::memmem::find(head, b"memray\0").is_some()
}

/// Returns advice for programs, libraries and core dumps.
fn elf_advice(start: &[u8]) -> Option<&'static str> {
    /// Type of an ELF file that is a core dump.
    const CORE: u8 = 4;
    if !start.starts_with(b"\x7fELF") {
        return None;
    }
    // The type is a 16-bit word in either byte order, whose high byte is 0.
    let kind = start
        .get(16)
        .copied()
        .unwrap_or(0)
        .max(start.get(17).copied().unwrap_or(0));
    Some(if kind == CORE {
        "is a core dump: the memory of a program, but not where it was allocated; gdb opens it. To \
         profile a running program: mem_profiler -p PID"
    } else {
        "is a program (ELF), not a profile; name the program with -p, and the dump with -f"
    })
}

/// Returns advice for pages and pictures.
fn markup_advice(text: &[u8]) -> Option<&'static str> {
    if !text.starts_with(b"<") || text.starts_with(b"<jemalloc>") {
        return None;
    }
    let start = text[..text.len().min(4096)].to_ascii_lowercase();
    let has = |word: &[u8]| memchr::memmem::find(&start, word).is_some();
    let is_page = start.starts_with(b"<!doctype html") || start.starts_with(b"<html");
    let is_own = has(b"mem_parser") || has(b"profile</title>") && has(b".flame .g");
    if is_page && is_own {
        Some(
            "is a page that mem_parser made: open it in a browser, or give the dump that it was \
             made from",
        )
    } else if is_page {
        Some(
            "is a web page (HTML), not a profile; if it was downloaded, look at it: a server may \
             have answered with an error",
        )
    } else if has(b"<svg") {
        Some(
            "is a picture (SVG), not a profile: open it in a browser, or give the dump that it was \
             made from",
        )
    } else if has(b"<trace-query-result") {
        Some(
            "is a table that xctrace exported; turn it into folded stacks: inferno-collapse-xctrace \
             {FILE} > out.folded; mem_parser out.folded",
        )
    } else if has(b"<stackwindow") {
        Some(
            "is a view of PerfView (XML), which PerfView shows; of recordings of perf, perf script \
             prints the stacks: perf script | mem_parser -",
        )
    } else if has(b"<malloc version") {
        Some(
            "is what glibc's malloc_info prints, not a heap profile; to profile the program here: \
             mem_profiler -p PID",
        )
    } else if start.starts_with(b"<?xml") {
        Some("is XML, not a profile in a format that is read here")
    } else {
        None
    }
}

fn callgrind_advice(start: &[u8]) -> Option<&'static str> {
    let head = &start[..start.len().min(4096)];
    let has = |word: &[u8]| memchr::memmem::find(head, word).is_some();
    let is_callgrind = start.starts_with(b"# callgrind format")
        || has(b"\ncreator: callgrind")
        || has(b"events: ") && (has(b"\nfn=") || has(b"\nfl="));
    is_callgrind.then_some(
        "is a profile of callgrind, which callgrind_annotate and kcachegrind show: \
         callgrind_annotate {FILE}",
    )
}

/// Returns advice for the output of other tools that is meant for people: reports of leaks,
/// statistics, histograms.
fn report_advice(text: &[u8]) -> Option<&'static str> {
    let head = &text[..text.len().min(4096)];
    // A binary profile may have a function of any name.
    if !kind::is_text(head) {
        return None;
    }
    let has = |word: &[u8]| memchr::memmem::find(head, word).is_some();
    let count = |start: &[u8]| {
        let lines = head.split(|&c| c == b'\n');
        lines.filter(|line| line.starts_with(start)).count()
    };
    if has(b"ERROR: LeakSanitizer") || has(b"ERROR: AddressSanitizer") {
        return Some(
            "is a report of a sanitizer, not a profile; it is read as it is. To find leaks here: \
             mem_profiler run --leak-check -- PROGRAM",
        );
    }
    if is_log_of_valgrind(head) {
        return Some(
            "is a report of Valgrind, not a profile; it is read as it is. To find leaks here: \
             mem_profiler run --leak-check -- PROGRAM",
        );
    }
    if count(b"MALLOC:") > 1 {
        return Some(
            "is tcmalloc's statistics, not a heap profile: those are written with HEAPPROFILE=PREFIX",
        );
    }
    if has(b"# Event count (approx.)") {
        return Some(PERF_REPORT);
    }
    if let Some(report) = REPORTS
        .iter()
        .find(|report| report.all.iter().all(|word| has(word)))
    {
        return Some(report.advice);
    }
    if is_ftrace(head) {
        return Some(
            "is what ftrace prints: events without stacks; those are in what perf record -g and perf \
             script print",
        );
    }
    if is_perf_trace(head) {
        return Some(
            "is what perf trace prints: system calls without stacks; those are in what perf record \
             and perf script print",
        );
    }
    if text.starts_with(b"import time:") {
        return Some(
            "is the table of python3 -X importtime, not a profile; to profile Python here: \
             mem_profiler run -- python3 PROGRAM",
        );
    }
    if has(b"Mem usage    Increment") {
        return Some(
            "is a table of Python's memory_profiler, not a profile; to profile Python here: \
             mem_profiler run -- python3 PROGRAM",
        );
    }
    if has(b"Each sample counts as") {
        return Some("is a table of gprof, not a profile; gprof itself shows it");
    }
    bpftrace_advice(head)
}

/// Returns true if the first line begins with a pid as Valgrind writes it: `==123== `.
fn is_log_of_valgrind(text: &[u8]) -> bool {
    let Some(rest) = text.strip_prefix(b"==") else {
        return false;
    };
    let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    digits > 0 && rest[digits..].starts_with(b"==")
}

/// Returns advice for objects that Python wrote: pickles and marshalled profiles.
fn python_object_advice(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x80, 2..=5, ..] if memchr::memmem::find(start, b"tracemalloc").is_some() => Some(
            "is a snapshot of tracemalloc: python3 -c \"import tracemalloc as t; \
             print(t.Snapshot.load('{FILE}').statistics('lineno')[:20])\"",
        ),
        [0x80, 2..=5, ..] => Some("is a pickle of Python, not a profile"),
        [b'{' | 0xfb, b'(' | 0xa8 | 0xa9 | b')', 3, ..] => {
            Some("is a profile of Python's cProfile, which pstats shows: python3 -m pstats {FILE}")
        }
        _ => None,
    }
}

/// Returns true for heaptrack's own format: `v 10200 3`, then `x` and `X` with the program.
fn is_heaptrack(start: &[u8]) -> bool {
    let mut lines = start.split(|&c| c == b'\n');
    let is_version = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|&c| c == b' ').collect();
        let is_hex = |word: &&[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_hexdigit);
        words[0] == b"v" && (2..=3).contains(&words.len()) && words[1..].iter().all(is_hex)
    };
    lines.next().is_some_and(is_version) && lines.next().is_some_and(|l| l.get(1) == Some(&b' '))
}

const BYTEHOUND: &str = "is a recording of bytehound, which only its server shows: bytehound server \
                         {FILE}";

/// Returns true for bytehound's recordings: blocks with a kind and a length, of which the first
/// names the architecture.
fn is_bytehound(start: &[u8]) -> bool {
    /// Maximum size of a block, in bytes.
    const MAX_BLOCK: u32 = 1 << 20;
    let [1 | 2, a, b, c, d, rest @ ..] = start else {
        return false;
    };
    let length = u32::from_le_bytes([*a, *b, *c, *d]);
    let head = &rest[..rest.len().min(4096)];
    let architectures: [&[u8]; 5] = [b"x86_64", b"aarch64", b"arm", b"mips64", b"i686"];
    let is_named = |name: &&[u8]| memchr::memmem::find(head, name).is_some();
    (32..=MAX_BLOCK).contains(&length) && architectures.iter().any(is_named)
}

const MAPS: &str = "is a map of a process's memory (/proc/PID/maps), not a profile; to profile the \
                    process: mem_profiler -p PID";

fn is_maps(text: &[u8]) -> bool {
    let line = text.split(|&c| c == b'\n').next().unwrap_or_default();
    crate::maps::Entry::parse(line).is_some()
}
