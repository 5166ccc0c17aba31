//! The live page shows the same again after a reload, through the browser's history and bookmarks,
//! and after a restart of the server.

use std::fs;

use mem_tests::stage::{REPORT, Stage};
use mem_tests::{Browser, Server, Target};

#[test]
fn reload_back_and_bookmarks_show_the_same() {
    let mut stage = Stage::new("returned");
    stage.start();
    stage.allocate(2000);
    let mut browser = Browser::open(&stage.server.url("/#/?filter=retur&sort=name&window=60"));
    let list = "document.querySelector('#filter') !== null && document.querySelector('#filter').value === 'retur' && document.querySelector('th[aria-sort]').textContent === 'Process' && document.querySelector('select').value === '60'";
    browser.until(list);
    browser.until("document.querySelectorAll('#processes tbody tr').length === 1");
    browser.value("document.querySelector('#processes tbody a').click()");
    Stage::has_report(&mut browser);
    browser.value(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Mark').click()",
    );
    let change = format!(
        "{REPORT}.querySelector('[aria-label=comparison] [aria-pressed=true]').textContent === 'Change'"
    );
    browser.until(&change);
    browser.value(&format!("{REPORT}.querySelector('#to-functions').click()"));
    browser.until("location.hash.includes('view=functions')");
    let bookmark = browser.value("location.href");
    let shown = format!("!{REPORT}.getElementById('functions').hidden");
    browser.reload();
    browser.until(&change);
    browser.until(&shown);
    assert_eq!(browser.value("location.href"), bookmark);
    browser.value("history.back()");
    browser.until(list);
    browser.value("history.forward()");
    browser.until(&change);
    browser.until(&shown);
    let mut other = Browser::open(bookmark.as_str().expect("an address"));
    other.until(&change);
    other.until(&shown);
    stage.target.finish_well();
}

#[test]
fn the_page_goes_on_when_the_server_comes_back() {
    let mut stage = Stage::new("lasting");
    let mut browser = stage.show();
    browser.until("document.querySelectorAll('.chart polyline').length > 0");
    let address = stage.server.address.clone();
    stage.server.stop();
    browser.until("document.querySelector('.said').textContent.startsWith('no answer')");
    // The report is still shown.
    Stage::has_report(&mut browser);
    stage.server = Server::again(&stage.scratch, &address);
    browser.until("document.querySelector('.said').hidden");
    // The session has ended with its server; its profile is there.
    browser.until("!document.querySelector('form').hidden");
    browser.until("document.querySelector('.keys').textContent.includes('samples')");
    Stage::has_report(&mut browser);
    browser.value("location.hash = '#/'");
    browser.until("document.querySelector('.sum').textContent === '1 process, 0 sampled'");
    stage.target.finish_well();
}

#[test]
fn names_do_not_turn_the_page_around() {
    // Letters from right to left, a character that turns text around, and one that ends a line.
    const NAME: &str = "\u{5e9}\u{5dc}\u{5d5}\u{5dd}\u{202e}exe\u{1b}[2J\nx";
    let stage = Stage::new("plain");
    let named = stage.scratch.file(NAME);
    fs::copy(&stage.program, &named).expect("a file of ours");
    let mut other = Target::start(&mut stage.scratch.preloaded(&named));
    assert_eq!(other.hear(), "ready");
    let pid = other.pid();
    let mut browser = Browser::open(&stage.server.url("/#/?group=name"));
    let row = format!("document.querySelector('#processes a[href*=\"pid={pid}\"]')");
    browser.until(&format!("{row} !== null"));
    let is_safe = "[...document.body.textContent].every((c) => c !== '\\u202e' && c !== '\\u001b')";
    browser.until(is_safe);
    browser.until(&format!(
        "{row}.textContent.includes('\\\\xe2\\\\x80\\\\xae')"
    ));
    // Its number stands to the right of the name, as everywhere.
    let right_of = |first: &str, second: &str| {
        format!(
            "(() => {{ const x = (node) => {{ const r = document.createRange(); r.selectNodeContents(node); return r.getBoundingClientRect(); }}; return x({first}).right <= x({second}).left + 1; }})()"
        )
    };
    let heads = "[...document.querySelectorAll('.of-group th')].find((th) => th.textContent.includes('exe'))";
    browser.until(&right_of(
        &format!("{heads}.firstChild"),
        &format!("{heads}.lastChild"),
    ));
    browser.value(&format!("{row}.click()"));
    browser.until(&format!(
        "document.querySelector('h1').textContent.endsWith(' ({pid})')"
    ));
    let title = "document.querySelector('h1')";
    browser.until(&right_of(
        &format!("{title}.firstChild"),
        &format!("{title}.lastChild"),
    ));
    browser.until(is_safe);
    // A session of a process with such a name, and its report.
    let started = stage.server.post(&format!("/api/start?pid={pid}"));
    started.expect(200);
    stage.scratch.wait_for_sampling(pid);
    other.say("go 2000 4 1024");
    other.hear_until("done");
    Stage::has_report(&mut browser);
    let dump = stage.server.get(&format!("/dump?pid={pid}"));
    let line = dump
        .head
        .lines()
        .find(|line| line.starts_with("content-disposition"));
    let line = line.expect("a name");
    assert!(
        line.is_ascii() && line.contains(&format!(".{pid}.heap\"")),
        "{line}"
    );
    other.finish_well();
    stage.target.finish_well();
}

