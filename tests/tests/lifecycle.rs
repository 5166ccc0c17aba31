//! Processes and threads that come and go while they are sampled.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, Sum, Target, run, sums, wait};
use profile::Profile;

/// Runs steps in a session that samples everything, and checks the totals of every site.
fn exact_after(steps: &[&str]) -> (Profile, BTreeMap<String, Sum>) {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    for step in steps {
        program.step(step);
    }
    let expected = program.expected();
    let profile = session.stop().profile();
    let found = sums(&profile, &[&program.program], "site_");
    assert_exact(&expected, &found);
    program.target.finish_well();
    (profile, found)
}

fn read(dump: &Path) -> Profile {
    profile::open(dump).expect("a dump that can be read")
}

#[test]
fn five_hundred_short_threads_lose_nothing() {
    let (_, found) = exact_after(&["threads 500"]);
    assert_eq!(found["site_thread"].detail.live_objects(), 2000.0);
    assert!(
        found.contains_key("site_exiting"),
        "allocations before pthread_exit"
    );
}

#[test]
fn destructors_of_thread_data_may_allocate_and_free() {
    exact_after(&["keys 60"]);
}

#[test]
fn vfork_and_posix_spawn_are_left_alone() {
    exact_after(&["keep 10", "spawn", "keep 10", "spawn", "keep 10"]);
}

#[test]
fn a_forked_child_counts_into_a_segment_of_its_own() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let parent = program.pid();
    // Enough for the child to be worth a segment, and all of it before the session.
    let child = program.fork("fork", 5000);
    wait::until("the child's segment", || scratch.segment(child));
    let session = Session::start(scratch.profiler().args(["-c", "1", "-o", "prof_"]));
    scratch.wait_for_sampling(parent);
    scratch.wait_for_sampling(child);
    program.step("keep 25");
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.dumps().len(), 2, "{outcome:?}");
    let of = |pid: u32| {
        let name = format!("prof_steps.{pid}.0001.heap");
        sums(&read(&scratch.file(&name)), &[&program.program], "site_")
    };
    assert_eq!(of(parent)["site_main"].detail.alloc_objects, 25.0);
    assert_eq!(
        of(child),
        BTreeMap::new(),
        "the child allocated nothing in the session"
    );
}

#[test]
fn a_child_that_allocates_little_makes_no_segment() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let child = program.fork("fork", 10);
    // The child has said that it is done.
    assert_eq!(scratch.segment(child), None);
}

#[test]
fn a_child_forked_in_a_session_never_counts_into_its_parent() {
    forked_in_a_session("fork");
}

#[test]
fn a_child_unknown_to_the_c_library_never_counts_into_its_parent() {
    forked_in_a_session("bare_fork");
}

fn forked_in_a_session(how: &str) {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 10");
    let child = program.fork(how, 40);
    program.step("keep 10");
    let expected = program.expected();
    let outcome = session.stop();
    assert_eq!(outcome.dumps().len(), 2, "{outcome:?}");
    let of = |pid: u32| {
        let name = format!("prof_steps.{pid}.0001.heap");
        sums(&read(&scratch.file(&name)), &[&program.program], "site_")
    };
    let found = of(program.pid());
    assert_exact(&expected, &found);
    assert!(
        !found.contains_key("site_child"),
        "the child's objects in the parent's dump"
    );

    // The child went on with the session in a segment of its own.
    let inherited = of(child);
    assert!(
        !inherited.contains_key("site_main"),
        "the parent's objects in the child's dump"
    );
    assert_eq!(inherited["site_child"].detail.alloc_objects, 40.0);
    assert!(!scratch.is_sampling(child), "the session is over");
}

#[test]
fn no_thread_is_cancelled_in_an_allocation() {
    let scratch = Scratch::new();
    let program = scratch.compile("cancelled.c", &[]);
    // Idle, the child makes its segment after 64 KiB, and in a session at its first allocation.
    for interval in [None, Some("1")] {
        let mut command = scratch.preloaded(&program);
        if let Some(interval) = interval {
            command.envs([
                ("MEM_PROFILER_START", "1"),
                ("MEM_PROFILER_INTERVAL", interval),
            ]);
        }
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{interval:?}: {outcome:?}");
    }
}

#[test]
fn a_process_with_threads_forks_safely_in_a_session() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("fork_many 40");
    let expected = program.expected();
    let profile = session.stop().profile_of(program.pid());
    let found = sums(&profile, &[&program.program], "site_");
    assert!(!found.contains_key("site_child"));
    assert_exact(&expected, &found);
    program.target.finish_well();
}

