//! Bad input: a clear message, the right exit code, nothing lost.

use std::fs::{self, File, Permissions};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mem_tests::session::copy_program;
use mem_tests::target::cpu_seconds;
use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::truth::assert_exact;
use mem_tests::wait;
use mem_tests::{Scratch, Session, Steps, Target, artifacts, run, sums};
use shm_protocol::ABI_VERSION;
use shm_protocol::layout::{IDENTITY_OFFSET, Identity};

/// Returns a process without the agent.
fn bystander() -> Target {
    let mut command = Command::new("cat");
    Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
}

/// Another controller locks a segment while it starts or ends a session, and writes its dumps. A
/// new session waits for some seconds before it is refused.
#[test]
fn a_segment_that_is_locked_is_waited_for() {
    let scratch = Scratch::new();
    let program = scratch.compile("steps.c", &[]);
    let steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    let segment = wait::until("the segment", || scratch.segment(steps.pid()));
    let held = File::open(segment).expect("a segment");
    held.lock().expect("its lock");
    let pid = steps.pid().to_string();
    let session = || {
        let mut command = scratch.profiler();
        command.args(["-s", "0.1", "-c", "1", "-p", &pid, "-o"]);
        run(command.arg(scratch.file("p_")))
    };
    let asked = Instant::now();
    session().refused(1, &["another mem_profiler is starting or ending a session"]);
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
    thread::scope(|scope| {
        let waiting = scope.spawn(session);
        thread::sleep(Duration::from_secs(1));
        held.unlock().expect("its lock");
        let outcome = waiting.join().expect("a session");
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    });
}

#[test]
fn bad_usage_is_exit_code_2() {
    let scratch = Scratch::new();
    for bad in [
        "-c 0",
        "-c -1",
        "-c x",
        "-c 1e999",
        "-s -1",
        "-s 0",
        "-s abc",
        "-p 0",
        "--nonsense",
    ] {
        let outcome = run(scratch.profiler().args(bad.split(' ')));
        assert_eq!(outcome.code, Some(2), "{bad}: {outcome:?}");
        assert!(outcome.stderr.contains("--help"), "{bad}: {outcome:?}");
        assert!(outcome.stdout.is_empty(), "{bad}: {outcome:?}");
    }
    let bad = [
        "",
        "-p /bin/true -f x --nonsense",
        "-p /bin/true -f x -t -s",
        "-p /bin/true -t",
    ];
    for bad in bad {
        let outcome = run(scratch.parser().args(bad.split_whitespace()));
        assert_eq!(outcome.code, Some(2), "{bad}: {outcome:?}");
        assert!(outcome.stderr.contains("--help"), "{bad}: {outcome:?}");
        assert!(outcome.stdout.is_empty(), "{bad}: {outcome:?}");
    }
}

/// Messages suggest what the user meant: those of the command-line parser, and ours for words that
/// it does not know.
#[test]
fn words_that_are_no_command_lead_to_what_was_meant() {
    let scratch = Scratch::new();
    for (line, hint) in [
        ("1234", "'-p 1234'"),
        ("list 1234", "'-p 1234'"),
        ("-s 5 1234", "'-p 1234'"),
        ("redis-server", "'mem_profiler run redis-server'"),
        ("list -q", "'> /dev/null'"),
        ("-q list", "'mem_profiler list --help'"),
        ("lsit", "'list'"),
        ("--intervall 5", "'--interval'"),
        ("run --intervall 5 true", "did you mean --interval?"),
        ("cpu run --frequencyy 5 true", "did you mean --frequency?"),
    ] {
        let outcome = run(scratch.profiler().args(line.split(' ')));
        outcome.refused(2, &[hint]);
        assert!(outcome.stdout.is_empty(), "{line}: {outcome:?}");
    }
}

