//! End-to-end tests of real programs with the real agent.

mod support;

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use profile::Profile;
use support::{Place, Process, agent, program, wait_for};

const PYTHON: &[&str] = &["python3"];

/// Allocates 4 MiB from libc in 1 MiB blocks, allocates and frees as much again, and prints a line.
const LEAK: &str = "
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
keep = [libc.malloc(1 << 20) for _ in range(4)]
churn = [libc.free(ctypes.c_void_p(libc.malloc(1 << 20))) for _ in range(4)]
print('ready', flush=True)
";

fn profiles(place: &Place) -> Vec<(String, Profile)> {
    let open = |name: String| {
        let profile = profile::open(&place.out().join(&name)).unwrap();
        (name, profile)
    };
    place.dumps().into_iter().map(open).collect()
}

/// Returns the live bytes, in MiB, of stacks that hold only blocks of exactly 1 MiB.
fn megabytes(profile: &Profile) -> f64 {
    let leaks = profile
        .details
        .iter()
        .filter(|d| d.alloc_bytes == d.alloc_objects * 1048576.0);
    leaks.map(|d| d.live_bytes()).sum::<f64>() / 1048576.0
}

struct Redis {
    process: Process,
    port: u16,
}

impl Redis {
    fn start(place: &Place) -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let text = port.to_string();
        let arguments = ["--port", &text, "--save", "", "--daemonize", "no"];
        let process = place.preload(&program(&["redis-server"]), &arguments);
        wait_for("redis", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { process, port }
    }

    /// Keeps the server busy.
    fn load(&self) -> Process {
        let port = self.port.to_string();
        let mut command = Command::new(program(&["redis-benchmark"]));
        command.args([
            "-p",
            &port,
            "-t",
            "set,lpush",
            "-n",
            "100000000",
            "-r",
            "10000",
            "-d",
            "100",
        ]);
        Process(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }
}

#[test]
fn redis_under_load_is_profiled() {
    let place = Place::new();
    let redis = Redis::start(&place);
    let _load = redis.load();
    let ran = place.run(&[
        "-s",
        "1",
        "-c",
        "1024",
        "-o",
        &place.prefix(),
        "-p",
        "redis-server",
    ]);
    let expected = format!("p_redis-server.{}.0001.heap", redis.process.pid());
    assert!(ran.succeeded()[0].ends_with(&expected), "{ran:?}");
    let (_, profile) = profiles(&place).pop().unwrap();
    assert!(
        profile.facts.counters["samples"] > 100,
        "{:?}",
        profile.facts.counters
    );
    let deep = profile
        .stacks
        .iter()
        .filter(|stack| stack.len() > 5)
        .count();
    assert!(
        deep * 2 > profile.stacks.len(),
        "{deep} of {}",
        profile.stacks.len()
    );
    assert!(profile.facts.exe.unwrap().starts_with("/usr/bin"));
}

#[test]
fn the_profile_of_a_killed_redis_is_written() {
    let place = Place::new();
    let redis = Redis::start(&place);
    let load = redis.load();
    let pid = redis.process.pid();
    let session = place.spawn(&["-o", &place.prefix(), "-p", &pid.to_string()]);
    wait_for("sampling", || place.epoch(pid) != 0);
    std::thread::sleep(Duration::from_millis(500));
    redis.process.signal(Signal::SIGKILL);
    drop((redis, load));
    let ran = session.end();
    assert!(
        ran.succeeded()[0].ends_with("died during the session of SIGKILL)"),
        "{ran:?}"
    );
    let (_, profile) = profiles(&place).pop().unwrap();
    assert!(profile.total(1) > 100_000, "{}", profile.total(1));
    assert!(
        profile
            .mappings
            .iter()
            .any(|m| m.path.to_string_lossy().contains("redis"))
    );
    assert_eq!(place.segments(), Vec::<String>::new());
}

#[test]
fn run_counts_from_the_first_allocation_and_passes_the_exit_code_on() {
    let place = Place::new();
    let script = format!("{LEAK}\nsys.exit(7)");
    let mut command = place.profiler(&["run", "-c", "1", "-o", &place.prefix(), "--agent"]);
    command
        .arg(agent())
        .arg("--")
        .arg(program(PYTHON))
        .args(["-c", &script]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "ready\n",
        "stdout is the program's"
    );
    let (_, profile) = profiles(&place).into_iter().next_back().unwrap();
    assert_eq!(profile.facts.ended.as_deref(), Some("target exited: 7"));
    assert_eq!(
        profile.facts.process.as_deref().map(|name| &name[..6]),
        Some("python")
    );
    let found = megabytes(&profile);
    assert!((4.0..8.0).contains(&found), "{found} MiB");
    assert_eq!(
        place.segments(),
        Vec::<String>::new(),
        "nothing is left behind"
    );
}

#[test]
fn run_dies_of_the_signal_that_killed_the_program() {
    let place = Place::new();
    let mut command = place.profiler(&["run", "-o", &place.prefix(), "--agent"]);
    command
        .arg(agent())
        .args(["--", "sh", "-c", "kill -ABRT $$"]);
    let status = command.stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGABRT as i32), "{status:?}");
}

#[test]
fn run_forwards_signals_and_writes_the_profile() {
    let place = Place::new();
    let script = format!("{LEAK}\ntime.sleep(60)");
    let mut command = place.profiler(&["run", "-c", "1", "-o", &place.prefix(), "--agent"]);
    command
        .arg(agent())
        .arg("--")
        .arg(program(PYTHON))
        .args(["-c", &script]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut session = Process(command.spawn().unwrap());
    let mut line = String::new();
    let out = session.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    session.signal(Signal::SIGTERM);
    let status = session.0.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status:?}");
    let (_, profile) = profiles(&place).pop().unwrap();
    assert_eq!(profile.facts.ended.as_deref(), Some("target died: SIGTERM"));
    assert!(megabytes(&profile) >= 4.0);
}

