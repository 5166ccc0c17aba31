//! Allocations before the agent's constructor: if the environment requests a session, it begins
//! with the first allocation of the process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::code::sums;
use mem_tests::{Scratch, run};
use profile::Profile;

/// Objects and bytes of each site, as the programs allocate them.
const SITES: [(&str, (f64, f64)); 6] = [
    ("site_constructor", (1.0, 640.0)),
    ("site_library", (100.0, 100_000.0)),
    ("site_main", (1.0, 400.0)),
    ("site_preinit", (2.0, 5201.0)),
    ("site_registry", (500.0, 100_000.0)),
    ("site_resolver", (2.0, 203.0)),
];

/// The program and its two libraries.
struct Program {
    program: PathBuf,
    libraries: [PathBuf; 2],
}

impl Program {
    fn build(scratch: &Scratch, flags: &[&str]) -> Self {
        let shared = ["-shared", "-fPIC"];
        let libraries = [
            scratch.compile_as("before_main_library.c", "liblibrary.so", &shared),
            scratch.compile_as("before_main_registry.cpp", "libregistry.so", &shared),
        ];
        let [library, registry] = [0, 1].map(|n: usize| libraries[n].to_str().expect("a path"));
        let all = [flags, &["-fno-builtin", library, registry]].concat();
        let program = scratch.compile("before_main.c", &all);
        Self { program, libraries }
    }

    /// Checks that a profile has each site's objects, and all of them.
    fn check(&self, profile: &Profile) {
        let [library, registry] = &self.libraries;
        let binaries: [&Path; 3] = [&self.program, library, registry];
        let found: BTreeMap<_, _> = sums(profile, &binaries, "site_")
            .into_iter()
            .map(|(site, sum)| (site, (sum.detail.alloc_objects, sum.detail.alloc_bytes)))
            .collect();
        for (site, truth) in SITES {
            assert_eq!(found.get(site).copied(), Some(truth), "{site}: {found:?}");
        }
    }
}

fn by_run(scratch: &Scratch, program: &Program) -> Profile {
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", "1", "-o"])
        .arg(scratch.file("p_"));
    let outcome = run(command.arg("--").arg(&program.program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let dump = |path: &PathBuf| path.extension().is_some_and(|end| end == "heap");
    let files = std::fs::read_dir(scratch.files()).expect("a directory");
    let mut dumps: Vec<_> = files.flatten().map(|file| file.path()).collect();
    dumps.retain(dump);
    let [dump] = &dumps[..] else {
        panic!("{dumps:?} {outcome:?}");
    };
    let profile = profile::open(dump).expect("a dump that can be read");
    std::fs::remove_file(dump).expect("the dump");
    profile
}

/// Returns the objects of all sites together, the libraries' own included.
fn objects(profile: &Profile) -> f64 {
    let details = profile.details.iter();
    details.map(|detail| detail.alloc_objects).sum()
}

/// Samples every allocation because of the environment alone, and reads what the process left.
fn by_variable(scratch: &Scratch, mut command: Command) -> Profile {
    command.env("MEM_PROFILER_START", "1");
    let outcome = run(command.env("MEM_PROFILER_INTERVAL", "1"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let recovered = run(scratch
        .profiler()
        .args(["recover", "-o"])
        .arg(scratch.file("r_")));
    recovered.profile()
}

#[test]
fn each_is_counted_however_the_program_is_linked() {
    for flags in [
        &["-Wl,-z,lazy"][..],
        &["-Wl,-z,now"],
        &["-no-pie", "-Wl,-z,lazy"],
    ] {
        let scratch = Scratch::new();
        let program = Program::build(&scratch, flags);
        program.check(&by_run(&scratch, &program));
        let command = scratch.preloaded(&program.program);
        program.check(&by_variable(&scratch, command));
    }
}

/// With `ld.so program`, the loader moves the arguments and the environment after them. The
/// program's own functions have no names then, since the executable of the process is the loader.
#[test]
fn each_is_counted_in_a_program_that_the_loader_is_called_for() {
    let scratch = Scratch::new();
    let program = Program::build(&scratch, &[]);
    let loader = match cfg!(target_arch = "x86_64") {
        true => "/lib64/ld-linux-x86-64.so.2",
        false => "/lib/ld-linux-aarch64.so.1",
    };
    let mut command = scratch.preloaded(loader);
    command.args(["--argv0", "other"]).arg(&program.program);
    let profile = by_variable(&scratch, command);
    let usual = by_variable(&scratch, scratch.preloaded(&program.program));
    program.check(&usual);
    assert_eq!(objects(&profile), objects(&usual));
}

/// The environment may have any size.
#[test]
fn a_request_is_found_in_a_large_environment() {
    let scratch = Scratch::new();
    let program = Program::build(&scratch, &[]);
    let mut command = scratch.preloaded(&program.program);
    for n in 0..100 {
        command.env(format!("A{n}"), "v".repeat(1000));
    }
    program.check(&by_variable(&scratch, command));
}

#[test]
fn what_is_lost_there_is_found_with_its_owners() {
    let scratch = Scratch::new();
    let program = Program::build(&scratch, &[]);
    let mut by_run = scratch.profiler();
    by_run.args(["run", "--leak-check", "-o"]);
    by_run
        .arg(scratch.file("p_"))
        .arg("--")
        .arg(&program.program);
    let mut by_variable = scratch.preloaded(&program.program);
    by_variable.env("HEAPCHECK", "normal");
    for mut command in [by_run, by_variable] {
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let said = [
            "99 objects",
            "site_library",
            "site_preinit",
            "site_resolver",
        ];
        for said in said {
            assert!(
                outcome.stderr.contains(said) || outcome.stdout.contains(said),
                "{said}: {outcome:?}"
            );
        }
        assert!(!outcome.stderr.contains("site_registry"), "{outcome:?}");
    }
}

/// No session begins in a program that is not to be profiled, or that keeps its allocator.
#[test]
fn a_program_that_is_left_out_begins_nothing() {
    let scratch = Scratch::new();
    let program = Program::build(&scratch, &[]);
    let mut command = scratch.preloaded(&program.program);
    command.env("MEM_PROFILER_START", "1");
    let outcome = run(command.env("MEM_PROFILER_ONLY", "another"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(scratch.segments().is_empty());
}
