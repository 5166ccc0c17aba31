//! Requests that `serve` refuses: those without an answer, and those of other web pages, strangers,
//! other users and attackers.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mem_tests::server::Answer;
use mem_tests::session::copy_program;
use mem_tests::{Scratch, Server, Target, artifacts, run, wait};

#[test]
fn requests_that_cannot_be_answered_get_an_error() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let missing = server.get("/debug/pprof/heap");
    missing.expect(404);
    let program = scratch.compile("truth.cpp", &[]);
    let mut first = Target::start(&mut scratch.preloaded(&program));
    let mut second = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(
        (first.hear(), second.hear()),
        ("ready".into(), "ready".into())
    );
    let pid = first.pid();
    let several = server.get("/debug/pprof/heap").expect(400);
    assert!(several.contains(&format!("({pid})")), "{several}");
    for (path, status, said) in [
        (
            "/debug/pprof/heap?pid=999999999",
            404,
            "there is no such process",
        ),
        ("/debug/pprof/heap?seconds=0&pid=PID", 400, "whole number"),
        ("/debug/pprof/heap?seconds=601&pid=PID", 400, "whole number"),
        (
            "/debug/pprof/heap?seconds=1&debug=1&pid=PID",
            400,
            "cannot be combined",
        ),
        (
            "/debug/pprof/profile?seconds=-1&pid=PID",
            400,
            "whole number",
        ),
        ("/debug/pprof/nonsense?pid=PID", 404, "no such page"),
        ("/debug/pprof/../../etc/passwd", 404, ""),
        ("/%2e%2e/%2e%2e/etc/passwd", 404, ""),
        ("/page.css/../../../etc/passwd", 404, ""),
        ("/debug/pprof/heap?pid=%zz", 400, "percent"),
        ("/api/start?pid=PID", 405, "POST"),
    ] {
        let answer = server.get(&path.replace("PID", &pid.to_string()));
        let text = answer.text();
        assert_eq!(answer.status, status, "{path}: {text}");
        assert!(
            text.contains(said) && !text.contains("root:"),
            "{path}: {text}"
        );
    }
    for kind in ["block", "mutex", "goroutine", "threadcreate"] {
        let empty = server
            .get(&format!("/debug/pprof/{kind}?pid={pid}"))
            .profile();
        assert!(empty.stacks.is_empty() && !empty.sample_types.is_empty());
    }
    let contention = server
        .get(&format!("/pprof/contention?pid={pid}"))
        .expect(200);
    assert!(contention.starts_with("--- contention"), "{contention}");
    assert!(
        server
            .ask("POST", "/metrics", "", b"")
            .expect(405)
            .contains("GET")
    );
    let unmarked = server.ask("POST", &format!("/api/start?pid={pid}"), "", b"");
    assert!(unmarked.expect(403).contains("X-Mem-Profiler"));
    server.post("/api/start").expect(400);
    server
        .post(&format!("/api/start?pid={pid}&interval=0"))
        .expect(400);
    server.post(&format!("/api/stop?pid={pid}")).expect(409);
    // The answer tells the truth: a session does not change its interval.
    let start = format!("/api/start?pid={pid}");
    server.post(&format!("{start}&interval=1024")).expect(200);
    let other = server.post(&format!("{start}&interval=1")).expect(409);
    assert!(other.contains("every 1024 bytes"), "{other}");
    for same in [&start, &format!("{start}&interval=1K")] {
        server.post(same).expect(200);
    }
    server.post(&format!("/api/stop?pid={pid}")).expect(200);
    // Gone between the index and the scrape.
    first.finish_well();
    server
        .get(&format!("/debug/pprof/heap?pid={pid}"))
        .expect(404);
    second.finish_well();
}

#[test]
fn other_web_pages_and_strangers_are_refused() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let asked = |host: &str, lines: &str| {
        let request = format!(
            "GET /api/processes HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n"
        );
        server.send(request.as_bytes()).status
    };
    assert_eq!(asked(&server.address, ""), 200);
    assert_eq!(asked("attacker.example", ""), 403);
    assert_eq!(
        asked(&server.address, "Origin: http://attacker.example\r\n"),
        403
    );
    assert_eq!(
        asked(&server.address, "Sec-Fetch-Site: cross-site\r\n"),
        403
    );
    let page = server.get("/");
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'; script-src 'self'")
    );

    // On anything but loopback a token is needed, in a file that others cannot read.
    let refused = |options: &[&str]| {
        let outcome = run(scratch.profiler().arg("serve").args(options));
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        outcome.stderr
    };
    assert!(refused(&["--listen", "0.0.0.0:0"]).contains("--token-file"));
    let token = scratch.file("token");
    fs::write(&token, "0123456789abcdef0123\n").unwrap();
    let path = token.to_str().unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&["--token-file", path]).contains("chmod 600"));
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let guarded = Server::start(&scratch, &["--token-file", path]);
    guarded.get("/api/processes").expect(401);
    let with = guarded.ask(
        "GET",
        "/api/processes",
        "Authorization: Bearer 0123456789abcdef0123\r\n",
        b"",
    );
    with.expect(200);
    assert!(refused(&["--listen", &server.address]).contains("in use"));
}