/// The server is a separate program, which need not be installed.
#[test]
fn without_the_server_it_says_where_to_get_it() {
    let scratch = Scratch::new();
    let alone = scratch.file("mem_profiler");
    copy_program(artifacts::profiler(), &alone);
    for command in ["serve", "push"] {
        let mut profiler = Command::new(&alone);
        profiler
            .args([command, "--help"])
            .env("PATH", scratch.files());
        let outcome = run(profiler.stdin(Stdio::null()));
        let place = scratch.files().canonicalize().expect("a directory");
        let parts = [
            "mem_server",
            "a separate program",
            "same package",
            "board's",
        ];
        outcome.refused(1, &parts);
        let place = place.display().to_string();
        assert!(outcome.stderr.contains(&place), "{outcome:?}");
        assert!(outcome.stdout.is_empty(), "{outcome:?}");
    }
}

#[test]
fn without_any_agent_it_says_how_to_preload_it() {
    let scratch = Scratch::new();
    let outcome = run(scratch.profiler().args(["-s", "1"]));
    outcome.refused(1, &["no process", "LD_PRELOAD", "libmem_agent.so"]);
}

#[test]
fn a_process_without_the_agent_is_named() {
    let scratch = Scratch::new();
    let cat = bystander();
    let pid = cat.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    outcome.refused(1, &[&pid, "without the agent", "LD_PRELOAD"]);
}

#[test]
fn a_process_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    let mut cat = bystander();
    let pid = cat.pid().to_string();
    assert!(cat.finish().success());
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    outcome.refused(1, &[&pid, "no such process"]);
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", "no-such-name"]));
    outcome.refused(1, &["no-such-name", "no process has this name"]);
}

/// For a process that cannot load the agent, or does not exist, the message does not advise to
/// start it with the agent.
#[test]
fn a_kernel_thread_and_a_missing_control_group_are_called_so() {
    let scratch = Scratch::new();
    let name = |text: &str| text.split(')').next().map(str::to_owned);
    let shows_kernel_threads = fs::read_to_string("/proc/2/stat")
        .is_ok_and(|stat| name(&stat).is_some_and(|name| name.ends_with("(kthreadd")));
    // A container does not see the kernel's threads.
    if shows_kernel_threads {
        let outcome = run(scratch.profiler().args(["-s", "1", "-p", "2"]));
        outcome.refused(1, &["2: it has no memory of its own"]);
    }
    let outcome = run(scratch.profiler().args(["-s", "1", "--cgroup", "/no/such"]));
    outcome.refused(1, &["/no/such: there is no such control group"]);
}

#[test]
fn a_process_of_another_user_is_named() {
    let scratch = Scratch::new();
    // SAFETY: cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if root {
        // The build's directories may be closed to others.
        copy_program(artifacts::profiler(), scratch.file("mem_profiler"));
        for path in [scratch.files(), scratch.shared()] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).expect("our own");
        }
    }
    let as_another = || match root {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            command.arg(scratch.file("mem_profiler"));
            command
                .env("MEM_PROFILER_DIR", scratch.shared())
                .current_dir("/tmp");
            command
        }
        false => scratch.profiler(),
    };
    let program = Steps::start(&scratch);
    let roots = if root { program.pid() } else { 1 }.to_string();
    let outcome = run(as_another().args(["-s", "1", "-o", "/tmp/prof_", "-p", &roots]));
    outcome.refused(
        1,
        &[&roots, "belongs to user root", "run mem_profiler as root\n"],
    );
    if !root {
        return;
    }
    let outcome = run(as_another().args(["-s", "1", "-o", "/tmp/prof_"]));
    outcome.refused(1, &["no process of yours"]);
    assert!(!scratch.is_sampling(program.pid()));
}

#[test]
fn a_second_controller_is_refused_and_the_first_continues() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    let args = ["-s", "100", "-c", "1", "-o", "prof_", "-p", &pid];
    let first = Session::start(scratch.profiler().args(args));
    scratch.wait_for_sampling(program.pid());
    program.step("keep 10");
    let second = run(scratch.profiler().args(["-s", "1", "-c", "7", "-p", &pid]));
    second.refused(
        1,
        &[
            &pid,
            &format!("mem_profiler (pid {})", first.pid()),
            " left",
        ],
    );
    program.step("keep 10");
    let expected = program.expected();
    let outcome = first.stop();
    let dump = profile::open(&scratch.files().join(outcome.dump())).expect("a dump");
    assert_exact(&expected, &sums(&dump, &[&program.program], "site_"));
}

