//! Systems that lack something: no `/proc`, or one that hides processes; little shared memory; a
//! read-only root; a clock that was never set; names in another language.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::session::copy_program;
use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::truth::assert_exact;
use mem_tests::{Outcome, Scratch, Session, Steps, Target, artifacts, run, sums};

/// Returns a shell's commands in a mount namespace of their own, the last of which runs the
/// arguments.
fn inside(scratch: &Scratch, commands: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("set -e; {commands}; exec \"$@\"");
    command
        .args(["--mount", "sh", "-c", &script, "sh"])
        .env("MEM_PROFILER_DIR", scratch.shared())
        .current_dir(scratch.files())
        .stdin(Stdio::null());
    command
}

/// Returns the program there, with the agent.
fn start_inside(scratch: &Scratch, commands: &str) -> Steps {
    let program = scratch.compile("steps.c", &[]);
    let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
    preload.push(artifacts::agent());
    let mut command = inside(scratch, commands);
    command.arg("env").arg(preload).arg(&program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Steps::run(program, &mut command)
}

/// Counts objects in a session that `profiler` runs. Returns the outcome.
fn count(scratch: &Scratch, program: &mut Steps, prefix: &Path, mut profiler: Command) -> Outcome {
    let pid = program.pid().to_string();
    profiler.args(["-c", "1", "-p", &pid, "-o"]).arg(prefix);
    let session = Session::start(&mut profiler);
    scratch.wait_for_sampling(program.pid());
    program.step("keep 200");
    program.step("threads 5");
    let expected = program.expected();
    let outcome = session.stop();
    let dump = scratch.file(&outcome.dump().to_string_lossy());
    let profile = profile::open(&dump).expect("a dump");
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    outcome
}

#[test]
fn without_proc_a_program_runs_and_the_controller_says_what_is_missing() {
    let scratch = Scratch::new();
    let no_proc = "mount -t tmpfs none /proc";
    let mut program = start_inside(&scratch, no_proc);
    program.step("keep 100");
    let before = scratch.segments();
    for command in [
        "-s 1",
        "list",
        "dump",
        "stop",
        "recover",
        "clean",
        "why",
        "top --once",
        "run true",
    ] {
        let mut profiler = inside(&scratch, no_proc);
        profiler.arg(artifacts::profiler());
        let outcome = run(profiler.args(command.split(' ')));
        outcome.refused(1, &["/proc is not mounted", "mount -t proc"]);
    }
    assert_eq!(scratch.segments(), before, "nothing of a live process goes");
    let pid = program.pid().to_string();
    // Run outside the environment, where `/proc` exists.
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    outcome.refused(1, &[&pid, "/proc is not mounted"]);
    for command in ["recover", "clean"] {
        let outcome = run(scratch.profiler().arg(command));
        assert!(outcome.dumps().is_empty(), "{outcome:?}");
    }
    assert_eq!(scratch.segments(), before, "nothing of a live process goes");
    program.step("keep 100");
    program.target.finish_well();
}

#[test]
fn a_proc_that_hides_other_users_processes_shows_ones_own() {
    let scratch = Scratch::new();
    // A new one: options of the one that is there would be everybody's.
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let commands = format!("mount -t proc -o hidepid=2 proc /proc; set -- {nobody} \"$@\"");
    for path in [scratch.files(), scratch.shared()] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("our own");
    }
    let outcome = run(inside(&scratch, &commands).args(["test", "-e", "/proc/1"]));
    assert_eq!(outcome.code, Some(1), "it hides them: {outcome:?}");
    // The build's directories may be closed to others.
    let copies = [artifacts::profiler(), artifacts::agent()].map(|path| {
        let copy = scratch.file(&path.file_name().expect("a name").to_string_lossy());
        copy_program(path, &copy);
        copy
    });
    let program = scratch.compile("steps.c", &[]);
    let mut command = inside(&scratch, &commands);
    command
        .arg("env")
        .arg(format!("LD_PRELOAD={}", copies[1].display()))
        .arg(&program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Steps::run(program, &mut command);
    let mut profiler = inside(&scratch, &commands);
    profiler.arg(&copies[0]);
    count(&scratch, &mut program, Path::new("own_"), profiler);
    let mounts = fs::read_to_string("/proc/mounts").expect("the mounts");
    assert!(!mounts.contains("hidepid"), "{mounts}");
    program.target.finish_well();
}

/// The memory of a protected process cannot be examined. Every message says so, and names no other
/// cause.
#[test]
fn a_process_that_protects_its_memory_is_named_with_the_file() {
    const SCRIPT: &str = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n\
                          print('ready', flush=True)\nimport sys\nsys.stdin.readline()\n";
    let scratch = Scratch::new();
    for path in [scratch.files(), scratch.shared()] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("our own");
    }
    let copies = [artifacts::profiler(), artifacts::agent()].map(|path| {
        let copy = scratch.file(&path.file_name().expect("a name").to_string_lossy());
        copy_program(path, &copy);
        copy
    });
    let as_nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.env("MEM_PROFILER_DIR", scratch.shared());
        command.current_dir(scratch.files());
        command
    };
    for preload in [copies[1].display().to_string(), String::new()] {
        let mut command = as_nobody();
        command.arg("env").arg(format!("LD_PRELOAD={preload}"));
        command.args(["/usr/bin/python3", "-c", SCRIPT]);
        let mut target = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        assert_eq!(target.hear(), "ready");
        let pid = target.pid().to_string();
        let why = ["why", "-p", &pid];
        let commands = [
            &["-s", "1", "-p", &pid][..],
            &["top", "--once", "-p", &pid],
            &why,
        ];
        for arguments in commands {
            let mut command = as_nobody();
            let outcome = run(command.arg(&copies[0]).args(arguments).stdin(Stdio::null()));
            let file = match arguments == why && !preload.is_empty() {
                true => "smaps",
                false => "maps",
            };
            let file = format!("/proc/{pid}/{file} cannot be read: no permission");
            outcome.refused(1, &[&file, "as root"]);
        }
        target.kill();
    }
}

