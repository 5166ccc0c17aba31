//! A program runs as it would without the agent, whatever is scarce, forbidden or full.

use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mem_tests::frail::{WELL, frail, preload};
use mem_tests::limits::{Scarce, limit};
use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::tracing::{Fate, kill_at_call};
use mem_tests::{Scratch, Session, Steps, artifacts, run, sums};

/// Returns the controller, for segments in a directory.
fn profiler_in(scratch: &Scratch, directory: &Path) -> Command {
    let mut command = scratch.profiler();
    command.env("MEM_PROFILER_DIR", directory);
    command
}

// ---- a shared directory without room

/// Starts a session of no fixed length, waits until it samples, as the controller says.
fn session_in(scratch: &Scratch, directory: &Path, pid: u32) -> Session {
    let pid_text = pid.to_string();
    let args = ["-c", "1", "-o", "prof_", "-p", &pid_text];
    let session = Session::start(profiler_in(scratch, directory).args(args));
    let start = format!("{}{pid}.", shm_protocol::segment::FILE_PREFIX);
    let sampling = || {
        let entries = fs::read_dir(directory).expect("our own").flatten();
        let ours = |entry: &fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut epoch = [0];
            let file = File::open(entry.path()).ok();
            name.starts_with(&start)
                && file.is_some_and(|f| f.read_at(&mut epoch, 0).is_ok() && epoch != [0])
        };
        entries.into_iter().find(ours)
    };
    mem_tests::wait::until("the session to start", sampling);
    session
}

#[test]
fn a_child_frees_what_it_inherited_when_the_directory_is_full() {
    let scratch = Scratch::new();
    let directory = scratch.shared().join("tiny");
    let tiny = TinyFilesystem::mount(&directory, "32m");
    let mut program = frail(&scratch, |command| {
        command.env("MEM_PROFILER_DIR", &directory);
    });
    let session = session_in(&scratch, &directory, program.pid());
    program.step("keep 100");
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    program.step("hire");
    tiny.fill();
    assert_eq!(program.step("dismiss"), [WELL]);
    // The parent frees them, too.
    program.step("drop 100");
    assert_eq!(program.step("child fork 0"), [WELL]);
    program.target.finish_well();
}

/// Runs one session, in which many objects are allocated and kept.
fn session_that_keeps(scratch: &Scratch, directory: &Path, program: &mut Steps) {
    let session = session_in(scratch, directory, program.pid());
    program.step("keep 100");
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

/// The controller dies between emptying and reserving a table, and other files take the room.
#[test]
fn a_session_whose_controller_died_before_it_began_in_a_full_directory() {
    for calls in 0.. {
        let scratch = Scratch::new();
        let directory = scratch.shared().join("tiny");
        let tiny = TinyFilesystem::mount(&directory, "32m");
        let mut program = frail(&scratch, |command| {
            command.env("MEM_PROFILER_DIR", &directory);
        });
        for _ in 0..2 {
            session_that_keeps(&scratch, &directory, &mut program);
        }
        let pid = program.pid().to_string();
        let args = ["-s", "0.1", "-c", "1", "-o", "prof_", "-p", &pid];
        let mut command = profiler_in(&scratch, &directory);
        let fate = kill_at_call(command.args(args), libc::SYS_fallocate, calls);
        tiny.fill();
        // The objects of both sessions.
        program.step("drop 200");
        program.target.finish_well();
        if fate != Fate::Killed {
            println!("{calls} calls that reserve or empty");
            assert!(calls > 0, "{fate:?}");
            return;
        }
    }
}

/// Fills a file and empties it, until `stop` is set. The file stays full for a while, and takes the
/// space that others free.
fn fill_and_empty(path: &Path, stop: &AtomicBool) {
    let file = File::create(path).expect("a file");
    let take = |at: i64, bytes: i64| {
        // SAFETY: a plain call on a file of ours.
        unsafe { libc::fallocate(file.as_raw_fd(), 0, at, bytes) == 0 }
    };
    while !stop.load(Ordering::Relaxed) {
        let mut at = 0;
        let full = Instant::now();
        while full.elapsed() < Duration::from_millis(25) {
            for bytes in [1 << 18, 1 << 12] {
                while take(at, bytes) {
                    at += bytes;
                }
            }
        }
        file.set_len(0).expect("our own file");
    }
}

/// Returns true if a process is running. A zombie has no maps.
fn is_alive(pid: &str) -> bool {
    fs::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| !maps.is_empty())
}

