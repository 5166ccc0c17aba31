//! `serve` as its clients meet it: pprof's readers over HTTP, Prometheus, scripts, and those who mean
//! ill.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use heap_format::Profile;
use mem_tests::server::{Answer, Client};
use mem_tests::{Browser, Scratch, Server, Target, run, wait};
use serde_json::Value;

const COLUMNS: [&str; 4] = [
    "inuse_space",
    "inuse_objects",
    "alloc_space",
    "alloc_objects",
];

/// A program with many sites, which is quiet after it has allocated.
fn quiet(scratch: &Scratch, server: &Server) -> (Target, PathBuf) {
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid();
    let started = server.post(&format!("/api/start?pid={pid}&interval=512"));
    started.expect(200);
    scratch.wait_for_sampling(pid);
    target.say("go 2000 4 1024");
    target.hear_until("done");
    (target, program)
}

fn profile(answer: &Answer) -> Profile {
    let status = answer.status;
    heap_format::read(&answer.body, "answer")
        .unwrap_or_else(|error| panic!("{status} {error}: {}", answer.text()))
}

fn totals(profile: &Profile) -> BTreeMap<String, i64> {
    let types = profile.sample_types.iter().enumerate();
    types
        .map(|(column, t)| (t.kind.clone(), profile.total(column)))
        .collect()
}

/// Output of a reader of profiles, whose files are in the scratch directory.
fn reader(scratch: &Scratch, program: &str, arguments: &[&str]) -> String {
    let home = scratch.files();
    let output = Command::new(program)
        .args(arguments)
        .env("HOME", home)
        .env("PPROF_TMPDIR", home)
        .env("JEPROF_TMPDIR", home)
        .env("GOFLAGS", "-mod=mod")
        .current_dir(home)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn readers_over_http_find_the_totals_of_a_dump() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let (target, program) = quiet(&scratch, &server);
    let base = format!("/p/{}", target.pid());
    let pid = target.pid().to_string();
    let mut dump = scratch.profiler();
    dump.args(["dump", "-p", &pid, "-o"])
        .arg(scratch.file("now_"));
    let dump = run(&mut dump);
    let ours = dump.profile();
    let expected = totals(&ours);
    let answer = server.get(&format!("{base}/debug/pprof/heap"));
    for line in [
        "content-type: application/octet-stream",
        "content-disposition: attachment; filename=\"heap\"",
        "x-content-type-options: nosniff",
    ] {
        assert!(answer.head.contains(line), "{}", answer.head);
    }
    let served = profile(&answer);
    assert_eq!(totals(&served), expected);
    assert!(served.functions.iter().any(|f| f.name == "site_mixed"));
    assert_eq!(
        served.default_type,
        served.type_index("inuse_space").unwrap()
    );
    let allocs = profile(&server.get(&format!("{base}/debug/pprof/allocs")));
    assert_eq!(
        allocs.default_type,
        allocs.type_index("alloc_space").unwrap()
    );
    assert_eq!(totals(&allocs), expected);
    let text = server.get(&format!("{base}/debug/pprof/heap?debug=1"));
    assert_eq!(totals(&profile(&text)), expected);
    assert!(text.text().starts_with("heap profile: "));
    for column in COLUMNS {
        let url = server.url(&format!("{base}/debug/pprof/heap?gc=1"));
        let option = format!("-sample_index={column}");
        let unit = if column.ends_with("space") {
            "-unit=B"
        } else {
            "-unit=minimum"
        };
        let table = reader(
            &scratch,
            "go",
            &[
                "tool",
                "pprof",
                "-top",
                &option,
                unit,
                "-symbolize=none",
                &url,
            ],
        );
        let theirs = go_total(&table);
        close(column, expected[column], theirs);
        for perl in ["google-pprof", "jeprof"] {
            let url = server.url(&format!("{base}/pprof/heap"));
            let option = format!("--{column}");
            let mut arguments = vec!["--text", &option, &url];
            if column.ends_with("space") {
                arguments.insert(0, "--show_bytes");
            }
            let table = reader(&scratch, perl, &arguments);
            assert!(table.contains("site_mixed"), "{perl}: {table}");
            close(column, expected[column], perl_total(&table));
        }
    }
    let growth = profile(&server.get(&format!("{base}/pprof/growth")));
    let bytes = growth.total(growth.type_index("space").unwrap());
    close("growth", expected["inuse_space"], bytes as f64);
    symbols(&server, &base, &ours, &program);
    server.stop();
    assert!(
        !scratch.is_sampling(target.pid()),
        "the server took its session along"
    );
    target.finish_well();
}

fn close(column: &str, ours: i64, theirs: f64) {
    let off = (ours as f64 - theirs).abs();
    assert!(
        ours > 0 && off <= ours as f64 * 1e-3 + 1.0,
        "{column}: ours {ours}, theirs {theirs}"
    );
}

