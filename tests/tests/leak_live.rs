//! Repeated `leaks` on servers under load, all of whose allocations are known: no request fails,
//! the server continues, and nothing is reported as lost that is not.
//!
//! `MEM_TESTS_LEAK_CHECKS` is how often each process is checked; `tests/reliability/leaks` sets it.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use mem_tests::load::{self, Load};
use mem_tests::wait::until;
use mem_tests::{Scratch, Target, artifacts, leaks, run, session};
use serde_json::Value;

fn checks() -> usize {
    let wanted = std::env::var("MEM_TESTS_LEAK_CHECKS").ok();
    wanted.map_or(4, |wanted| wanted.parse().expect("a number"))
}

/// Returns a server every allocation of which is sampled from its start.
fn sampled(command: &mut Command) -> &mut Command {
    command
        .env("MEM_PROFILER_START", "1")
        .env("MEM_PROFILER_INTERVAL", "1")
}

fn check(scratch: &Scratch, pid: u32) -> Value {
    let pid = pid.to_string();
    let outcome = run(scratch.profiler().args(["leaks", "--json", "-p", &pid]));
    leaks::report(&outcome)
}

/// Returns true if a stack is one of those on which PostgreSQL really loses an object at its start:
/// the environment, which `setenv` replaces, and the text of an option.
fn is_lost_at_start(leak: &Value) -> bool {
    leak["stack"][0] == "save_ps_display_args" || leak["stack"][1] == "PostmasterMain"
}

/// Checks a process under load; nothing is lost. Prints how long it was stopped.
fn check_often(scratch: &Scratch, name: &str, pid: u32, load: &Load) {
    let mut pauses = Vec::new();
    for number in 0..checks() {
        load.goes_on();
        let report = check(scratch, pid);
        let leaks = report["leaks"].as_array().expect("a list");
        let lost = leaks.iter().find(|leak| !is_lost_at_start(leak));
        assert_eq!(lost, None, "{name}, {number}: {report:#}");
        assert!(report["live_bytes"].as_f64() > Some(1000.0), "{report}");
        pauses.push(report["pause_ms"].as_f64().expect("a time"));
    }
    load.goes_on();
    pauses.sort_by(f64::total_cmp);
    let (median, most) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    let count = pauses.len();
    println!("{name}: {count} checks, stopped for {median:.1} ms, at most {most:.1} ms");
}

fn arrives(socket: &Path) {
    until("a server to listen", || UnixStream::connect(socket).ok());
}

fn ask(socket: &Path, path: &str) -> String {
    let connection = UnixStream::connect(socket).expect("a server");
    load::get(&connection, path).expect("an answer")
}

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list
        .expect("a process")
        .split_whitespace()
        .map(str::parse)
        .collect();
    Result::expect(list, "numbers")
}

/// Free memory of the allocator keeps the contents of former objects, which may look like headers
/// of sampled objects.
#[test]
fn memory_that_looks_like_lost_objects_is_none() {
    let scratch = Scratch::new();
    let program = scratch.compile("stale.c", &[]);
    let (target, session) = leaks::planted(&scratch, &program);
    let report = check(&scratch, target.pid());
    assert_eq!(report["lost_samples"], 0, "{report:#}");
    session.stop();
    target.finish_well();
}

#[test]
fn redis_server_loses_nothing() {
    let scratch = Scratch::new();
    let socket = scratch.file("redis.sock");
    let mut command = scratch.preloaded("redis-server");
    command
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket);
    let server = Target::start(sampled(&mut command).current_dir(scratch.files()));
    arrives(&socket);
    let path = socket.to_str().expect("a path").to_owned();
    let load = Load::of(1, move || {
        let mut command = Command::new("redis-benchmark");
        command.args([
            "-s", &path, "-n", "1000", "-c", "20", "-r", "10000", "-d", "100", "-q",
        ]);
        let outcome = run(command.stdin(Stdio::null()));
        let failed = outcome.code != Some(0) || outcome.stderr.contains("rror");
        if failed {
            Err(format!("{outcome:?}"))
        } else {
            Ok(())
        }
    });
    check_often(&scratch, "redis-server", server.pid(), &load);
    load.end();
    let ping = session::tool(
        "redis-cli",
        ["-s".as_ref(), socket.as_os_str(), "ping".as_ref()],
    );
    assert_eq!(ping, "PONG\n");
}

