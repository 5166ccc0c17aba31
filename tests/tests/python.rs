//! Python's own frames: the same as those that the program itself sees.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use mem_tests::pythons::{by_stack, profiled, the_dump};
use mem_tests::{Scratch, Session, Target, artifacts, pythons, run};

/// Words of the interpreter's data are corrupted before each allocation, or by another thread at
/// any time, and restored afterwards: for three seconds, or for `MEM_TESTS_GARBAGE_SECONDS`.
#[test]
fn corrupted_interpreter_data_do_no_harm() {
    let tried = pythons::all().into_iter().map(|python| {
        std::thread::spawn(move || {
            let scratch = Scratch::new();
            let library = scratch.compile("python_garbage.c", &["-shared", "-fPIC"]);
            let script = artifacts::source("python_garbage.py");
            let asked = std::env::var("MEM_TESTS_GARBAGE_SECONDS");
            let mut left: u64 = asked.map_or(3, |text| text.parse().expect("seconds"));
            // Each command may take at most five minutes.
            while left > 0 {
                let part = left.min(100);
                let seconds = part.to_string();
                profiled(&scratch, &python, &[&script, &library, Path::new(&seconds)]);
                std::fs::remove_file(the_dump(&scratch)).expect("the dump");
                left -= part;
            }
        })
    });
    for tried in tried.collect::<Vec<_>>() {
        tried.join().expect("an interpreter that continues");
    }
}

#[test]
fn each_stack_has_the_functions_and_lines_that_the_program_sees() {
    for python in pythons::all() {
        let scratch = Scratch::new();
        let truth = scratch.file("truth");
        let script = artifacts::source("python_truth.py");
        let profile = profiled(&scratch, &python, &[&script, &truth]);
        pythons::compare(&profile, &truth, 200);
    }
}

#[test]
fn a_function_without_a_name_is_shown_with_its_file_and_line() {
    // Free-threaded builds take objects from an allocator of their own.
    let hides = |path: &PathBuf| path.to_string_lossy().ends_with('t');
    for python in pythons::all().into_iter().filter(|path| !hides(path)) {
        let scratch = Scratch::new();
        let script = artifacts::source("python_nameless.py");
        let profile = profiled(&scratch, &python, &[&script]);
        let names: Vec<String> = (profile.locations.iter())
            .filter_map(|location| profile.python_name(location))
            .collect();
        let name = "<unnamed> (python_nameless.py:9)";
        let is_it = |found: &String| found == name;
        assert!(names.iter().any(is_it), "{}: {names:?}", python.display());
        let is_named = |function: &profile::Function| !function.name.is_empty();
        assert!(
            profile.functions.iter().all(is_named),
            "{}",
            python.display()
        );
        let options = ["--alloc_space", "--trim=false"];
        let table = run(scratch.parser().arg(the_dump(&scratch)).args(options));
        assert!(table.stdout.contains(name), "{table:?}");
    }
}

/// The dump and the start of the program name the build. Options with which the program would not
/// start are refused.
#[test]
fn a_free_threaded_build_is_named_and_so_is_what_it_hides() {
    let of = |path: &PathBuf| path.to_string_lossy().ends_with('t');
    let pythons: Vec<PathBuf> = pythons::all().into_iter().filter(of).collect();
    for (version, python) in ["3.13.", "3.14."].into_iter().zip(&pythons) {
        free_threaded(python, version);
    }
    assert!(pythons.len() >= 2);
}

fn free_threaded(python: &Path, version: &str) {
    let scratch = Scratch::new();
    let script = "import ctypes; kept = ctypes.CDLL(None).malloc(5000000)";
    let run_it = |options: &[&str]| {
        let mut command = scratch.profiler();
        command
            .args(["run", "-c", "1", "-o"])
            .arg(scratch.file("p_"));
        command.args(options).arg("--").arg(python);
        command.args(["-c", script]);
        run(&mut command)
    };
    run_it(&["--python-malloc"]).refused(1, &["free-threaded", "leave --python-malloc out"]);
    let outcome = run_it(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stderr.contains("a free-threaded build"),
        "{outcome:?}"
    );
    let dump = the_dump(&scratch);
    let profile = profile::open(&dump).expect("a dump that can be read");
    let said = profile.facts.python.clone().unwrap_or_default();
    assert!(
        said.starts_with(version) && said.ends_with(", free-threaded: named"),
        "{said}"
    );
    assert_eq!(profile.facts.python_hides, Some(true));
    assert!(by_stack(&profile)["<module> (<string>:1)"] >= 5e6);
    let outcome = run(scratch.parser().arg(&dump));
    assert!(
        outcome.stderr.contains("Python objects are missing here"),
        "{outcome:?}"
    );
}