#[test]
fn a_program_with_an_allocator_of_its_own_is_warned_about() {
    let scratch = Scratch::new();
    let program = scratch.compile("silent.c", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1024");
    // Idle programs are not warned about; how long being busy takes, the machine decides.
    let start = cpu_seconds(target.pid());
    wait::until("the program's turns", || {
        (cpu_seconds(target.pid()) > start + 0.2).then_some(())
    });
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("0 calls seen"), "{outcome:?}");
    assert!(outcome.stderr.contains("linked into it"), "{outcome:?}");
}

#[test]
fn an_output_directory_that_cannot_be_written_is_found_before_the_session() {
    let scratch = Scratch::new();
    let program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    // Closed to everybody, root too.
    for directory in ["/nowhere/at/all", "/proc"] {
        let prefix = format!("{directory}/prof_");
        let outcome = run(scratch
            .profiler()
            .args(["-s", "100", "-p", &pid, "-o", &prefix]));
        outcome.refused(1, &[directory]);
    }
    let file = scratch.file("a_file");
    fs::write(&file, "").expect("a file");
    let outcome = run(scratch
        .profiler()
        .args(["-s", "100", "-p", &pid, "-o"])
        .arg(file.join("x")));
    outcome.refused(1, &["a_file"]);
}

#[test]
fn a_directory_that_fills_up_in_the_session_costs_nothing_but_another_try() {
    let scratch = Scratch::new();
    let directory = scratch.file("tiny");
    let tiny = TinyFilesystem::mount(&directory, "3m");
    let mut program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    let prefix = directory.join("prof_");
    let args = ["-c", "1", "-p", &pid, "-o"];
    let session = Session::start(scratch.profiler().args(args).arg(&prefix));
    scratch.wait_for_sampling(program.pid());
    program.step("keep 100");
    let expected = program.expected();
    tiny.fill();
    let outcome = session.stop();
    outcome.refused(
        1,
        &[
            directory.to_str().expect("a path of ours"),
            "mem_profiler dump",
        ],
    );
    let left: Vec<_> = fs::read_dir(&directory)
        .expect("the directory")
        .flatten()
        .collect();
    assert_eq!(left.len(), 1, "the filler alone, no half file: {left:?}");

    fs::remove_file(directory.join("filler")).expect("the filler");
    let args = ["dump", "-p", &pid, "-o"];
    let outcome = run(scratch.profiler().args(args).arg(&prefix));
    assert_exact(
        &expected,
        &sums(&outcome.profile(), &[&program.program], "site_"),
    );
}

#[test]
fn a_full_shared_directory_is_reported_before_the_session() {
    let scratch = Scratch::new();
    let shared = scratch.file("shared");
    let tiny = TinyFilesystem::mount(&shared, "1m");
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("MEM_PROFILER_DIR", &shared);
    });
    tiny.fill();
    let pid = program.pid().to_string();
    let mut profiler = scratch.profiler();
    let outcome = run(profiler
        .env("MEM_PROFILER_DIR", &shared)
        .args(["-s", "1", "-p", &pid]));
    outcome.refused(1, &[shared.to_str().expect("a path of ours")]);
    program.step("keep 1000");
    program.target.finish_well();
}

