//! Lines of Python in profiles of CPU time of processes that have nothing of ours in them: their threads
//! are stopped, and their interpreter's data read from outside.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use heap_format::Profile;
use mem_tests::cpu::{Read, files, truth};
use mem_tests::{Outcome, Scratch, Target, artifacts, pythons, run};

/// A script under the engine from its start, and what it says.
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

/// The lines of Python of a stack, outermost first: functions without what encloses them, and lines.
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

/// With each interpreter, in a thread each.
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

/// Each call takes some milliseconds, and a call or a return is a matter of a microsecond: of all
/// samples, a thousandth at most meet one. Where one in a hundred may be wrong, and five of few, that is
/// one in 1e9.
#[test]
fn each_stack_is_one_that_the_program_has() {
    with_each(|python| {
        let scratch = Scratch::new();
        let script = artifacts::source("python_halves.py");
        let text = std::fs::read_to_string(&script).expect("a script of ours");
        let outcome = sampled(&scratch, 250, python, &[path(&script), "20", "2"]);
        let read = Read::only(&outcome);
        let spent = truth(&outcome.stdout);
        let told = read.profile.facts.python.clone().unwrap_or_default();
        assert!(told.ends_with(": named"), "{told}");
        let (mut all, mut right, mut own) = (0, 0, [0.0, 0.0]);
        for (stack, samples, ns) in read.stacks() {
            let lines = lines(&read.profile, stack);
            let calls: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
            // Before the script begins, and behind it.
            let Some(work) = calls.iter().position(|name| *name == "work") else {
                continue;
            };
            all += samples;
            let (outer, inner) = calls.split_at(work);
            let begins = match outer {
                ["<module>", "main"] => true,
                ["_bootstrap", "_bootstrap_inner", "run"] => true,
                _ => false,
            };
            let which = match inner {
                ["work", "numbers", "timed", "first"] => 0,
                ["work", "numbers", "<lambda>", "timed", "second"] => 1,
                _ => continue,
            };
            own[which] += ns as f64;
            let line = lines.last().map_or(0, |(_, line)| *line as usize);
            let text = text.lines().nth(line.wrapping_sub(1)).unwrap_or_default();
            let loops = ["# first", "for number in", "# second", "while number"];
            let is_of = |part: &&str| text.contains(part);
            let is_loop = loops[2 * which..2 * which + 2]
                .iter()
                .any(|part| is_of(part));
            right += if begins && is_loop { samples } else { 0 };
        }
        assert!(all > 100, "{all} samples: {outcome:?}");
        let most = (all / 100).max(5);
        assert!(all - right <= most, "{told}: {right} of {all}");
        let (found, share) = (
            own[0] / (own[0] + own[1]),
            spent["first"] / (spent["first"] + spent["second"]),
        );
        // Six standard errors, were the samples taken by chance.
        let error = 6.0 * (share * (1.0 - share) / all as f64).sqrt();
        assert!((found - share).abs() < error, "{told}: {found} for {share}");
    });
}

/// Words of the interpreter's data are spoiled, and put back, by the thread that is looked at and by
/// another one: the program goes on, and so does the session.
#[test]
fn what_is_spoiled_in_the_interpreter_harms_nobody() {
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

/// Threads and children end, and the program executes itself, while they are looked at.
#[test]
fn programs_that_end_or_execute_others_go_on() {
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

/// Another user's interpreter is refused as any other program of theirs.
#[test]
fn what_may_not_be_traced_is_refused() {
    let scratch = Scratch::new();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", "print('ready', flush=True)\nwhile True: pass"]);
    let target = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let refused = |name: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(artifacts::profiler());
        command.args([
            "cpu",
            "--engine",
            "ptrace",
            "-s",
            "1",
            "-p",
            name,
            "-o",
            "/dev/null",
        ]);
        command.env("MEM_PROFILER_DIR", scratch.shared());
        run(command.stdin(Stdio::null()))
    };
    let outcome = refused(&target.pid().to_string());
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("ptrace"), "{outcome:?}");
}
