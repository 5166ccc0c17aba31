//! Live page with large processes, and with many.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use mem_tests::server::Client;
use mem_tests::stage::{REPORT, Stage};
use mem_tests::{Browser, Target, wait};
use serde_json::Value;

/// Stacks of the large process. Building their profile takes some 60 MiB.
const STACKS: usize = 100_000;
/// Size up to which the server may grow, in KiB.
const MAX_KIB: u64 = 32 << 10;

/// Starts a process whose profile is large.
fn large(name: &str) -> Stage {
    let mut stage = Stage::of("crossroads.cpp", name, &["-c", "1"]);
    stage.start();
    stage.target.say(&format!("go {STACKS}"));
    stage.target.hear_until("done");
    stage
}

/// Returns the largest size that the server had so far, in KiB.
fn most_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("our child");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let size = line.and_then(|line| line.split_whitespace().next());
    size.expect("a size").parse().expect("a number")
}

#[test]
fn a_large_process_leaves_the_server_small() {
    let mut stage = large("crossroads");
    let pid = stage.target.pid();
    let server: &Client = &stage.server;
    let dump = server.get(&format!("/dump?pid={pid}"));
    assert_eq!(dump.status, 200, "{}", dump.text());
    let profile = dump.profile();
    assert!(profile.stacks.len() >= STACKS, "{}", profile.stacks.len());
    let named = profile.functions.iter();
    let mut named = named.filter(|function| function.name.contains("Road::middle"));
    assert!(named.next().is_some());
    // Two viewers get one report.
    let report = || {
        let path = format!("/report?pid={pid}");
        let answer = server.ask("GET", &path, "Accept-Encoding: gzip\r\n", b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    };
    let [first, second] = std::thread::scope(|scope| {
        [scope.spawn(report), scope.spawn(report)].map(|thread| thread.join().expect("a report"))
    });
    assert!(first.body == second.body);
    assert_eq!(first.body[..2], [0x1f, 0x8b]);
    // A client that cannot decompress.
    let plain = server.get(&format!("/report?pid={pid}"));
    assert!(plain.expect(200).contains("Road::middle"));
    // A moment, and what has changed since.
    let mark = server.post(&format!("/api/mark?pid={pid}")).expect(200);
    let mark: Value = serde_json::from_str(&mark).expect("JSON");
    stage.target.say("go 1000");
    stage.target.hear_until("done");
    let path = format!("/report?pid={pid}&from={}", mark["id"]);
    stage.server.get(&path).expect(200);
    // The moment itself.
    let path = format!("/dump?pid={pid}&at={}", mark["id"]);
    let marked = stage.server.get(&path).profile();
    let live = marked.type_index("inuse_space").expect("live bytes");
    assert!(marked.total(live) >= 64 * STACKS as i64);
    // The profile that scrapers read.
    let pprof = stage.server.get(&format!("/p/{pid}/debug/pprof/heap"));
    assert!(pprof.profile().stacks.len() >= STACKS);
    let text = stage.server.get(&format!("/p/{pid}/pprof/heap"));
    assert!(text.profile().stacks.len() >= STACKS);
    let growth = stage
        .server
        .get(&format!("/p/{pid}/pprof/growth"))
        .expect(200);
    assert!(growth.starts_with("heap profile:"), "{:.80}", growth);
    let stacks = growth.lines().filter(|line| line.contains("] @ 0x"));
    assert!(stacks.count() >= STACKS);
    let grown = stage.server.get(&format!("/p/{pid}/debug/pprof/growth"));
    assert!(grown.profile().stacks.len() >= STACKS);
    // What changes in a second: only the stacks that allocate then.
    const BETWEEN: Duration = Duration::from_millis(20);
    let path = format!("/p/{pid}/debug/pprof/heap?seconds=1");
    let Stage { server, target, .. } = &mut stage;
    let server: &Client = server;
    let changed = std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.get(&path));
        while !asked.is_finished() {
            target.say("go 1");
            target.hear_until("done");
            std::thread::sleep(BETWEEN);
        }
        asked.join().expect("an answer").profile()
    });
    let live = changed.type_index("inuse_objects").expect("live objects");
    assert!(changed.total(live) > 0);
    assert!(
        changed.stacks.len() < STACKS / 10,
        "{}",
        changed.stacks.len()
    );
    assert!(
        changed
            .facts
            .duration_ns
            .is_some_and(|ns| ns >= 1_000_000_000)
    );
    let growth = stage
        .server
        .get(&format!("/p/{pid}/pprof/growth?seconds=1"));
    assert_eq!(growth.expect(200).matches("] @ 0x").count(), 0);
    let most = most_kib(stage.server.pid());
    assert!(most <= MAX_KIB, "{most} KiB");
    stage.target.finish_well();
}