#[test]
fn a_segment_of_another_version_is_refused_with_both_and_cleaned_on_request() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let segment = scratch.segment(program.pid()).expect("a segment");
    let file = File::options()
        .write(true)
        .open(&segment)
        .expect("our own file");
    let at = IDENTITY_OFFSET + offset_of!(Identity, abi_version);
    let other = ABI_VERSION + 41;
    file.write_all_at(&other.to_le_bytes(), at as u64)
        .expect("to be written");
    let pid = program.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    outcome.refused(1, &[&pid, &other.to_string(), &ABI_VERSION.to_string()]);
    assert!(!scratch.is_sampling(program.pid()));
    let clean = |options: &[&str]| {
        let outcome = run(scratch.profiler().arg("clean").args(options));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome
    };
    assert!(clean(&["--all"]).stdout.starts_with("removed 0 "));
    program.target.kill();
    let kept = clean(&[]);
    assert!(kept.stdout.starts_with("removed 0 "), "{kept:?}");
    let said = "1 segment of another version (";
    assert!(
        kept.stderr.contains(said) && kept.stderr.contains("clean --all"),
        "{kept:?}"
    );
    let removed = clean(&["--all"]);
    assert!(removed.stdout.starts_with("removed 1 "), "{removed:?}");
    assert!(!segment.exists());
}

#[test]
fn a_truncated_segment_is_refused() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let pid = program.pid();
    let segment = scratch.segment(pid).expect("a segment");
    program.target.kill();
    for length in [0, 1, 4096, 70000] {
        File::options()
            .write(true)
            .open(&segment)
            .expect("ours")
            .set_len(length)
            .expect("shorter");
        let outcome = run(scratch.profiler().args(["recover", "-o", "prof_"]));
        let name = segment.file_name().expect("a name").to_string_lossy();
        outcome.refused(1, &[&name]);
    }
}

/// Returns the numbers that look random and are the same each time.
fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A file that consists mostly of holes: its length, and its other pages.
#[derive(Clone)]
struct Sparse {
    bytes: u64,
    pages: Vec<(u64, Vec<u8>)>,
}

impl Sparse {
    fn read(path: &Path) -> Self {
        const PAGE: usize = 4096;
        let whole = fs::read(path).expect("a segment of a dead process");
        let is_used = |page: &[u8]| page.iter().any(|byte| *byte != 0);
        let pages = whole.chunks(PAGE).enumerate();
        let pages = pages.filter(|(_, page)| is_used(page));
        Self {
            bytes: whole.len() as u64,
            pages: pages
                .map(|(number, page)| ((number * PAGE) as u64, page.to_vec()))
                .collect(),
        }
    }

    /// Returns where something is, by page and offset in it: nothing else is worth damaging.
    fn used(&self) -> Vec<(usize, usize)> {
        let words = |(page, (_, bytes)): (usize, &(u64, Vec<u8>))| {
            let used = bytes.chunks(8).enumerate();
            let used = used.filter(|(_, word)| word.iter().any(|byte| *byte != 0));
            used.map(|(at, _)| (page, at * 8)).collect::<Vec<_>>()
        };
        self.pages.iter().enumerate().flat_map(words).collect()
    }

    fn write(&self, path: &Path) {
        let file = File::create(path).expect("our own");
        file.set_len(self.bytes).expect("a length");
        for (at, page) in &self.pages {
            file.write_all_at(page, *at).expect("to be written");
        }
    }
}

#[test]
fn no_bytes_in_a_segment_crash_or_hang_the_controller() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 100");
    program.step("threads 20");
    let segment = scratch.segment(program.pid()).expect("a segment");
    session.signal(libc::SIGKILL);
    assert_eq!(session.wait().code, None);
    program.target.kill();
    let whole = Sparse::read(&segment);
    let used = whole.used();
    let mut state = 0x1234_5678_9abc_def1;
    for round in 0..60 {
        let mut damaged = whole.clone();
        for _ in 0..=round % 8 {
            let (page, word) = used[noise(&mut state) as usize % used.len()];
            let byte = &mut damaged.pages[page].1[word + noise(&mut state) as usize % 8];
            *byte = match noise(&mut state) % 3 {
                0 => 0xff,
                1 => 0x7f,
                _ => noise(&mut state) as u8,
            };
        }
        damaged.write(&segment);
        let outcome = run(scratch.profiler().args(["recover", "-o", "prof_"]));
        assert!(
            matches!(outcome.code, Some(0 | 1)),
            "round {round}: {outcome:?}"
        );
        assert!(
            !outcome.stderr.contains("panicked"),
            "round {round}: {outcome:?}"
        );
        for dump in outcome.dumps() {
            profile::open(&scratch.files().join(dump)).expect("what is written is whole");
        }
    }
}

