//! Time namespaces: processes and controllers whose clocks differ from the machine's.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use mem_tests::{Scratch, Session, Target, artifacts, run};

/// Ages of a session's objects are below this, ms: tests wait for no longer. Clocks are
/// shifted by more.
const PATIENCE_MS: f64 = 600_000.0;

/// Returns a command that runs another in a time namespace, a day ahead of the machine.
fn shifted() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--time", "--fork", "--kill-child"]);
    command.args(["--monotonic", "86400", "--boottime", "86400"]);
    command
}

/// Returns a program in a time namespace.
fn ahead(scratch: &Scratch, program: impl AsRef<OsStr>) -> Target {
    let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
    preload.push(artifacts::agent());
    let mut command = shifted();
    command
        .arg("env")
        .arg(preload)
        .arg(program)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    target
}

/// Returns the pid in the name of the only segment.
fn only_pid(scratch: &Scratch) -> u32 {
    let segments = scratch.segments();
    assert_eq!(segments.len(), 1, "{segments:?}");
    let name = segments[0].file_name().expect("a file").to_string_lossy();
    let pid = name.split('.').nth(1).expect("a pid").parse();
    pid.unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Counts 321 objects in a session that a command begins and Ctrl-C ends, and checks them.
fn session_counts(scratch: &Scratch, target: &mut Target, pid: u32, profiler: Command) {
    let mut profiler = profiler;
    let pid_text = pid.to_string();
    profiler.args(["-s", "3600", "-c", "1", "-o", "t_", "-p", &pid_text]);
    let begun = Instant::now();
    let session = Session::start(&mut profiler);
    scratch.wait_for_sampling(pid);
    target.say("keep 321");
    assert_eq!(target.hear(), "ok");
    let controller = only_child(session.pid());
    // SAFETY: a plain call; the process is a child of our own child, alive until told.
    assert_eq!(unsafe { libc::kill(controller as i32, libc::SIGINT) }, 0);
    let outcome = session.wait();
    let most_ms = begun.elapsed().as_millis() as f64;
    assert!(most_ms < PATIENCE_MS);
    let dump = scratch.file(&outcome.dump().to_string_lossy());
    let profile = profile::open(&dump).expect("a dump");
    let program = fs::read_link(format!("/proc/{pid}/exe")).expect("a running program");
    let site = mem_tests::sums(&profile, &[&program], "site_")["site_main"].detail;
    assert_eq!(site.live_objects(), 321.0);
    let age_ms = site.live_age_ms_sum / site.live_objects();
    assert!(
        (0.0..=most_ms).contains(&age_ms),
        "{age_ms} ms of {most_ms}"
    );
}

/// Returns the process that a wrapper runs, or the process itself, if it wraps none.
fn only_child(pid: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
    let child = text.split_ascii_whitespace().next();
    child.map_or(pid, |child| child.parse().expect("a pid"))
}

#[test]
fn a_process_in_a_time_namespace_is_alive_and_is_sampled_with_true_ages() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("steps.c", "ahead", &[]);
    let mut target = ahead(&scratch, &program);
    let pid = only_pid(&scratch);
    let listed = run(scratch.profiler().arg("list")).stdout;
    assert!(listed.contains("idle"), "{listed}");
    session_counts(&scratch, &mut target, pid, scratch.profiler());
    target.finish_well();
}

#[test]
fn a_session_in_a_time_namespace_lasts_until_its_deadline() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("steps.c", "ahead", &[]);
    let mut target = ahead(&scratch, &program);
    let pid = only_pid(&scratch);
    let pid_text = pid.to_string();
    let args = ["-s", "0.5", "-c", "1", "-o", "t_", "-p", &pid_text];
    let session = Session::start(scratch.profiler().args(args));
    scratch.wait_for_sampling(pid);
    let mut kept = 0.0;
    while scratch.is_sampling(pid) {
        target.say("keep 1");
        assert_eq!(target.hear(), "ok");
        kept += 1.0;
    }
    let dump = scratch.file(&session.wait().dump().to_string_lossy());
    let profile = profile::open(&dump).expect("a dump");
    let counted = mem_tests::sums(&profile, &[&program], "site_")["site_main"].detail;
    // The last may have come after the end; none was lost to an end that came too early.
    let counted = counted.live_objects();
    assert!(
        counted >= kept - 1.0 && counted <= kept,
        "{counted} of {kept}"
    );
    target.finish_well();
}

