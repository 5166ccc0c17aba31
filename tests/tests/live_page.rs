//! Live page in a browser: it shows which process grows, since when, and which code is responsible.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mem_tests::stage::{REPORT, Stage};
use mem_tests::{Browser, Server, Target, run, wait};
use serde_json::Value;

#[test]
fn a_session_is_started_followed_and_stopped() {
    // A name that would be more than text on a careless page.
    let mut stage = Stage::new("<img src=x onerror=pwned=1>");
    let pid = stage.target.pid();
    let mut browser = Browser::open(&stage.server.url("/"));
    browser.until("document.querySelector('#processes tbody a').textContent.includes('onerror')");
    // The row is changed in place: what was clicked is still there.
    browser.value("window.row = document.querySelector('#processes tbody tr')");
    browser.value("row.querySelector('button').click()");
    stage.scratch.wait_for_sampling(pid);
    stage.allocate(2000);
    browser.until("row.isConnected && row.querySelector('td.state').textContent.startsWith('sampling, every 512 B')");
    browser.until("row.querySelectorAll('.spark .line').length === 1");
    browser.value("row.querySelector('a').click()");
    Stage::has_report(&mut browser);
    // The line that holds most is named before a tab is opened.
    browser.until(&format!(
        "/^most: .*truth.cpp:[0-9]+ /.test({REPORT}.querySelector('header .most').textContent)"
    ));
    browser.value(&format!("{REPORT}.querySelector('#to-functions').click()"));
    browser.value("document.querySelector('iframe.report').id = 'old'");
    // A new report is made beside the old one, and the same tab is open.
    browser.until(&format!(
        "!document.getElementById('old') && !{REPORT}.getElementById('functions').hidden"
    ));
    browser.value("document.querySelector('button.stop').click()");
    wait::until("the session to end", || {
        (!stage.scratch.is_sampling(pid)).then_some(())
    });
    browser.until("!document.querySelector('form').hidden");
    browser.value("(document.querySelector('input[name=interval]').value = '0', document.querySelector('button.start').click())");
    browser.until("document.querySelector('.said').textContent.includes('at least 1')");
    // An error does not take the report away.
    assert_eq!(browser.value(&format!("{REPORT} !== null")), true);
    assert_eq!(browser.value("typeof window.pwned"), "undefined");
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    stage.target.finish_well();
}

#[test]
fn rows_do_not_move_under_the_pointer() {
    let mut stage = Stage::new("quiet");
    let mut growing = Target::start(&mut stage.scratch.preloaded(&stage.program));
    assert_eq!(growing.hear(), "ready");
    let mut browser = Browser::open(&stage.server.url("/#/?window=all"));
    browser.until("document.querySelectorAll('#processes tbody tr').length === 2");
    let first = |pid: u32| {
        format!("document.querySelector('#processes tbody small').textContent.startsWith('{pid} ')")
    };
    stage.allocate(4000);
    browser.until(&first(stage.target.pid()));
    browser.value(
        "document.querySelector('#processes').dispatchEvent(new PointerEvent('pointerenter'))",
    );
    growing.say("go 20000 4 1024");
    growing.hear_until("done");
    let grown = "[...document.querySelectorAll('#processes tbody tr td:nth-child(3)')].every((td) => td.textContent.startsWith('+'))";
    browser.until(grown);
    assert_eq!(browser.value(&first(stage.target.pid())), true);
    browser.value(
        "document.querySelector('#processes').dispatchEvent(new PointerEvent('pointerleave'))",
    );
    browser.until(&first(growing.pid()));
    // The search text is in the address.
    let field = "document.querySelector('#filter')";
    browser.value(&format!(
        "({field}.value = '{}', {field}.dispatchEvent(new Event('input')))",
        growing.pid()
    ));
    let shown = "document.querySelectorAll('#processes tbody tr:not([hidden])').length === 1";
    browser.until(shown);
    let address = browser.value("location.href");
    browser.go(address.as_str().expect("an address"));
    browser.until(shown);
    growing.finish_well();
    stage.target.finish_well();
}

