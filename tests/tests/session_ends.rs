//! Every session ends without help of other processes, in the processes in which it began and in
//! their forked children. No session ends early in a child while it continues in the parent.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mem_tests::server::Answer;
use mem_tests::{Scratch, Server, Session, Steps, Target, artifacts, run, wait};
use serde_json::Value;
use shm_protocol::clock::now_ns;
use shm_protocol::layout::HEADER_BYTES;
use shm_protocol::snapshot::Header;

/// Objects of 1000 bytes for which a child makes a segment.
const MANY: u32 = 300;
/// And those whose profile is worth keeping.
const LOTS: u32 = 2000;

/// A lease is of a minute; clocks are read one after the other.
const LEASE: Duration = Duration::from_secs(61);

/// Returns the deadline of the session that runs in a process. `None`: none runs.
fn deadline(scratch: &Scratch, pid: u32) -> Option<u64> {
    if !scratch.is_sampling(pid) {
        return None;
    }
    let (bytes, size) = header(&scratch.segment(pid)?);
    let session = Header::new(&bytes, size).expect("a segment").session();
    session.map(|session| session.deadline_ns)
}

/// Returns the header of a segment, without its tables, and the segment's size.
fn header(segment: &Path) -> (Vec<u8>, usize) {
    let segment = File::open(segment).expect("a segment");
    let size = segment.metadata().expect("an open file").len() as usize;
    let mut bytes = vec![0; HEADER_BYTES];
    let read = segment.read_at(&mut bytes, 0).expect("a readable file");
    assert!(read > 0, "an empty segment");
    (bytes, size)
}

/// Returns the time until the session of a process ends, unless it is extended.
fn left(scratch: &Scratch, pid: u32) -> Duration {
    let deadline = deadline(scratch, pid).expect("a session");
    assert_ne!(deadline, 0, "the session of {pid} has no end");
    Duration::from_nanos(deadline.saturating_sub(now_ns()))
}

fn say(target: &mut Target, line: &str) -> Option<u32> {
    target.say(line);
    let said = target.hear_until("ok");
    let child = said.iter().find_map(|line| line.strip_prefix("child "));
    child.and_then(|pid| pid.parse().ok())
}

fn brood(scratch: &Scratch) -> Target {
    let program = scratch.compile("brood.c", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    target
}

/// Forks in every way; the processes that continue a session.
fn fork_in_all_ways(target: &mut Target) -> Vec<u32> {
    let child = say(target, &format!("fork {MANY}"));
    let grandchild = say(target, &format!("grand 0 {MANY}"));
    let daemon = say(target, &format!("daemon {MANY}"));
    say(target, "vfork");
    [child, grandchild, daemon]
        .map(|pid| pid.expect("a pid"))
        .into()
}

fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.expect(200)).expect("JSON")
}

/// The controller is killed after it has begun the sessions.
#[test]
fn a_killed_controller_leaves_no_session_without_an_end() {
    const LENGTH: Duration = Duration::from_secs(300);
    for (args, most) in [
        (&["-s", "300", "-o", "p_"][..], LENGTH),
        (&["-o", "p_"], LEASE),
        (&["both", "-o", "p_"], LEASE),
        (&["both", "-s", "300", "-o", "p_"], LENGTH),
        (&["top", "--json", "--delay", "1h"], LEASE),
        (&["cpu", "--engine", "timers", "-o", "p_"], LEASE),
    ] {
        let scratch = Scratch::new();
        let mut target = brood(&scratch);
        let pid = target.pid();
        let mut command = scratch.profiler();
        let session = Session::start(command.args(args).args(["-p", &pid.to_string()]));
        scratch.wait_for_sampling(pid);
        let children = fork_in_all_ways(&mut target);
        session.signal(libc::SIGKILL);
        session.wait();
        assert!(left(&scratch, pid) <= most, "{args:?}");
        for child in children {
            match args[0] {
                // They are of the processes that they were begun in.
                "cpu" | "top" => assert_eq!(deadline(&scratch, child), None),
                _ => assert!(left(&scratch, child) <= most, "{args:?}: {child}"),
            }
        }
        target.kill();
    }
}

