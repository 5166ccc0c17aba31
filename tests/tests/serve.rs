//! `serve` for scripts: sessions that clients share, CPU profiles, JSON.

use std::io::Write;

use mem_tests::server::{Client, totals};
use mem_tests::{Scratch, Server, Target, wait};
use profile::Profile;
use serde_json::Value;

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
        let clients = [(); 2].map(|()| scope.spawn(|| client.get(&path).profile()));
        scratch.wait_for_sampling(pid);
        // Each client's time begins when its request is read.
        while !clients.iter().all(|client| client.is_finished()) {
            target.say("go 500 2 256");
            target.hear_until("done");
        }
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
    assert!(idle.expect(404).contains("no session is sampling it"));
    target.finish_well();
}

#[test]
fn a_session_ends_when_its_client_leaves() {
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
    let served = server
        .get(&format!("/debug/pprof/profile?seconds=1&pid={pid}"))
        .profile();
    let cpu = served.total(served.type_index("cpu").expect("CPU time"));
    assert!(cpu > 10_000_000, "{cpu} ns");
    assert!(served.functions.iter().any(|f| f.name == "site_migration"));
    let old = server.get(&format!("/pprof/profile?seconds=1&pid={pid}"));
    let old = old.profile();
    assert!(old.total(0) > 0, "{:?}", totals(&old));
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