#[test]
fn nginx_loses_nothing() {
    let scratch = Scratch::new();
    let directory = scratch.files();
    let socket = scratch.file("nginx.sock");
    let (place, at) = (directory.display(), socket.display());
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|what| format!("{what}_temp_path {place}/{what};\n"));
    let configuration = format!(
        "daemon off; worker_processes 1; user root; pid {place}/pid; error_log {place}/log;\n\
         events {{ worker_connections 200; }}\n\
         http {{ access_log off; {} server {{ listen unix:{at}; root {place}; }} }}\n",
        temporary.concat()
    );
    fs::write(scratch.file("nginx.conf"), configuration).expect("written");
    fs::write(scratch.file("index.html"), "hello\n").expect("written");
    let mut command = scratch.preloaded("/usr/sbin/nginx");
    command
        .arg("-p")
        .arg(directory)
        .arg("-c")
        .arg(scratch.file("nginx.conf"));
    let mut server = Target::start(sampled(&mut command));
    arrives(&socket);
    let worker = until("a worker", || children(server.pid()).first().copied());
    let load = Load::http(8, &socket);
    check_often(&scratch, "nginx's worker", worker, &load);
    check_often(&scratch, "nginx's master", server.pid(), &load);
    load.end();
    assert_eq!(ask(&socket, "/"), "hello\n");
    server.signal(libc::SIGQUIT);
    assert!(server.ended().success());
}

#[test]
fn node_loses_nothing() {
    let scratch = Scratch::new();
    let socket = scratch.file("node.sock");
    let mut command = scratch.preloaded("node");
    command.arg(artifacts::source("web.js")).arg(&socket);
    let mut server = Target::start(sampled(&mut command));
    assert_eq!(server.hear(), "ready");
    let load = Load::http(4, &socket);
    check_often(&scratch, "node", server.pid(), &load);
    load.end();
    assert!(ask(&socket, "/").starts_with("{\"served\":"));
}

#[test]
fn python_loses_only_what_its_program_loses() {
    let scratch = Scratch::new();
    let socket = scratch.file("python.sock");
    let mut command = scratch.preloaded("/usr/bin/python3");
    command.arg(artifacts::source("web.py")).arg(&socket);
    let mut server = Target::start(sampled(&mut command).env("PYTHONMALLOC", "malloc"));
    assert_eq!(server.hear(), "ready");
    let load = Load::http(4, &socket);
    check_often(&scratch, "python3", server.pid(), &load);
    for _ in 0..9 {
        ask(&socket, "/lose");
    }
    // Python keeps freed objects in free lists, with the addresses that were in them. One may be
    // where an object was allocated later, which is not lost then; so there is one more each time.
    let mut most = 9.0;
    until("ten lost objects", || {
        ask(&socket, "/lose");
        most += 1.0;
        load.goes_on();
        let report = check(&scratch, server.pid());
        let [objects, bytes] = ["lost_objects", "lost_bytes"].map(|sum| report[sum].as_f64());
        let objects = objects.expect("a number");
        assert!(objects <= most, "{report:#}");
        assert_eq!(bytes, Some(objects * 1000.0), "{report:#}");
        (objects >= 10.0).then_some(())
    });
    load.end();
    assert!(ask(&socket, "/").starts_with("{\"served\":"));
}

/// A database of `pgbench`'s, served by PostgreSQL as its own user.
struct Database {
    postmaster: Target,
    socket: String,
}

/// Returns a command that runs a program of PostgreSQL as PostgreSQL's own user, since it refuses
/// to run as root.
fn as_postgres(program: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
    let paths = versions
        .flatten()
        .map(|version| version.path().join("bin").join(program));
    let path = paths.filter(|path| path.exists()).max();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
        .arg(path.expect("postgresql is installed"))
        .stdin(Stdio::null());
    command
}

fn succeeds(command: &mut Command) -> String {
    let outcome = run(command);
    assert_eq!(outcome.code, Some(0), "{command:?}: {outcome:?}");
    outcome.stdout
}