#[test]
fn a_link_shows_the_same_again() {
    let mut stage = Stage::new("linked");
    stage.start();
    stage.allocate(2000);
    let mut browser =
        Browser::open(&stage.link("&view=flame%3Fvalue%3Dalloc_space%26find%3Dsite_"));
    Stage::has_report(&mut browser);
    let pressed = format!(
        "{REPORT}.querySelector('header [aria-pressed=true]').textContent === 'Allocated bytes'"
    );
    let matched =
        format!("{REPORT}.querySelector('.flame .count').textContent.includes('matched')");
    browser.until(&pressed);
    browser.until(&matched);
    // Choices in the report are added to the address of the page.
    browser.value(&format!("{REPORT}.querySelector('#to-functions').click()"));
    browser.until("location.hash.includes('view=functions')");
    let address = browser.value("location.href");
    browser.go("about:blank");
    browser.go(address.as_str().expect("an address"));
    browser.until(&format!("!{REPORT}.getElementById('functions').hidden"));
    browser.until(&pressed);
    stage.target.finish_well();
}

#[test]
fn a_link_leads_to_the_next_process_of_the_name() {
    let mut stage = Stage::new("restarted");
    let old = stage.target.pid();
    let mut browser = Browser::open(&stage.link(""));
    browser.until(&format!(
        "document.querySelector('h1').textContent === 'restarted ({old})'"
    ));
    stage.target.finish_well();
    stage.target = Target::start(&mut stage.scratch.preloaded(&stage.program));
    assert_eq!(stage.target.hear(), "ready");
    let pid = stage.target.pid();
    browser.until(&format!(
        "document.querySelector('h1').textContent === 'restarted ({pid})'"
    ));
    browser.until(&format!("location.hash.includes('pid={pid}')"));
    stage.target.finish_well();
}

#[test]
fn what_changes_after_a_mark_is_shown() {
    let mut stage = Stage::new("marked");
    let mut browser = stage.show();
    browser.value(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Mark').click()",
    );
    browser.until("/from=[0-9]+/.test(location.hash)");
    let change = format!(
        "{REPORT}.querySelector('[aria-label=comparison] [aria-pressed=true]').textContent === 'Change'"
    );
    browser.until(&change);
    browser.until(&format!(
        "{REPORT}.querySelector('header .sum').textContent.startsWith('0 shown')"
    ));
    stage.allocate(2000);
    browser.value(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Refresh').click()",
    );
    browser.until(&format!(
        "{REPORT}.querySelector('header .sum').textContent.startsWith('+')"
    ));
    assert!(browser.value("document.querySelectorAll('.chart .mark').length") == 1);
    // What a click on the chart does is said before the pointer is there.
    browser.until("document.querySelector('.says').textContent.includes('click a moment')");
    // The chart reads values off, without a mouse as well.
    browser.value("document.querySelector('.chart').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))");
    browser.until("document.querySelector('.says').textContent.includes('resident')");
    stage.target.finish_well();
}

