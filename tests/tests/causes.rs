//! Causes for which a process cannot be sampled. Each is created on purpose, and the message names
//! this cause and no other.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::cgroup::Cgroup;
use mem_tests::session::copy_program;
use mem_tests::{Outcome, Scratch, Target, artifacts, run, wait};

fn idle(scratch: &Scratch) -> Target {
    started(&mut scratch.preloaded(scratch.compile("brood.c", &[])))
}

fn started(command: &mut Command) -> Target {
    let mut target = Target::start(command);
    target.hear();
    target
}

/// Returns a command that a shell executes after `script`.
fn after(script: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{script} && exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    shell
}

/// Like [`after`], in a mount namespace of its own. Needs root.
fn mounted(script: &str, command: &Command) -> Command {
    let inner = after(script, command);
    let mut outer = Command::new("unshare");
    outer.arg("--mount").arg("sh").args(inner.get_args());
    outer.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    outer.current_dir(inner.get_current_dir().unwrap_or_else(|| "/".as_ref()));
    outer.stdin(Stdio::piped()).stdout(Stdio::piped());
    outer
}

fn session(scratch: &Scratch, pid: u32) -> Outcome {
    run(scratch
        .profiler()
        .args(["-s", "1", "-o", "p_", "-p", &pid.to_string()]))
}

/// Words of the messages about processes that are not sampled.
const CAUSES: [&str; 17] = [
    "no such process",
    "ended just now",
    "ulimit -n",
    "ulimit -f",
    "valgrind runs it",
    "mem_profiler looks in",
    "another pid namespace",
    "/proc is not mounted",
    "is missing where",
    "may not write to",
    "there is no segment of it",
    "was deleted",
    "come to the agent's constructor",
    "it has allocated less than 64 KiB",
    "cannot reserve memory",
    "may not be opened",
    "its environment leaves it out",
];

#[track_caller]
fn assert_cause(outcome: &Outcome, cause: &str) {
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let named = CAUSES
        .iter()
        .filter(|cause| outcome.stderr.contains(**cause));
    let named: Vec<&&str> = named.collect();
    assert_eq!(named, [&cause], "{outcome:?}");
}

/// A message may name the limit, but no cause that would blame the process. `list` warns of other
/// processes of the machine too.
#[test]
fn few_descriptors_of_the_controller_are_called_so() {
    let scratch = Scratch::new();
    let target = idle(&scratch);
    let title = format!("({})", target.pid());
    for limit in 5..=24 {
        for args in [
            &["-s", "1", "-o", "p_", "-p", &target.pid().to_string()][..],
            &["-s", "1", "-o", "p_"],
            &["list"],
        ] {
            let mut command = scratch.profiler();
            command.args(args);
            let outcome = run(&mut after(&format!("ulimit -n {limit}"), &command));
            match outcome.code {
                Some(0) => assert!(!outcome.stderr.contains(&title), "{limit} {outcome:?}"),
                _ => assert_cause(&outcome, "ulimit -n"),
            }
        }
    }
}

#[test]
fn a_limit_on_the_size_of_the_programs_files_is_called_so() {
    let scratch = Scratch::new();
    let command = scratch.preloaded(scratch.compile("brood.c", &[]));
    let target = started(&mut after("ulimit -f 1", &command));
    assert_cause(&session(&scratch, target.pid()), "ulimit -f");
}

/// No process was named, and one has no segment.
#[test]
fn a_process_without_a_segment_is_explained_where_none_was_named() {
    let scratch = Scratch::new();
    let mut command = scratch.preloaded(scratch.compile("brood.c", &[]));
    command.uid(NOBODY).gid(NOBODY);
    let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(scratch.files(), open).expect("our own");
    let agent = scratch.file("libmem_agent.so");
    copy_program(artifacts::agent(), &agent);
    command.env("LD_PRELOAD", &agent);
    let target = started(&mut command);
    let mut asked = scratch.profiler();
    let outcome = run(asked.args(["-s", "1", "--user", &NOBODY.to_string()]));
    assert_cause(&outcome, "may not write to");
    assert!(
        outcome.stderr.contains(&target.pid().to_string()),
        "{outcome:?}"
    );
}

