//! Formats older than pprof's: every kind of text that tcmalloc has written, and gperftools' CPU
//! profile. Compares our rows with those of pprof and google-pprof.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::peers::{
    CPU, HEAP, PLAIN, Profiled, close, compare_addresses, compare_files, compare_functions,
    compare_reports, ours, rows,
};
use mem_tests::session::tool;
use mem_tests::{Scratch, run};

/// A small generator (xorshift), so that every run tests the same files.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Returns the return addresses in the program, in a library, and in nothing, leaf first.
    /// Leaves are odd and others even, so that an address tells which it is.
    fn stack(&mut self) -> Vec<u64> {
        let depth = 1 + self.below(12);
        let mut stack: Vec<u64> = (0..depth)
            .map(|_| match self.below(12) {
                0..8 => 0x40_0100 + self.below(40) * 16,
                8..11 => 0x7f00_0000_0200 + self.below(30) * 8,
                _ => 0x3_0000,
            })
            .collect();
        stack[0] |= 1;
        stack
    }
}

const MAPS: &str = "\
00400000-00500000 r-xp 00000000 08:01 42 /nowhere/bin/server
00500000-00600000 rw-p 00100000 08:01 42 /nowhere/bin/server
7f0000000000-7f0000200000 r-xp 00001000 08:01 43 /nowhere/libbooks.so.2
";

/// The addresses of one stack in a file, and its objects and bytes in use and allocated.
type Record = (Vec<u64>, [u64; 4]);

/// Returns the stacks of objects of one power of two each, up to `most`; those freed if `freed`.
fn records(seed: u64, most: u32, freed: bool) -> Vec<Record> {
    let mut random = Random(seed);
    let record = |_| {
        let objects = 1 + random.below(200);
        let bytes = objects * (8 << random.below(most.ilog2().into()));
        let mut record = [objects, bytes, objects, bytes];
        if freed {
            let gone = random.below(300);
            record[2] += gone;
            record[3] += gone * (8 << random.below(most.ilog2().into()));
            if random.below(5) == 0 {
                record[..2].fill(0);
            }
        }
        (random.stack(), record)
    };
    (0..120).map(record).collect()
}

/// Returns a `heap profile:` text of one kind.
fn heap_text(kind: &str, records: &[Record]) -> String {
    let mut totals = [0; 4];
    let mut text = String::new();
    let line = |[objects, bytes, all, all_bytes]: [u64; 4]| {
        format!("{objects:6}: {bytes:8} [{all:6}: {all_bytes:8}] @")
    };
    for (stack, record) in records {
        for (total, value) in totals.iter_mut().zip(record) {
            *total += value;
        }
        text += &line(*record);
        for address in stack {
            let _ = write!(text, " {address:#x}");
        }
        text.push('\n');
    }
    let header = format!("heap profile: {} {kind}\n", line(totals).trim_end());
    header + &text + "\nMAPPED_LIBRARIES:\n" + MAPS
}

/// Size and order of the words in a CPU profile.
#[derive(Clone, Copy)]
struct Words {
    size: usize,
    big: bool,
}

/// Returns a CPU profile with a sample each 10 ms.
fn cpu_profile(words: Words, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut word = |value: u64| {
        let whole = if words.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        let from = if words.big { 8 - words.size } else { 0 };
        bytes.extend_from_slice(&whole[from..from + words.size]);
    };
    [0, 3, 0, 10_000, 0].into_iter().for_each(&mut word);
    let mut random = Random(seed);
    for _ in 0..150 {
        let stack = random.stack();
        word(1 + random.below(30));
        word(stack.len() as u64);
        // Addresses that fit into 32 bits, too.
        let address = |a: u64| {
            if a >> 32 == 0 {
                a
            } else {
                a & 0xffff | 0x50_0000
            }
        };
        stack.into_iter().map(address).for_each(&mut word);
    }
    [0, 1, 0].into_iter().for_each(&mut word);
    let library = "00500000-00600000 r-xp 00001000 08:01 43 /nowhere/libbooks.so.2\n";
    let program = MAPS.lines().next().expect("the program");
    bytes.extend_from_slice(format!("{program}\n{library}").as_bytes());
    bytes
}

fn write(scratch: &Scratch, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = scratch.file(name);
    fs::write(&path, content).expect("to be written");
    path
}

/// Compares two files without any names with pprof, in all reports.
fn compare_nameless(scratch: &Scratch, columns: &[&str], file: &str, base: Option<&str>) {
    let nothing = scratch.file("nothing");
    fs::create_dir_all(&nothing).expect("a directory");
    let nothing = nothing.to_str().expect("a path");
    let extra = ["--symbol-path", nothing];
    compare_files(scratch, columns, file, base, &extra);
}

