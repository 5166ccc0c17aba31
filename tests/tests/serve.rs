//! `serve` as people and scripts meet it: sessions that clients share, CPU profiles, the live page.

use std::fs;
use std::io::Write;

use mem_tests::server::{Client, totals};
use mem_tests::{Browser, Scratch, Server, Target, wait};
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
    // Nothing is known of the time in which nobody asked: no line leads through it.
    let gap = "spark([[0, 1, 1], [1000, 2, 1], [900000, 9, 1], [901000, 8, 1]])";
    let lines = format!("{gap}.querySelectorAll('.line').length");
    assert_eq!(browser.value(&lines), 2);
    browser.value("document.querySelector('#processes tbody a').click()");
    let frame = "document.querySelector('iframe.report:not(.next)').contentDocument";
    browser.until(&format!("[...{frame}.querySelectorAll('#flame .frame')].some((g) => g.textContent.startsWith('site_'))"));
    browser.value(&format!("{frame}.querySelector('#to-functions').click()"));
    browser.value("document.querySelector('iframe.report').id = 'old'");
    // Remade beside the old one; the same tab is open.
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
