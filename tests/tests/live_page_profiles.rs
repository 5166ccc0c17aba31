//! Profiles on the live page: over time, compared with others, and of ended processes; also hostile
//! input from users and programs.

use std::fs;

use mem_tests::server::Answer;
use mem_tests::stage::{REPORT, Stage};
use mem_tests::{Browser, Target, wait};
use serde_json::Value;

fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.expect(200)).expect("JSON")
}

#[test]
fn the_time_tab_shows_the_session_so_far() {
    let mut stage = Stage::new("over-time");
    let pid = stage.target.pid();
    stage.start();
    // Moments are recorded while somebody looks.
    let live = |stage: &Stage| {
        let list = json(&stage.server.get("/api/processes"));
        list["processes"][0]["session_live_bytes"].as_f64()
    };
    let mut before = -1.0;
    for _ in 0..3 {
        stage.allocate(1000);
        before = wait::until("the server to see it", || {
            live(&stage).filter(|live| *live > before)
        });
    }
    let mut browser = Browser::open(&stage.link("&view=time"));
    browser.until(&format!("{REPORT} && {REPORT}.querySelectorAll('#time polyline, #time path, #time polygon').length > 0"));
    // The dump is as in a file that the command line writes.
    let dump = stage.server.get(&format!("/dump?pid={pid}"));
    let moments = dump.profile().moments;
    assert!(moments.len() >= 4, "{moments:?}");
    assert!(moments.windows(2).all(|two| two[0].at_ns < two[1].at_ns));
    assert!(moments.iter().any(|moment| moment.stacks.is_some()));
    stage.target.finish_well();
}

#[test]
fn a_report_is_compared_with_a_file() {
    let mut stage = Stage::new("compared");
    let pid = stage.target.pid();
    stage.start();
    stage.allocate(2000);
    let dump = stage.server.get(&format!("/dump?pid={pid}"));
    let file = stage.scratch.file("before <b>.heap");
    fs::write(&file, &dump.body).expect("a file of ours");
    stage.allocate(2000);
    let mut browser = Browser::open(&stage.link(""));
    Stage::has_report(&mut browser);
    browser.choose_file("input[type=file]", &file);
    browser.until("/from=u[0-9]+/.test(location.hash)");
    browser.until(&format!(
        "{REPORT}.querySelector('[aria-label=comparison]') && {REPORT}.querySelector('header .sum').textContent.startsWith('+')"
    ));
    browser.until(
        "document.querySelector('option:checked').textContent.startsWith('before <b>.heap, sent')",
    );
    // A file that is not a profile is refused, and the report stays.
    let other = stage.scratch.file("other.txt");
    fs::write(&other, "this is no profile\n").expect("a file of ours");
    browser.choose_file("input[type=file]", &other);
    browser.until("document.querySelector('.said').textContent.startsWith('other.txt: ')");
    browser.until(&format!(
        "{REPORT}.querySelector('[aria-label=comparison]') !== null"
    ));
    stage.target.finish_well();
}

#[test]
fn an_ended_process_is_compared_with_and_recovered() {
    let mut stage = Stage::new("kept");
    let program = stage.program.clone();
    let mut command = stage.scratch.preloaded(&program);
    let mut alone = Target::start(command.env("MEM_PROFILER_START", "1"));
    assert_eq!(alone.hear(), "ready");
    alone.say("go 2000 4 1024");
    alone.hear_until("done");
    let ended = alone.pid();
    alone.kill();
    stage.start();
    stage.allocate(2000);
    // Against the profile that the other one has left.
    let mut browser = Browser::open(&stage.link(""));
    Stage::has_report(&mut browser);
    browser.until(&format!(
        "document.querySelector('option[value=p{ended}]') !== null"
    ));
    browser.value(&format!(
        "(() => {{ const s = document.querySelector('select'); s.value = 'p{ended}'; s.dispatchEvent(new Event('change')); }})()"
    ));
    browser.until(&format!(
        "{REPORT}.querySelector('[aria-label=comparison]') !== null"
    ));
    // The ended one's own page.
    let saved = stage.scratch.file("saved");
    fs::create_dir(&saved).expect("a directory of ours");
    browser.save_in(&saved);
    browser.go("about:blank");
    browser.go(&stage
        .server
        .url(&format!("/#/process?name=kept&pid={ended}")));
    Stage::has_report(&mut browser);
    browser.value(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Recover').click()",
    );
    let file = saved.join(format!("kept.{ended}.heap"));
    wait::until("the file", || file.exists().then_some(()));
    wait::until("the segment to go", || {
        stage.scratch.segment(ended).is_none().then_some(())
    });
    let bytes = wait::until("all of the file", || {
        let bytes = fs::read(&file).ok()?;
        profile::read(&bytes, "saved").is_ok().then_some(bytes)
    });
    assert!(!bytes.is_empty());
    // The page goes on with the one that runs.
    let pid = stage.target.pid();
    browser.until(&format!(
        "document.querySelector('h1').textContent === 'kept ({pid})'"
    ));
    // A running process has nothing to be removed.
    let refused = stage.server.post(&format!("/api/forget?pid={pid}"));
    assert!(refused.expect(409).contains("is running"));
    stage.target.finish_well();
}

