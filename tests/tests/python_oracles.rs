//! Compares Python stacks with those of two other profilers: memray, which follows the interpreter
//! with hooks, and py-spy, which reads its data from outside. Needs access to PyPI the first time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mem_tests::session::tool;
use mem_tests::{Scratch, Session, Target, artifacts, venv};
use profile::Profile;
use serde_json::Value;

/// Allocations by stack of Python, innermost first.
type Counts = BTreeMap<String, u64>;

/// Returns a function and its line as both sides can have it: without the classes and functions
/// that it is in, which only some versions of the others know.
fn short(frame: &str) -> String {
    let (name, place) = frame.split_once(" (").unwrap_or((frame, ""));
    let place = place.trim_end_matches(')');
    let file = place.rsplit('/').next().unwrap_or(place);
    let name = name.rsplit('.').next().unwrap_or(name);
    format!("{name} ({file})")
}

/// Returns the stack of Python of each of a profile's details.
fn stacks(profile: &Profile) -> Vec<String> {
    let one = |index: usize| {
        let frames = profile.stacks.get(index).iter();
        let locations = frames.map(|frame| &profile.locations[*frame as usize]);
        let names: Vec<String> = locations
            .filter_map(|location| profile.python_name(location))
            .map(|name| short(&name))
            .collect();
        names.join(";")
    };
    (0..profile.details.len()).map(one).collect()
}

/// Returns the blocks that live, of a profile at `-c 1`, under the frame `within`, which are
/// counted up to it.
fn ours(profile: &Profile, within: &str) -> Counts {
    let mut counts = Counts::new();
    for (stack, detail) in stacks(profile).into_iter().zip(&profile.details) {
        if let Some(stack) = inner(begun(&stack), within) {
            *counts.entry(stack).or_default() += detail.alloc_samples - detail.free_samples;
        }
    }
    counts
}

/// Returns the stack without a function that has not reached its first line. The cells for its
/// variables are allocated there, before memray is notified of the call.
fn begun(stack: &str) -> &str {
    let (inmost, rest) = stack.split_once(';').unwrap_or((stack, ""));
    if inmost.contains(':') { stack } else { rest }
}

/// Returns the part of a stack up to its outermost frame called `within`.
fn inner(stack: &str, within: &str) -> Option<String> {
    let end = stack.rfind(&format!("{within} ("))?;
    let end = end + stack[end..].find(';').unwrap_or(stack.len() - end);
    Some(stack[..end].to_owned())
}

/// Returns what memray's reader printed, under the frame `within`.
fn memrays(printed: &str, within: &str) -> Counts {
    let mut counts = Counts::new();
    for line in printed.lines() {
        let (count, stack) = line.split_once(' ').expect("a number and a stack");
        let stack = stack.split(';').map(short).collect::<Vec<_>>().join(";");
        if let Some(stack) = inner(&stack, within) {
            *counts.entry(stack).or_default() += count.parse::<u64>().expect("a number");
        }
    }
    counts
}

/// Returns the program of the comparison, profiled with every allocation sampled.
fn profiled(scratch: &Scratch, python: &Path, arguments: &[&Path]) -> Profile {
    let mut command = scratch.preloaded(python);
    command.args(arguments);
    // Without its own allocator for small objects: of those, neither sees anything else.
    command.envs([("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0")]);
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "started");
    let session = Session::of(scratch, target.pid(), "1");
    target.say("go");
    assert_eq!(target.hear(), "done");
    let profile = session.stop().profile();
    target.say("end");
    target.finish_well();
    profile
}

#[test]
fn each_block_that_is_kept_has_the_stack_that_memray_sees() {
    const WITHIN: &str = "measured";
    let scratch = Scratch::new();
    let python = venv::python("memray-1.20.0", &["memray==1.20.0"]);
    let script = artifacts::source("python_oracle.py");
    let recorded = scratch.file("memray.bin");
    let profile = profiled(&scratch, &python, &[&script, &recorded]);
    let reading = [script.as_os_str(), "-r".as_ref(), recorded.as_os_str()];
    let theirs = memrays(&tool(python.to_str().expect("a path"), reading), WITHIN);
    compare(&ours(&profile, WITHIN), &theirs);
}

/// Checks that nearly all blocks have the same stack in both. Differences remain for objects that
/// the interpreter and memray make when the two compared functions first run, for objects that the
/// interpreter makes for memray in a call that memray has not seen yet, and for memray's own
/// records of stacks, which it makes in the innermost function.
fn compare(ours: &Counts, theirs: &Counts) {
    let stacks: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let (mut both, mut all) = (0, 0);
    for stack in stacks {
        let [our, their] = [ours, theirs].map(|side| side.get(stack).copied().unwrap_or(0));
        both += our.min(their);
        all += our.max(their);
        if our != their {
            println!("{our} {their} {stack}");
        }
    }
    println!("{both} of {all} blocks have the same stack");
    assert!(both > 20_000);
    assert!(both * 1000 >= all * 999, "{both} of {all}");
}

/// Returns the stacks of all threads, as py-spy prints them.
fn py_spy(pid: u32) -> BTreeSet<String> {
    let python = venv::python("py-spy-0.4.3", &["py-spy==0.4.3"]);
    let tool_at = python.with_file_name("py-spy");
    let printed = tool(
        tool_at.to_str().expect("a path"),
        ["dump", "--json", "--pid", &pid.to_string()],
    );
    let threads: Value = serde_json::from_str(&printed).expect("its JSON");
    let threads = threads.as_array().expect("threads");
    let frame = |frame: &Value| {
        let [name, file] = ["name", "filename"].map(|key| frame[key].as_str().expect("a text"));
        short(&format!("{name} ({file}:{})", frame["line"]))
    };
    let stack = |thread: &Value| {
        let frames = thread["frames"].as_array().expect("frames").iter();
        frames.map(frame).collect::<Vec<_>>().join(";")
    };
    threads.iter().map(stack).collect()
}

#[test]
fn threads_that_wait_have_the_stacks_that_py_spy_sees() {
    let scratch = Scratch::new();
    let mut command = scratch.preloaded("/usr/bin/python3");
    command.arg(artifacts::source("python_threads.py"));
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "started");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("go");
    assert_eq!(target.hear(), "ready");
    let theirs = py_spy(target.pid());
    let profile = session.stop().profile();
    let mut ours = BTreeSet::new();
    for (stack, detail) in stacks(&profile).into_iter().zip(&profile.details) {
        if detail.live_bytes() >= 100_000.0 {
            ours.insert(stack);
        }
    }
    assert_eq!(theirs.len(), 11);
    assert_eq!(ours, theirs);
}
