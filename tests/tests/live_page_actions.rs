//! Actions of the live page other than heap sessions: CPU time, CPU time with the heap, lost
//! objects. Also that its search counts the same as `mem_parser`.

use mem_tests::stage::{REPORT, Stage};
use mem_tests::{Browser, run};

/// Clicks a button.
fn click(browser: &mut Browser, text: &str) {
    let expression = format!(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === '{text}').click()"
    );
    browser.value(&expression);
}

/// Starts a process that computes and has a heap profile.
fn busy(name: &str) -> Stage {
    let mut stage = Stage::of("crossroads.cpp", name, &["-c", "64"]);
    stage.start();
    stage.target.say("go 300");
    stage.target.hear_until("done");
    stage.target.say("burn 600");
    stage
}

#[test]
fn cpu_time_is_shown_from_the_page() {
    let mut stage = busy("computing");
    let mut browser = Browser::open(&stage.link(""));
    browser.until(&format!(
        "{REPORT}.querySelectorAll('#flame .frame').length > 3"
    ));
    click(&mut browser, "CPU time");
    browser.until("document.querySelector('.of[role=status]').textContent.includes('sampling CPU time until')");
    browser.until(&format!(
        "[...{REPORT}.querySelectorAll('#flame .frame')].some((g) => g.textContent.startsWith('burn'))"
    ));
    browser.until(&format!(
        "{REPORT}.querySelector('header [aria-pressed=true]').textContent.includes('CPU')"
    ));
    // Back to the heap.
    click(&mut browser, "Refresh");
    browser.until(&format!(
        "[...{REPORT}.querySelectorAll('#flame .frame')].some((g) => g.textContent.startsWith('Road'))"
    ));
    stage.target.kill();
}

#[test]
fn cpu_time_is_shown_beside_the_heap() {
    let mut stage = busy("both");
    let mut browser = Browser::open(&stage.link(""));
    browser.until(&format!(
        "{REPORT}.querySelectorAll('#flame .frame').length > 3"
    ));
    click(&mut browser, "CPU and heap");
    let values = format!(
        "[...{REPORT}.querySelectorAll('header [aria-pressed]')].map((b) => b.textContent).join()"
    );
    browser.until(&format!(
        "/CPU/.test({values}) && /Live bytes/.test({values})"
    ));
    stage.target.kill();
}

#[test]
fn lost_objects_are_shown_from_the_page() {
    let mut stage = Stage::of("crossroads.cpp", "losing", &["-c", "1"]);
    stage.start();
    stage.target.say("lose 200");
    stage.target.hear_until("done");
    stage.target.say("go 300");
    stage.target.hear_until("done");
    let mut browser = Browser::open(&stage.link(""));
    browser.until(&format!(
        "{REPORT}.querySelectorAll('#flame .frame').length > 3"
    ));
    let link =
        "[...document.querySelectorAll('a.button')].find((a) => a.textContent === 'Lost objects')";
    browser.until(&format!("{link}.target === '_blank'"));
    let address = browser.value(&format!("{link}.href"));
    browser.go(address.as_str().expect("an address"));
    browser.until("document.body !== null && document.body.textContent.includes('lose')");
    stage.target.finish_well();
}

/// The page and the table count the same stacks, even if the name is in an inlined frame, in the
/// middle of the stack, or in frames that are too small to be drawn.
#[test]
fn a_search_finds_what_focus_finds() {
    let mut stage = Stage::new("counted");
    let pid = stage.target.pid();
    stage.start();
    stage.allocate(2000);
    // Nothing changes after this.
    stage
        .server
        .post(&format!("/api/stop?pid={pid}"))
        .expect(200);
    let dump = stage.scratch.file("counted.heap");
    let answer = stage.server.get(&format!("/dump?pid={pid}"));
    std::fs::write(&dump, &answer.body).expect("a file of ours");
    let mut browser = Browser::open(&stage.link(""));
    Stage::has_report(&mut browser);
    for pattern in [
        "site_malloc",
        "site_[a-c]",
        "^site_.*new$",
        "work",
        // Sources may lie in a directory of this name, which `--focus` finds, too.
        "^main$",
        "caught|pass_through",
        "(anonymous namespace)",
        "\\(anonymous namespace\\)::work",
        "calloc",
        "no such function",
    ] {
        let mut parser = stage.scratch.parser();
        parser.args(["-t", "--focus", pattern, "-f"]).arg(&dump);
        let table = run(&mut parser);
        let line = table.stdout.lines();
        let line = line.filter_map(|line| line.split_once("nodes accounting for "));
        let share = line
            .map(|(_, rest)| rest.split(", ").nth(1).expect("a share"))
            .next();
        // With nothing that matches, there is no such line.
        let share = share.map_or("0%", |rest| rest.split(' ').next().expect("a share"));
        let expected: f64 = share.trim_end_matches('%').parse().expect("a number");
        browser.value(&format!(
            "(() => {{ const f = {REPORT}.querySelector('.flame input'); f.value = {}; f.dispatchEvent(new Event('input')); }})()",
            serde_json::Value::from(pattern)
        ));
        let count = browser.value(&format!(
            "{REPORT}.querySelector('.flame .count').textContent"
        ));
        let count = count.as_str().expect("a text");
        let number = |text: &str| -> f64 {
            let text = text.split('%').next().expect("a share");
            text.rsplit(' ')
                .next()
                .expect("a share")
                .parse()
                .expect(count)
        };
        let least = number(count);
        let most = least + count.split("up to ").nth(1).map_or(0.0, number);
        // Both are rounded.
        let is_same = (least - 0.011..=most + 0.011).contains(&expected);
        assert!(is_same, "{pattern}: {count}, --focus: {share}");
        assert!(most - least < 0.5, "{pattern}: {count}");
    }
    stage.target.finish_well();
}