#[test]
fn sixteen_mebibytes_of_shared_memory_and_a_root_that_cannot_be_written_to_do() {
    let scratch = Scratch::new();
    let shared = scratch.file("shared");
    let _tiny = TinyFilesystem::mount(&shared, "16m");
    let directory = shared.to_str().expect("a path of ours");
    let read_only = format!("mount -o remount,bind,ro /; export MEM_PROFILER_DIR={directory}");
    let mut program = start_inside(&scratch, &read_only);
    let pid = program.pid().to_string();
    let mut profiler = inside(&scratch, &read_only);
    profiler.arg(artifacts::profiler());
    let outcome = run(profiler.args(["-s", "0.1", "-p", &pid, "-o", "/root_"]));
    outcome.refused(1, &["read-only", "-o"]);
    let prefix = shared.join("dump_");
    let mut profiler = inside(&scratch, &read_only);
    profiler.arg(artifacts::profiler());
    profiler
        .args(["-c", "1", "-s", "2", "-p", &pid, "-o"])
        .arg(&prefix);
    let session = Session::start(&mut profiler);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(1);
    while std::time::Instant::now() < end {
        program.step("threads 20");
    }
    let dump = session.wait().dump();
    let mut parser = inside(&scratch, &read_only);
    parser.arg(artifacts::parser()).arg(dump).arg("-t");
    let outcome = run(&mut parser);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("site_thread"), "{outcome:?}");
    program.target.finish_well();
}

#[test]
fn a_clock_that_was_never_set_changes_nothing() {
    let scratch = Scratch::new();
    let clock = scratch.compile_as("first_clock.c", "first_clock.so", &["-shared", "-fPIC"]);
    let both = format!("{}:{}", artifacts::agent().display(), clock.display());
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("LD_PRELOAD", both);
    });
    let mut profiler = scratch.profiler();
    profiler.env("LD_PRELOAD", &clock);
    let outcome = count(&scratch, &mut program, Path::new("first_"), profiler);
    let dump = scratch.file(&outcome.dump().to_string_lossy());
    let facts = profile::open(&dump).expect("a dump").facts;
    let start = facts.start_unix_ns.expect("a start");
    assert!(
        (60_000_000_000..3_600_000_000_000).contains(&start),
        "{start}"
    );
    for args in ["-t", "--timeline", "--json", "--html -o out.html"] {
        let mut parser = scratch.parser();
        parser.arg(&dump).args(args.split(' '));
        let outcome = run(parser.env("LD_PRELOAD", &clock));
        assert_eq!(outcome.code, Some(0), "{args}: {outcome:?}");
    }
    // The profile of a process that is killed is neither too old nor from the future.
    let session = Session::start(scratch.profiler().args(["-c", "1", "-o", "x_"]));
    scratch.wait_for_sampling(program.pid());
    program.step("keep 9");
    session.signal(libc::SIGKILL);
    session.wait();
    program.target.kill();
    let mut profiler = scratch.profiler();
    profiler
        .env("LD_PRELOAD", &clock)
        .args(["recover", "-o", "late_"]);
    assert_eq!(run(&mut profiler).dumps().len(), 1);
}

#[test]
fn blanks_and_letters_of_any_language_are_fine_in_names() {
    let scratch = Scratch::new();
    let directory = scratch.file("Meine Dateien \u{e4}\u{f6}\u{fc} \u{6587}\u{4ef6}");
    fs::create_dir(&directory).expect("a directory");
    let name = "programme \u{e9}t\u{e9} \u{7a0b}\u{5e8f}";
    let compiled = scratch.compile("steps.c", &[]);
    let path = directory.join(name);
    copy_program(compiled, &path);
    let mut command = scratch.preloaded(&path);
    let mut program = Steps::run(path, &mut command);
    let prefix = directory.join("d u m p ");
    let outcome = count(&scratch, &mut program, &prefix, scratch.profiler());
    let dump = outcome.dump();
    // For a shell, as it is printed.
    let next = outcome
        .stderr
        .lines()
        .find_map(|line| line.split_once("next: "));
    let (command, _) = next
        .and_then(|(_, next)| next.split_once(" ("))
        .expect("a next step");
    let command = command.replace("mem_parser", artifacts::parser().to_str().expect("UTF-8"));
    let outcome = run(Command::new("sh").arg("-c").arg(command));
    assert!(outcome.stdout.contains("site_main"), "{outcome:?}");
    let page = directory.join("S e i t e.html");
    for flag in [
        &["-t"][..],
        &["--html", "-o", page.to_str().expect("UTF-8")],
    ] {
        let mut parser = scratch.parser();
        let outcome = run(parser
            .arg("-p")
            .arg(&program.program)
            .arg("-f")
            .arg(&dump)
            .args(flag));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    assert!(
        fs::read_to_string(page)
            .expect("a page")
            .contains("site_main")
    );
    program.target.finish_well();
}