/// `Showing nodes accounting for 123B, 45% of 678B total`.
fn go_total(table: &str) -> f64 {
    let rest = table.split(" of ").find(|part| part.contains(" total"));
    let digits: String = rest
        .unwrap_or_default()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    digits.parse().unwrap_or_else(|_| panic!("{table}"))
}

fn perl_total(table: &str) -> f64 {
    let total = table.lines().find_map(|line| line.strip_prefix("Total: "));
    let number = total.and_then(|rest| rest.split_whitespace().next());
    number
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{table}"))
}

/// Names of addresses, as both kinds of clients ask for them.
fn symbols(server: &Server, base: &str, ours: &Profile, program: &std::path::Path) {
    let is_of_program = |l: &&heap_format::Location| {
        let mapping = ours.mappings.get(l.mapping as usize);
        mapping.is_some_and(|mapping| mapping.path == program)
    };
    let addresses = ours.locations.iter().filter(is_of_program);
    let addresses: Vec<String> = addresses.map(|l| format!("{:#x}", l.address)).collect();
    let body = addresses.join("+");
    let number = server.get(&format!("{base}/pprof/symbol")).expect(200);
    assert_eq!(number, "num_symbols: 1\n");
    for (path, gap) in [("/debug/pprof/symbol", ' '), ("/pprof/symbol", '\t')] {
        let named = server.ask("POST", &format!("{base}{path}"), "", body.as_bytes());
        let named = named.expect(200);
        let names: Vec<&str> = named
            .lines()
            .filter_map(|l| l.split_once(gap))
            .map(|p| p.1)
            .collect();
        assert!(names.contains(&"site_mixed"), "{named}");
        assert!(names.len() >= addresses.len(), "{named}");
    }
    let cmdline = server
        .get(&format!("{base}/debug/pprof/cmdline"))
        .expect(200);
    assert_eq!(cmdline, program.to_str().unwrap());
}

#[test]
fn two_clients_share_the_session_that_their_waiting_needs() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["-c", "256"]);
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid();
    let path = format!("/debug/pprof/heap?seconds=3&pid={pid}");
    let deltas: Vec<Profile> = std::thread::scope(|scope| {
        let client: &Client = &server;
        let clients = [(); 2].map(|()| scope.spawn(|| profile(&client.get(&path))));
        scratch.wait_for_sampling(pid);
        target.say("go 500 2 256");
        target.hear_until("done");
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });
    for delta in &deltas {
        assert!(
            totals(delta)["alloc_space"] > 100_000,
            "{:?}",
            totals(delta)
        );
        let length = delta.facts.duration_ns.unwrap() as f64 / 1e9;
        assert!((2.5..30.0).contains(&length), "{length}");
    }
    wait::until("the session to end with its last client", || {
        (!scratch.is_sampling(pid)).then_some(())
    });
    let idle = server.get(&format!("/debug/pprof/heap?pid={pid}"));
    assert!(idle.expect(404).contains("no session samples it"));
    target.finish_well();
}

#[test]
fn a_client_that_leaves_takes_its_session_along() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let mut client = server.connect();
    let request = format!(
        "GET /debug/pprof/heap?seconds=500 HTTP/1.1\r\nHost: {}\r\n\r\n",
        server.address
    );
    client.write_all(request.as_bytes()).unwrap();
    scratch.wait_for_sampling(target.pid());
    drop(client);
    wait::until("the session to end", || {
        (!scratch.is_sampling(target.pid())).then_some(())
    });
    target.finish_well();
}

#[test]
fn cpu_profiles_come_in_both_formats() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let program = scratch.compile("burn.c", &["-O1"]);
    let mut command = scratch.preloaded(&program);
    let mut target = Target::start(command.env("STAYS", "1"));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid();
    let served = profile(&server.get(&format!("/debug/pprof/profile?seconds=1&pid={pid}")));
    let cpu = served.total(served.type_index("cpu").expect("CPU time"));
    assert!(cpu > 10_000_000, "{cpu} ns");
    assert!(served.functions.iter().any(|f| f.name == "site_migration"));
    let old = server.get(&format!("/pprof/profile?seconds=1&pid={pid}"));
    let old = profile(&old);
    assert!(old.total(0) > 0, "{:?}", totals(&old));
}