/// The agents of a program under `run` begin the sessions. A program that is executed after the
/// controller was killed begins a session, too.
#[test]
fn a_killed_run_leaves_no_session_without_an_end() {
    for options in [&["run"][..], &["run", "-s", "300"]] {
        let scratch = Scratch::new();
        let program = scratch.compile("brood.c", &[]);
        let mut command = scratch.profiler();
        command.args(options).args(["-o", "p_", "--agent"]);
        command.arg(artifacts::agent()).arg("--").arg(&program);
        command.stdin(std::process::Stdio::piped());
        let mut profiler = Target::start(command.stdout(std::process::Stdio::piped()));
        assert_eq!(profiler.hear(), "ready");
        let before = say(&mut profiler, &format!("fork {MANY}")).expect("a pid");
        let late = say(&mut profiler, "fork 10").expect("a pid");
        // It is stopped, not killed: it could not pass on what it is told.
        profiler.signal(libc::SIGSTOP);
        let daemon = say(&mut profiler, &format!("daemon {MANY}")).expect("a pid");
        let executed = say(&mut profiler, &format!("exec {MANY}")).expect("a pid");
        say(&mut profiler, &format!("more 1 {MANY}"));
        let shared = Shared::of(&scratch);
        for pid in [before, late, daemon, executed] {
            let left = shared.left(pid);
            assert!(left <= LEASE, "{options:?}: {pid}: {left:?}");
        }
        profiler.signal(libc::SIGCONT);
        let outcome = profiler.finish();
        assert!(outcome.success(), "{options:?}: {outcome}");
    }
}

/// The directories that `run` has made in a shared one.
struct Shared(Vec<std::path::PathBuf>);

impl Shared {
    fn of(scratch: &Scratch) -> Self {
        fn below(directory: &std::path::Path, all: &mut Vec<std::path::PathBuf>) {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.path().is_dir() {
                    true => below(&entry.path(), all),
                    false => all.push(entry.path()),
                }
            }
        }
        let mut all = Vec::new();
        below(scratch.shared(), &mut all);
        Self(all)
    }

    fn left(&self, pid: u32) -> Duration {
        let start = format!("{}{pid}.", shm_protocol::segment::FILE_PREFIX);
        let is_its = |path: &&std::path::PathBuf| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&start))
        };
        let (bytes, size) = header(self.0.iter().rfind(is_its).expect("a segment"));
        let header = Header::new(&bytes, size).expect("a segment");
        assert_ne!(header.epoch(), 0, "{pid} samples");
        let deadline = header.session().expect("a session").deadline_ns;
        assert_ne!(deadline, 0, "the session of {pid} has no end");
        Duration::from_nanos(deadline.saturating_sub(now_ns()))
    }
}

/// A session that a process begins for itself lasts for the lifetimes of the process and its
/// children.
#[test]
fn a_processs_own_session_is_its_own() {
    let scratch = Scratch::new();
    let program = scratch.compile("brood.c", &[]);
    let mut target = Target::start(scratch.preloaded(&program).env("MEM_PROFILER_START", "1"));
    assert_eq!(target.hear(), "ready");
    let child = say(&mut target, &format!("fork {MANY}")).expect("a pid");
    for pid in [target.pid(), child] {
        assert_eq!(deadline(&scratch, pid), Some(0));
    }
    let server = Server::start(&scratch, &[]);
    let refused = server.post(&format!("/api/start?pid={}", target.pid()));
    let refused = refused.expect(409);
    assert!(refused.contains("has begun a session itself"), "{refused}");
    assert_eq!(deadline(&scratch, target.pid()), Some(0));
}

/// Checks each way in which a server starts children.
#[test]
fn a_servers_session_continues_in_children_and_ends_with_it() {
    for (way, seconds) in [("start", ""), ("start", "&seconds=600"), ("scrape", "")] {
        for end in ["stop", "kill", "end"] {
            let scratch = Scratch::new();
            let server = Server::start(&scratch, &[]);
            let mut target = brood(&scratch);
            let pid = target.pid();
            let mut client = None;
            match way {
                "start" => {
                    let started = server.post(&format!("/api/start?pid={pid}{seconds}"));
                    started.expect(200);
                }
                _ => client = Some(scrape(&server, pid)),
            }
            scratch.wait_for_sampling(pid);
            let children = fork_in_all_ways(&mut target);
            for &child in &children {
                // Extended with the parent's, not just inherited from it.
                wait::until("the server to look after the children", || {
                    let rows = json(&server.get("/api/processes"));
                    let rows = rows["processes"].as_array().expect("rows").clone();
                    let is_its = |row: &Value| row["pid"] == child && row["ours"] == true;
                    rows.iter().any(is_its).then_some(())
                });
                assert!(left(&scratch, child) <= LEASE);
            }
            let is_over = || {
                let mut all = children.iter().chain([&pid]);
                all.all(|&pid| !scratch.is_sampling(pid)).then_some(())
            };
            let what = format!("{way}{seconds}, {end}: the session to end in all");
            match end {
                "stop" if way == "start" => {
                    server.post(&format!("/api/stop?pid={pid}")).expect(200);
                    wait::until(&what, is_over);
                }
                "stop" => {
                    drop(client.take());
                    wait::until(&what, is_over);
                }
                "end" => {
                    server.stop();
                    wait::until(&what, is_over);
                }
                _ => {
                    // SAFETY: our own child, not yet waited for.
                    unsafe { libc::kill(server.pid() as i32, libc::SIGKILL) };
                    for &pid in children.iter().chain([&pid]) {
                        assert!(left(&scratch, pid) <= LEASE, "{way}{seconds}: {pid}");
                    }
                }
            }
            target.kill();
        }
    }
}