/// Returns the children of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("our child");
    let lists = tasks.flatten().map(|task| task.path().join("children"));
    let lists = lists.filter_map(|path| fs::read_to_string(path).ok());
    let all: String = lists.collect();
    all.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

#[test]
fn what_makes_a_report_ends_with_the_server() {
    let stage = large("unfinished");
    let server = stage.server.pid();
    let mut client = stage.server.connect();
    let head = format!(
        "GET /report?pid={} HTTP/1.1\r\nHost: {}\r\n\r\n",
        stage.target.pid(),
        stage.server.address
    );
    client.write_all(head.as_bytes()).expect("a connection");
    let child = wait::until("a child that works", || children(server).pop());
    // SAFETY: our own child, not yet waited for.
    let killed = unsafe { libc::kill(server.cast_signed(), libc::SIGKILL) };
    assert_eq!(killed, 0);
    wait::until("the child to end", || {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let is_there = Path::new(&format!("/proc/{child}")).exists() && !stat.contains(") Z ");
        (!is_there).then_some(())
    });
    let mut rest = Vec::new();
    // Ends, with what had come until then.
    let _ = client.read_to_end(&mut rest);
    stage.target.finish_well();
}

#[test]
fn a_large_report_is_searched_at_once() {
    let stage = large("searched");
    let mut browser = Browser::open(&stage.link(""));
    browser.count_work();
    // With room for all rows.
    browser.resize(1280, 1400);
    browser.until(&format!(
        "{REPORT}.querySelectorAll('#flame .frame').length > 50"
    ));
    // Those without a label are a few paths.
    let elements = format!("{REPORT}.querySelectorAll('#flame .frame').length");
    let elements = browser.value(&elements).as_u64().expect("a number");
    let outlines = browser.value(&format!(
        "[...{REPORT}.querySelectorAll('#flame path.frame')].reduce((sum, p) => sum + p.getAttribute('d').split('M').length - 1, 0)"
    ));
    let outlines = outlines.as_u64().expect("a number");
    assert!(outlines > 2000 && elements < 1500, "{elements}, {outlines}");
    browser.value("document.querySelector('#follow').click()");
    const TEXT: &str = "Road::(left|right)$";
    let mut costs = Vec::new();
    for end in 1..=TEXT.len() {
        let before = browser.worked_ms();
        browser.promised(&format!(
            "(() => {{ const f = {REPORT}.querySelector('.flame input'); f.value = {}; f.dispatchEvent(new Event('input')); return new Promise((done) => requestAnimationFrame(() => setTimeout(done))); }})()",
            Value::from(&TEXT[..end])
        ));
        costs.push(browser.worked_ms() - before);
    }
    browser.until(&format!(
        "{REPORT}.querySelector('.flame .count').textContent.includes('matched')"
    ));
    // CPU time, including that of the browser's other work, which may come with one of the keys.
    costs.sort_by(f64::total_cmp);
    assert!(costs[costs.len() - 2] < 50.0, "{costs:?} ms");
    a_frame_without_a_label_is_a_frame(&mut browser);
    // Suspects are counted beyond those that are listed, and those that are judged.
    browser.value(&format!("{REPORT}.querySelector('#to-leaks').click()"));
    browser.until(&format!(
        "/^200 of the first 200; 100,0[0-9]+ in all$/.test({REPORT}.querySelector('#leaks .count').textContent)"
    ));
    stage.target.finish_well();
}

/// Points at frames that have no element of their own, and clicks one.
fn a_frame_without_a_label_is_a_frame(browser: &mut Browser) {
    browser.value(&format!(
        "(() => {{
          const page = {REPORT};
          const svg = page.querySelector('svg.flame');
          const box = svg.getBoundingClientRect();
          for (const path of page.querySelectorAll('#flame path.frame')) {{
            const [x, y, width] = path.getAttribute('d').match(/[0-9.]+/g).map(Number);
            const at = {{ bubbles: true, clientX: Math.floor(box.left + x + width / 2), clientY: box.top + y + 5 }};
            path.dispatchEvent(new PointerEvent('pointermove', at));
            const tip = page.querySelector('.flame-tip b');
            if (!tip || !tip.textContent.startsWith('Road')) continue;
            window.pointed = tip.textContent;
            window.outlined = svg.querySelector('.over').getAttribute('visibility');
            path.dispatchEvent(new MouseEvent('click', at));
            return;
          }}
        }})()"
    ));
    assert_eq!(browser.value("window.outlined"), "visible");
    // What was pointed at is now as wide as the picture.
    browser.until(&format!("[...{REPORT}.querySelectorAll('#flame g.frame:not(.under)')].some((g) => window.pointed.startsWith(g.textContent.replace('…', '')) && g.querySelector('rect').getBoundingClientRect().width > 1000)"));
}

