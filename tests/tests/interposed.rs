//! The agent and its jemalloc call only the C library: neither functions of the program with the
//! same names, nor those of a library that is preloaded with the agent.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::{Scratch, Target, artifacts, run};

/// Names that the agent needs from elsewhere, except those that are reserved for the implementation
/// (a leading underscore) or are Python's, which a program has if it is a Python.
fn imported() -> BTreeSet<String> {
    let listing = tool(
        "nm",
        [
            "-D".as_ref(),
            "--undefined-only".as_ref(),
            artifacts::agent().as_os_str(),
        ],
    );
    let name = |line: &str| {
        let symbol = line.split_whitespace().last()?;
        let name = symbol.split('@').next()?;
        let is_reserved = name.starts_with('_') || name.starts_with("Py");
        (!is_reserved).then(|| name.to_owned())
    };
    listing.lines().filter_map(name).collect()
}

/// Variables, which cannot be called.
const VARIABLES: [&str; 1] = ["stderr"];
/// Names that are compiled in when there is no other way, and called only with a C library in
/// which nothing is found.
const ALSO: [&str; 4] = ["dlsym", "prctl", "syscall", "_exit"];

/// Returns what the agent imports, as functions that end the process.
fn traps(left_out: &[&str]) -> String {
    let mut names = imported();
    assert!(names.len() > 50, "{names:?}");
    names.extend(ALSO.map(str::to_owned));
    let mut text = String::from(
        "static void trap(const char *name, unsigned long bytes) {
            long result;
            __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(1L), \"D\"(1L), \"S\"(name), \"d\"(bytes) : \"rcx\", \"r11\", \"memory\");
            __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(231L), \"D\"(99L) : \"rcx\", \"r11\", \"memory\");
            for (;;) {}
        }\n",
    );
    for name in names {
        if !VARIABLES.contains(&name.as_str()) && !left_out.contains(&name.as_str()) {
            let line = format!("{name} was called\\n");
            writeln!(
                text,
                "void {name}(void) {{ trap(\"{line}\", {}); }}",
                name.len() + 12
            )
            .expect("a string");
        }
    }
    text
}

/// A program that allocates, in threads and in a forked child, and calls no function of the traps.
const PROGRAM: &str = r#"
#include <stddef.h>
typedef unsigned long word;
void *malloc(size_t); void free(void *); void *realloc(void *, size_t); void *calloc(size_t, size_t);
int fork(void); int pthread_create(word *, const void *, void *(*)(void *), void *);
static long call(long n, long a, long b, long c, long d) {
    long result; register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}
static void *volatile kept[64];
static void work(int rounds) {
    for (int i = 0; i < rounds; i++) {
        int at = i % 64;
        free(kept[at]);
        kept[at] = i % 7 == 0 ? calloc(3, 100 + i % 5000) : malloc(16 + i * 37 % 20000);
        if (i % 5 == 0) kept[at] = realloc(kept[at], 40000 + i % 300000);
    }
    for (int at = 0; at < 64; at++) { free(kept[at]); kept[at] = 0; }
}
static volatile int ended;
static void *thread(void *x) { for (int i = 0; i < 500; i++) free(malloc(i * 50)); ended = 1; return x; }
int main(void) {
    char c;
    work(20000);
    word id;
    if (pthread_create(&id, 0, thread, 0)) return 3;
    while (!ended) call(24, 0, 0, 0, 0);
    for (int i = 0; i < 5; i++) {
        int child = fork();
        if (child == 0) { work(2000); call(231, 7, 0, 0, 0); }
        int status = 0;
        call(61, child, (long)&status, 0, 0);
        if (status != 7 << 8) return 4;
    }
    call(1, 1, (long)"ready\n", 6, 0);
    while (call(0, 0, (long)&c, 1, 0) == 1) if (c == '\n') { work(5000); call(1, 1, (long)"done\n", 5, 0); }
    return 0;
}
"#;

fn compile(scratch: &Scratch, name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let source = scratch.file(&format!("{name}.c"));
    fs::write(&source, text).expect("a source");
    let out = scratch.file(name);
    let mut command = Command::new("gcc");
    command
        .args(["-O1", "-w", "-fno-builtin", "-fno-stack-protector", "-o"])
        .arg(&out)
        .arg(&source)
        .args(flags);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    out
}

/// Runs the program to its end: idle, in sessions from outside, and in one of its own.
fn runs_well(scratch: &Scratch, program: &Path, preload: &str) {
    for interval in [None, Some("1024"), Some("1")] {
        let mut command = scratch.preloaded(program);
        command.env("LD_PRELOAD", preload).stderr(Stdio::inherit());
        if let Some(interval) = interval {
            command
                .env("MEM_PROFILER_START", "1")
                .env("MEM_PROFILER_INTERVAL", interval);
        }
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready", "{preload} {interval:?}");
        let pid = target.pid().to_string();
        for _ in 0..3 {
            target.say("");
            assert_eq!(target.hear(), "done", "{preload} {interval:?}");
            if interval.is_none() {
                let mut session = scratch.profiler();
                session.args(["-s", "0.05", "-c", "1", "-p", &pid, "-o", "prof_"]);
                let outcome = run(&mut session);
                assert_eq!(outcome.code, Some(0), "{outcome:?}");
            }
        }
        target.finish_well();
    }
}

fn agent() -> String {
    artifacts::agent().display().to_string()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_programs_own_functions_are_not_called() {
    let scratch = Scratch::new();
    let text = format!("{PROGRAM}\n{}", traps(&[]));
    let program = compile(&scratch, "own", &text, &["-rdynamic", "-pthread"]);
    runs_well(&scratch, &program, &agent());
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_preloaded_librarys_functions_are_not_called() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "plain", PROGRAM, &["-pthread"]);
    let flags = ["-shared", "-fPIC"];
    let library = compile(&scratch, "libtraps.so", &traps(&[]), &flags);
    let library = library.display().to_string();
    runs_well(&scratch, &program, &format!("{library}:{}", agent()));
    runs_well(&scratch, &program, &format!("{}:{library}", agent()));
}

/// Functions that are imported by name are called by address. A new call of a C library function
/// must be added to the list of names, or this test fails.
#[test]
fn all_that_is_imported_is_in_the_table() {
    let names = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/src/c_library/names.rs");
    let listed = fs::read_to_string(names).expect("the list");
    for name in imported() {
        let is_listed = listed.contains(&format!("\"{name}\""));
        let is_known = VARIABLES.contains(&name.as_str());
        assert!(is_listed || is_known, "{name} is called through the loader");
    }
}