#[test]
fn what_is_not_there_cannot_be_acted_on() {
    let stage = Stage::new("alike");
    let others = stage.start_others(1);
    let mut browser = Browser::open(&stage.server.url("/#/process?name=nosuch&pid=1"));
    let said =
        |text: &str| format!("document.querySelector('.said').textContent.includes('{text}')");
    let only = "[...document.querySelectorAll('button, select, input, a.button')].filter((el) => el.offsetParent).map((el) => el.textContent).join() === 'All processes,Copy link'";
    browser.until(&said("has ended, and has left no profile"));
    browser.until(only);
    // A name that several have.
    browser.go(&stage.server.url("/#/process?name=alike"));
    browser.until(&said("Several processes have this name"));
    browser.value("document.querySelector('.of a.button').click()");
    browser.until("document.querySelector('h1').textContent.startsWith('alike (')");
    browser.until("!document.querySelector('form').hidden");
    for other in others {
        other.finish_well();
    }
    stage.target.finish_well();
}

/// Loading a report does not scroll the part of the page above it, which a phone shows.
#[test]
fn reports_do_not_scroll_the_page() {
    let mut stage = Stage::new("still");
    stage.start();
    stage.allocate(2000);
    let mut browser = Browser::open("about:blank");
    browser.resize(360, 640);
    for view in ["", "&view=functions"] {
        browser.go("about:blank");
        browser.go(&stage.link(view));
        // Two reports have been loaded: the frame of the first is gone.
        browser.until(&format!("{REPORT}.querySelector('.frame, td') !== null"));
        browser.value("document.querySelector('iframe.report').id = 'first'");
        browser.value(
            "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Refresh').click()",
        );
        browser.until("document.querySelectorAll('iframe.report:not(#first)').length === 1 && !document.getElementById('first')");
        browser.until("document.scrollingElement.scrollHeight > innerHeight");
        assert_eq!(browser.value("scrollY"), 0, "{view}");
    }
    stage.target.finish_well();
}

#[test]
fn marks_are_bounded() {
    const MARKS: usize = 120;
    const KEPT: usize = 16;
    let mut stage = Stage::new("marked-often");
    let pid = stage.target.pid();
    stage.start();
    stage.allocate(500);
    // The chart begins when the server first shows the process.
    let mut browser = Browser::open(&stage.link(""));
    Stage::has_report(&mut browser);
    for _ in 0..MARKS {
        stage
            .server
            .post(&format!("/api/mark?pid={pid}"))
            .expect(200);
    }
    browser.until(&format!(
        "document.querySelectorAll('.chart .mark').length === {KEPT}"
    ));
    browser.until(&format!("[...document.querySelector('select').options].filter((o) => o.textContent.includes('(mark)')).length === {KEPT}"));
    stage.target.finish_well();
}

#[test]
fn a_chart_has_gaps_where_nothing_was_measured() {
    let stage = Stage::new("gaps");
    let mut browser = Browser::open(&stage.server.url("/"));
    browser.until("document.querySelector('#processes') !== null");
    // A point each second, none for two minutes, and some without a value of the first column.
    let lines = browser.promised(
        "import('/chart.js').then(({ lines }) => {
          const points = [];
          for (let s = 0; s < 10; s++) points.push([s * 1000, 1, 5]);
          for (let s = 130; s < 150; s++) points.push([s * 1000, s >= 135 && s < 140 ? null : 1, 5]);
          return [1, 2].map((column) => lines(points, column, Number, Number).length).join();
        })",
    );
    assert_eq!(lines, "3,2");
    stage.target.finish_well();
}