#[test]
fn short_sessions_beside_those_who_fill_the_directory() {
    let scratch = Scratch::new();
    let directory = scratch.shared().join("tiny");
    let _tiny = TinyFilesystem::mount(&directory, "32m");
    let mut program = frail(&scratch, |command| {
        command.env("MEM_PROFILER_DIR", &directory);
    });
    program.step("churn");
    let pid = program.pid().to_string();
    let stop = AtomicBool::new(false);
    let mut codes = Vec::new();
    let begun = Instant::now();
    thread::scope(|scope| {
        for filler in ["a", "b", "c"] {
            let (path, stop) = (directory.join(filler), &stop);
            scope.spawn(move || fill_and_empty(&path, stop));
        }
        while begun.elapsed() < Duration::from_secs(4) && is_alive(&pid) {
            let args = ["-s", "0.02", "-c", "1", "-o", "prof_", "-p", &pid];
            let outcome = run(profiler_in(&scratch, &directory).args(args));
            codes.push(outcome.code);
        }
        stop.store(true, Ordering::Relaxed);
    });
    program.step("keep 10");
    program.target.finish_well();
    let held = codes.iter().filter(|code| **code == Some(0)).count();
    println!("{held} of {} sessions found room", codes.len());
    assert!(codes.iter().all(|code| matches!(code, Some(0 | 1))));
}

// ---- limits

#[test]
fn a_limit_on_the_size_of_files_is_respected() {
    for most in [0, 4096, 16384, 1 << 20, 32 << 20] {
        let scratch = Scratch::new();
        let mut program = frail(&scratch, |command| limit(command, Scarce::FileSize, most));
        program.step("keep 100");
        for how in ["fork", "_Fork", "clone"] {
            assert_eq!(
                program.step(&format!("child {how} 20")),
                [WELL],
                "{most}, {how}, idle"
            );
        }
        // Whether a session is possible or not.
        let pid = program.pid().to_string();
        let args = ["-s", "3600", "-c", "1", "-o", "prof_", "-p", &pid];
        let mut session = Session::start(scratch.profiler().args(args));
        while !session.is_over() && !scratch.is_sampling(program.pid()) {
            program.step("keep 1");
        }
        program.step("keep 1000");
        for how in ["fork", "_Fork", "clone"] {
            assert_eq!(
                program.step(&format!("child {how} 500")),
                [WELL],
                "{most}, {how}, in a session"
            );
        }
        if !session.is_over() {
            session.signal(libc::SIGINT);
        }
        let outcome = session.wait();
        assert!(matches!(outcome.code, Some(0 | 1)), "{outcome:?}");
        program.step("drop 1000");
        program.target.finish_well();
    }
}