#[test]
fn a_controller_in_a_time_namespace_sees_the_machines_processes() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("steps.c", "behind", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid();
    let inside = || {
        let mut command = shifted();
        command
            .arg(artifacts::profiler())
            .env("MEM_PROFILER_DIR", scratch.shared())
            .current_dir(scratch.files())
            .stdin(Stdio::null());
        command
    };
    let listed = run(inside().arg("list")).stdout;
    assert!(listed.contains("idle"), "{listed}");
    // Without a fork the namespace may be that of its children only.
    let mut before = Command::new("unshare");
    before.args(["--time", "--monotonic", "86400", "--boottime", "86400"]);
    before.arg(artifacts::profiler()).arg("list");
    let listed = run(before.env("MEM_PROFILER_DIR", scratch.shared())).stdout;
    assert!(listed.contains("idle"), "{listed}");
    session_counts(&scratch, &mut target, pid, inside());
    target.finish_well();
}

#[test]
fn dumps_of_a_clock_that_is_set_back_are_in_order_and_of_the_true_time() {
    let scratch = Scratch::new();
    let clock = scratch.compile_as("set_clock.c", "set_clock.so", &["-shared", "-fPIC"]);
    let program = scratch.compile_as("steps.c", "set", &[]);
    let begun = Instant::now();
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    let pid = target.pid().to_string();
    let mut dumps = Vec::new();
    for is_set in [false, false, true, true] {
        target.say("keep 100");
        assert_eq!(target.hear(), "ok");
        let mut profiler = scratch.profiler();
        if is_set {
            profiler.env("LD_PRELOAD", &clock);
        }
        dumps.extend(run(profiler.args(["dump", "-p", &pid, "-o", "s_"])).dumps());
    }
    session.stop();
    target.finish_well();
    let most_ns = begun.elapsed().as_nanos() as u64;
    let facts = |dump: &PathBuf| profile::open(dump).expect("a dump").facts;
    let dumps: Vec<PathBuf> = dumps
        .iter()
        .map(|dump| scratch.files().join(dump))
        .collect();
    assert!(facts(&dumps[3]).end_unix_ns < facts(&dumps[0]).end_unix_ns);
    let ends = dumps
        .iter()
        .map(|dump| facts(dump).end_boot_ns.expect("a time"));
    let ends: Vec<u64> = ends.collect();
    assert!(ends.is_sorted() && ends[3] - ends[0] <= most_ns, "{ends:?}");
    let leaks = run(scratch.parser().args(["--leaks", "-f"]).args(&dumps));
    let text = &leaks.stdout;
    assert_eq!(
        text.matches("The system clock was set").count(),
        1,
        "{leaks:?}"
    );
    let live = profile::open(&dumps[3]).expect("a dump");
    let live = mem_tests::sums(&live, &[&program], "site_")["site_main"].detail;
    assert_eq!(live.live_objects(), 400.0, "the last dump has all");
    assert!(text.contains("Leak suspects of 4 dumps in "), "{leaks:?}");
    assert!(!text.contains("hrs"), "{leaks:?}");
    let base = dumps[0].to_str().expect("a path of ours");
    let change = run(scratch
        .parser()
        .args(["--json", "--base", base, "-f"])
        .arg(&dumps[3]));
    let change: serde_json::Value = serde_json::from_str(&change.stdout).expect("JSON");
    let length = change["facts"]["duration_ns"].as_u64().expect("a duration");
    assert_eq!(length, ends[3] - ends[0]);
}
