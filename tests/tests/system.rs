//! Whole systems of processes: servers with workers, with separate users, in containers.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mem_tests::container::{contained, pid_of};
use mem_tests::session::{copy_program, tool};
use mem_tests::{Outcome, Scratch, Session, Target, artifacts, run, wait};
use profile::Profile;

/// A server, ended in order with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGQUIT) };
        let _ = self.0.wait();
    }
}

/// Lets other users see the test's directories and write to the shared one.
fn open_to_all(scratch: &Scratch) -> PathBuf {
    for (path, mode) in [(scratch.files(), 0o755), (scratch.shared(), 0o1777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
    }
    // The build's directories may be closed to others.
    let agent = scratch.file("libmem_agent.so");
    fs::copy(artifacts::agent(), &agent).expect("a copy");
    agent
}

fn profiles(scratch: &Scratch, outcome: &Outcome) -> Vec<(PathBuf, Profile)> {
    let open = |path: PathBuf| {
        let profile = profile::open(&scratch.files().join(&path)).expect("a whole dump");
        (file_name(&path), profile)
    };
    outcome.dumps().into_iter().map(open).collect()
}

fn file_name(path: &Path) -> PathBuf {
    path.file_name().expect("a file").into()
}

/// Returns the user and group by name.
fn user(name: &std::ffi::CStr) -> (u32, u32) {
    // SAFETY: a terminated name; what comes back is static until the next such call.
    unsafe {
        let entry = libc::getpwnam(name.as_ptr());
        assert!(!entry.is_null(), "{name:?}: no such user");
        ((*entry).pw_uid, (*entry).pw_gid)
    }
}

fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

// ---- nginx

struct Nginx {
    server: Server,
    port: u16,
    workers: Vec<u32>,
}

impl Nginx {
    fn start(scratch: &Scratch, workers: usize) -> Self {
        let agent = open_to_all(scratch);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("bound").port();
        drop(socket);
        let directory = scratch.files().display();
        fs::write(scratch.file("index.html"), "x".repeat(2000)).expect("a page");
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {directory}/{kind};"))
            .concat();
        let text = format!(
            "daemon off; worker_processes {workers}; user www-data;
             pid {directory}/nginx.pid; error_log {directory}/error.log;
             events {{ worker_connections 512; }}
             http {{ {temp} access_log off; server {{
                 listen 127.0.0.1:{port} reuseport; root {directory}; }} }}"
        );
        let config = scratch.file("nginx.conf");
        fs::write(&config, text).expect("a file");
        let mut command = scratch.preloaded("/usr/sbin/nginx");
        command.env("LD_PRELOAD", agent).arg("-c").arg(config);
        let server = Server(command.spawn().expect("nginx is installed"));
        let children = wait::until("the workers", || {
            Some(children(server.0.id())).filter(|children| children.len() == workers)
        });
        wait::until("the port", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self {
            server,
            port,
            workers: children,
        }
    }

    /// Requests one page over a new connection.
    fn get(&self) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("nginx listens");
        let request = b"GET /index.html HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn nginx_has_a_dump_for_its_master_and_for_each_worker() {
    let scratch = Scratch::new();
    let nginx = Nginx::start(&scratch, 3);
    let session = Session::start(
        scratch
            .profiler()
            .args(["-c", "64", "-o", "n_", "-p", "nginx"]),
    );
    for pid in &nginx.workers {
        scratch.wait_for_sampling(*pid);
    }
    // The kernel spreads connections over the workers: none is left out of so many.
    for _ in 0..120 {
        nginx.get();
    }
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let profiles = profiles(&scratch, &outcome);
    assert_eq!(profiles.len(), 4, "{outcome:?}");
    for pid in &nginx.workers {
        let name = PathBuf::from(format!("n_nginx.{pid}.0001.heap"));
        let (_, profile) = profiles
            .iter()
            .find(|(path, _)| *path == name)
            .expect("its dump");
        assert!(profile.facts.counters["samples"] > 100, "{name:?}");
        assert!(profile.total(1) > 10_000, "{name:?}: {}", profile.total(1));
        let exe = profile.facts.exe.as_deref();
        assert_eq!(exe, Some(Path::new("/usr/sbin/nginx")));
    }
    assert!(outcome.stderr.contains("PROCESS"), "a summary: {outcome:?}");
    let master = nginx.server.0.id();
    assert!(
        outcome.stderr.contains(&format!("nginx ({master})")),
        "{outcome:?}"
    );
}

#[test]
fn a_worker_that_nginx_replaces_joins_the_session() {
    let scratch = Scratch::new();
    let nginx = Nginx::start(&scratch, 2);
    let session = Session::start(scratch.profiler().args(["-c", "64", "-o", "n_"]));
    let first = nginx.workers[0];
    scratch.wait_for_sampling(first);
    // SAFETY: a child of the server that we started, which runs until it is told to end.
    assert_eq!(unsafe { libc::kill(first as i32, libc::SIGKILL) }, 0);
    let new = wait::until("the new worker", || {
        let now = children(nginx.server.0.id());
        now.into_iter().find(|pid| !nginx.workers.contains(pid))
    });
    scratch.wait_for_sampling(new);
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let died =
        format!("n_nginx.{first}.0001.heap (nginx ({first}) died during the session of SIGKILL)");
    assert!(outcome.stdout.contains(&died), "{outcome:?}");
    assert!(
        outcome.stdout.contains(&format!("n_nginx.{new}.")),
        "{outcome:?}"
    );
}

// ---- PostgreSQL

struct Postgres {
    server: Server,
    directory: PathBuf,
}

impl Postgres {
    fn binary(name: &str) -> PathBuf {
        let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
        let mut paths: Vec<_> = versions
            .flatten()
            .map(|version| version.path().join("bin").join(name))
            .filter(|path| path.exists())
            .collect();
        paths.sort();
        paths.pop().expect("postgresql is installed")
    }

    /// Starts a new cluster as the user that Debian creates for it.
    fn start(scratch: &Scratch) -> Self {
        let agent = open_to_all(scratch);
        let (uid, gid) = user(c"postgres");
        let directory = scratch.file("cluster");
        fs::create_dir(&directory).expect("a new directory");
        std::os::unix::fs::chown(&directory, Some(uid), Some(gid)).expect("root may");
        let data = directory.join("data");
        let mut init = Command::new(Self::binary("initdb"));
        init.args(["--no-sync", "-A", "trust", "-U", "postgres", "-D"])
            .arg(&data)
            .current_dir(&directory)
            .uid(uid)
            .gid(gid);
        let made = run(&mut init);
        assert_eq!(made.code, Some(0), "{made:?}");
        let mut command = scratch.preloaded(Self::binary("postgres"));
        command
            .env("LD_PRELOAD", agent)
            .args(["-F", "-c", "listen_addresses=", "-k"])
            .arg(&directory)
            .arg("-D")
            .arg(&data)
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .uid(uid)
            .gid(gid);
        let server = Server(command.spawn().expect("postgres starts"));
        let postgres = Self { server, directory };
        wait::until("the server", || {
            let mut ready = Command::new(Self::binary("pg_isready"));
            let ready = ready.arg("-q").arg("-h").arg(&postgres.directory);
            ready
                .status()
                .expect("pg_isready runs")
                .success()
                .then_some(())
        });
        postgres
    }

    /// Returns a connection that is kept, and the backend that serves it.
    fn connect(&self) -> (Target, u32) {
        let mut command = Command::new(Self::binary("psql"));
        command
            .args(["-qAtX", "-U", "postgres", "-h"])
            .arg(&self.directory)
            .arg("postgres");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Target::start(&mut command);
        client.say("select pg_backend_pid();");
        let pid = client.hear().parse().expect("a pid");
        (client, pid)
    }
}

#[test]
fn postgres_of_its_own_user_is_followed_with_its_backends() {
    let scratch = Scratch::new();
    let postgres = Postgres::start(&scratch);
    let (mut early, first) = postgres.connect();
    let args = ["-c", "4K", "-o", "pg_", "--user", "postgres"];
    let session = Session::start(scratch.profiler().args(args));
    scratch.wait_for_sampling(postgres.server.0.id());
    scratch.wait_for_sampling(first);
    // A backend that was there, and one that comes later.
    let (mut late, second) = postgres.connect();
    scratch.wait_for_sampling(second);
    let query = "select length(string_agg(repeat('x', 100), ',' order by random())) \
                 from generate_series(1, 50000);";
    for client in [&mut early, &mut late] {
        client.say(query);
        assert_eq!(client.hear(), "5049999");
    }
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let profiles = profiles(&scratch, &outcome);
    assert!(
        profiles.len() >= 3,
        "postmaster, helpers, backends: {outcome:?}"
    );
    for backend in [first, second] {
        let name = format!(".{backend}.");
        let of_it = |(path, _): &&(PathBuf, Profile)| path.to_string_lossy().contains(&name);
        let allocated = profiles
            .iter()
            .filter(of_it)
            .map(|(_, p)| p.total(1))
            .sum::<i64>();
        assert!(
            allocated > 5_000_000,
            "backend {backend}: {allocated} {outcome:?}"
        );
    }
    early.finish_well();
    late.finish_well();
}

// ---- namespaces

#[test]
fn a_process_in_other_namespaces_is_found_by_the_hosts_pid() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("steps.c", "contained", &[]);
    let mut target = contained(&scratch, &program);
    let pid = pid_of(&program);
    assert!(scratch.segments().is_empty(), "its segment is elsewhere");
    let listed = run(scratch.profiler().args(["list", "--json"]));
    assert!(
        listed.stdout.contains(&format!("\"pid\": {pid}")),
        "{listed:?}"
    );
    assert!(
        listed.stdout.contains(&format!("/proc/{}", pid)) || listed.stdout.contains("/root/"),
        "{listed:?}"
    );

    let pid_text = pid.to_string();
    let args = ["-c", "1", "-o", "c_", "-p", &pid_text];
    let session = Session::start(scratch.profiler().args(args));
    wait::until("the session", || {
        let listed = run(scratch.profiler().args(["list", "-p", &pid_text]));
        listed.stdout.contains("sampling").then_some(())
    });
    target.say("keep 321");
    assert_eq!(target.hear(), "ok");
    let outcome = session.stop();
    let dump = outcome.dump();
    let name = format!("c_contained.{pid}.0001.heap");
    assert_eq!(file_name(&dump), PathBuf::from(name));
    let profile = profile::open(&scratch.files().join(dump)).expect("a dump");
    let sums = mem_tests::sums(&profile, &[&program], "site_");
    assert_eq!(sums["site_main"].detail.live_objects(), 321.0);
    target.finish_well();
}

#[test]
fn a_pid_that_two_namespaces_use_is_not_mixed_up() {
    let scratch = Scratch::new();
    let names = ["one", "two"];
    let programs = names.map(|name| scratch.compile_as("steps.c", name, &[]));
    let mut targets = programs
        .each_ref()
        .map(|program| contained(&scratch, program));
    let listed = run(scratch.profiler().args(["list"]));
    for (name, program) in names.iter().zip(&programs) {
        let line = listed.stdout.lines().find(|line| line.contains(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {listed:?}"));
        let pid = line.split_whitespace().next().expect("a pid");
        assert_eq!(pid, pid_of(program).to_string(), "{listed:?}");
    }
    // Both are the second process of their namespaces.
    let outcome = run(scratch
        .profiler()
        .args(["-s", "0.2", "-o", "x_", "-p", "two"]));
    let name = format!("x_two.{}.0001.heap", pid_of(&programs[1]));
    assert_eq!(file_name(&outcome.dump()), PathBuf::from(name));
    for target in &mut targets {
        target.say("keep 1");
        assert_eq!(target.hear(), "ok");
    }
}

// ---- pids that come back

#[test]
fn a_pid_used_again_is_another_process() {
    let scratch = Scratch::new();
    let program = scratch.compile("steps.c", &[]);
    let other = scratch.compile_as("steps.c", "other", &[]);
    // In a pid namespace of its own the next pid can be chosen.
    let script = r#"
        first() { LD_PRELOAD=$AGENT MEM_PROFILER_START=1 MEM_PROFILER_INTERVAL=1 "$1" <"$2" >"$3" & }
        mkfifo "$DIR/in" "$DIR/out"
        first "$OLD" "$DIR/in" "$DIR/out"; pid=$!
        exec 4>"$DIR/in" 5<"$DIR/out"
        read -r line <&5; echo "keep 11" >&4; read -r line <&5
        started() { cut -d " " -f 22 "/proc/$1/stat"; }
        then=$(started $pid)
        kill -KILL $pid; wait $pid 2>/dev/null
        # The kernel tells starts by ticks of a hundredth of a second: the next one is not
        # to be in the same, where it could not be told from an exec.
        until [ "$(started self)" -gt "$then" ]; do :; done
        rm "$DIR/in" "$DIR/out"; mkfifo "$DIR/in" "$DIR/out"
        echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid
        LD_PRELOAD=$AGENT "$NEW" <"$DIR/in" >"$DIR/out" & again=$!
        exec 4>"$DIR/in" 5<"$DIR/out"
        read -r line <&5
        echo "$pid $again"
        "$PROFILER" list
        "$PROFILER" -s 0.2 -c 1 -p $again -o "$DIR/now_"
        "$PROFILER" recover -o "$DIR/then_"
        "$PROFILER" list
    "#;
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--mount", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-c", script])
        .envs([
            ("MEM_PROFILER_DIR", scratch.shared()),
            ("DIR", scratch.files()),
            ("AGENT", &artifacts::agent()),
            ("PROFILER", &artifacts::profiler()),
            ("OLD", &program),
            ("NEW", &other),
        ]);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut lines = BufReader::new(outcome.stdout.as_bytes())
        .lines()
        .map_while(Result::ok);
    let pids = lines.next().expect("two pids");
    let (old, new) = pids.split_once(' ').expect("two pids");
    assert_eq!(old, new, "the kernel gave the pid out again");
    let open = |name: String| profile::open(&scratch.file(&name)).expect("a dump");
    let now = open(format!("now_other.{new}.0001.heap"));
    assert_eq!(now.total(0), 0, "the new process allocated nothing");
    let then = open(format!("then_steps.{old}.0001.heap"));
    let sums = mem_tests::sums(&then, &[&program], "site_");
    assert_eq!(sums["site_main"].detail.alloc_objects, 11.0);
    let rest: Vec<String> = lines.collect();
    let of = |state: &str| rest.iter().filter(|line| line.contains(state)).count();
    assert_eq!((of("dead, profile kept"), of("idle")), (1, 2), "{rest:?}");
}

/// The kernel's view of processes in another root directory, while this value lives.
struct Proc(PathBuf);

impl Proc {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).expect("a directory");
        tool(
            "mount",
            [
                "-t".as_ref(),
                "proc".as_ref(),
                "proc".as_ref(),
                at.as_os_str(),
            ],
        );
        Self(at)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        tool("umount", ["-l".as_ref(), self.0.as_os_str()]);
    }
}