impl Database {
    fn start(scratch: &Scratch) -> Self {
        let (directory, data) = (scratch.files(), scratch.file("data"));
        for (path, mode) in [(directory, 0o755), (scratch.shared(), 0o1777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
        }
        fs::create_dir(&data).expect("new");
        let id = |option| session::tool("id", [option, "postgres"]);
        let [user, group] = ["-u", "-g"].map(|option| id(option).trim().parse().ok());
        chown(&data, user, group).expect("as root");
        // The build's directories may be closed to others.
        let agent = scratch.file("libmem_agent.so");
        fs::copy(artifacts::agent(), &agent).expect("a copy");
        succeeds(
            as_postgres("initdb")
                .args(["-A", "trust", "-N", "-D"])
                .arg(&data),
        );
        let socket = data.to_str().expect("a path").to_owned();
        let mut command = as_postgres("postgres");
        command.args(["-D", &socket, "-k", &socket, "-c", "listen_addresses="]);
        sampled(&mut command).env("LD_PRELOAD", agent);
        command.env("MEM_PROFILER_DIR", scratch.shared());
        let postmaster = Target::start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        let database = Self { postmaster, socket };
        until("the database", || {
            (run(&mut database.client("pg_isready")).code == Some(0)).then_some(())
        });
        succeeds(database.client("pgbench").args(["-i", "-q"]));
        database
    }

    fn client(&self, program: &str) -> Command {
        let mut command = as_postgres(program);
        command.args(["-h", &self.socket]);
        command
    }

    /// Returns the process whose title has this in it.
    fn process(&self, title: &str) -> u32 {
        let is_it = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(title)
        };
        until(title, || {
            children(self.postmaster.pid()).into_iter().find(is_it)
        })
    }
}

/// A client whose one backend works for as long as it lives.
struct Backend {
    psql: Child,
    writer: JoinHandle<ChildStdin>,
    stop: Arc<AtomicBool>,
}

impl Backend {
    fn start(database: &Database) -> Self {
        let mut command = database.client("psql");
        command.args(["-X", "-q", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1"]);
        let mut psql = command.stdin(Stdio::piped()).spawn().expect("psql");
        let mut input = psql.stdin.take().expect("a pipe");
        // Commands in the pipe at the end are still carried out. Limits them to one page instead of
        // 16. SAFETY: sets a property of a pipe that is ours.
        let size = unsafe { libc::fcntl(input.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        assert_eq!(size, 4096);
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let writer = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let text = "set application_name = 'watched'; \
                    select bid, count(*), sum(abalance) from pgbench_accounts group by bid; \
                    update pgbench_tellers set tbalance = tbalance + 1;\n";
                input.write_all(text.as_bytes()).expect("psql reads");
            }
            input
        });
        Self { psql, writer, stop }
    }

    fn pid(database: &Database) -> u32 {
        let query = "select pid from pg_stat_activity where application_name = 'watched'";
        until("a backend", || {
            let found = succeeds(
                database
                    .client("psql")
                    .args(["-X", "-A", "-t", "-c", query]),
            );
            found.trim().parse().ok()
        })
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.writer.join().expect("no panic"));
        let ended = until("psql to end", || self.psql.try_wait().expect("a child"));
        assert!(ended.success(), "{ended}");
    }
}

#[test]
fn postgresql_loses_nothing() {
    let scratch = Scratch::new();
    let database = Database::start(&scratch);
    let backend = Backend::start(&database);
    let socket = database.socket.clone();
    let load = Load::of(1, move || {
        let mut command = as_postgres("pgbench");
        command.args(["-h", &socket, "-n", "-c", "4", "-t", "50"]);
        let outcome = run(&mut command);
        let all = outcome.stdout.contains("failed transactions: 0 (");
        match outcome.code == Some(0) && all {
            true => Ok(()),
            false => Err(format!("{outcome:?}")),
        }
    });
    let busy = Backend::pid(&database);
    check_often(&scratch, "a backend", busy, &load);
    check_often(&scratch, "the postmaster", database.postmaster.pid(), &load);
    for title in ["checkpointer", "walwriter", "background writer"] {
        check_often(&scratch, title, database.process(title), &load);
    }
    load.end();
    backend.end();
    let mut psql = database.client("psql");
    let answer = succeeds(psql.args([
        "-X",
        "-A",
        "-t",
        "-c",
        "select count(*) from pgbench_accounts",
    ]));
    assert_eq!(answer.trim(), "100000");
    let mut postmaster = database.postmaster;
    postmaster.signal(libc::SIGINT);
    assert!(postmaster.ended().success());
}