#[test]
fn an_ended_process_shows_its_kept_profile() {
    let stage = Stage::new("ended");
    let pid = stage.target.pid();
    // Nobody waits for this session's profile.
    let program = stage.program.clone();
    let mut command = stage.scratch.preloaded(&program);
    let mut alone = Target::start(command.env("MEM_PROFILER_START", "1"));
    assert_eq!(alone.hear(), "ready");
    alone.say("go 2000 4 1024");
    alone.hear_until("done");
    let ended = alone.pid();
    alone.kill();
    // Two readings of clocks differ.
    let killed = SystemTime::now() + Duration::from_secs(1);
    let killed_ms = killed.duration_since(UNIX_EPOCH).expect("after 1970");
    let killed_ms = killed_ms.as_millis() as u64;
    let link = stage
        .server
        .url(&format!("/#/process?name=ended&pid={ended}"));
    let mut browser = Browser::open(&link);
    Stage::has_report(&mut browser);
    browser.until("document.querySelector('.keys').textContent.includes('dead, profile kept')");
    browser.until("document.querySelector('.keys .live').textContent.endsWith(' at its end')");
    browser.until(
        "document.querySelector('.of[role=status]').textContent.includes('has left at its end')",
    );
    // Nothing is measured after its end.
    let version = |stage: &Stage| -> u64 {
        let list = stage.server.get("/api/processes").expect(200);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        list["version"].as_u64().expect("a number")
    };
    let first = version(&stage);
    wait::until("more updates", || {
        (version(&stage) > first + 2).then_some(())
    });
    let history = stage.server.get(&format!("/api/history?pid={ended}"));
    let history: Value = serde_json::from_str(&history.expect(200)).expect("JSON");
    for point in history["points"].as_array().expect("points") {
        assert!(point[0].as_u64() < Some(killed_ms), "{point}, {killed_ms}");
    }
    assert_eq!(browser.value("document.querySelector('form').hidden"), true);
    let dump = stage.server.get(&format!("/dump?pid={ended}"));
    let expected = format!("filename=\"ended.{ended}.heap\"");
    assert!(dump.head.contains(&expected), "{}", dump.head);
    let profile = dump.profile();
    assert!(!profile.stacks.is_empty());
    // The living process of the same name is another one.
    browser.go(&stage.server.url("/"));
    browser.until("document.querySelector('.sum').textContent === '1 process, 0 sampled, 1 ended with a profile'");
    assert_ne!(pid, ended);
    stage.target.finish_well();
}

