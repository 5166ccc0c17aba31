//! Tests on a real interpreter, and on simulated interpreter data.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cpython::layout::{self, Layout};

use super::codes::Codes;
use super::frames::{Chain, RawFrame};
use super::memory::{Memory, Pages};
use crate::memory::Copied;
use crate::perf::Sampling;
use crate::ptrace::Ptrace;
use crate::recording::{Process, Recording};
use crate::running::Running;

const PYTHON: &str = "/usr/bin/python3";
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Script with calls from Python, from C and from a generator.
const NEST: &str = "\
def spin():
    print('ready', flush=True)
    while True:
        pass

def numbers():
    yield 1
    yield sorted([1], key=lambda _: spin())

def outer(depth):
    if depth:
        return outer(depth - 1)
    return list(numbers())

outer(2)
";

/// Script with threads that run different functions.
const THREADS: &str = "\
import threading
ready = [False] * 3

def first():
    ready[0] = True
    while True: pass

def second():
    ready[1] = True
    while True: pass

def third():
    ready[2] = True
    while True: pass

for f in first, second, third:
    threading.Thread(target=f, daemon=True).start()
while not all(ready): pass
print('ready', flush=True)
import time
while True: time.sleep(1000)
";

/// Script that runs an interpreter in another one.
const NESTED_INTERPRETER: &str = "\
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string

def enter():
    run(interpreters.create(), '''
def inner():
    print('ready', flush=True)
    while True: pass
inner()
''')

enter()
";

/// Script with a stack of more than the maximum number of frames.
const DEEP: &str = "\
import sys
sys.setrecursionlimit(10000)

def down(depth):
    if depth:
        down(depth - 1)
    print('ready', flush=True)
    while True: pass

down(5000)
";

/// Starts a script and waits until it prints `ready`.
fn start(script: &str) -> Running {
    let mut command = Command::new(PYTHON);
    let command = command.args(["-I", "-c", script]).stdout(Stdio::piped());
    let mut running = Running::start(command);
    let mut line = String::new();
    let output = running.0.stdout.take().expect("a piped output");
    let read = BufReader::new(output).read_line(&mut line);
    assert!(read.is_ok() && line == "ready\n", "{line}");
    running
}

/// Samples a process until it has at least `samples` samples, of at least `threads` threads.
fn sampled(running: &Running, samples: u64, threads: usize) -> Process {
    let pid = running.pid();
    let mut recording = Recording::new(false);
    recording.add(pid);
    let mut ptrace = Ptrace::new(Sampling {
        rate: 1000,
        children: false,
    });
    ptrace.attach(pid).expect("a child may be traced");
    let end = Instant::now() + TEST_TIMEOUT;
    let is_enough =
        |process: &Process| process.counts.samples >= samples && process.threads.len() >= threads;
    while !recording
        .process(pid)
        .is_some_and(|process| is_enough(process))
    {
        assert!(Instant::now() < end, "waited {TEST_TIMEOUT:?} for samples");
        std::thread::sleep(ptrace.max_wait());
        ptrace.collect(&mut recording);
    }
    recording.finish().processes.pop().expect("the process")
}

/// Returns each stack, innermost frame first, with its number of samples: Python lines, and `-` for
/// native frames between them.
fn stacks(process: &Process) -> Vec<(Vec<String>, u64)> {
    let mut all = Vec::new();
    process.stacks.each(|_, frames, count| {
        let mut shown = Vec::new();
        let mut native = 0;
        for &frame in frames {
            match process.script.line(frame) {
                None => native += 1,
                Some(line) => {
                    if native > 0 {
                        shown.push("-".to_owned());
                    }
                    native = 0;
                    let name = &line.name;
                    let start = line.first_line;
                    shown.push(format!("{name} {start} {}", line.line));
                }
            }
        }
        // A native frame runs the outermost line.
        assert!(native > 0, "{frames:x?}");
        all.push((shown, count.samples));
    });
    all
}