/// Returns a client that waits for a profile.
fn scrape(server: &Server, pid: u32) -> std::net::TcpStream {
    use std::io::Write;
    let mut client = server.connect();
    let request = format!(
        "GET /debug/pprof/heap?seconds=500&pid={pid} HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.address
    );
    client.write_all(request.as_bytes()).expect("a socket");
    client
}

/// Workers that come and go leave a limited number of profiles, and none if they did little.
#[test]
fn ended_workers_leave_few_profiles() {
    const MOST: usize = 8;
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["-c", "64K"]);
    let mut target = brood(&scratch);
    let pid = target.pid();
    server.post(&format!("/api/start?pid={pid}")).expect(200);
    scratch.wait_for_sampling(pid);
    for worker in 0..20 {
        let objects = if worker % 2 == 0 { LOTS } else { MANY };
        let child = say(&mut target, &format!("fork {objects}")).expect("a pid");
        if objects == LOTS {
            // A worker that ends before the server has seen it is nobody's.
            wait::until("the server to know the worker", || {
                let processes = json(&server.get("/api/processes"));
                let rows = processes["processes"].as_array().expect("processes");
                let mut own = rows.iter().filter(|row| row["pid"] == child);
                own.any(|row| row["ours"] == true).then_some(())
            });
        }
        say(&mut target, &format!("end {worker}"));
    }
    wait::until("the profiles of workers to be few", || {
        let left = scratch.segments().len();
        (left <= MOST + 1).then_some(())
    });
    server.post(&format!("/api/stop?pid={pid}")).expect(200);
    let recovered = run(scratch.profiler().args(["recover", "-o", "r_"]));
    assert!(recovered.dumps().len() <= MOST, "{recovered:?}");
}

/// Workers that the server has never seen running leave a limited number of sessions and profiles,
/// all of which are listed.
#[test]
fn workers_that_end_unseen_leave_few_profiles() {
    const MOST: usize = 8;
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["-c", "64K"]);
    let mut target = brood(&scratch);
    let pid = target.pid();
    server.post(&format!("/api/start?pid={pid}")).expect(200);
    scratch.wait_for_sampling(pid);
    for worker in 0..24 {
        say(&mut target, &format!("fork {LOTS}"));
        say(&mut target, &format!("end {worker}"));
    }
    wait::until("the profiles of workers to be few", || {
        let left = scratch.segments().len();
        (left <= MOST + 1).then_some(())
    });
    // All remaining segments are listed, and are removed with the others.
    wait::until("each segment to be listed", || {
        let list = json(&server.get("/api/processes"));
        let listed = list["processes"].as_array().map_or(0, Vec::len);
        (listed == scratch.segments().len()).then_some(())
    });
    server.post(&format!("/api/stop?pid={pid}")).expect(200);
    let recovered = run(scratch.profiler().args(["recover", "-o", "r_"]));
    assert!(recovered.dumps().len() <= MOST, "{recovered:?}");
    wait::until("nothing but the parent's segment", || {
        (scratch.segments().len() == 1).then_some(())
    });
    server.stop();
}

/// Only the program that began a session ends it.
#[test]
fn a_server_leaves_anothers_session_alone() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let mut target = brood(&scratch);
    let pid = target.pid();
    let mut command = scratch.profiler();
    let session = Session::start(command.args(["-s", "300", "-o", "p_", "-p", &pid.to_string()]));
    scratch.wait_for_sampling(pid);
    let controller = format!("pid {}", session.pid());
    let child = say(&mut target, &format!("fork {MANY}")).expect("a pid");
    let before = deadline(&scratch, pid);
    for path in ["start?seconds=1&", "start?", "start?interval=1&", "stop?"] {
        let said = server.post(&format!("/api/{path}pid={pid}")).expect(409);
        assert!(
            said.contains(&controller) && said.contains(" left"),
            "{said}"
        );
        server.post(&format!("/api/{path}pid={child}")).expect(409);
    }
    assert_eq!(deadline(&scratch, pid), before);
    assert!(scratch.is_sampling(child));
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    target.kill();
}

