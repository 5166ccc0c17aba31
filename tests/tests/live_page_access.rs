//! Live page without a pointing device, with assistive technology, and on paper.

use std::fs;

use mem_tests::server::Client;
use mem_tests::stage::{REPORT, Stage};
use mem_tests::{Browser, npm, wait};

#[test]
fn everything_can_be_done_by_keys() {
    let mut stage = Stage::new("by-keys");
    let pid = stage.target.pid();
    let mut browser = Browser::open(&stage.server.url("/"));
    browser.until("document.querySelectorAll('#processes tbody tr').length === 1");
    // The list: filter, sort, start.
    browser.tab_to("el.id === 'filter'");
    browser.write("no such");
    browser.until("document.querySelectorAll('#processes tbody tr:not([hidden])').length === 0");
    for _ in 0.."no such".len() {
        browser.press("Backspace");
    }
    browser.write("keys");
    browser.until("document.querySelectorAll('#processes tbody tr:not([hidden])').length === 1");
    browser.tab_to("el.textContent === 'Resident'");
    browser.press("Enter");
    browser.until("document.querySelector('th[aria-sort]').textContent === 'Resident'");
    browser.tab_to("el.type === 'checkbox'");
    browser.press(" ");
    browser.tab_to("el.textContent === 'Start selected'");
    browser.press("Enter");
    stage.scratch.wait_for_sampling(pid);
    stage.allocate(2000);
    // The process: the link, the chart, the report.
    browser.tab_to("el.closest('td.name') !== null");
    browser.press("Enter");
    Stage::has_report(&mut browser);
    browser.tab_to("el.classList.contains('chart')");
    browser.press("ArrowLeft");
    browser
        .until("document.querySelector('.chart .cursor').getAttribute('visibility') === 'visible'");
    browser.tab_to("el.textContent === 'Mark'");
    browser.press("Enter");
    browser.until("/from=[0-9]+/.test(location.hash)");
    browser.until(&format!(
        "{REPORT}.querySelector('[aria-label=comparison]') !== null"
    ));
    // Reports are not exchanged under the keys.
    browser.tab_to("el.id === 'follow'");
    browser.press(" ");
    browser.tab_to("el.getAttribute('role') === 'tab'");
    browser.press("ArrowRight");
    browser.until(&format!(
        "!{REPORT}.getElementById('functions').hidden || !{REPORT}.getElementById('graph').hidden"
    ));
    browser.press("ArrowLeft");
    browser.until(&format!("!{REPORT}.getElementById('flame').hidden"));
    browser.press("/");
    browser.write("site_");
    browser.until(&format!(
        "{REPORT}.querySelector('.flame .count').textContent.includes('matched')"
    ));
    browser.tab_to("el.classList.contains('stop')");
    browser.press("Enter");
    wait::until("the session to end", || {
        (!stage.scratch.is_sampling(pid)).then_some(())
    });
    // A session with other settings.
    browser.until("!document.querySelector('form').hidden");
    browser.tab_to("el.name === 'seconds'");
    browser.press("Backspace");
    browser.press("Backspace");
    browser.write("600");
    browser.press("Enter");
    stage.scratch.wait_for_sampling(pid);
    browser.until("document.querySelector('.keys').textContent.includes('10 min left')");
    stage.target.finish_well();
}

/// Runs axe on the page, and panics with what it has found.
fn check(browser: &mut Browser, axe: &str, what: &str) {
    // It reports what it cannot judge as incomplete; violations are certain.
    browser.promised(&format!("(() => {{ {axe}; return true; }})()"));
    let found = browser.promised(
        "axe.run(document, {iframes: false}).then((r) => JSON.stringify(r.violations.map((v) => [v.id, v.help, v.nodes.map((n) => n.html.slice(0, 200) + ' ' + (n.any[0] || {}).message)])))",
    );
    assert_eq!(found, "[]", "{what}");
}

/// Checks the pages that have little but a message.
fn check_messages(browser: &mut Browser, axe: &str, server: &Client, how: &str) {
    for (path, text) in [
        ("/#/?filter=nosuch", "No process matches"),
        ("/#/process?name=nosuch&pid=1", "has ended"),
        ("/#/?group=name", "for-all: 1"),
    ] {
        browser.go("about:blank");
        browser.go(&server.url(path));
        browser.until(&format!("document.body.innerText.includes('{text}')"));
        check(browser, axe, &format!("{path}, {how}"));
    }
}

#[test]
fn assistive_technology_finds_no_obstacles() {
    let mut stage = Stage::new("for-all");
    stage.start();
    stage.allocate(2000);
    let packages = npm::packages("npm-axe-1", &["axe-core@4.14.1"]);
    let axe = fs::read_to_string(packages.join("axe-core/axe.min.js")).expect("axe");
    let mut browser = Browser::open(&stage.server.url("/"));
    let report = format!("/report?pid={}", stage.target.pid());
    for (dark, width) in [(false, 1280), (true, 1280), (true, 360)] {
        browser.dark(dark);
        browser.resize(width, 800);
        browser.go("about:blank");
        browser.go(&stage.server.url("/"));
        browser.until("document.querySelectorAll('#processes tbody tr').length === 1");
        check(&mut browser, &axe, &format!("list, dark: {dark}, {width}"));
        check_messages(
            &mut browser,
            &axe,
            &stage.server,
            &format!("dark: {dark}, {width}"),
        );
        browser.go("about:blank");
        browser.go(&stage.link(""));
        Stage::has_report(&mut browser);
        browser.until("document.querySelector('.says').textContent.includes('resident')");
        check(
            &mut browser,
            &axe,
            &format!("process, dark: {dark}, {width}"),
        );
        browser.go(&stage.server.url(&report));
        browser.until("document.querySelectorAll('[role=tab]').length > 3");
        let tabs = browser
            .value("[...document.querySelectorAll('[role=tab]')].map((b) => b.id).join(' ')");
        for tab in tabs.as_str().expect("tabs").split(' ') {
            browser.value(&format!("document.getElementById('{tab}').click()"));
            check(&mut browser, &axe, &format!("{tab}, dark: {dark}, {width}"));
        }
        // Lines that are switched off, and the help.
        browser.value("document.querySelector('#to-time').click()");
        browser.until("document.querySelectorAll('#time .key').length > 1");
        browser.value("document.querySelectorAll('#time .key').forEach((b) => b.click())");
        check(
            &mut browser,
            &axe,
            &format!("lines off, dark: {dark}, {width}"),
        );
        browser.value("document.querySelector('#ask').click()");
        check(&mut browser, &axe, &format!("help, dark: {dark}, {width}"));
    }
    browser.go(&stage.server.url("/debug/pprof/"));
    browser.until("document.querySelector('h1') !== null");
    check(&mut browser, &axe, "profiles without a script");
    stage.target.finish_well();
}

#[test]
fn paper_has_the_chart_and_the_report() {
    let mut stage = Stage::new("printed");
    let mut browser = stage.show();
    browser.until("document.querySelectorAll('.chart polyline').length > 0");
    browser.dark(true);
    browser.on_paper();
    let height =
        |what: &str| format!("document.querySelector('{what}').getBoundingClientRect().height");
    browser.until(&format!("{} >= 90", height(".chart")));
    browser.until(&format!("{} >= 300", height(".report-place")));
    for control in ["button.stop", "#follow", ".charts .tools"] {
        browser.until(&format!("{} === 0", height(control)));
    }
    // Ink on white, whatever the theme of the screen.
    browser.until("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'");
    stage.target.finish_well();
}
