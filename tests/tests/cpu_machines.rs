//! `mem_profiler cpu` and programs for another machine, whose stacks cannot be unwound here: they
//! are refused by name with every engine, and do not disturb the sampling of others.
#![cfg(target_arch = "x86_64")]

use std::path::PathBuf;
use std::process::{Child, Command};

use mem_tests::cpu::{Read, files, waiting_split};
use mem_tests::session::write_program;
use mem_tests::{Scratch, run, target, wait};

const ENGINES: [&[&str]; 6] = [
    &[],
    &["--engine", "perf"],
    &["--engine", "ptrace"],
    &["--engine", "timers"],
    &["--offcpu"],
    &["--wall"],
];

/// Returns a program for i386 that counts down, and ends: `mov ecx, N; dec ecx; jnz -3; mov eax, 1;
/// xor ebx, ebx; int 0x80`. `None`: it jumps to itself.
fn narrow_program(scratch: &Scratch, rounds: Option<u32>) -> PathBuf {
    const BASE: u32 = 0x0804_8000;
    const HEADERS: u32 = 52 + 32;
    let code = match rounds {
        None => vec![0xeb, 0xfe],
        Some(rounds) => {
            let end = [0x49, 0x75, 0xfd, 0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80];
            [&[0xb9][..], &rounds.to_le_bytes(), &end].concat()
        }
    };
    let size = HEADERS + code.len() as u32;
    let mut file = b"\x7fELF\x01\x01\x01".to_vec();
    file.resize(16, 0);
    let words = |file: &mut Vec<u8>, words: &[u32]| {
        words
            .iter()
            .for_each(|word| file.extend(word.to_le_bytes()));
    };
    let halves = |file: &mut Vec<u8>, halves: &[u16]| {
        halves
            .iter()
            .for_each(|half| file.extend(half.to_le_bytes()));
    };
    // ET_EXEC for EM_386; its entry, its program header, and their sizes.
    halves(&mut file, &[2, 3]);
    words(&mut file, &[1, BASE + HEADERS, 52, 0, 0]);
    halves(&mut file, &[52, 32, 1, 0, 0, 0]);
    // PT_LOAD of all of it, readable and executable.
    words(&mut file, &[1, 0, BASE, BASE, size, size, 5, 4096]);
    file.extend(code);
    let path = scratch.file("narrow");
    write_program(&path, &file);
    path
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn endless(scratch: &Scratch) -> Running {
    let program = narrow_program(scratch, None);
    Running(
        Command::new(program)
            .spawn()
            .expect("a kernel that runs programs for i386"),
    )
}

#[test]
fn a_process_of_another_machine_is_refused_by_each_engine() {
    let scratch = Scratch::new();
    let narrow = endless(&scratch);
    let pid = narrow.0.id();
    wait::until("it to run", || {
        (target::cpu_seconds(pid) > 0.0).then_some(())
    });
    let said = &[
        "narrow",
        "a 32-bit program for i386",
        "only 64-bit programs for x86-64 can be sampled",
    ];
    for engine in ENGINES {
        let mut command = scratch.profiler();
        command.args(["cpu", "-s", "1", "-p", &pid.to_string()]);
        let outcome = run(command.args(engine).arg("-o").arg(scratch.file("p_")));
        assert!(files(&outcome).is_empty(), "{outcome:?}");
        outcome.refused(1, said);
    }
    let mut command = scratch.profiler();
    let top = command.args(["top", "--cpu", "--once", "-p", &pid.to_string()]);
    run(top).refused(1, &said[1..]);
}

#[test]
fn a_process_of_another_machine_is_skipped_beside_others() {
    let scratch = Scratch::new();
    let narrow = endless(&scratch);
    let program = scratch.compile("split.cpp", &[]);
    for engine in ["perf", "ptrace"] {
        let mut target = waiting_split(&program, &["100", "two", "100", "wait"]);
        target.say("go");
        let mut command = scratch.profiler();
        command.args(["cpu", "-s", "0.5", "--engine", engine]);
        command.args(["-p", &narrow.0.id().to_string()]);
        command.args(["-p", &target.pid().to_string(), "-o"]);
        let outcome = run(command.arg(scratch.file("p_")));
        // The session failed in part.
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let said = format!("narrow ({})", narrow.0.id());
        assert!(outcome.stderr.contains(&said), "{outcome:?}");
        let files = files(&outcome);
        assert_eq!(files.len(), 1, "{outcome:?}");
        assert!(Read::of(&files[0]).samples() > 0, "{outcome:?}");
        target.kill();
    }
}

/// The program is started by us, executed halfway, or a child. The other programs have their
/// profiles, and the reason is reported once.
#[test]
fn a_program_of_another_machine_is_named_where_it_is_started() {
    let scratch = Scratch::new();
    // Some tenths of a second.
    let narrow_path = narrow_program(&scratch, Some(700_000_000));
    let program = scratch.compile("split.cpp", &[]);
    let (narrow, split) = (narrow_path.display(), program.display());
    for engine in ["perf", "ptrace"] {
        let scripts = [
            (format!("exec {narrow}"), false),
            (format!("{narrow}; :"), false),
            (format!("{split} 0.3 two >&2; exec {narrow}"), true),
            (format!("{narrow} & {split} 0.3 two >&2; wait"), true),
        ];
        for (script, profiles) in scripts {
            let mut command = scratch.profiler();
            command.args(["cpu", "run", "--engine", engine, "-F", "499", "-o"]);
            command.arg(scratch.file("p_"));
            let outcome = run(command.args(["--", "sh", "-c", &script]));
            let told = outcome.stderr.matches("a 32-bit program for i386").count();
            assert_eq!(told, 1, "{engine} {script}: {outcome:?}");
            let reads = files(&outcome);
            let reads: Vec<Read> = reads.iter().map(|path| Read::of(path)).collect();
            let of = |name: &str| {
                let is_it = |read: &&Read| read.profile.facts.process.as_deref() == Some(name);
                reads.iter().filter(is_it).count()
            };
            assert_eq!(of("narrow"), 0, "{engine} {script}: {outcome:?}");
            assert_eq!(
                of("split"),
                usize::from(profiles),
                "{engine} {script}: {outcome:?}"
            );
        }
    }
    // If agents sample, only the first process may lack an agent; nothing is known about others.
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", "timers", "-o"]);
    let outcome = run(command.arg(scratch.file("t_")).arg("--").arg(narrow_path));
    outcome.refused(1, &["a 32-bit program for i386"]);
    assert!(!outcome.stderr.contains("agent"), "{outcome:?}");
}