#[test]
fn a_fork_heavy_script_gives_a_dump_for_each_process_that_allocates() {
    let place = Place::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do ls / > /dev/null; (true); done; exec ls /";
    let mut command = place.profiler(&[
        "run",
        "-c",
        "64",
        "--min",
        "0",
        "-o",
        &place.prefix(),
        "--agent",
    ]);
    command
        .arg(agent())
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let of_ls = profiles(&place)
        .iter()
        .filter(|(name, _)| name.starts_with("p_ls."))
        .count();
    assert_eq!(of_ls, 11, "{:?}", place.dumps());
    assert_eq!(place.segments(), Vec::<String>::new());
}

#[test]
fn a_program_that_cannot_be_started_gives_the_exit_codes_of_shells() {
    let place = Place::new();
    for (program, code) in [("/nonexistent/program", 127), ("/etc/passwd", 126)] {
        let mut command = place.profiler(&["run", "-o", &place.prefix(), "--agent"]);
        command
            .arg(agent())
            .args(["--", program])
            .stderr(Stdio::null());
        assert_eq!(command.status().unwrap().code(), Some(code));
    }
    assert_eq!(place.segments(), Vec::<String>::new());
    let ran = place.run(&["run", "--agent", "/nonexistent/agent.so", "--", "true"]);
    ran.failed_saying(&["/nonexistent/agent.so", "--agent"]);
}

#[test]
fn a_program_that_allocates_nothing_ends_with_its_own_code() {
    let place = Place::new();
    let agent = agent();
    for (program, code) in [("/bin/true", 0), ("/bin/false", 1)] {
        let agent = agent.to_str().unwrap();
        let prefix = place.prefix();
        let ran = place.run(&[
            "run", "-c", "1G", "-o", &prefix, "--agent", agent, "--", program,
        ]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
    }
}

#[test]
fn a_process_that_started_by_itself_is_dumped_or_recovered() {
    let place = Place::new();
    let start = |script: &str| {
        let mut command = Command::new(program(PYTHON));
        command
            .args(["-c", script])
            .env("LD_PRELOAD", agent())
            .env("MEM_PROFILER_DIR", place.shm());
        command
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", "1");
        let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        let out = process.0.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        assert_eq!(line, "ready\n");
        process
    };
    let process = start(&format!("{LEAK}\ntime.sleep(60)"));
    let pid = process.pid().to_string();
    place
        .run(&["dump", "-o", &place.prefix(), "-p", &pid])
        .succeeded();
    assert_ne!(place.epoch(process.pid()), 0, "it continues");
    assert!(megabytes(&profiles(&place)[0].1) >= 4.0);
    process.signal(Signal::SIGKILL);
    drop(process);
    let ran = place.run(&["recover", "-o", &place.prefix()]);
    assert!(ran.succeeded()[0].contains("0002.heap"), "{ran:?}");
    assert!(megabytes(&profiles(&place)[1].1) >= 4.0);
}

#[test]
fn each_forked_worker_has_its_own_profile() {
    let place = Place::new();
    let script = "
import os, time
for _ in range(3):
    if os.fork() == 0:
        while True: keep = [str(i) * 10 for i in range(1000)]
while True: keep = [str(i) * 10 for i in range(1000)]
";
    let parent = place.preload(&program(PYTHON), &["-c", script]);
    wait_for("the workers", || place.segments().len() == 4);
    let ran = place.run(&["-s", "0.5", "-c", "4K", "-o", &place.prefix()]);
    assert_eq!(ran.succeeded().len(), 4, "{ran:?}");
    assert!(ran.err.contains("PROCESS"), "a summary: {ran:?}");
    for (name, profile) in profiles(&place) {
        assert!(profile.facts.counters["samples"] > 10, "{name}");
    }
    let group = format!("pkill -KILL -P {}", parent.pid());
    assert!(
        Command::new("sh")
            .args(["-c", &group])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn exec_in_a_session_ends_one_profile_and_starts_another() {
    let place = Place::new();
    let python = program(PYTHON);
    let second = "while True: keep = [str(i) * 10 for i in range(1000)]";
    let script = format!(
        "import os, sys, time\nfor i in range(300):\n  keep = [str(i) * 10 for i in range(1000)]\n  \
         time.sleep(0.01)\nos.execv(sys.executable, [sys.executable, '-c', {second:?}])"
    );
    let process = place.preload(&python, &["-c", &script]);
    let session = place.spawn(&["-o", &place.prefix(), "-p", &process.pid().to_string()]);
    wait_for("the second image", || place.segments().len() == 2);
    wait_for("the first one's dump", || !place.dumps().is_empty());
    wait_for("samples of the second image", || {
        let listed = place.run(&["list", "--json"]).out;
        let rows: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        let sampled = |row: &serde_json::Value| row["state"] == "sampling" && row["samples"] != 0;
        rows.iter().any(sampled)
    });
    session.signal(Signal::SIGINT);
    let ran = session.end();
    let lines = ran.succeeded();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(lines[0].contains("executed another program"), "{ran:?}");
    let path = Path::new(lines[1]);
    assert!(profile::open(path).unwrap().facts.counters["samples"] > 0);
}
