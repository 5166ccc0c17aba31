//! Python lines in CPU profiles of processes without the agent: their threads are stopped, and
//! their interpreter's data are read from outside.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use mem_tests::cpu::{Read, files, truth};
use mem_tests::{Outcome, Scratch, Target, artifacts, pythons, run};
use profile::Profile;

/// Returns a script under the engine from its start, and what it says.
fn sampled(scratch: &Scratch, rate: u32, python: &Path, arguments: &[&str]) -> Outcome {
    let mut command = scratch.profiler();
    command.args([
        "cpu",
        "run",
        "--engine",
        "ptrace",
        "-F",
        &rate.to_string(),
        "-o",
    ]);
    command.arg(scratch.file("p_")).arg("--").arg(python);
    run(command.args(arguments))
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

/// Returns the lines of Python of a stack, outermost first: functions without what encloses them,
/// and lines.
fn lines<'a>(profile: &'a Profile, stack: &[u32]) -> Vec<(&'a str, u32)> {
    let locations = stack
        .iter()
        .rev()
        .map(|id| &profile.locations[*id as usize]);
    let python = locations.filter(|location| profile.is_python(location));
    let lines = python.filter_map(|location| profile.lines_of(location).first());
    lines
        .map(|line| {
            let name = &profile.functions[line.function as usize].name;
            (name.rsplit('.').next().unwrap_or(name), line.line)
        })
        .collect()
}

/// Runs a test with each interpreter, each in its own thread.
fn with_each(test: impl Fn(&Path) + Clone + Send + 'static) {
    // Two at a time: they are slow where there are few processors.
    for pair in pythons::all().chunks(2) {
        let of = |python: &PathBuf| {
            let (python, test) = (python.clone(), test.clone());
            thread::spawn(move || test(&python))
        };
        let tried: Vec<_> = pair.iter().map(of).collect();
        for (tried, python) in tried.into_iter().zip(pair) {
            assert!(tried.join().is_ok(), "{}", python.display());
        }
    }
}

/// Returns the comment in a line of the script, after `#`.
fn comment(script: &str, line: u32) -> &str {
    let text = script.lines().nth((line as usize).wrapping_sub(1));
    text.and_then(|text| text.split_once("  # "))
        .map_or("", |(_, comment)| comment)
}

/// Returns true if each of these lines calls the next one.
fn lead_on(script: &str, lines: &[(&str, u32)]) -> bool {
    lines.windows(2).all(|pair| {
        let calls = comment(script, pair[0].1).strip_prefix("calls ");
        calls.is_some_and(|calls| calls.split(' ').any(|name| name == pair[1].0))
    })
}

/// A thread may be read at any line. The result is wrong only if a call or return happens while it
/// is read: about a microsecond in some tens of milliseconds. The test allows one in a hundred, and
/// five if there are few stacks; more than that happens by chance less than once in 1e9 runs.
#[test]
fn each_stack_is_one_that_the_program_has() {
    with_each(|python| {
        let scratch = Scratch::new();
        let script = artifacts::source("python_halves.py");
        let text = std::fs::read_to_string(&script).expect("a script of ours");
        let outcome = sampled(&scratch, 250, python, &[path(&script), "7", "2"]);
        let read = Read::only(&outcome);
        let spent = truth(&outcome.stdout);
        let told = read.profile.facts.python.clone().unwrap_or_default();
        assert!(told.ends_with(": named"), "{told}");
        let (mut all, mut right) = (0, 0);
        let (mut innermost, mut own) = (0, [0.0, 0.0]);
        for (stack, samples, ns) in read.stacks() {
            let lines = lines(&read.profile, stack);
            // Before the script begins, and behind it.
            let Some(work) = lines.iter().position(|(name, _)| *name == "work") else {
                continue;
            };
            all += samples;
            let outer: Vec<&str> = lines[..work].iter().map(|(name, _)| *name).collect();
            let mut is_right = match outer[..] {
                ["<module>", "main"] => lead_on(&text, &lines),
                ["_bootstrap", "_bootstrap_inner", "run"] => lead_on(&text, &lines[work..]),
                _ => false,
            };
            let (name, line) = lines[lines.len() - 1];
            let which = ["first", "second"]
                .iter()
                .position(|function| *function == name);
            if let Some(which) = which {
                innermost += samples;
                own[which] += ns as f64;
                is_right &= comment(&text, line) == name;
            }
            right += if is_right { samples } else { 0 };
        }
        assert!(all > 100, "{all} samples: {outcome:?}");
        assert!(
            all - right <= (all / 100).max(5),
            "{told}: {right} of {all}"
        );
        assert!(innermost > all / 10 * 8, "{told}: {innermost} of {all}");
        let (found, share) = (
            own[0] / (own[0] + own[1]),
            spent["first"] / (spent["first"] + spent["second"]),
        );
        // Six standard errors, were the samples taken by chance.
        let error = 6.0 * (share * (1.0 - share) / all as f64).sqrt();
        assert!((found - share).abs() < error, "{told}: {found} for {share}");
    });
}