#[test]
fn lines_are_inserted_at_the_native_frames_that_run_them() {
    let running = start(NEST);
    let process = sampled(&running, 100, 1);
    let description = process
        .script
        .interpreter
        .expect("an interpreter")
        .to_string();
    assert!(
        description.starts_with("3.") && description.ends_with(": named"),
        "{description}"
    );
    for (mut stack, samples) in stacks(&process) {
        // The innermost line may be in a call of a native function.
        if stack[0] == "-" {
            stack.remove(0);
        }
        let innermost = stack.remove(0);
        let lines = ["spin 1 2", "spin 1 3", "spin 1 4"];
        assert!(lines.contains(&&*innermost), "{innermost}: {samples}");
        let expected = [
            "numbers.<locals>.<lambda> 8 8",
            "-",
            "numbers 6 8",
            "-",
            "outer 10 13",
            "outer 10 12",
            "outer 10 12",
            "<module> 1 15",
        ];
        assert_eq!(stack, expected, "{samples} samples");
    }
}

#[test]
fn each_thread_has_its_own_frames() {
    let running = start(THREADS);
    let process = sampled(&running, 100, 3);
    let mut seen = Vec::new();
    for names in names(&process) {
        let [leaf, run, inner, outer] = &names[..] else {
            panic!("{names:?}");
        };
        let outer = [run, inner, outer];
        assert_eq!(
            outer,
            ["Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap"]
        );
        seen.push(leaf.clone());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["first", "second", "third"]);
}

/// Returns the names of the lines of each stack, innermost first.
fn names(process: &Process) -> Vec<Vec<String>> {
    let name = |frame: &String| frame.split(' ').next().map(str::to_owned);
    let names_of = |stack: &Vec<String>| {
        stack
            .iter()
            .filter(|f| **f != "-")
            .filter_map(name)
            .collect()
    };
    stacks(process)
        .iter()
        .map(|(stack, _)| names_of(stack))
        .collect()
}

#[test]
fn frames_of_a_nested_interpreter_are_inner_frames() {
    let running = start(NESTED_INTERPRETER);
    let process = sampled(&running, 50, 1);
    for names in names(&process) {
        assert_eq!(names, ["inner", "<module>", "enter", "<module>"]);
    }
}

#[test]
fn innermost_frames_of_deep_stacks_are_kept() {
    let running = start(DEEP);
    let process = sampled(&running, 20, 1);
    process.stacks.each(|_, frames, _| {
        let lines = frames
            .iter()
            .filter_map(|frame| process.script.line(*frame));
        let names: Vec<&str> = lines.map(|line| &*line.name).collect();
        assert_eq!(names.len(), cpython::MAX_FRAMES);
        let (last, kept) = names.split_last().expect("frames");
        assert_eq!(*last, cpython::FRAMES_OMITTED);
        assert!(kept.iter().all(|name| *name == "down"));
    });
}

#[test]
fn other_programs_have_no_interpreter() {
    let mut command = Command::new("sh");
    let running = Running::start(command.args(["-c", "while :; do :; done"]));
    let process = sampled(&running, 20, 1);
    assert_eq!(process.script.interpreter, None);
    process.stacks.each(|_, frames, _| {
        assert!(
            frames
                .iter()
                .all(|frame| process.script.line(*frame).is_none())
        );
    });
}

/// Collects frames from simulated data in `words`, which begin with the thread state. Returns true
/// if they are consistent, and the number of frames.
fn chain(layout: &Layout, words: &mut [u64], make: impl FnOnce(&mut [u64], u64)) -> (bool, usize) {
    let at = words.as_ptr() as u64;
    make(words, at);
    let mut pages = Pages::new(std::process::id().cast_signed());
    let stack = [0; 64];
    let mut memory = Memory::new(&mut pages, Copied::new(at, &stack[..0]));
    let mut frames: Vec<RawFrame> = Vec::new();
    let whole = Chain::new(layout, &mut memory, &mut frames).collect(at);
    (whole.is_ok(), frames.len())
}

