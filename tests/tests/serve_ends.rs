//! Answers of `serve` when something ends: the CPU profile of an idle process, a process that ends
//! while a client waits, a client that closes its sending side. Also request heads that are too
//! long.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use mem_tests::server::{Answer, Client};
use mem_tests::{Scratch, Server, Target, run};

/// Returns a program that does nothing.
fn idle(scratch: &Scratch) -> Target {
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    target
}

#[test]
fn an_idle_process_has_an_empty_cpu_profile() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let target = idle(&scratch);
    let pid = target.pid();
    for path in ["/debug/pprof/profile", "/pprof/profile"] {
        let answer = server.get(&format!("{path}?seconds=1&pid={pid}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let profile = answer.profile();
        assert!(profile.stacks.is_empty(), "{path}");
        assert!(profile.sample_types.len() >= 2, "{path}");
    }
    target.finish_well();
}

#[test]
fn a_process_that_ends_meanwhile_leaves_its_profile_and_nothing_else() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &["-c", "1"]);
    let mut target = idle(&scratch);
    let pid = target.pid();
    let client: &Client = &server;
    let answer = std::thread::scope(|scope| {
        let asked =
            scope.spawn(move || client.get(&format!("/debug/pprof/heap?seconds=5&pid={pid}")));
        scratch.wait_for_sampling(pid);
        target.say("go 2000 4 1024");
        target.hear_until("done");
        target.finish();
        asked.join().expect("an answer")
    });
    assert_eq!(answer.status, 200, "{}", answer.text());
    let profile = answer.profile();
    let objects = profile.type_index("alloc_objects").expect("a column");
    assert!(profile.total(objects) > 0, "{profile:?}");
    let left = run(scratch.profiler().args(["list", "--all"]));
    assert!(!left.stdout.contains(&pid.to_string()), "{left:?}");
    assert!(scratch.segments().is_empty(), "nothing is left");
}

/// Sends a request and then the end, and reads the answer.
fn half_closed(server: &Server, path: &str) -> Answer {
    let mut stream = server.connect();
    let head = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    stream.write_all(head.as_bytes()).expect("a socket");
    stream.shutdown(Shutdown::Write).expect("a socket");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    Answer::of(&answer)
}

#[test]
fn a_client_that_sends_no_more_is_answered() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let target = idle(&scratch);
    let pid = target.pid();
    assert_eq!(half_closed(&server, "/healthz").expect(200), "ok\n");
    let metrics = half_closed(&server, "/metrics").expect(200);
    assert!(metrics.contains("mem_"), "{metrics}");
    // Through TCP nothing tells it from one that has left.
    let path = format!("/debug/pprof/heap?seconds=500&pid={pid}");
    let waits = half_closed(&server, &path).expect(400);
    assert!(waits.contains("sending side open"), "{waits}");
    target.finish_well();

    let socket = scratch.file("socket");
    let listen = format!("unix:{}", socket.display());
    let mut command = scratch.profiler();
    command.args(["serve", "--listen", &listen]);
    let mut by_socket = Target::start(command.stdout(std::process::Stdio::piped()));
    by_socket.hear();
    let target = idle(&scratch);
    let mut stream = UnixStream::connect(&socket).expect("it listens");
    let pid = target.pid();
    let head =
        format!("GET /debug/pprof/heap?seconds=1&pid={pid} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("a socket");
    stream.shutdown(Shutdown::Write).expect("a socket");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    assert_eq!(Answer::of(&answer).status, 200);
    target.finish_well();
    by_socket.kill();
}

#[test]
fn a_head_has_one_host_and_at_most_32_kib() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let of = |bytes: usize| {
        let start = format!(
            "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nX-Filler: ",
            server.address
        );
        let filler = "a".repeat(bytes - start.len() - "\r\n\r\n".len());
        server.send(format!("{start}{filler}\r\n\r\n").as_bytes())
    };
    assert_eq!(of(32 << 10).status, 200);
    let long = of((32 << 10) + 1).expect(431);
    assert!(long.contains("32768 bytes"), "{long}");
    assert_eq!(of(33_000).status, 431);
    let twice = server.ask("GET", "/healthz", "Host: localhost\r\n", b"");
    assert!(twice.expect(400).contains("exactly one Host header"));
}