#[test]
fn what_cannot_be_answered_is_said() {
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
            "do not go together",
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
        let empty = profile(&server.get(&format!("/debug/pprof/{kind}?pid={pid}")));
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

#[test]
fn prometheus_and_victoria_metrics_take_what_they_scrape() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let (target, _) = quiet(&scratch, &server);
    let answer = server.get("/metrics");
    assert!(
        answer.head.contains("text/plain; version=0.0.4"),
        "{}",
        answer.head
    );
    let text = answer.expect(200);
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (prometheus) must be installed");
    check
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let checked = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(
        checked.status.success() && said.is_empty(),
        "{said}\n{text}"
    );
    let open = server.ask(
        "GET",
        "/metrics",
        "Accept: application/openmetrics-text;version=1.0.0\r\n",
        b"",
    );
    assert!(
        open.head.contains("application/openmetrics-text"),
        "{}",
        open.head
    );
    let open = open.expect(200);
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE mem_profiler_samples counter\n"));

    let pid = target.pid();
    let name = format!("mem_profiler_live_bytes{{pid=\"{pid}\"");
    let line = text
        .lines()
        .find(|line| line.starts_with(&name))
        .expect(&text);
    let ours: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    let profile = profile(&server.get(&format!("/debug/pprof/heap?pid={pid}")));
    close(
        "metrics",
        profile.total(profile.type_index("inuse_space").unwrap()),
        ours,
    );

    let config = scratch.file("prometheus.yml");
    fs::write(&config, format!("global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: mem\n  static_configs:\n  - targets: ['{}']\n", server.address)).unwrap();
    for (program, arguments) in [
        (
            "prometheus",
            vec![
                "--config.file=CONFIG",
                "--storage.tsdb.path=DATA",
                "--web.listen-address=ADDRESS",
            ],
        ),
        (
            "victoria-metrics",
            vec![
                "-promscrape.config=CONFIG",
                "-storageDataPath=DATA",
                "-httpListenAddr=ADDRESS",
                "-search.latencyOffset=1s",
            ],
        ),
    ] {
        let address = free_address();
        let data = scratch.file(program);
        let fill = |argument: &&str| {
            argument
                .replace("CONFIG", config.to_str().unwrap())
                .replace("DATA", data.to_str().unwrap())
                .replace("ADDRESS", &address)
        };
        let mut command = Command::new(program);
        command
            .args(arguments.iter().map(fill))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let _store = Target::start(&mut command);
        let stored = wait::until(program, || {
            let query = format!("http://{address}/api/v1/query?query=mem_profiler_live_bytes");
            let output = Command::new("curl").args(["-s", &query]).output().ok()?;
            let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
            let value = &answer["data"]["result"][0]["value"][1];
            value.as_str().map(|value| value.parse::<f64>().unwrap())
        });
        assert_eq!(stored, ours, "{program}");
    }
    target.finish_well();
}

/// An address that was free a moment ago.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn every_process_is_sampled_where_that_is_asked_for() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["--sample", "-c", "4096"]);
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    scratch.wait_for_sampling(target.pid());
    let rows: Value = serde_json::from_str(&server.get("/api/processes").expect(200)).unwrap();
    let row = &rows["processes"][0];
    assert_eq!(row["pid"], target.pid());
    assert_eq!(
        (&row["interval"], &row["ours"]),
        (&Value::from(4096), &Value::from(true))
    );
    server.stop();
    target.finish_well();
}

#[test]
fn the_live_page_starts_shows_follows_and_stops_a_session() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["-c", "512"]);
    let program = scratch.compile("truth.cpp", &[]);
    // A name that would be more than text on a careless page.
    let hostile = scratch.file("<img src=x onerror=pwned=1>");
    fs::rename(&program, &hostile).unwrap();
    let mut target = Target::start(&mut scratch.preloaded(&hostile));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid();
    let mut browser = Browser::open(&server.url("/"));
    browser.until("document.querySelector('#processes tbody a').textContent.includes('onerror')");
    browser.value("document.querySelector('#processes tbody button').click()");
    scratch.wait_for_sampling(pid);
    target.say("go 2000 4 1024");
    target.hear_until("done");
    browser.until(
        "document.querySelector('td.state').textContent.startsWith('sampling, every 512 B')",
    );
    browser.until("document.querySelectorAll('.spark .line').length === 1");
    browser.value("document.querySelector('#processes tbody a').click()");
    let frame = "document.querySelector('iframe.report:not(.next)').contentDocument";
    browser.until(&format!("[...{frame}.querySelectorAll('#flame .frame')].some((g) => g.textContent.startsWith('site_'))"));
    browser.value(&format!("{frame}.querySelector('#to-functions').click()"));
    browser.value("document.querySelector('iframe.report').id = 'old'");
    // Made anew beside the old one; the same tab is open.
    browser.until(&format!(
        "!document.getElementById('old') && !{frame}.getElementById('functions').hidden"
    ));
    browser.value("document.querySelector('button.stop').click()");
    wait::until("the session to end", || {
        (!scratch.is_sampling(pid)).then_some(())
    });
    browser.until("!document.querySelector('button.start').hidden");
    browser.value("(document.querySelector('input[name=interval]').value = '0', document.querySelector('button.start').click())");
    browser.until("document.querySelector('.said').textContent.includes('at least 1')");
    assert_eq!(browser.value("typeof window.pwned"), "undefined");
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    target.finish_well();
}