/// Compares tables by address. google-pprof looks up a leaf's address as it is, and the addresses
/// of other frames less 1. `column` is our name of the column and google-pprof's option.
fn compare_with_perl(scratch: &Scratch, file: &str, column: (&str, &str), base: Option<&str>) {
    let mut their = vec!["--text", "--addresses", "--show_bytes", "--nodefraction=0"];
    let path = |name: &str| scratch.file(name).display().to_string();
    let subtract = base.map(|base| format!("--base={}", path(base)));
    their.push("--nodecount=100000");
    their.extend(subtract.as_deref());
    their.extend(Some(column.1).filter(|option| !option.is_empty()));
    let file_path = path(file);
    their.extend(["/usr/bin/true", &file_path]);
    let theirs = rows(&tool("google-pprof", their), "", |words| {
        let address = u64::from_str_radix(words[0], 16).expect("an address");
        // Leaves are 1 more than a multiple of eight, the others 1 less. In a CPU profile
        // nobody looks leaves up anywhere else.
        let leaf = address % 8 == 1 && !column.1.is_empty();
        format!("{:016x}", address - u64::from(leaf))
    });
    let mut our = vec![
        "-t",
        "--addresses",
        "--trim=false",
        "--unit",
        "B",
        "-f",
        file,
    ];
    our.extend(["--symbol-path", "nothing", "--sample_index", column.0]);
    our.extend(base.iter().flat_map(|base| ["--base", base]));
    let address = |words: &[&str]| words[0].to_owned();
    let ours = rows(&ours(scratch, &our), "B", address);
    let ours: Vec<_> = ours.iter().filter(|(_, row)| **row != (0, 0)).collect();
    assert!(ours.len() > 20, "{ours:?}");
    assert_eq!(ours.len(), theirs.len(), "{file}: {ours:?} {theirs:?}");
    for (address, (flat, cum)) in ours {
        let (their_flat, their_cum) = theirs[address];
        let what = format!("{file} {} of {address} (base {base:?})", column.0);
        close(&what, (*flat, their_flat), 240);
        close(&what, (*cum, their_cum), 240);
    }
}

const HEAP_OPTIONS: [(&str, &str); 4] = [
    ("inuse_space", "--inuse_space"),
    ("inuse_objects", "--inuse_objects"),
    ("alloc_space", "--alloc_space"),
    ("alloc_objects", "--alloc_objects"),
];

const PLAIN_OPTIONS: [(&str, &str); 2] =
    [("space", "--inuse_space"), ("objects", "--inuse_objects")];

/// Files of one kind in both programs, alone and compared.
fn compare_kind(kind: &str, most: u32, freed: bool) {
    let scratch = Scratch::new();
    let file = |seed| heap_text(kind, &records(seed, most, freed));
    write(&scratch, "late.heap", file(0x1234_5678));
    write(&scratch, "early.heap", file(0x9876_5432));
    let columns = if freed { &HEAP[..] } else { &PLAIN };
    compare_nameless(&scratch, columns, "late.heap", Some("early.heap"));
    let options = if freed {
        &HEAP_OPTIONS[..]
    } else {
        &PLAIN_OPTIONS
    };
    for column in options {
        compare_with_perl(&scratch, "late.heap", *column, None);
        compare_with_perl(&scratch, "late.heap", *column, Some("early.heap"));
    }
}

#[test]
fn heapprofile_text() {
    compare_kind("heapprofile", 1 << 16, true);
}

#[test]
fn heap_v2_text() {
    compare_kind("heap_v2/524288", 1 << 16, true);
}

#[test]
fn heapz_v2_text() {
    compare_kind("heapz_v2/4096", 1 << 16, false);
}

#[test]
fn growth_text() {
    compare_kind("growth", 1 << 20, false);
}

/// Checks the oldest format, whose samples are a uniformly distributed distance apart. For objects
/// that are much smaller than the distance, the rules of both programs agree.
#[test]
fn v1_text() {
    let scratch = Scratch::new();
    let file = |seed| heap_text("heap/2097152", &records(seed, 1 << 7, false));
    write(&scratch, "late.heap", file(0x1234_5678));
    write(&scratch, "early.heap", file(0x9876_5432));
    compare_nameless(&scratch, &PLAIN, "late.heap", Some("early.heap"));
    for column in PLAIN_OPTIONS {
        compare_with_perl(&scratch, "late.heap", column, None);
    }
}