/// Returns the shared libraries of a program, and the program.
fn files_of(program: &Path) -> Vec<PathBuf> {
    let listed = tool("ldd", [program.as_os_str()]);
    let libraries = listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    libraries
        .map(PathBuf::from)
        .chain([program.to_owned()])
        .collect()
}

#[test]
fn a_process_in_another_root_directory_is_found_or_the_missing_directory_is_named() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("steps.c", "chrooted", &[]);
    let agent = artifacts::agent();
    let root = scratch.file("root");
    for file in files_of(&program).iter().chain(&files_of(&agent)) {
        let copy = root.join(file.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(copy.parent().expect("a parent")).expect("directories");
        copy_program(file, copy);
    }
    let start = || {
        let mut command = scratch.preloaded(&program);
        let new_root = CString::new(root.as_os_str().as_bytes()).expect("no NUL");
        let enter = move || {
            // SAFETY: a string that the closure owns; chroot(2) is safe after a fork.
            match unsafe { libc::chroot(new_root.as_ptr()) } {
                0 => std::env::set_current_dir("/"),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(enter) };
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        target
    };
    let target = start();
    let listed = run(scratch.profiler().args(["list", "-p", "chrooted"]));
    assert_eq!(listed.code, Some(1), "{listed:?}");
    let shown = root.to_str().expect("a printable path");
    for part in ["its root directory is", shown, "is missing there"] {
        assert!(listed.stderr.contains(part), "no {part:?} in {listed:?}");
    }
    target.finish_well();

    let shared = root.join(
        scratch
            .shared()
            .strip_prefix("/")
            .expect("an absolute path"),
    );
    fs::create_dir_all(&shared).expect("the shared directory");
    let _proc = Proc::mount(root.join("proc"));
    let mut target = start();
    let pid = target.pid().to_string();
    let session = Session::start(scratch.profiler().args(["-c", "1", "-o", "r_", "-p", &pid]));
    wait::until("the session", || {
        let listed = run(scratch.profiler().args(["list", "-p", &pid]));
        listed.stdout.contains("sampling").then_some(())
    });
    target.say("keep 321");
    assert_eq!(target.hear(), "ok");
    let dump = scratch.files().join(session.stop().dump());
    let profile = profile::open(&dump).expect("a dump");
    let inside = root.join(program.strip_prefix("/").expect("an absolute path"));
    let sums = mem_tests::sums(&profile, &[&inside], "site_");
    assert_eq!(sums["site_main"].detail.live_objects(), 321.0);
    target.finish_well();
}