/// A user that no process of the machine has.
const NOBODY: u32 = 63_217;

#[test]
fn a_program_in_valgrind_is_called_so() {
    let scratch = Scratch::new();
    let program = scratch.compile("brood.c", &[]);
    let mut command = scratch.preloaded("valgrind");
    let target = started(command.arg("--quiet").arg(program));
    assert_cause(&session(&scratch, target.pid()), "valgrind runs it");
}

#[test]
fn a_segment_in_another_directory_is_called_so() {
    let scratch = Scratch::new();
    let other = Scratch::new();
    let target = idle(&other);
    let outcome = session(&scratch, target.pid());
    assert_cause(&outcome, "mem_profiler looks in");
    let place = other.shared().display().to_string();
    assert!(outcome.stderr.contains(&place), "{outcome:?}");
}

/// A container's root may lack rights that the machine's root has.
#[test]
fn a_segment_of_another_user_is_called_so_to_root_without_rights() {
    let scratch = Scratch::new();
    let mut command = scratch.preloaded(scratch.compile("brood.c", &[]));
    let open: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    for directory in [scratch.files(), scratch.shared()] {
        fs::set_permissions(directory, open.clone()).expect("our own");
    }
    let agent = scratch.file("libmem_agent.so");
    copy_program(artifacts::agent(), &agent);
    command.env("LD_PRELOAD", &agent);
    let target = started(command.uid(NOBODY).gid(NOBODY));
    let pid = target.pid().to_string();
    for args in [
        &["-s", "1", "-o", "p_", "-p", &pid][..],
        &["top", "--once", "-p", &pid],
        &["leaks", "-p", &pid],
    ] {
        let mut command = scratch.profiler();
        command.args(args);
        let rights = "-sys_ptrace,-dac_override,-dac_read_search";
        let mut without = Command::new("setpriv");
        without.args(["--bounding-set", rights, "--inh-caps", rights]);
        without.arg(command.get_program()).args(command.get_args());
        without.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let outcome = run(without.current_dir(scratch.files()));
        assert_cause(&outcome, "may not be opened");
        assert!(
            outcome.stderr.contains(&format!("user {NOBODY}")),
            "{outcome:?}"
        );
    }
}

/// The running program keeps the old file, which no longer has a name.
#[test]
fn an_agent_whose_file_was_replaced_is_still_the_agent() {
    let scratch = Scratch::new();
    let [agent, newer] = ["libmem_agent.so", "newer.so"].map(|name| scratch.file(name));
    copy_program(artifacts::agent(), &agent);
    let mut command = scratch.preloaded(scratch.compile("brood.c", &[]));
    let target = started(command.env("LD_PRELOAD", &agent));
    copy_program(artifacts::agent(), &newer);
    fs::rename(newer, agent).expect("an upgrade");
    let outcome = session(&scratch, target.pid());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!outcome.stderr.contains("preloaded"), "{outcome:?}");
}

/// With an auditor, the loader reserves thread-local storage before it knows the preloaded agent.
#[test]
fn run_samples_a_program_that_is_audited() {
    let scratch = Scratch::new();
    let auditor = scratch.compile_as("auditor.c", "auditor.so", &["-shared", "-fPIC"]);
    let program = scratch.compile("inventory.c", &[]);
    for tunables in [None, Some("glibc.malloc.check=0")] {
        let mut command = scratch.profiler();
        command.args(["run", "-c", "1", "-o", "p_", "--"]);
        command.arg(&program).arg("hold").env("LD_AUDIT", &auditor);
        if let Some(tunables) = tunables {
            command.env("GLIBC_TUNABLES", tunables);
        }
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stderr.contains(".heap"), "{outcome:?}");
    }
}