#[test]
fn many_processes_are_shown_in_part() {
    const PROCESSES: usize = 110;
    const SHOWN: usize = 50;
    const MAX_ROWS: usize = 100;
    let stage = Stage::new("one-of-many");
    let others = stage.start_others(PROCESSES - 1);
    let mut browser = Browser::open(&stage.server.url("/"));
    browser.count_work();
    let rows = |count: usize| {
        format!("document.querySelectorAll('#processes tbody tr').length === {count}")
    };
    browser.until(&format!(
        "document.querySelector('.sum').textContent.startsWith('{PROCESSES} processes')"
    ));
    browser.until(&rows(SHOWN));
    browser.until(&format!("document.querySelector('.further').textContent === 'Show more: these are {SHOWN} of {PROCESSES}'"));
    browser.until(&format!(
        "document.querySelectorAll('.spark').length === {SHOWN}"
    ));
    // Measures the cost of an update in the page's thread, including memory charts.
    const UPDATES: u32 = 6;
    let before = browser.worked_ms();
    for _ in 0..UPDATES {
        browser.promised("new Promise((done) => setTimeout(done, 1500))");
    }
    let each = (browser.worked_ms() - before) / f64::from(UPDATES);
    assert!(each <= 16.0, "{each} ms an update");
    // Those that are not shown are found by the filter.
    let hidden = others.iter().map(Target::pid).find(|pid| {
        let link = format!("document.querySelector('#processes a[href*=\"pid={pid}\"]') === null");
        browser.value(&link) == Value::Bool(true)
    });
    let hidden = hidden.expect("a process that is not shown");
    let filter = |browser: &mut Browser, text: &str| {
        browser.value(&format!("(() => {{ const f = document.querySelector('#filter'); f.value = '{text}'; f.dispatchEvent(new Event('input')); }})()"));
    };
    filter(&mut browser, &hidden.to_string());
    browser.until(&format!(
        "document.querySelector('#processes a[href*=\"pid={hidden}\"]') !== null"
    ));
    filter(&mut browser, "");
    // New rows are made a few in a frame.
    browser.value(
        "(() => {
          const body = document.querySelector('#processes tbody');
          const seen = new Set(body.children);
          window.steps = [];
          new MutationObserver(() => {
            const made = [...body.children].filter((row) => !seen.has(row));
            made.forEach((row) => seen.add(row));
            steps.push(made.length);
          }).observe(body, { childList: true });
        })()",
    );
    browser.value("document.querySelector('.further').click()");
    browser.until(&rows(MAX_ROWS));
    // 16 in a frame, and those that an update adds in between: far fewer than all at once.
    const MOST_MADE: u64 = 32;
    let most = browser.value("Math.max(...steps)").as_u64();
    assert!(most.is_some_and(|most| most <= MOST_MADE), "{most:?}");
    browser.until("document.querySelector('.further').hidden");
    // More rows than these are never there at the same time.
    let leaf = |way: &str| {
        format!(
            "[...document.querySelectorAll('.pages button')].find((b) => b.textContent === '{way} {MAX_ROWS}').click()"
        )
    };
    browser.value(&leaf("Next"));
    let last = rows(PROCESSES - MAX_ROWS);
    browser.until(&last);
    browser.until(&format!("document.querySelector('.pages [role=status]').textContent === '{} to {PROCESSES} of {PROCESSES}'", MAX_ROWS + 1));
    browser.reload();
    browser.until(&last);
    browser.value(&leaf("Previous"));
    browser.until(&rows(MAX_ROWS));
    // A group says how many it has.
    browser.go("about:blank");
    browser.go(&stage.server.url("/#/?group=name"));
    browser.until(&format!("document.querySelector('.of-group th').textContent === 'one-of-many: {PROCESSES}, the first {SHOWN} are shown'"));
    for other in others {
        other.finish_well();
    }
    stage.target.finish_well();
}