/// Reading arbitrary words terminates, and finds nothing that exceeds the limits.
#[test]
fn cyclic_and_random_chains_terminate() {
    let layouts = [0x0308_0000, 0x030a_0000, 0x030b_0000, 0x030c_0000]
        .map(|version| layout::for_version(version).expect("a version that is known"));
    let mut words = vec![0u64; 4096];
    for layout in &layouts {
        // A thread state all of whose words point to itself.
        let (_, count) = chain(layout, &mut words, |words, at| words.fill(at));
        assert!(count <= cpython::MAX_FRAMES, "{count}");
        let (_, count) = chain(layout, &mut words, |words, at| {
            for (index, word) in words.iter_mut().enumerate() {
                *word = at + 8 * (index as u64 + 16);
            }
        });
        assert!(count <= cpython::MAX_FRAMES, "{count}");
        for bad in [0, 1, 8, 1 << 55, u64::MAX, u64::MAX - 7] {
            let (_, count) = chain(layout, &mut words, |words, _| words.fill(bad));
            assert_eq!(count, 0, "{bad:x}");
        }
        let mut seed = 88_172_645_463_325_252_u64;
        for _ in 0..2000 {
            let make = |words: &mut [u64], at: u64| {
                for word in words.iter_mut() {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    *word = match seed % 7 {
                        0 => seed,
                        1 => 0,
                        _ => at + (seed >> 20) % (8 * 4000) / 8 * 8,
                    };
                }
            };
            let (_, count) = chain(layout, &mut words, make);
            assert!(count <= cpython::MAX_FRAMES, "{count}");
        }
    }
}

/// Generator of random words.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Objects of the right types with random contents: names are bounded, and every instruction has a
/// line.
#[test]
fn random_code_objects_are_read_within_limits() {
    const CODES: usize = 3000;
    let layouts = [0x0308_0000, 0x030b_0000, 0x030c_0000]
        .map(|version| layout::for_version(version).expect("a version that is known"));
    for layout in &layouts {
        let mut random = Words(88_172_645_463_325_252);
        let names = [*b"code\0\0\0\0", *b"str\0\0\0\0\0", *b"bytes\0\0\0"];
        // Types, then objects of 64 words: code object, string, table, and so on in turn.
        let mut words = vec![0u64; 64 * (CODES + 8)];
        let start = words.as_ptr() as u64;
        let object = |index: u64| start + 512 * (index + 4);
        for (index, name) in names.iter().enumerate() {
            words[64 * index + layout::TYPE_NAME_OFFSET as usize / 8] = name.as_ptr() as u64;
        }
        let mut found = 0;
        let mut codes = Codes::new(layout.table);
        for round in 0..3 {
            for index in 0..CODES {
                let at = 64 * (index + 4);
                let of = |kind: u64, random: &mut Words| object((random.next() % 900) * 3 + kind);
                words[at..at + 64].fill_with(|| match random.next() % 3 {
                    0 => random.next(),
                    1 => random.next() % 100,
                    _ => start + random.next() % (8 * words_in(CODES)),
                });
                words[at + 1] = start + 512 * (index as u64 % 3);
                if index % 3 == 0 {
                    words[at + layout.name as usize / 8] = of(1, &mut random);
                    words[at + layout.file as usize / 8] = of(1, &mut random);
                    words[at + layout.lines as usize / 8] = of(2, &mut random);
                } else if !random.next().is_multiple_of(4) {
                    words[at + 2] = random.next() % 2000;
                    // State of a compact ASCII string.
                    words[at + 4] = 0b1_1001 << 2;
                }
            }
            let mut pages = Pages::new(std::process::id().cast_signed());
            let mut memory = Memory::new(&mut pages, Copied::new(8, &[]));
            for index in 0..CODES as u64 {
                let frame = RawFrame {
                    at: 0,
                    code: object(index),
                    instruction: 0,
                };
                let Ok(numbers) = codes.numbers(&mut memory, layout, &[frame, frame]) else {
                    continue;
                };
                assert_eq!(numbers[0], numbers[1]);
                assert_eq!(index % 3, 0, "{round}");
                let line = codes.line(numbers[0], (random.next() % layout::MAX_INSTRUCTION) as u32);
                assert!(line.name.chars().count() <= cpython::MAX_NAME as usize);
                assert!(line.file.chars().count() <= cpython::MAX_FILE as usize);
                found += 1;
            }
        }
        assert!(found > 100, "{found}");
    }
}

fn words_in(codes: usize) -> u64 {
    64 * (codes as u64 + 8)
}