/// The loader maps auditors, and a C library of theirs, before it maps what is preloaded.
#[test]
fn a_process_whose_auditor_starts_is_not_missing_its_agent() {
    let scratch = Scratch::new();
    let auditor = scratch.compile_as("auditor.c", "auditor.so", &["-shared", "-fPIC"]);
    let mut command = scratch.preloaded(scratch.compile("brood.c", &[]));
    command.env("LD_AUDIT", &auditor).env("AUDITOR_WAITS", "1");
    // The loader has no room for the agent's thread-local storage otherwise.
    command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384");
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "audits");
    let listed = run(scratch.profiler().arg("list"));
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let title = format!("({})", target.pid());
    assert!(!listed.stderr.contains(&title), "{listed:?}");
    target.say("go on");
    assert_eq!(target.hear(), "ready");
    let outcome = session(&scratch, target.pid());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

/// The loader puts an auditor into a separate namespace, with another C library.
#[test]
fn an_agent_that_is_loaded_as_an_auditor_does_nothing() {
    let scratch = Scratch::new();
    let program = scratch.compile("inventory.c", &[]);
    let agent = artifacts::agent();
    // Without the second setting, the loader has no room for the agent's thread-local storage.
    for tunables in ["", "glibc.rtld.optional_static_tls=16384"] {
        let mut command = Command::new("timeout");
        command
            .args(["60", "env"])
            .arg(format!("GLIBC_TUNABLES={tunables}"))
            .arg(format!("LD_AUDIT={}", agent.display()))
            .arg(&program)
            .arg("hold")
            .env("MEM_PROFILER_DIR", scratch.shared())
            .env("MEM_PROFILER_START", "1");
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{tunables}: {outcome:?}");
        let ignored = outcome
            .stderr
            .contains("cannot be loaded as audit interface");
        assert!(ignored, "{tunables}: {outcome:?}");
        let segments = fs::read_dir(scratch.shared()).expect("the directory");
        assert_eq!(segments.count(), 0, "{tunables}");
    }
}

#[test]
fn the_proc_of_another_namespace_is_called_so() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("brood.c", "outsider", &[]);
    let outcome = run(&mut apart(
        &scratch,
        &["--pid", "--fork", "--kill-child"],
        "",
        &program,
    ));
    assert_cause(&outcome, "another pid namespace");
}

/// Starts a program in namespaces of its own, and there a session in it, after `prepare`.
fn apart(scratch: &Scratch, namespaces: &[&str], prepare: &str, program: &Path) -> Command {
    let script = format!(
        r#"{prepare}
        (tail -f /dev/null | LD_PRELOAD="$AGENT" "$1" >/dev/null &)
        until [ -n "$(ls "$MEM_PROFILER_DIR")" ]; do :; done
        exec "$0" -s 1 -o p_ -p "${{1##*/}}""#
    );
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["sh", "-c", &script]);
    command.arg(artifacts::profiler()).arg(program);
    command
        .env("MEM_PROFILER_DIR", scratch.shared())
        .env("AGENT", artifacts::agent())
        .current_dir(scratch.files())
        .stdin(Stdio::null());
    command
}

#[test]
fn what_is_missing_in_the_processs_own_mounts_is_called_so() {
    for (script, cause) in [
        ("mount -t tmpfs none /proc", "/proc is not mounted"),
        ("mount -t tmpfs none /dev/shm", "is missing where"),
    ] {
        let scratch = Scratch::new();
        let command = scratch.preloaded(scratch.compile("brood.c", &[]));
        let target = started(&mut mounted(script, &command));
        assert_cause(&session(&scratch, target.pid()), cause);
    }
}