/// Of hundreds of idle processes, each update examines a part, but always those that are started or
/// stopped.
#[test]
fn a_start_is_shown_at_once_among_many() {
    const PROCESSES: usize = 320;
    // More than an update needs of them in turn.
    const STARTED: usize = 6;
    let stage = Stage::new("one-of-hundreds");
    let others = stage.start_others(PROCESSES - 1);
    let server: &Client = &stage.server;
    let read = |since: &str| -> Value {
        let list = server.get(&format!("/api/processes{since}"));
        serde_json::from_str(&list.expect(200)).expect("JSON")
    };
    wait::until("all processes", || {
        (read("")["count"] == PROCESSES).then_some(())
    });
    // Returns the next version of the list.
    let next = |before: &Value| {
        let since = format!("?since={}", before["version"]);
        wait::until("an update", || {
            let list = read(&since);
            (list["version"] != before["version"]).then_some(list)
        })
    };
    // Until they count as idle.
    let mut list = read("");
    for _ in 0..12 {
        list = next(&list);
    }
    let pids: Vec<u32> = others.iter().take(STARTED).map(Target::pid).collect();
    for (path, is_sampled) in [("start", true), ("stop", false)] {
        for pid in &pids {
            server.post(&format!("/api/{path}?pid={pid}")).expect(200);
        }
        list = next(&list);
        list = next(&list);
        let whole = read("");
        let rows = whole["processes"].as_array().expect("rows");
        let sampled = rows.iter().filter(|row| !row["interval"].is_null());
        assert_eq!(
            sampled.count(),
            if is_sampled { STARTED } else { 0 },
            "{path}"
        );
    }
    for other in others {
        other.finish_well();
    }
    stage.target.finish_well();
}

/// Drawing a large report is many short tasks, between which the page around it goes on.
#[test]
fn a_large_report_is_drawn_in_steps() {
    let stage = large("in-steps");
    let mut browser = Browser::open(&stage.link(""));
    browser.until(&format!(
        "{REPORT}.querySelectorAll('#flame .frame').length > 50"
    ));
    browser.value(
        "(() => {
          window.counts = new Set();
          const look = () => {
            const next = document.querySelector('iframe.next');
            const page = next && next.contentDocument;
            if (page && page.getElementById('profile')) counts.add(page.querySelectorAll('[role=tab]').length);
            if (next || !counts.size) setTimeout(look);
          };
          look();
        })()",
    );
    browser.value("document.querySelector('iframe.report').id = 'old'");
    browser.value(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Refresh').click()",
    );
    browser.until("!document.getElementById('old')");
    let tabs = format!("{REPORT}.querySelectorAll('[role=tab]').length");
    browser.until(&format!(
        "[...window.counts].some((count) => count > 0 && count < {tabs})"
    ));
    // What takes the place of the old one is complete.
    browser.until(&format!(
        "{REPORT}.querySelectorAll('#flame .frame').length > 50"
    ));
    stage.target.finish_well();
}

/// Makes the kernel's receive buffer small.
fn receive_little(stream: &TcpStream) {
    let bytes: libc::c_int = 4096;
    // SAFETY: the descriptor is open, and the pointer is to one int.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
}

#[test]
fn slow_readers_do_not_fill_the_server() {
    const READERS: usize = 24;
    // More than the kernel keeps of a connection.
    const REQUESTS: usize = 4;
    // A profile that the server writes itself, as text: some MiB for each reader.
    const STACKS: usize = 7000;
    const MAX_KIB: u64 = 64 << 10;
    let mut stage = Stage::of("crossroads.cpp", "read-slowly", &["-c", "1"]);
    stage.start();
    stage.target.say(&format!("go {STACKS}"));
    stage.target.hear_until("done");
    let pid = stage.target.pid();
    let path = format!("/p/{pid}/pprof/heap");
    stage.server.get(&path).expect(200);
    let host = &stage.server.address;
    let ask = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let mut reader = stage.server.connect();
            receive_little(&reader);
            let asked = reader.write_all(ask.repeat(REQUESTS).as_bytes());
            asked.expect("a connection");
            reader
        })
        .collect();
    // Responses that they do not read use up the server's room. Other clients are told.
    let refusal = wait::until("a refusal", || {
        let answer = stage.server.get(&path);
        (answer.status == 503).then_some(answer)
    });
    assert!(refusal.text().contains("too slowly"), "{}", refusal.text());
    stage.server.get("/").expect(200);
    let most = most_kib(stage.server.pid());
    assert!(most <= MAX_KIB, "{most} KiB");
    drop(readers);
    wait::until("room for others", || {
        (stage.server.get(&path).status == 200).then_some(())
    });
    stage.target.finish_well();
}