#[test]
fn a_unix_socket_is_its_owners() {
    let scratch = Scratch::new();
    let socket = scratch.file("socket");
    let listen = format!("unix:{}", socket.display());
    let mut command = scratch.profiler();
    command
        .args(["serve", "--listen", &listen])
        .stdout(Stdio::piped());
    // One that a dead server left is replaced.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut server = Target::start(&mut command);
    assert_eq!(server.hear(), format!("serving at {listen}"));
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(Answer::of(&answer).expect(200), "ok\n");
    server.signal(libc::SIGTERM);
    assert!(server.ended().success());
    assert!(!socket.exists());
    // What another has put in its place by now is left alone.
    let mut command = scratch.profiler();
    command
        .args(["serve", "--listen", &listen])
        .stdout(Stdio::piped());
    let mut server = Target::start(&mut command);
    assert_eq!(server.hear(), format!("serving at {listen}"));
    // Not removed first: the file system may give its number to the next one.
    fs::rename(&socket, scratch.file("former")).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    server.signal(libc::SIGTERM);
    assert!(server.ended().success());
    assert!(socket.exists());
}

/// As many descriptors as are allowed.
fn allow_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a whole rlimit of ours.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(8192);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

#[test]
fn attackers_do_not_keep_others_out() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let healthy = || {
        let start = Instant::now();
        assert_eq!(server.get("/healthz").expect(200), "ok\n");
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    };
    allow_files();
    // 2,000 connections, each with half a request.
    let mut held = Vec::new();
    for _ in 0..2000 {
        let mut stream = server.connect();
        // It may be closed at any time.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: 127");
        held.push(stream);
    }
    healthy();
    // 600 more that announce a body and never send it: who sends slowly keeps nobody out either.
    for _ in 0..600 {
        let mut stream = server.connect();
        let head =
            "POST /pprof/symbol HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4096\r\n\r\n0x";
        let _ = stream.write_all(head.as_bytes());
        held.push(stream);
    }
    healthy();
    let flood = |head: &str, unit: &str, count: usize| {
        let mut request = head.as_bytes().to_vec();
        request.extend(unit.repeat(count).into_bytes());
        server.send(&request).status
    };
    let status = flood(
        "GET / HTTP/1.1\r\nHost: x\r\n",
        "X-Header: aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
        100_000,
    );
    assert!([0, 400, 431].contains(&status), "{status}");
    let status = flood("GET /", "a", 1 << 20);
    assert!([0, 400, 414, 431].contains(&status), "{status}");
    let status = server
        .ask("POST", "/pprof/symbol", "", &vec![b'0'; 8 << 20])
        .status;
    assert!([0, 413].contains(&status), "{status}");
    for garbage in [&b"\0\x01\x02\xff"[..], b"GET\r\n\r\n", b"\r\n\r\n\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"POST /pprof/symbol HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"GET http://[::bad/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"] {
        let mut stream = server.connect();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(Answer::of(&answer).status < 500, "{}", String::from_utf8_lossy(&answer));
    }
    healthy();
    let memory = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let rss = memory
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kib: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 150 << 10, "{kib} KiB at most");
    drop(held);
    server.stop();
}

/// Returns a command that runs `program` as another user, with a directory that everybody can
/// access.
fn as_nobody(scratch: &Scratch, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .stdin(Stdio::null());
    command
}

#[test]
fn processes_that_the_user_may_not_see_are_not_served() {
    let scratch = Scratch::new();
    let mine = scratch.compile("truth.cpp", &[]);
    let everybodys = tempfile::tempdir().expect("a directory");
    let reach = |path: &std::path::Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a directory of ours");
    };
    reach(everybodys.path(), 0o755);
    let programs = [
        artifacts::profiler(),
        artifacts::server(),
        artifacts::agent(),
    ];
    for file in programs.iter().chain([&mine]) {
        copy_program(file, everybodys.path());
    }
    // The permissions are those of the machine's directory of shared memory.
    let shared = scratch.shared();
    reach(shared, 0o1777);
    let mut secret = Target::start(&mut scratch.preloaded(&mine));
    assert_eq!(secret.hear(), "ready");
    let file = |name: &std::path::Path| {
        let name = name.file_name().expect("a name");
        everybodys
            .path()
            .join(name)
            .to_str()
            .expect("text")
            .to_owned()
    };
    let mut own = as_nobody(&scratch, &file(&mine));
    own.env("LD_PRELOAD", file(&artifacts::agent()))
        .stdin(Stdio::piped());
    let mut own = Target::start(own.stdout(Stdio::piped()));
    assert_eq!(own.hear(), "ready");

    let server = Server::by(
        as_nobody(&scratch, &file(&artifacts::profiler())),
        &["--sample"],
    );
    wait::until("its own process to be sampled", || {
        let heap = server.get(&format!("/debug/pprof/heap?pid={}", own.pid()));
        (heap.status == 200).then_some(())
    });
    let pid = secret.pid();
    for path in [
        "heap",
        "allocs",
        "growth",
        "profile?seconds=1",
        "cmdline",
        "symbol?0x1000",
        "heap?seconds=1",
    ] {
        let mark = if path.contains('?') { '&' } else { '?' };
        let answer = server.get(&format!("/debug/pprof/{path}{mark}pid={pid}"));
        assert!(
            [403, 404].contains(&answer.status),
            "{path}: {}",
            answer.text()
        );
        assert!(
            !answer.text().contains("truth"),
            "{path}: {}",
            answer.text()
        );
    }
    assert!([403, 404].contains(&server.get(&format!("/report?pid={pid}")).status));
    assert!([403, 404].contains(&server.post(&format!("/api/start?pid={pid}")).status));
    let metrics = server.get("/metrics").expect(200);
    assert!(!metrics.contains(&format!("pid=\"{pid}\"")), "{metrics}");
    assert!(
        metrics.contains(&format!("pid=\"{}\"", own.pid())),
        "{metrics}"
    );
    assert!(!scratch.is_sampling(pid));
    server.stop();
    own.finish_well();
    secret.finish_well();
}