#[test]
fn an_executed_program_has_an_agent_of_its_own() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let copy = scratch.compile_as("steps.c", "other", &[]);
    program.step("keep 5");
    program.target.say(&format!("exec {}", copy.display()));
    assert_eq!(program.target.hear(), "ready");
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 7");
    let outcome = session.stop();
    let dump = outcome.dump();
    assert!(
        dump.ends_with(format!("prof_other.{}.0001.heap", program.pid())),
        "{dump:?}"
    );
    let found = sums(&outcome.profile(), &[&copy], "site_");
    assert_eq!(found["site_main"].detail.alloc_objects, 7.0);
}

#[test]
fn a_program_that_executes_another_in_a_session_leaves_its_profile() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let copy = scratch.compile_as("steps.c", "other", &[]);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 5");
    program.target.say(&format!("exec {}", copy.display()));
    assert_eq!(program.target.hear(), "ready");
    program.step("keep 7");
    let outcome = session.stop();
    let name = format!("prof_steps.{}.0001.heap", program.pid());
    let found = sums(&read(&scratch.file(&name)), &[&program.program], "site_");
    assert_eq!(found["site_main"].detail.alloc_objects, 5.0, "{outcome:?}");
    assert!(
        outcome.stdout.contains("executed another program"),
        "{outcome:?}"
    );
}

#[test]
fn an_unloaded_library_is_still_in_the_dump() {
    let scratch = Scratch::new();
    let library = scratch.compile_as("plugin.c", "libplugin.so", &["-shared", "-fPIC"]);
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(&format!("plugin {} 30", library.display()));
    program.step("keep 1");
    let outcome = session.stop();
    let profile = outcome.profile();
    let found = sums(&profile, &[&library], "site_plugin");
    let live = found.get("site_plugin").map(|sum| sum.detail.live_bytes());
    assert_eq!(live, Some(30.0 * 640.0), "{:?}", profile.mappings);
    let mapping = profile
        .mappings
        .iter()
        .find(|m| m.path == library)
        .expect("the library");
    assert!(mapping.past, "unmapped before the dump was taken");
    assert!(!mapping.build_id.is_empty());

    let binary = program.program.to_str().expect("a path of ours");
    let dump = outcome.dump();
    let table = run(scratch.parser().args(["-t", "-p", binary, "-f"]).arg(&dump));
    assert_eq!(table.code, Some(0), "{table:?}");
    assert!(table.stdout.contains("site_plugin"), "{table:?}");
}

/// Two libraries have the same layout, and the loader puts them at the same address in turn.
#[test]
fn libraries_loaded_in_turn_at_one_address_are_distinguished() {
    let scratch = Scratch::new();
    let compile = |name: &str| {
        let library = scratch.compile_as("plugin.c", name, &["-shared", "-fPIC"]);
        library.to_str().expect("a path of ours").to_owned()
    };
    let (first, second) = (compile("libfirst.so"), compile("libother.so"));
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(&format!("plugin {first} 30"));
    program.step(&format!("plugin {second} 50"));
    program.step(&format!("plugin {first} 5"));
    let profile = session.stop().profile();
    let objects = |library: &str| {
        let found = sums(&profile, &[Path::new(library)], "site_plugin");
        found
            .get("site_plugin")
            .map_or(0.0, |sum| sum.detail.alloc_objects)
    };
    assert_eq!([objects(&first), objects(&second)], [35.0, 50.0]);
}

#[test]
fn a_killed_target_leaves_its_profile() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 1234");
    let expected = program.expected();
    program.target.kill();
    // The session ends by itself: nobody is left.
    let outcome = session.wait();
    assert_exact(
        &expected,
        &sums(&outcome.profile(), &[&program.program], "site_"),
    );
    assert!(
        outcome
            .stdout
            .contains("died during the session of SIGKILL"),
        "{outcome:?}"
    );
    assert_eq!(
        scratch.segments(),
        [""; 0].map(std::path::PathBuf::from),
        "nothing is left"
    );
}

#[test]
fn a_target_that_ends_leaves_its_profile() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 12");
    let expected = program.expected();
    program.target.finish_well();
    let outcome = session.wait();
    assert_exact(
        &expected,
        &sums(&outcome.profile(), &[&program.program], "site_"),
    );
    assert!(
        outcome.stdout.contains("ended during the session"),
        "{outcome:?}"
    );
    assert!(scratch.segments().is_empty(), "nothing is left");
}

/// Returns what the stacks through `allocate` have allocated and hold, in objects.
fn allocated(profile: &Profile, program: &Path) -> (f64, f64) {
    let sum = &sums(profile, &[program], "allocate")["allocate"];
    (sum.detail.alloc_objects, sum.detail.live_objects())
}