#[test]
fn hostile_requests_are_refused() {
    let mut stage = Stage::new("refusing");
    let pid = stage.target.pid();
    stage.start();
    stage.allocate(2000);
    let get = |path: &str| stage.server.get(path).status;
    for from in [
        "x",
        "u",
        "u99",
        "p",
        "p0",
        "p-1",
        "-1",
        "1e9",
        "99999999999999999999",
        "../x",
        "%00",
    ] {
        let status = get(&format!("/report?pid={pid}&from={from}"));
        assert!((400..500).contains(&status), "{from}: {status}");
    }
    let long = "a".repeat(20_000);
    assert_eq!(get(&format!("/api/processes?since={long}")), 400);
    assert!((400..500).contains(&get(&format!("/api/history?pid={long}"))));
    // Without the header that only the page itself can send.
    for path in ["/api/upload?name=x", "/api/forget?now=1", "/api/mark?now=1"] {
        let status = stage
            .server
            .ask("POST", &format!("{path}&pid={pid}"), "", b"x")
            .status;
        assert!(status == 403 || status == 400, "{path}: {status}");
    }
    let send = |body: &[u8]| {
        let name = "%3Cimg%20src%3Dx%3E%0A";
        stage.server.ask(
            "POST",
            &format!("/api/upload?name={name}"),
            "X-Mem-Profiler: 1\r\n",
            body,
        )
    };
    for body in [&b""[..], b"\x1f\x8b", b"\0\0\0\0", &[0xff; 100_000]] {
        let answer = send(body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(!answer.text().trim().contains('\n'), "{}", answer.text());
    }
    assert_eq!(send(&vec![b'x'; 5 << 20]).status, 413);
    // More marks than are kept.
    for _ in 0..40 {
        stage
            .server
            .post(&format!("/api/mark?pid={pid}"))
            .expect(200);
    }
    let history = json(&stage.server.get(&format!("/api/history?pid={pid}")));
    let kept = history["snapshots"].as_array().expect("snapshots").len();
    assert!((1..=40).contains(&kept), "{kept}");
    stage.target.finish_well();
}

#[test]
fn no_pattern_blocks_a_search() {
    let mut stage = Stage::new("sought");
    let mut browser = stage.show();
    let seek = |browser: &mut Browser, pattern: &str| {
        browser.value(&format!(
            "(() => {{ const f = {REPORT}.querySelector('.flame input'); f.value = {}; const begun = performance.now(); f.dispatchEvent(new Event('input')); window.took = performance.now() - begun; }})()",
            Value::from(pattern)
        ));
    };
    // Exponential for an engine that goes back, and no match.
    seek(&mut browser, "(((\\w+)*)*)*!");
    let took = browser.value("window.took").as_f64().expect("a time");
    assert!(took < 5000.0, "{took} ms");
    browser.until(&format!(
        "{REPORT}.querySelector('.flame .count').textContent.startsWith('0')"
    ));
    seek(&mut browser, "^site_[a-z]+$");
    browser.until(&format!(
        "!{REPORT}.querySelector('.flame .count').textContent.startsWith('0')"
    ));
    seek(&mut browser, "(?=x)");
    browser.until(&format!("{REPORT}.querySelector('.flame .count').textContent === 'not a pattern: look-around is not supported'"));
    stage.target.finish_well();
}

/// An update costs a few system calls for each process, however many files `/proc` has for the
/// process.
#[test]
fn an_update_is_cheap() {
    const PROCESSES: usize = 40;
    const POLLS: u32 = 20;
    let stage = Stage::new("one-of-many");
    let others = stage.start_others(PROCESSES - 1);
    let poll = || json(&stage.server.get("/api/processes"));
    wait::until("all processes", || {
        (poll()["count"] == PROCESSES).then_some(())
    });
    let pid = stage.server.pid();
    let calls = || -> u64 {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("our child");
        let line = io.lines().find_map(|line| line.strip_prefix("syscr: "));
        line.expect("a count").parse().expect("a number")
    };
    let pass = |updates: u32| {
        let mut version = poll()["version"].as_u64();
        for _ in 0..updates {
            version = wait::until("an update", || {
                let next = poll()["version"].as_u64();
                (next > version).then_some(next)
            });
        }
    };
    // Until they have started, and count as idle.
    pass(40);
    let before = calls();
    pass(POLLS);
    // A read for each process and update, and those of a search or two, and of the requests.
    let each = (calls() - before) as f64 / f64::from(POLLS) / PROCESSES as f64;
    assert!(each < 1.8, "{each} reads for a process");
    for other in others {
        other.finish_well();
    }
    stage.target.finish_well();
}
