//! All ways of starting a session, each with all ways of continuing as another process: whichever
//! program began it is killed, and the session ends in the process and its descendants.

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use mem_tests::{Scratch, Server, Session, Target, wait};
use shm_protocol::clock::now_ns;
use shm_protocol::layout::HEADER_BYTES;
use shm_protocol::segment::Session as Begun;
use shm_protocol::snapshot::Header;

/// Objects of 1000 bytes for which a child makes a segment.
const MANY: u32 = 300;
/// A lease is of a minute; clocks are read one after the other.
const LEASE: Duration = Duration::from_secs(61);
/// The length where one is given; by timers, a session has a second more.
const LENGTH: Duration = Duration::from_secs(302);

/// When a process's session ends, if nobody extends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There is no session.
    Unsampled,
    /// After this time at most.
    Within(Duration),
    /// With the process, which began it for itself.
    Life,
}

use End::{Life, Unsampled, Within};

/// How a session is started.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// By a command of the controller's.
    Controller(&'static [&'static str]),
    /// By the process's environment.
    Preset(&'static [(&'static str, &'static str)]),
    /// By a function that the program calls on this command.
    Told(&'static str),
    /// By a request to a server; the page's button sends the same.
    Asked(&'static str),
    /// By a request for the profile of a time to come.
    Scraped,
}

/// A way of starting, and the ends of the sessions in the process, in what it forks, and in a
/// program that a child executes.
struct Way {
    start: Start,
    own: End,
    forked: End,
    executed: End,
}

const fn way(start: Start, own: End, forked: End, executed: End) -> Way {
    Way {
        start,
        own,
        forked,
        executed,
    }
}

const LEASED: End = Within(LEASE);
const TIMED: End = Within(LENGTH);

const WAYS: &[Way] = &[
    way(
        Start::Controller(&["-s", "300", "-o", "p_"]),
        TIMED,
        TIMED,
        Unsampled,
    ),
    way(Start::Controller(&["-o", "p_"]), LEASED, LEASED, Unsampled),
    way(
        Start::Controller(&["both", "-s", "300", "-o", "p_"]),
        TIMED,
        TIMED,
        Unsampled,
    ),
    way(
        Start::Controller(&["cpu", "--engine", "timers", "-s", "300", "-o", "p_"]),
        TIMED,
        Unsampled,
        Unsampled,
    ),
    way(
        Start::Controller(&["push", "--to", "pyroscope", "http://127.0.0.1:9"]),
        LEASED,
        LEASED,
        Unsampled,
    ),
    way(
        Start::Controller(&["top", "--json", "--delay", "1h"]),
        LEASED,
        Unsampled,
        Unsampled,
    ),
    way(
        Start::Preset(&[("MEM_PROFILER_START", "1")]),
        Life,
        Life,
        Life,
    ),
    way(Start::Preset(&[("HEAPCHECK", "normal")]), Life, Life, Life),
    way(
        Start::Preset(&[("HEAPPROFILE", "p_"), ("HEAPPROFILESIGNAL", "12")]),
        Life,
        Life,
        Life,
    ),
    // Sampled from outside, if the kernel allows that.
    way(
        Start::Preset(&[("CPUPROFILE", "own.prof")]),
        Unsampled,
        Unsampled,
        Unsampled,
    ),
    way(Start::Told("heap own"), Life, Life, Unsampled),
    way(Start::Told("cpu own.prof"), LEASED, Unsampled, Unsampled),
    way(Start::Asked("start?"), LEASED, LEASED, Unsampled),
    way(
        Start::Asked("start?seconds=300&"),
        LEASED,
        LEASED,
        Unsampled,
    ),
    way(Start::Scraped, LEASED, LEASED, Unsampled),
];

/// Returns the session of a process's newest segment, if it runs.
fn session(scratch: &Scratch, pid: u32) -> Option<Begun> {
    scratch.is_sampling(pid).then_some(())?;
    let mut header = vec![0; HEADER_BYTES];
    let segment = File::open(scratch.segment(pid)?).ok()?;
    let size = segment.metadata().expect("an open file").len() as usize;
    segment.read_at(&mut header, 0).expect("a readable segment");
    Header::new(&header, size).expect("a segment").session()
}

fn assert_end(scratch: &Scratch, pid: u32, expected: End, what: &str) {
    let deadline = session(scratch, pid).map(|session| session.deadline_ns);
    let is_so = match (deadline, expected) {
        (None, Unsampled) | (Some(0), Life) => true,
        (Some(0), _) => false,
        (Some(deadline), Within(most)) => deadline <= now_ns() + most.as_nanos() as u64,
        _ => false,
    };
    assert!(
        is_so,
        "{what}: {expected:?} expected, the deadline is {deadline:?}"
    );
}

fn say(target: &mut Target, line: &str) -> Option<u32> {
    target.say(line);
    let said = target.hear_until("ok");
    let child = said.iter().find_map(|line| line.strip_prefix("child "));
    child.and_then(|pid| pid.parse().ok())
}

/// Whatever a session needs until its holder is killed.
#[derive(Default)]
struct Holder {
    controller: Option<Session>,
    server: Option<Server>,
    client: Option<TcpStream>,
}

impl Way {
    fn program(&self, scratch: &Scratch) -> Target {
        let program = scratch.compile("brood.c", &[]);
        let mut command = scratch.preloaded(&program);
        command.current_dir(scratch.files());
        if let Start::Preset(values) = self.start {
            command.envs(values.iter().copied());
        }
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        target
    }

    fn start(&self, scratch: &Scratch, target: &mut Target) -> Holder {
        let pid = target.pid();
        let mut holder = Holder::default();
        match self.start {
            Start::Controller(args) => {
                let mut command = scratch.profiler();
                command.args(args).args(["-p", &pid.to_string()]);
                holder.controller = Some(Session::start(&mut command));
            }
            Start::Preset(_) => {}
            Start::Told(line) => {
                say(target, line);
            }
            Start::Asked(path) => {
                let server = Server::start(scratch, &[]);
                server.post(&format!("/api/{path}pid={pid}")).expect(200);
                holder.server = Some(server);
            }
            Start::Scraped => {
                let server = Server::start(scratch, &[]);
                let mut client = server.connect();
                let request = format!(
                    "GET /debug/pprof/heap?seconds=300&pid={pid} HTTP/1.1\r\nHost: {}\r\n\r\n",
                    server.address
                );
                client.write_all(request.as_bytes()).expect("a socket");
                holder.server = Some(server);
                holder.client = Some(client);
            }
        }
        if self.own != Unsampled {
            scratch.wait_for_sampling(pid);
        }
        holder
    }
}

/// Ends the process that holds a session, without notice.
fn kill_holder(scratch: &Scratch, pid: u32) {
    let holder = session(scratch, pid).map_or(0, |session| session.controller_pid as i32);
    if holder != 0 {
        // SAFETY: a plain call; the process was started for this test, and holds its session.
        assert_eq!(unsafe { libc::kill(holder, libc::SIGKILL) }, 0);
    }
}

/// Sessions in children end, whether they were forked before or after the holder was killed.
#[test]
fn a_session_started_in_any_way_has_an_end_in_all_that_comes_of_its_process() {
    for way in WAYS {
        let scratch = Scratch::new();
        let mut target = way.program(&scratch);
        let pid = target.pid();
        let holder = way.start(&scratch, &mut target);
        let forks = ["fork", "grand 0", "daemon"].map(|how| format!("{how} {MANY}"));
        let mut forked = Vec::new();
        let mut executed = Vec::new();
        for is_killed in [false, true] {
            if is_killed {
                kill_holder(&scratch, pid);
            }
            forked.extend(
                forks
                    .iter()
                    .map(|how| say(&mut target, how).expect("a pid")),
            );
            executed.extend(say(&mut target, &format!("exec {MANY}")));
            say(&mut target, "vfork");
            say(&mut target, "work");
        }
        let what = format!("{:?}", way.start);
        assert_end(&scratch, pid, way.own, &what);
        for child in forked {
            assert_end(&scratch, child, way.forked, &format!("{what}, forked"));
        }
        for child in executed {
            assert_end(&scratch, child, way.executed, &format!("{what}, executed"));
        }
        target.kill();
        drop(holder);
    }
}

/// The session ends although only the processes themselves can end it.
#[test]
fn an_end_comes_in_the_process_and_in_its_children_though_the_holder_was_killed() {
    for (start, forked) in [
        (Start::Controller(&["-s", "4", "-o", "p_"]), true),
        (Start::Controller(&["both", "-s", "4", "-o", "p_"]), true),
        (
            Start::Controller(&["cpu", "--engine", "timers", "-s", "4", "-o", "p_"]),
            false,
        ),
        (Start::Asked("start?seconds=4&"), true),
    ] {
        let way = way(start, LEASED, LEASED, Unsampled);
        let scratch = Scratch::new();
        let mut target = way.program(&scratch);
        let pid = target.pid();
        let holder = way.start(&scratch, &mut target);
        let child = say(&mut target, &format!("fork {MANY}")).expect("a pid");
        assert_eq!(session(&scratch, child).is_some(), forked, "{start:?}");
        kill_holder(&scratch, pid);
        wait::until(&format!("{start:?}: the session to end"), || {
            say(&mut target, "work");
            say(&mut target, &format!("more 0 {MANY}"));
            let ended = [pid, child].iter().all(|pid| !scratch.is_sampling(*pid));
            ended.then_some(())
        });
        target.kill();
        drop(holder);
    }
}