/// `pthread_exit` in `main` ends the first thread, so `/proc` shows the process as if it had ended.
#[test]
fn a_process_whose_first_thread_has_ended_continues() {
    let scratch = Scratch::new();
    let program = scratch.compile("first_thread.c", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let allocate = |target: &mut Target| {
        target.say("go");
        assert_eq!(target.hear(), "ok");
    };
    allocate(&mut target);
    let session = Session::of(&scratch, target.pid(), "1");
    (0..3).for_each(|_| allocate(&mut target));
    let outcome = session.stop();
    assert!(!outcome.stdout.contains("ended"), "{outcome:?}");
    assert_eq!(allocated(&outcome.profile(), &program), (3000.0, 300.0));
    let leaks = run(scratch.profiler().arg("leaks"));
    assert_eq!(leaks.code, Some(0), "{leaks:?}");
    assert!(leaks.stdout.contains("no leaks"), "{leaks:?}");
    let why = run(scratch.profiler().args(["why", "--json"]));
    let answer: serde_json::Value = serde_json::from_str(&why.stdout).expect("JSON");
    let resident = answer[0]["rss_bytes"].as_f64().expect("a size");
    assert!(resident > 1e5, "{why:?}");
    target.finish();

    // One session lasts from the start to the end.
    let profiler = scratch.profiler();
    let mut shell = Command::new("sh");
    let variables = profiler.get_envs();
    shell.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    shell.args(["-c", "printf 'go\\ngo\\ngo\\n' | \"$@\"", "sh"]);
    shell
        .arg(profiler.get_program())
        .args(["run", "-c", "1", "-o"]);
    shell.arg(scratch.file("whole_")).arg("--").arg(&program);
    let outcome = run(&mut shell);
    let files = fs::read_dir(scratch.files()).expect("a directory");
    let mut paths = files.map(|file| file.expect("a file").path());
    let dump = paths.find(|path| path.to_string_lossy().contains("/whole_"));
    let profile = read(&dump.unwrap_or_else(|| panic!("{outcome:?}")));
    assert_eq!(allocated(&profile, &program), (3000.0, 300.0));
}

#[test]
fn a_target_without_its_controller_stops_at_the_deadline() {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    let args = ["-s", "2", "-c", "1", "-o", "prof_", "-p", &pid];
    let session = Session::start(scratch.profiler().args(args));
    scratch.wait_for_sampling(program.pid());
    program.step("keep 321");
    session.signal(libc::SIGKILL);
    assert_eq!(session.wait().code, None);
    assert!(scratch.is_sampling(program.pid()), "before the deadline");
    program.step("churn");
    let still = || scratch.is_sampling(program.pid());
    wait::until("the session to end by itself", || (!still()).then_some(()));

    // Nothing is lost: the next controller finds what the killed one left.
    let outcome = run(scratch
        .profiler()
        .args(["-s", "0.1", "-o", "prof_", "-p", &pid]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let dumps = outcome.dumps();
    assert_eq!(dumps.len(), 2, "{outcome:?}");
    let left = sums(
        &read(&scratch.files().join(&dumps[0])),
        &[&program.program],
        "site_",
    );
    assert_eq!(left["site_main"].detail.live_objects(), 321.0);
}

#[test]
fn an_agent_that_is_off_keeps_nothing_open() {
    let scratch = Scratch::new();
    let program = scratch.compile("steps.c", &[]);
    let mut with = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    let mut plain = scratch.preloaded(&program);
    let mut without = Steps::run(program.clone(), plain.env_remove("LD_PRELOAD"));
    let same = |with: &Steps, without: &Steps| {
        let files = |pid: u32| {
            fs::read_dir(format!("/proc/{pid}/fd"))
                .expect("fds")
                .count()
        };
        let threads = |pid: u32| {
            fs::read_dir(format!("/proc/{pid}/task"))
                .expect("tasks")
                .count()
        };
        assert_eq!(files(with.pid()), files(without.pid()), "file descriptors");
        assert_eq!(threads(with.pid()), threads(without.pid()), "threads");
        for field in ["SigCgt:", "SigBlk:", "SigIgn:"] {
            assert_eq!(
                status(with.pid(), field),
                status(without.pid(), field),
                "{field}"
            );
        }
    };
    same(&with, &without);
    // Nothing changes after a session, either.
    let session = Session::of(&scratch, with.pid(), "1");
    with.step("keep 5");
    without.step("keep 5");
    assert_eq!(session.stop().code, Some(0));
    same(&with, &without);
    with.target.finish_well();
    assert!(scratch.segments().is_empty(), "a normal end leaves no file");
}

fn status(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("a live process");
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.expect("a field of every status").trim().to_owned()
}