/// Returns a command that runs a program with another file preloaded as the agent.
fn preloading(scratch: &Scratch, agent: &Path, program: &Path) -> Command {
    let mut command = scratch.preloaded(program);
    command.env("LD_PRELOAD", agent).stderr(Stdio::null());
    command
}

/// Returns a copy of the agent for a machine that this is not.
fn foreign_agent(scratch: &Scratch) -> PathBuf {
    const E_MACHINE_OFFSET: usize = 18;
    let mut bytes = fs::read(artifacts::agent()).expect("the agent");
    // 32-bit Arm: no machine that this runs on.
    bytes[E_MACHINE_OFFSET] = 40;
    let file = scratch.file("libmem_agent.so");
    fs::write(&file, bytes).expect("to be written");
    file
}

#[test]
fn an_agent_that_the_loader_skips_is_reported_with_the_reason() {
    let scratch = Scratch::new();
    let program = scratch.compile("steps.c", &[]);
    let foreign = foreign_agent(&scratch);
    let damaged = scratch.file("libmem_agent-damaged.so");
    fs::write(&damaged, "").expect("to be written");
    let cases = [
        (foreign.clone(), "another architecture"),
        (damaged, "not an ELF library"),
        (scratch.file("none/libmem_agent.so"), "no such file"),
    ];
    for (agent, reason) in cases {
        let mut target = Target::start(&mut preloading(&scratch, &agent, &program));
        assert_eq!(target.hear(), "ready");
        let pid = target.pid().to_string();
        let path = agent.to_str().expect("a path of ours");
        let session = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
        session.refused(1, &[&pid, path, reason]);
        let listed = run(scratch.profiler().arg("list"));
        assert_eq!(listed.code, Some(0), "{listed:?}");
        for said in [&pid, path, reason] {
            assert!(listed.stderr.contains(said), "{said}: {listed:?}");
        }
        target.say("keep 10");
        assert_eq!(target.hear(), "ok");
        target.finish_well();
    }
    let mut command = scratch.profiler();
    command
        .arg("run")
        .arg("--agent")
        .arg(&foreign)
        .arg(&program);
    run(&mut command).refused(1, &["another architecture", "--agent"]);
}

#[test]
fn a_setuid_program_is_reported_beforehand_and_while_it_runs() {
    let scratch = Scratch::new();
    let program = scratch.compile("steps.c", &[]);
    for path in [scratch.files(), scratch.shared()] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("our own");
    }
    std::os::unix::fs::chown(&program, Some(1), None).expect("this test needs root");
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("our own");
    let mut target = Target::start(&mut preloading(&scratch, &artifacts::agent(), &program));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid().to_string();
    let session = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    session.refused(1, &[&pid, "setuid", "LD_PRELOAD"]);
    target.finish_well();
    let mut command = scratch.profiler();
    command.arg("run").arg("--agent").arg(artifacts::agent());
    let outcome = run(command.arg(&program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let warned =
        outcome.stderr.contains("nothing will be sampled") && outcome.stderr.contains("setuid");
    assert!(warned, "{outcome:?}");
}

#[test]
fn of_two_copies_of_the_agent_one_works() {
    let scratch = Scratch::new();
    let copy = scratch.file("libmem_agent-copy.so");
    fs::copy(artifacts::agent(), &copy).expect("a copy");
    let agent = artifacts::agent();
    for [first, second] in [[&agent, &copy], [&copy, &agent]] {
        let both = format!("{}:{}", first.display(), second.display());
        let mut program = Steps::start_with(&scratch, &[], |command| {
            command.env("LD_PRELOAD", both);
        });
        let session = Session::of(&scratch, program.pid(), "1");
        program.step("keep 30");
        program.step("threads 5");
        program.fork("fork", 3);
        let expected = program.expected();
        let profile = session.stop().profile_of(program.pid());
        assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
        program.target.finish_well();
    }
}