/// A profile of a shorter time than requested does not claim to be complete. As after Ctrl-C, this
/// is no failure.
#[test]
fn a_controller_says_that_another_program_has_ended_its_session() {
    let warning = "another program has ended its session after ";
    for (args, is_heap) in [
        (&["-s", "300", "-o", "p_"][..], true),
        (&["-o", "p_"], true),
        (&["both", "-s", "300", "-o", "p_"], true),
        (
            &["cpu", "--engine", "timers", "-s", "300", "-o", "p_"],
            false,
        ),
    ] {
        let scratch = Scratch::new();
        let mut target = brood(&scratch);
        let pid = target.pid().to_string();
        let mut command = scratch.profiler();
        let session = Session::start(command.args(args).args(["-p", &pid]));
        scratch.wait_for_sampling(target.pid());
        run(scratch.profiler().args(["stop", "-o", "s_", "-p", &pid]));
        let outcome = session.wait();
        assert!(outcome.stderr.contains(warning), "{args:?}: {outcome:?}");
        assert!(
            !outcome.stdout.contains("succeeded"),
            "{args:?}: {outcome:?}"
        );
        let said = outcome.stdout.contains("not for the whole session");
        assert_eq!(said, is_heap, "{args:?}: {outcome:?}");
        if is_heap {
            assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
            assert_eq!(outcome.dumps().len(), 1, "{args:?}: {outcome:?}");
        }
        target.kill();
    }
}

/// A session that lasted as long as requested is reported as complete.
#[test]
fn a_session_that_lasts_is_not_said_to_be_cut_short() {
    let scratch = Scratch::new();
    let mut target = brood(&scratch);
    let pid = target.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-o", "p_", "-p", &pid]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("succeeded"), "{outcome:?}");
    assert!(!outcome.stderr.contains("another program"), "{outcome:?}");
    target.kill();
}

/// A second request does not cut the first one short.
#[test]
fn a_second_start_extends_a_session() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let target = brood(&scratch);
    let pid = target.pid();
    let start = |seconds: &str| {
        let started = server.post(&format!("/api/start?pid={pid}{seconds}"));
        json(&started)["seconds_left"].as_f64()
    };
    let begun = Instant::now();
    assert!(start("&seconds=300").is_some_and(|left| left > 290.0));
    let second = start("&seconds=1").expect("an end");
    assert!(
        second > 300.0 - begun.elapsed().as_secs_f64() - 1.0,
        "{second}"
    );
    assert_eq!(start(""), None);
    assert_eq!(start("&seconds=1"), None);
}

/// The limits with which a server was started apply to every request.
#[test]
fn a_servers_limits_hold_for_every_request() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["--max-overhead", "1%", "--thin"]);
    let offered = json(&server.get("/api/processes"));
    assert_eq!(
        (&offered["max_overhead"], &offered["thin"]),
        (&0.01.into(), &true.into())
    );
    for (asked, limit) in [
        ("", 0.01),
        ("&interval=64", 0.01),
        ("&interval=64&max_overhead=20%25", 0.01),
        ("&interval=4096&thin=0", 0.01),
        ("&max_overhead=0.5%25", 0.005),
    ] {
        let target = brood(&scratch);
        let pid = target.pid();
        let started = json(&server.post(&format!("/api/start?pid={pid}{asked}")));
        assert_eq!(started["max_overhead"], limit, "{asked}: {started}");
        assert_eq!(started["thin"], true, "{asked}: {started}");
        let (bytes, size) = header(&scratch.segment(pid).expect("a segment"));
        let session = Header::new(&bytes, size).expect("a segment").session();
        assert_ne!(session.expect("a session").thinning, 0, "{asked}");
    }
    server.post("/api/start?max_overhead=90").expect(400);
}

/// The form on the page sends all its fields.
#[test]
fn an_interval_does_not_lift_the_limit() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["--max-overhead", "1%"]);
    let program = scratch.compile("strain.c", &["-lm"]);
    let mut program = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    let pid = program.pid();
    program.step("work 200");
    let started = server.post(&format!("/api/start?pid={pid}&interval=64&seconds=60"));
    assert_eq!(json(&started)["max_overhead"], 0.01);
    program.step("load");
    wait::until("the interval to be widened", || {
        let rows = json(&server.get("/api/processes"));
        let rows = rows["processes"].as_array().expect("rows").clone();
        let row = rows.into_iter().find(|row| row["pid"] == pid)?;
        (row["interval"].as_u64()? > 1024).then_some(())
    });
}