#[test]
fn the_session_of_another_program_is_ended_after_a_question() {
    let mut stage = Stage::new("shared");
    let pid = stage.target.pid();
    let mut command = stage.scratch.profiler();
    command.args(["-s", "600", "-o", "other_", "-p", &pid.to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let other = command.spawn().expect("mem_profiler");
    stage.scratch.wait_for_sampling(pid);
    stage.allocate(2000);
    let refused = stage.server.post(&format!("/api/stop?pid={pid}"));
    assert!(refused.expect(409).contains("mem_profiler (pid"));
    let mut browser = Browser::open(&stage.link(""));
    browser.until("document.querySelector('.keys').textContent.includes('by another program')");
    let click = "document.querySelector('button.stop').click()";
    browser.value(&format!(
        "(window.confirm = (text) => {{ window.asked = text; return false }}, {click})"
    ));
    browser.until("window.asked.includes('waits for its profile')");
    assert!(stage.scratch.is_sampling(pid));
    browser.value(&format!("(window.confirm = () => true, {click})"));
    let output = other.wait_with_output().expect("mem_profiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("another program has ended its session"),
        "{said}"
    );
    stage.target.finish_well();
}

#[test]
fn the_page_fits_every_window() {
    let mut stage =
        Stage::new("a-name-that-is-as-long-as-names-of-services-with-their-versions-are-1.2.3");
    let mut browser = stage.show();
    let is_inside = |what: &str| {
        format!(
            "(() => {{ const b = {what}.getBoundingClientRect(); return b.left >= 0 && b.right <= innerWidth && b.width > 0; }})()"
        )
    };
    for dark in [false, true] {
        browser.dark(dark);
        for (width, height) in [(1280, 800), (400, 800), (360, 640), (320, 256)] {
            browser.resize(width, height);
            browser.until(&format!("innerWidth === {width}"));
            browser.until("document.documentElement.scrollWidth <= innerWidth");
            browser.until(&is_inside("document.querySelector('button.stop')"));
            browser.until(&format!(
                "{REPORT}.querySelector('main').clientHeight >= 200"
            ));
        }
    }
    browser.go("about:blank");
    browser.go(&stage.server.url("/"));
    browser.until("document.querySelectorAll('#processes tbody tr').length === 1");
    for (width, height) in [(1280, 800), (400, 800), (360, 640), (320, 256)] {
        browser.resize(width, height);
        browser.until(&format!("innerWidth === {width}"));
        browser.until("document.documentElement.scrollWidth <= innerWidth");
        browser.until(&is_inside(
            "document.querySelector('#processes tbody button')",
        ));
        // The memory over time, and at most two lines of a long name.
        browser.until(&is_inside("document.querySelector('#processes .spark')"));
        browser.until("document.querySelector('td.name a').clientHeight <= 45");
    }
    stage.target.finish_well();
}

#[test]
fn links_and_credentials_lead_to_the_page() {
    let stage = Stage::new("guarded");
    let token = stage.scratch.file("token");
    fs::write(&token, "0123456789abcdef0123\n").expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&token, mode).expect("a file of ours");
    let path = token.to_str().expect("UTF-8");
    let mut command = stage.scratch.profiler();
    let log = stage.scratch.file("server.log");
    command.stderr(fs::File::create(&log).expect("a file"));
    let guarded = Server::by(command, &["--token-file", path]);
    guarded.get("/").expect(401);
    assert_eq!(guarded.get("/healthz").expect(200), "ok\n");
    let address = &guarded.address;
    // A name and password in the address, and a link on a page of another site.
    let site = stage.scratch.file("site.html");
    let link = format!("<a href=\"http://any:0123456789abcdef0123@{address}/#/?window=1\">x</a>");
    fs::write(&site, link).expect("a file");
    let mut browser = Browser::open(&format!("file://{}", site.display()));
    browser.until("document.querySelector('a') !== null");
    browser.value("document.querySelector('a').click()");
    browser.until("document.querySelectorAll('#processes tbody tr').length === 1");
    for wrong in 0..12 {
        let header = format!("Authorization: Bearer {wrong:020}\r\n");
        guarded.ask("GET", "/", &header, b"").expect(401);
    }
    guarded.stop();
    let said = fs::read_to_string(&log).expect("the log");
    assert!(
        said.contains("wrong token was refused, 1 within a minute"),
        "{said}"
    );
    assert!(said.contains("11 within a minute; further ones"), "{said}");
    let target = stage.target;
    target.finish_well();
}

#[test]
fn histories_outlive_the_server() {
    let mut stage = Stage::new("remembered");
    let pid = stage.target.pid();
    let path = format!("/api/history?pid={pid}");
    let points = |server: &Server| -> Vec<Value> {
        let history = server.get(&path).expect(200);
        let history: Value = serde_json::from_str(&history).expect("JSON");
        history["points"].as_array().expect("points").clone()
    };
    let at = |point: &Value| point[0].as_f64().expect("a time");
    let first = at(&points(&stage.server)[0]);
    wait::until("points of some time", || {
        let points = points(&stage.server);
        (at(&points[points.len() - 1]) - first > 16_000.0).then_some(())
    });
    stage.allocate(1000);
    stage.server.stop();
    stage.server = Server::start(&stage.scratch, &[]);
    let after = points(&stage.server);
    assert!((at(&after[0]) - first).abs() < 1000.0, "{after:?}, {first}");
    assert!(after.len() >= 3, "{after:?}");
    stage.target.finish_well();
    // The remaining file is useless to other programs, and is not a segment.
    let cleaned = run(stage.scratch.profiler().arg("clean"));
    assert_eq!(cleaned.code, Some(0), "{}", cleaned.stderr);
}

/// Nothing changes in an idle process but ages: a client that comes later gets those of its time.
#[test]
fn ages_are_those_of_the_answer() {
    const PASSES: f64 = 3.0;
    let mut stage = Stage::new("aging");
    let pid = stage.target.pid();
    let start = format!("/api/start?pid={pid}&seconds=600");
    stage.server.post(&start).expect(200);
    stage.scratch.wait_for_sampling(pid);
    stage.allocate(2000);
    let read = |server: &Server| -> Value {
        let list = server.get("/api/processes").expect(200);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        list["processes"][0].clone()
    };
    type Reading = fn(&Value) -> Option<f64>;
    let span: Reading = |row| Some(row["rss_growth_ms"][3].as_f64()? / 1e3);
    let left: Reading = |row| Some(-row["seconds_left"].as_f64()?);
    let first = wait::until("a row with times", || {
        let row = read(&stage.server);
        (span(&row).is_some() && left(&row).is_some()).then_some(row)
    });
    for reading in [span, left] {
        let before = reading(&first).expect("a time");
        wait::until("time to pass in the rows", || {
            let now = reading(&read(&stage.server))?;
            (now - before >= PASSES).then_some(())
        });
    }
    stage.target.finish_well();
}

#[test]
fn clients_get_what_has_changed() {
    let mut stage = Stage::new("changing");
    let read = |server: &Server, query: &str| -> Value {
        let list = server.get(&format!("/api/processes{query}")).expect(200);
        serde_json::from_str(&list).expect("JSON")
    };
    let whole = read(&stage.server, "");
    assert_eq!(whole["whole"], true);
    assert_eq!(whole["processes"].as_array().map(Vec::len), Some(1));
    let id = whole["processes"][0]["id"].clone();
    // An idle process does not change.
    let since = |list: &Value| format!("?since={}", list["version"]);
    let quiet = wait::until("a later version", || {
        let list = read(&stage.server, &since(&whole));
        (list["version"] != whole["version"]).then_some(list)
    });
    assert_eq!(
        (&quiet["whole"], &quiet["count"]),
        (&Value::from(false), &Value::from(1))
    );
    let before = wait::until("a quiet second", || {
        let list = read(&stage.server, "");
        let next = wait::until("a later version", || {
            let next = read(&stage.server, &since(&list));
            (next["version"] != list["version"]).then_some(next)
        });
        next["processes"].as_array()?.is_empty().then_some(next)
    });
    stage.allocate(4000);
    wait::until("the row of a process that has grown", || {
        let list = read(&stage.server, &since(&before));
        (list["processes"][0]["id"] == id).then_some(())
    });
    stage.target.finish_well();
    wait::until("the process to be gone", || {
        let list = read(&stage.server, &since(&before));
        (list["gone"][0] == id).then_some(())
    });
    let zipped = stage
        .server
        .ask("GET", "/list.js", "Accept-Encoding: br, gzip\r\n", b"");
    assert!(
        zipped.head.contains("content-encoding: gzip"),
        "{}",
        zipped.head
    );
    assert_eq!(zipped.body[..2], [0x1f, 0x8b]);
    let plain = stage
        .server
        .ask("GET", "/list.js", "Accept-Encoding: gzip;q=0\r\n", b"");
    assert!(!plain.head.contains("content-encoding"), "{}", plain.head);
    // A version that this server never had.
    assert_eq!(read(&stage.server, "?since=99999999")["whole"], true);
}

/// Python takes memory for small objects by itself: only the resident memory shows it.
#[test]
fn a_growing_python_is_seen_to_grow() {
    const SCRIPT: &str = "import sys
kept = []
print('ready', flush=True)
for line in sys.stdin:
    kept += [str(i) * 4 for i in range(int(line))]
    print('done', flush=True)";
    let stage = Stage::new("beside");
    let mut command = stage.scratch.preloaded("/usr/bin/python3");
    let mut python = Target::start(command.args(["-c", SCRIPT]));
    assert_eq!(python.hear(), "ready");
    let pid = python.pid();
    let start = format!("/api/start?pid={pid}");
    stage.server.post(&start).expect(200);
    stage.scratch.wait_for_sampling(pid);
    let page = stage.server.url(&format!("/#/process?pid={pid}"));
    let mut browser = Browser::open(&page);
    browser.until("document.querySelectorAll('.chart polyline').length > 0");
    for _ in 0..4 {
        python.say("300000");
        python.hear_until("done");
    }
    browser.until("document.querySelector('.keys .rss').textContent.includes(', +')");
    browser.until(
        "document.querySelector('.of[role=status]').textContent.includes('PYTHONMALLOC=malloc')",
    );
    browser.until("!document.querySelector('.keys').textContent.includes(', 0 B/s')");
    browser.value("location.hash = '#/?window=all'");
    browser.until(&format!(
        "document.querySelector('#processes tbody a').href.includes('pid={pid}')"
    ));
    browser.until("document.querySelector('#processes tbody td.more').textContent.startsWith('+')");
    python.finish_well();
    stage.target.finish_well();
}