/// Words of the interpreter's data are corrupted and restored by the sampled thread and by another
/// one. The program continues, and so does the session.
#[test]
fn corrupted_interpreter_data_do_no_harm() {
    with_each(|python| {
        let scratch = Scratch::new();
        let library = scratch.compile("python_garbage.c", &["-shared", "-fPIC"]);
        let script = artifacts::source("python_garbage.py");
        let outcome = sampled(
            &scratch,
            4000,
            python,
            &[path(&script), path(&library), "3"],
        );
        assert!(outcome.stdout.contains("survived"), "{outcome:?}");
        let read = Read::only(&outcome);
        assert!(read.samples() > 0, "{outcome:?}");
    });
}

/// Threads and children end, and the program executes itself, while they are sampled.
#[test]
fn programs_that_end_or_execute_others_are_handled() {
    with_each(|python| {
        let scratch = Scratch::new();
        let script = artifacts::source("python_restless.py");
        let outcome = sampled(&scratch, 4000, python, &[path(&script), "6"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stdout.contains("survived"), "{outcome:?}");
        let named = files(&outcome).into_iter().filter(|file| {
            let read = Read::of(file);
            let lines = |stack: &[u32]| lines(&read.profile, stack);
            let mut stacks = read.stacks();
            stacks.any(|(stack, ..)| lines(stack).iter().any(|(name, _)| *name == "burn"))
        });
        assert!(named.count() > 0, "{outcome:?}");
    });
}

/// The interpreter is in a library that the program loads while it is sampled.
#[test]
fn an_interpreter_that_is_loaded_later_is_named() {
    const SCRIPT: &str = "import time\ndef busy():\n    end = time.process_time() + 0.5\n    \
                          while time.process_time() < end: pass\nbusy()\nimport os\nos._exit(0)\n";
    let scratch = Scratch::new();
    let program = scratch.compile("python_embedded.c", &[]);
    let outcome = sampled(&scratch, 250, &program, &["libpython3.11.so.1.0", SCRIPT]);
    let read = Read::only(&outcome);
    let told = read.profile.facts.python.clone().unwrap_or_default();
    assert!(
        told.starts_with("3.11.") && told.ends_with(": named"),
        "{told}"
    );
    let is_busy = |stack: &[u32]| {
        let lines = lines(&read.profile, stack);
        matches!(lines[..], [("<module>", 5), ("busy", 2..=4)])
    };
    let stacks = read.stacks().filter(|(stack, ..)| is_busy(stack));
    let ns: f64 = stacks.map(|(.., ns)| ns as f64).sum();
    assert!(ns > 0.4e9, "{ns}: {outcome:?}");
}

/// An interpreter whose data layout is unknown has no lines, and every engine reports this. One
/// version is recognised by its data, and older ones by their names.
#[test]
fn versions_that_are_not_known_are_named() {
    let scratch = Scratch::new();
    for (name, flags, version) in [
        ("libapp", &["-DINTERPRETER", "-rdynamic"][..], "3.7"),
        ("python3.6", &[], "3.6"),
        ("python2.7", &[], "2.7"),
    ] {
        let python = scratch.compile_as("burn.c", name, flags);
        for engine in ["ptrace", "perf"] {
            let mut command = scratch.profiler();
            command.args(["cpu", "run", "--engine", engine, "-F", "250", "-o"]);
            command.arg(scratch.file("p_")).arg("--").arg(&python);
            let outcome = run(&mut command);
            let read = Read::only(&outcome);
            assert!(read.samples() > 0, "{outcome:?}");
            let said =
                format!("no lines of Python ({version} is not supported, only 3.8 to 3.15 are)");
            // Perf events do not look for interpreters that are called otherwise.
            let is_said = engine == "ptrace" || name.starts_with("python");
            assert_eq!(outcome.stderr.contains(&said), is_said, "{outcome:?}");
            if name == "libapp" && engine == "ptrace" {
                let told = read.profile.facts.python.clone().unwrap_or_default();
                assert!(told.starts_with("3.7: unsupported version"), "{told}");
            }
        }
    }
}

#[test]
fn a_function_without_a_name_is_shown_with_its_file_and_line() {
    let scratch = Scratch::new();
    let script = artifacts::source("python_nameless.py");
    let python = Path::new("/usr/bin/python3");
    let read = Read::only(&sampled(&scratch, 250, python, &[path(&script)]));
    let names: Vec<String> = (read.profile.locations.iter())
        .filter_map(|location| read.profile.python_name(location))
        .collect();
    let is_it = |name: &String| name.starts_with("<unnamed> (python_nameless.py:1");
    assert!(names.iter().any(is_it), "{names:?}");
    let is_named = |function: &profile::Function| !function.name.is_empty();
    assert!(read.profile.functions.iter().all(is_named));
}

/// An interpreter of another user is refused like any other program of that user.
#[test]
fn a_process_that_may_not_be_traced_is_refused() {
    let scratch = Scratch::new();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", "print('ready', flush=True)\nwhile True: pass"]);
    let target = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(artifacts::profiler());
    command.args(["cpu", "--engine", "ptrace", "-s", "1", "-p"]);
    command.arg(target.pid().to_string()).arg("-o");
    // A directory that everybody may write to; there is nothing to be written.
    command.arg(std::env::temp_dir().join("refused_"));
    command.env("MEM_PROFILER_DIR", scratch.shared());
    let outcome = run(command.stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("no permission"), "{outcome:?}");
}