/// Returns how many MiB `frail` can allocate in a small address space, with the agent or without.
fn filled(with: bool) -> i64 {
    let scratch = Scratch::new();
    let mut program = frail(&scratch, |command| {
        limit(command, Scarce::AddressSpace, 6_144_000 << 10);
        if !with {
            command.env_remove("LD_PRELOAD");
        }
    });
    let session = with.then(|| Session::of(&scratch, program.pid(), "512K"));
    let said = program.step("fill 3600");
    if let Some(session) = session {
        let outcome = session.stop();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    program.target.finish_well();
    let number = said[0].strip_prefix("filled ").map(str::parse);
    number.expect("an answer").expect("a number")
}

#[test]
fn a_session_leaves_the_program_its_address_space() {
    assert_eq!(filled(false), 3600, "without the agent");
    assert_eq!(filled(true), 3600, "in a session");
}

/// Lets other users see the test's directories, and gives a copy of the agent.
fn open_to_all(scratch: &Scratch) -> PathBuf {
    for (path, mode) in [(scratch.files(), 0o755), (scratch.shared(), 0o1777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
    }
    // The build's directories may be closed to others.
    let agent = scratch.file("libmem_agent.so");
    fs::copy(artifacts::agent(), &agent).expect("a copy");
    agent
}

/// Starts `frail` as an ordinary user who may lock 8 MiB. That suffices for the program and the 5
/// MiB of the library and of jemalloc's first mappings, but hardly for more.
fn locking(scratch: &Scratch, with: bool) -> Steps {
    let agent = open_to_all(scratch);
    let program = scratch.compile("frail.c", &[]);
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["env".as_ref(), preload(&agent, with).as_os_str()])
        .arg(&program)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    limit(&mut command, Scarce::Locked, 8 << 20);
    Steps::run(program, &mut command)
}

#[test]
fn an_idle_agents_mappings_may_be_locked() {
    for with in [false, true] {
        let scratch = Scratch::new();
        let mut program = locking(&scratch, with);
        assert_eq!(program.step("lock current"), ["locked 0"], "agent: {with}");
        program.step("keep 100");
        program.target.finish_well();
    }
}

#[test]
fn a_session_in_a_process_that_locks_all_it_maps_leaves_it_its_memory() {
    for with in [false, true] {
        let scratch = Scratch::new();
        let mut program = locking(&scratch, with);
        assert_eq!(program.step("lock both"), ["locked 0"], "agent: {with}");
        let mut session = with.then(|| {
            let args = ["-s", "3600", "-c", "1024", "-p", &program.pid().to_string()];
            Session::start(scratch.profiler().args(args))
        });
        if let Some(session) = &mut session {
            // However long the start takes, the program's memory does not grow until then.
            while !session.is_over() && !scratch.is_sampling(program.pid()) {
                program.step("keep 1");
                program.step("drop 1");
            }
        }
        program.step("keep 500");
        assert_eq!(program.step("fill 1"), ["filled 1"], "agent: {with}");
        if let Some(mut session) = session {
            if !session.is_over() {
                session.signal(libc::SIGINT);
            }
            let outcome = session.wait();
            assert!(matches!(outcome.code, Some(0 | 1)), "{outcome:?}");
        }
        program.target.finish_well();
    }
}

#[test]
fn a_process_that_forbids_itself_the_cycle_counter_is_sampled() {
    let scratch = Scratch::new();
    let path = scratch.compile("frail.c", &[]);
    let mut program = Steps::run(path.clone(), &mut scratch.preloaded(&path));
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 1000");
    program.step("forbid_cycles");
    program.step("keep 4000");
    let totals = sums(&session.stop().profile(), &[&path], "site_main");
    assert_eq!(totals["site_main"].detail.live_objects(), 5000.0);
    program.target.finish_well();
}

/// Address space of a process, in KiB.
fn address_space(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
    size.and_then(|size| size.trim().parse().ok())
        .expect("a size")
}

/// Mappings count for `mlockall` and for a limit of the address space: the library, 4 MiB that
/// jemalloc maps at its start, three pages, and no others.
#[test]
fn little_is_mapped_while_idle() {
    let [without, with] = [false, true].map(|with| {
        let scratch = Scratch::new();
        let program = scratch.compile("frail.c", &[]);
        let mut command = scratch.preloaded(&program);
        if !with {
            command.env_remove("LD_PRELOAD");
        }
        let mut program = Steps::run(program, &mut command);
        program.step("keep 1");
        let size = address_space(program.pid());
        program.target.finish_well();
        size
    });
    /// 5.6 MiB, as the documents say.
    const MAX_MAPPED_KIB: u64 = 5734;
    assert!(with < without + MAX_MAPPED_KIB, "{without} KiB, {with} KiB");
}

// ---- memory, signals, output

/// A sampled object that is shrunk step by step must not keep its original memory.
#[test]
fn an_object_shrunk_repeatedly_gives_its_memory_back() {
    let scratch = Scratch::new();
    let program = scratch.compile("shrinking.c", &["-O1"]);
    for interval in ["1", "4096"] {
        let mut command = scratch.preloaded(&program);
        command
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", interval);
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let each: u64 = outcome.stdout.trim().parse().expect("a number");
        assert!(each < 1000, "{each} bytes an object at {interval}");
    }
}

/// Returns the lines of a program's status about signals, where it is started like this.
fn signals(scratch: &Scratch, command: &[&str]) -> String {
    let profiler = scratch.profiler();
    let mut shell = Command::new("sh");
    shell.envs(
        profiler
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let line = "trap '' PIPE XFSZ; exec \"$@\" grep -E '^Sig(Blk|Ign)' /proc/self/status";
    shell.args(["-c", line, "sh"]).args(command);
    let outcome = run(shell.current_dir(scratch.files()));
    let lines = outcome
        .stdout
        .lines()
        .filter(|line| line.starts_with("Sig"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Otherwise a server that ignores `SIGPIPE` because its starter did would die at the first broken
/// connection.
#[test]
fn a_program_has_the_signals_that_were_inherited() {
    let scratch = Scratch::new();
    let profiler = scratch.profiler();
    let profiler = profiler.get_program().to_str().expect("a path");
    let plain = signals(&scratch, &["env"]);
    let ignored = plain.rsplit_once('\t').expect("SigIgn last").1;
    let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        assert!(ignored >> (signal - 1) & 1 == 1, "{plain}");
    }
    for way in [
        &["run"][..],
        &["cpu", "run"],
        &["cpu", "run", "--engine", "ptrace"],
    ] {
        let command = [&[profiler], way, &["--"]].concat();
        assert_eq!(signals(&scratch, &command), plain, "{way:?}");
    }
}

/// A write beyond this program's limit of the file size is an error, and is reported.
#[test]
fn a_limit_on_the_size_of_files_is_reported() {
    let scratch = Scratch::new();
    let mut program = frail(&scratch, |_| {});
    program.step("keep 100");
    let mut command = scratch.profiler();
    limit(&mut command, Scarce::FileSize, 1 << 20);
    command.args(["-s", "1", "-p", &program.pid().to_string()]);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("ulimit -f"), "{outcome:?}");
    program.target.finish_well();
    let mut command = scratch.profiler();
    limit(&mut command, Scarce::FileSize, 1 << 20);
    let outcome = run(command.args(["run", "--", "true"]));
    assert!(outcome.stderr.contains("ulimit -f"), "{outcome:?}");
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

#[test]
fn a_missing_directory_is_reported() {
    let scratch = Scratch::new();
    let missing = scratch.file("missing");
    let mut command = scratch.profiler();
    let outcome = run(command.env("MEM_PROFILER_DIR", &missing).arg("list"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let name = missing.to_str().expect("a path");
    assert!(outcome.stderr.contains(name), "{outcome:?}");
}

/// Runs a program that leaks and overruns an object under valgrind, and returns what that finds.
fn findings(scratch: &Scratch, program: &Path, with: bool) -> Vec<String> {
    let mut command = if with {
        scratch.preloaded("valgrind")
    } else {
        Command::new("valgrind")
    };
    let command = command.arg("--leak-check=full").arg(program);
    let outcome = run(command.env("MEM_PROFILER_START", "1"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let told = outcome.stderr.lines().filter_map(|line| {
        let (_, text) = line.split_once("== ")?;
        let text = text.trim();
        let is_finding = text.contains(" lost") || text.contains("Invalid write");
        is_finding.then(|| text.to_owned())
    });
    told.collect()
}

#[test]
fn valgrind_finds_what_it_finds_without_the_agent() {
    const SOURCE: &str = "#include <stdlib.h>\n\
        int main(void) {\n\
        \x20   volatile char *lost = malloc(123);\n\
        \x20   lost[0] = 1;\n\
        \x20   lost = malloc(10);\n\
        \x20   lost[10] = 1;\n\
        \x20   free((void *)lost);\n\
        \x20   return 0;\n\
        }\n";
    let scratch = Scratch::new();
    let source = scratch.file("lost.c");
    fs::write(&source, SOURCE).expect("a source");
    let program = scratch.file("lost");
    let mut compiler = Command::new("cc");
    let built = run(compiler.args(["-O0", "-o"]).arg(&program).arg(&source));
    assert_eq!(built.code, Some(0), "{built:?}");
    let without = findings(&scratch, &program, false);
    assert!(
        without.iter().any(|line| line.contains("Invalid write"))
            && without
                .iter()
                .any(|line| line.contains("123 bytes in 1 blocks are definitely lost")),
        "{without:?}"
    );
    assert_eq!(findings(&scratch, &program, true), without);
}