/// For larger objects, pprof assumes an exponentially distributed distance, as we do, and
/// google-pprof assumes that every object of at least the mean distance was sampled.
#[test]
fn v1_text_of_large_objects() {
    let scratch = Scratch::new();
    let file = |seed| heap_text("heap/16384", &records(seed, 1 << 16, true));
    write(&scratch, "late.heap", file(0x1234_5678));
    write(&scratch, "early.heap", file(0x9876_5432));
    compare_nameless(&scratch, &HEAP, "late.heap", Some("early.heap"));
    let text = "heap profile: 4: 65536 [4: 65536] @ heap/16384\n\
                1: 8192 [1: 8192] @ 0x400101\n3: 57344 [3: 57344] @ 0x400111\n\
                MAPPED_LIBRARIES:\n";
    write(&scratch, "two.heap", text.to_owned() + MAPS);
    let table = |program: &str, arguments: &[&str], suffix: &str| {
        let text = match program {
            "ours" => ours(&scratch, arguments),
            other => tool(other, arguments),
        };
        let mut flat: Vec<i64> = rows(&text, suffix, |words| words[0].to_owned())
            .values()
            .map(|row| row.0)
            .collect();
        flat.sort_unstable();
        flat
    };
    let our = ["-t", "--addresses", "--unit", "B", "-f", "two.heap"];
    let our = [&our[..], &["--symbol-path", "nothing"]].concat();
    // 8192 / (1 - exp(-1)), and 57344 / (1 - exp(-57344 / 3 / 8192)).
    assert_eq!(table("ours", &our, "B"), [12_959, 63_501]);
    let path = scratch.file("two.heap").display().to_string();
    let their = [
        "--text",
        "--addresses",
        "--show_bytes",
        "/usr/bin/true",
        &path,
    ];
    assert_eq!(table("google-pprof", &their, ""), [8192, 57_344]);
}

#[test]
fn cpu_profiles_of_all_machines() {
    let scratch = Scratch::new();
    for (size, big) in [(8, false), (8, true), (4, false), (4, true)] {
        let words = Words { size, big };
        write(&scratch, "late.prof", cpu_profile(words, 0x1234_5678));
        write(&scratch, "early.prof", cpu_profile(words, 0x9876_5432));
        compare_nameless(&scratch, &CPU, "late.prof", Some("early.prof"));
        compare_with_perl(&scratch, "late.prof", ("samples", ""), None);
        compare_with_perl(&scratch, "late.prof", ("samples", ""), Some("early.prof"));
    }
}

/// Runs a program under one of gperftools' libraries.
fn under(scratch: &Scratch, command: &mut Command, library: &str, variables: &[(&str, &str)]) {
    command.env("LD_PRELOAD", library);
    command.envs(variables.iter().copied());
    let outcome = run(command.current_dir(scratch.files()).stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

/// Checks both profiles that tcmalloc writes: of the heap, and of its growth.
#[test]
fn tcmallocs_own_profiles() {
    let scratch = Scratch::new();
    // Linked with the library itself: there is no package of its headers here.
    let flags = ["-O1", "-fno-inline", "-l:libtcmalloc.so.4"];
    let program = scratch.compile("tcmalloc.cpp", &flags);
    let mut command = Command::new(&program);
    command.args(["heap.txt", "growth.txt", "early.txt"]);
    let interval = ("TCMALLOC_SAMPLE_PARAMETER", "65536");
    under(&scratch, &mut command, "", &[interval]);
    let kind = |name: &str| {
        let text = fs::read_to_string(scratch.file(name)).expect("a profile");
        let header = text.lines().next().expect("a header");
        header.rsplit_once("@ ").expect("a kind").1.to_owned()
    };
    assert_eq!(kind("heap.txt"), "heap_v2/65536");
    assert_eq!(kind("growth.txt"), "growth");
    for dumps in [&["heap.txt"][..], &["growth.txt", "early.txt"]] {
        let profiled = Profiled {
            program: program.clone(),
            dumps: dumps.iter().map(|name| scratch.file(name)).collect(),
            columns: &PLAIN,
        };
        compare_reports(&scratch, &profiled);
        compare_functions(&scratch, "google-pprof", &profiled);
    }
    compare_nameless(&scratch, &PLAIN, "heap.txt", None);
    compare_nameless(&scratch, &PLAIN, "growth.txt", Some("early.txt"));
}

/// Returns a CPU profile of a program, sampled every millisecond.
fn cpu_profile_of(scratch: &Scratch, command: &mut Command, program: &Path) -> Profiled {
    let profile = [("CPUPROFILE", "cpu.prof"), ("CPUPROFILE_FREQUENCY", "1000")];
    under(scratch, command, "libprofiler.so.0", &profile);
    Profiled {
        program: program.to_owned(),
        dumps: vec![scratch.file("cpu.prof")],
        columns: &CPU,
    }
}

#[test]
fn cpu_profile_of_a_cpp_program() {
    let scratch = Scratch::new();
    let program = scratch.compile("busy.cpp", &["-O1", "-fno-inline"]);
    let profiled = cpu_profile_of(&scratch, &mut Command::new(&program), &program);
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
    compare_functions(&scratch, "google-pprof", &profiled);
}

#[test]
fn cpu_profile_of_sqlite3() {
    let scratch = Scratch::new();
    let sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 900000) \
               select sum(length(hex(i * 7919))), count(distinct i % 7001) from n";
    let mut command = Command::new("/usr/bin/sqlite3");
    command.args([":memory:", sql]);
    let profiled = cpu_profile_of(&scratch, &mut command, Path::new("/usr/bin/sqlite3"));
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
}