/// A start script names its programs. Of those, one that has no segment is told why, and `list` says
/// so; the others of the script are not blamed.
#[test]
fn a_named_process_without_a_segment_is_not_called_left_out() {
    let scratch = Scratch::new();
    let program = scratch.compile("brood.c", &[]);
    let leave = |only: &str, script: &str| {
        let mut command = scratch.preloaded(&program);
        command.env("MEM_PROFILER_ONLY", only);
        started(&mut mounted(script, &command))
    };
    let cause = "is missing where";
    let other = leave("planner", ":");
    let named = leave("planner:bro*", "mount -t tmpfs none /dev/shm");
    assert_cause(&session(&scratch, named.pid()), cause);
    assert_cause(
        &session(&scratch, other.pid()),
        "its environment leaves it out",
    );
    let anybody = run(scratch.profiler().args(["-s", "1", "-o", "p_"]));
    assert_cause(&anybody, cause);
    let listed = run(scratch.profiler().arg("list"));
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let pid = named.pid().to_string();
    assert!(
        listed.stderr.contains(cause) && listed.stderr.contains(&pid),
        "{listed:?}"
    );
}

/// The filesystem has no size, so no message says how much is free there.
#[test]
fn a_filesystem_that_reserves_nothing_is_called_so() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("brood.c", "reserving", &[]);
    let namespaces = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let prepare = r#"mount -t ramfs none "$MEM_PROFILER_DIR""#;
    let outcome = run(&mut apart(&scratch, &namespaces, prepare, &program));
    assert_cause(&outcome, "cannot reserve memory");
    assert!(!outcome.stderr.contains("free"), "{outcome:?}");
}

/// Checks a `/proc` as with systemd's `ProcSubset=pid`.
#[test]
fn processes_alone_in_proc_suffice() {
    let scratch = Scratch::new();
    let target = idle(&scratch);
    let mut command = scratch.profiler();
    command.args(["-s", "1", "-o", "p_", "-p", &target.pid().to_string()]);
    let script = "mount -t proc -o subset=pid proc /proc";
    let outcome = run(&mut mounted(script, &command));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.dumps().len(), 1, "{outcome:?}");
}

/// Either the process or the tools may be unable to read the boot id.
#[test]
fn a_boot_id_that_only_one_side_can_read_does_not_hide_a_process() {
    let script = "mount --bind /dev/null /proc/sys/kernel/random/boot_id";
    let scratch = Scratch::new();
    let command = scratch.preloaded(scratch.compile("brood.c", &[]));
    let masked = started(&mut mounted(script, &command));
    let outcome = session(&scratch, masked.pid());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.dumps().len(), 1, "{outcome:?}");
    let target = idle(&scratch);
    let mut command = scratch.profiler();
    command.args(["-s", "1", "-o", "p_", "-p", &target.pid().to_string()]);
    let outcome = run(&mut mounted(script, &command));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.dumps().len(), 1, "{outcome:?}");
}

/// A program that was executed, but has not reached its loader's first instruction, has loaded
/// nothing yet.
#[test]
fn a_process_that_starts_or_has_ended_is_not_missing_its_agent() {
    let scratch = Scratch::new();
    let program = scratch.compile("brood.c", &[]);
    let mut command = scratch.preloaded(&program);
    let trace = || {
        // SAFETY: a plain call, which concerns this process alone.
        match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(trace) };
    // The tracer is the thread that starts it.
    let mut starting = command.spawn().expect("a program");
    let ended = scratch.preloaded("true").spawn().expect("a program");
    wait::until("the other to have ended", || {
        mem_tests::target::has_ended(ended.id()).then_some(())
    });
    let outcome = run(scratch.profiler().arg("list"));
    for pid in [starting.id(), ended.id()] {
        assert!(!outcome.stderr.contains(&pid.to_string()), "{outcome:?}");
    }
    starting.kill().expect("a child");
    starting.wait().expect("a child");
    let mut ended = ended;
    ended.wait().expect("a child");
}