/// The interpreter is in a library that the program loads while it is sampled, and unloads.
#[test]
fn an_interpreter_that_is_loaded_later_is_named() {
    const SCRIPT: &str = "kept = []\n\
                          def keep(n):\n    kept.append(bytearray(n))\n\n\
                          def work():\n    for i in range(40):\n        keep(50000)\n\n\
                          work()\nsize = sum(map(len, kept))\n\
                          import os\nif os.environ.get('STAY'): os._exit(0)\n";
    let scratch = Scratch::new();
    let program = scratch.compile("python_embedded.c", &[]);
    for stays in [true, false] {
        let mut command = scratch.profiler();
        command
            .args(["run", "-c", "1", "-o"])
            .arg(scratch.file("p_"));
        command.arg("--").arg(&program);
        command.args(["libpython3.11.so.1.0", SCRIPT]);
        if stays {
            command.env("STAY", "1");
        }
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let dump = the_dump(&scratch);
        let profile = profile::open(&dump).expect("a dump that can be read");
        let said = profile.facts.python.clone().unwrap_or_default();
        assert!(said.starts_with("3.11."), "{said}");
        if stays {
            assert!(said.ends_with(": named"), "{said}");
            let found = by_stack(&profile);
            let stack = "keep (<string>:3);work (<string>:7);<module> (<string>:9)";
            let live = found.get(stack).copied().unwrap_or_default();
            assert!((2e6..2.1e6).contains(&live), "{live}: {found:#?}");
        } else if outcome.stdout.contains("gone") {
            assert!(said.contains("unloaded"), "{said}");
        }
        std::fs::remove_file(dump).expect("the dump");
    }
}

/// Small objects are missing depending on `PYTHONMALLOC`, and on options that make the interpreter
/// ignore it. The parser reports this.
#[test]
fn a_dump_says_whether_small_objects_are_missing() {
    const SCRIPT: &str = "kept = [[i] for i in range(10000)]; import os; os._exit(0)";
    let cases = [
        ("", "-s", true),
        ("pymalloc", "-s", true),
        ("malloc", "-s", false),
        ("malloc_debug", "-X dev -s", false),
        ("malloc", "-I", true),
        ("malloc", "-uE", true),
    ];
    for (value, options, hides) in cases {
        let scratch = Scratch::new();
        let mut command = scratch.profiler();
        command
            .args(["run", "-c", "1", "-o"])
            .arg(scratch.file("p_"));
        command.args(["--", "/usr/bin/python3"]);
        command.args(options.split(' ')).args(["-c", SCRIPT]);
        match value {
            "" => command.env_remove("PYTHONMALLOC"),
            value => command.env("PYTHONMALLOC", value),
        };
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let dump = the_dump(&scratch);
        let profile = profile::open(&dump).expect("a dump that can be read");
        assert_eq!(profile.facts.python_hides, Some(hides), "{value} {options}");
        for view in [
            &["-n", "3"][..],
            &["--python-only"],
            &["--traces"],
            &["--leaks"],
        ] {
            let outcome = run(scratch.parser().args(view).arg(&dump));
            let says = outcome
                .stderr
                .contains("small Python objects are missing here");
            assert_eq!(
                says, hides,
                "{value} {options} {view:?}: {}",
                outcome.stderr
            );
        }
    }
}

/// Checks threads that run several interpreters, and C threads that run Python only for a call.
#[test]
fn frames_are_seen_whichever_state_the_thread_has_now() {
    // The one that the free-threaded 3.13 is from makes no interpreters.
    let makes_some = |path: &PathBuf| !path.ends_with("python3.13t");
    for python in pythons::all().into_iter().filter(makes_some) {
        let scratch = Scratch::new();
        let library = scratch.compile("python_states.c", &["-shared", "-fPIC", "-pthread"]);
        let script = artifacts::source("python_states.py");
        let profile = profiled(&scratch, &python, &[&script, &library]);
        let found = by_stack(&profile);
        let of = |begins: &str, holds: &str| {
            let is_it = |(stack, _): &(&String, &f64)| {
                let rest = stack.strip_prefix(begins);
                rest.is_some_and(|rest| rest.contains(holds))
            };
            found
                .iter()
                .filter(is_it)
                .map(|(_, bytes)| bytes)
                .sum::<f64>()
        };
        // Names that the versions give to code without a file.
        let within = |rest: &str| {
            let files = ["<string>", "<script>"];
            let sums = files.map(|f| of(&format!("inner ({f}:4);<module> ({f}:5)"), rest));
            sums[0] + sums[1]
        };
        let sums = [
            (
                within(";enter (python_states.py:36);main (python_states.py:56)"),
                12e6,
            ),
            (
                within(";enter (python_states.py:36);enter_new (python_states.py:41)"),
                1e6,
            ),
            (
                of("keep (python_states.py:45);main (python_states.py:57)", ""),
                12e6,
            ),
            (of("called (python_states.py:49)", ""), 5e6),
        ];
        for (live, bytes) in sums {
            let all = bytes..bytes * 1.02;
            assert!(
                all.contains(&live),
                "{}: {live} of {bytes}: {found:#?}",
                python.display()
            );
        }
    }
}

/// Returns the line of a process in the list.
fn listed(scratch: &Scratch, pid: u32) -> String {
    let outcome = run(scratch.profiler().arg("list"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let pid = pid.to_string();
    let of = |line: &&str| line.split_whitespace().next() == Some(&pid);
    outcome
        .stdout
        .lines()
        .find(of)
        .expect("its line")
        .to_owned()
}

#[test]
fn the_list_says_which_interpreters_there_are() {
    const SCRIPT: &str = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin:\n    \
                          kept = [bytes(1000) for _ in range(1000)]\n    print('done', flush=True)\n";
    let scratch = Scratch::new();
    let mut command = scratch.preloaded(Path::new("/usr/bin/python3"));
    command.args(["-c", SCRIPT]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let line = listed(&scratch, target.pid());
    assert!(
        line.contains("  3.11") && line.ends_with(": no frame seen yet"),
        "{line}"
    );
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("go");
    assert_eq!(target.hear(), "done");
    let line = listed(&scratch, target.pid());
    assert!(line.ends_with(": named"), "{line}");
    session.stop();
}