/// The agent is mapped, but its constructor runs after others, which may take their time.
#[test]
fn a_process_that_has_not_begun_the_agent_is_called_so() {
    let scratch = Scratch::new();
    let program = scratch.compile("slow_start.c", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "waiting");
    assert_cause(
        &session(&scratch, target.pid()),
        "come to the agent's constructor",
    );
    target.say("go on");
    assert_eq!(target.hear(), "ready");
    let outcome = session(&scratch, target.pid());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    fs::remove_file(scratch.segment(target.pid()).expect("a segment")).expect("ours");
    assert_cause(&session(&scratch, target.pid()), "was deleted");
}

/// A daemon that has allocated little since it was forked has no segment yet. Nothing was deleted,
/// and starting it again would not help.
#[test]
fn a_forked_child_that_has_allocated_little_is_called_so() {
    let scratch = Scratch::new();
    let mut target = started(&mut scratch.preloaded(scratch.compile("brood.c", &[])));
    let mut child = |line: &str| {
        target.say(line);
        let answer = target.hear();
        let pid = answer.strip_prefix("child ").map(str::parse::<u32>);
        pid.and_then(Result::ok).expect("a child")
    };
    let pid = child("daemon 10");
    assert_cause(&session(&scratch, pid), "it has allocated less than 64 KiB");
}

/// The message does not advise to send a signal, because that does not continue the process.
#[test]
fn a_frozen_control_group_is_named() {
    let scratch = Scratch::new();
    let group = Cgroup::to_freeze();
    let mut command = scratch.preloaded(scratch.compile("brood.c", &[]));
    group.put(&mut command);
    let target = started(&mut command);
    let frozen = group.freeze();
    let outcome = session(&scratch, target.pid());
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let path = group.path().display().to_string();
    assert!(
        outcome.stderr.contains(&format!("{path} is frozen")),
        "{outcome:?}"
    );
    assert!(!outcome.stderr.contains("kill -CONT"), "{outcome:?}");
    drop(frozen);
}

/// The process allocates and is told that the session's tables could not be mapped.
#[test]
fn a_process_with_all_the_mappings_that_it_may_have_is_told_so() {
    let scratch = Scratch::new();
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    let program = scratch.compile("history.c", &[]);
    let mut target = Target::start(&mut scratch.preloaded(program));
    assert_eq!(target.hear(), "ready");
    target.say("begin");
    target.hear();
    target.say("step");
    target.hear();
    target.say(&format!(
        "map {}",
        2 * most.trim().parse::<u64>().expect("a number")
    ));
    target.hear();
    let pid = target.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-o", "p_", "-p", &pid]));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("vm.max_map_count"), "{outcome:?}");
    assert!(!outcome.stderr.contains("allocates nothing"), "{outcome:?}");
    target.say("age 1");
    assert_eq!(target.hear(), "ok");
    target.finish_well();
}

/// A segment has room for a path of 1024 bytes.
#[test]
fn a_program_with_a_long_path_is_found() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("brood.c", "brood", &[]);
    let mut directory = scratch.file("long");
    for _ in 0..7 {
        directory.push("d".repeat(200));
    }
    fs::create_dir_all(&directory).expect("directories");
    let path = directory.join("far_away");
    fs::copy(program, &path).expect("a copy");
    let _target = started(&mut scratch.preloaded(&path));
    let outcome = run(scratch
        .profiler()
        .args(["-s", "1", "-o", "p_", "-p", "far_away"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.dumps().len(), 1, "{outcome:?}");
}

/// The kernel adds ` (deleted)` to the names of deleted programs, but this program has such a name
/// itself.
#[test]
fn a_program_called_as_if_deleted_is_found() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("brood.c", "x (deleted)", &[]);
    let _target = started(&mut scratch.preloaded(program));
    let outcome = run(scratch
        .profiler()
        .args(["-s", "1", "-o", "p_", "-p", "x (deleted)"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.dumps().len(), 1, "{outcome:?}");
}
