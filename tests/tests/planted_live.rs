//! Output of `mem_profiler` and its server for a program that holds known numbers of objects of
//! each kind, while it runs and when it ends: every figure is that of a dump at the same moment,
//! which is compared with the truth.

use std::collections::BTreeMap;
use std::time::Instant;

use mem_tests::figures::{Figure, after, assert_printed, below};
use mem_tests::planted::{BARS, IN_USE, Inventory, Stacks, sampled_by};
use mem_tests::truth::Site;
use mem_tests::{Outcome, Scratch, Server, Session, Steps, run, wait};
use profile::variance::half_width;
use serde_json::Value;

/// Objects and bytes that are lost: the first of a chain leads to the others.
const LOST: [f64; 2] = [400.0 + 10.0, 400.0 * 2000.0 + 10.0 * 1500.0];
/// Bytes of the program's own mapping.
const MAPPED: f64 = (24 << 20) as f64;

/// Returns the output of the controller about the only process.
#[track_caller]
fn said(scratch: &Scratch, args: &[&str]) -> Outcome {
    let outcome = run(scratch.profiler().args(args));
    assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
    outcome
}

/// Returns the first entry of the controller's output in JSON.
#[track_caller]
fn answer(scratch: &Scratch, args: &[&str]) -> Value {
    let json: Value = serde_json::from_str(&said(scratch, args).stdout).expect("JSON");
    json[0].clone()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Checks a number of bytes, objects or seconds with one decimal.
#[track_caller]
fn assert_short(text: &str, truth: f64, what: &str) {
    assert_printed(text.trim_start_matches("about "), 1, truth, what);
}

/// Checks a rounded number of objects, where the truth is known to thousandths.
#[track_caller]
fn assert_count(text: &str, truth: f64, what: &str) {
    let count: f64 = text
        .parse()
        .unwrap_or_else(|_| panic!("{what}: {text:?} is no number"));
    // Rounded, and sums of weights that are rounded themselves.
    assert!((count - truth).abs() <= 0.61, "{what}: {text}, {truth}");
}

/// Returns the number at the start of `406 objects, …` or `about 406 objects, …`.
fn count_in(text: &str) -> &str {
    let text = text.trim_start_matches("about ");
    text.split(' ').next().expect("a number")
}

/// Returns the words of a row that are two blanks or more apart.
fn columns(line: &str) -> Vec<&str> {
    line.split("  ")
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect()
}

#[test]
fn a_session_is_described_exactly_where_every_object_is_sampled() {
    describe("1");
}

#[test]
fn a_session_is_described_within_its_bars_at_1024() {
    describe("1024");
}

fn describe(interval: &'static str) {
    let mut inventory = Inventory::hold(interval);
    inventory.step("map");
    let dumped = inventory.dump();
    let stacks = inventory.stacks(&dumped);
    let pid = inventory.steps.pid().to_string();
    top(&inventory, &stacks, &pid);
    listed(&mut inventory, &stacks);
    why(&inventory, &stacks);
    leaks(&inventory, &stacks, &dumped.truth);
    paths(&inventory, &stacks);
    inventory.end();
}

/// Checks `top --once` in a session: the bytes of each function, no growth, and ages.
fn top(inventory: &Inventory, stacks: &Stacks, pid: &str) {
    let asked = Instant::now();
    let text = said(&inventory.scratch, &["top", "--once", "-p", pid]).stdout;
    let given = Instant::now();
    let title = text.lines().next().expect("a title");
    let error = half_width(stacks.total()[IN_USE], stacks.total_variances()[IN_USE]);
    match title.split_once("live ± ") {
        Some((_, shown)) => {
            let shown = shown.split(", ").next().expect("a size");
            assert_short(shown, error, title);
        }
        None => assert!(
            error == 0.0 && title.contains("every allocation"),
            "{title}"
        ),
    }
    let functions = stacks.functions();
    let mut listed = 0;
    for line in below(&text, "GROWTH/s") {
        let cells = columns(line);
        let Some(function) = cells.last().and_then(|name| functions.get(*name)) else {
            assert!(cells.is_empty(), "{line:?} is not in the dump");
            continue;
        };
        assert_short(cells[0], function.flat[IN_USE], line);
        assert_short(cells[1], function.cum[IN_USE], line);
        assert_eq!(cells[2..4], ["0 B", "0 B"], "it allocates nothing: {line}");
        listed += 1;
        if function.cum[IN_USE] == 0.0 {
            assert_eq!(cells[4..6], ["-", "-"], "nothing has no age: {line}");
            continue;
        }
        let age = Figure::read(cells[4], 2).expect("an age").value;
        let [begun, done] = inventory.held;
        let least = (asked - done).as_secs_f64() - 0.02;
        let most = (given - begun).as_secs_f64() + 0.02;
        assert!((least..=most).contains(&age), "{line}: {least} to {most} s");
    }
    assert!(listed >= 13, "{text}");
}

/// Checks `list`: state, interval, samples, live and resident memory.
fn listed(inventory: &mut Inventory, stacks: &Stacks) {
    // A second after the last samples, the next one has the allocator's figures updated.
    inventory.step("moment");
    inventory.step("moment");
    let row = answer(&inventory.scratch, &["list", "--json"]);
    assert_eq!(row["pid"], inventory.steps.pid());
    assert_eq!(
        (&row["name"], &row["state"]),
        (&"inventory".into(), &"sampling".into())
    );
    assert_eq!(row["interval"].to_string(), inventory.interval);
    let samples: f64 = stacks.0.iter().map(|stack| stack.samples).sum();
    let more = number(&row["samples"]) - samples;
    assert!((0.0..=2.0).contains(&more), "{row}: {samples}");
    let live = stacks.total()[IN_USE];
    assert!(number(&row["rss_bytes"]) >= live + MAPPED, "{row}: {live}");
    if inventory.interval == "1" {
        assert_eq!(more, 2.0, "{row}: {samples}");
        // Rounded up to the allocator's classes: by a quarter at most, and something for itself.
        let listed = number(&row["live_bytes"]);
        assert!(
            (live..=live * 1.25 + 1e6).contains(&listed),
            "{row}: {live}"
        );
    }
}

/// Checks `why`: the parts, including the program's own mapping and its heap, add up to the
/// resident memory.
fn why(inventory: &Inventory, stacks: &Stacks) {
    let answer = answer(&inventory.scratch, &["why", "--json"]);
    let rss = number(&answer["rss_bytes"]);
    for of in ["parts", "resident"] {
        let parts = answer[of].as_object().expect("parts");
        let parts = parts.iter().filter(|(name, _)| *name != "swap");
        let sum: f64 = parts.map(|(_, bytes)| number(bytes)).sum();
        assert_eq!(sum, rss, "{of}: {answer}");
    }
    let live = stacks.total()[IN_USE];
    assert!(
        (number(&answer["sampled_live"]) - live).abs() <= stacks.0.len() as f64,
        "{answer}: {live}"
    );
    let anonymous = number(&answer["resident"]["anonymous"]);
    assert!(
        (live + MAPPED..=live * 1.25 + MAPPED + 8e6).contains(&anonymous),
        "{answer}: {live}"
    );
    let text = said(&inventory.scratch, &["why"]).stdout;
    let resident = after(&text, "): ")
        .split(" resident")
        .next()
        .expect("a size");
    let resident = Figure::read(resident, 1).expect("a size").value;
    let mut parts = 0.0;
    for line in text.lines().skip(1) {
        let cells = columns(line);
        let Some(size) = cells.get(1).and_then(|cell| Figure::read(cell, 1)) else {
            continue;
        };
        let share = cells
            .get(2)
            .and_then(|cell| Figure::read(cell, 1))
            .expect("a share");
        assert!(
            (share.value - size.value / resident).abs() < 0.003,
            "{line}"
        );
        parts += size.value;
    }
    assert!(
        (parts / resident - 1.0).abs() < 0.01,
        "{parts} of {resident}: {text}"
    );
}

/// Returns the figures of a report for the objects of a site: kind of leak, objects, bytes, and the
/// bytes that they keep.
fn of_site(report: &Value, site: &str) -> BTreeMap<String, [f64; 4]> {
    let leaks = report["leaks"].as_array().expect("leaks");
    let leaks = leaks.iter().filter(|leak| leak["stack"][0] == site);
    let values =
        |leak: &Value| ["objects", "bytes", "kept_bytes", "margin"].map(|key| number(&leak[key]));
    leaks
        .map(|leak| {
            (
                leak["kind"].as_str().expect("a kind").to_owned(),
                values(leak),
            )
        })
        .collect()
}

/// Checks `leaks`: exactly the lost objects; those of the chain are its first object and the
/// others.
fn leaks(inventory: &Inventory, stacks: &Stacks, truth: &BTreeMap<String, Site>) {
    let report = answer(&inventory.scratch, &["leaks", "--json"]);
    let live = stacks.total()[IN_USE];
    assert!(
        (number(&report["live_bytes"]) - live).abs() <= stacks.0.len() as f64,
        "{report}: {live}"
    );
    let [objects, bytes, margin] =
        ["lost_objects", "lost_bytes", "lost_bytes_margin"].map(|key| number(&report[key]));
    let lost = of_site(&report, "site_lost")["direct"];
    assert_eq!(truth["site_lost"].values[2..], [400.0, 800_000.0]);
    if inventory.interval == "1" {
        assert_eq!(
            [objects, bytes, margin],
            [LOST[0], LOST[1], 0.0],
            "{report}"
        );
        assert_eq!(lost, [400.0, 800_000.0, 0.0, 0.0], "{report}");
        let chain = of_site(&report, "site_chain");
        assert_eq!(
            chain["direct"],
            [1.0, 1500.0, 9.0 * 1500.0, 0.0],
            "{report}"
        );
        assert_eq!(chain["indirect"], [9.0, 9.0 * 1500.0, 0.0, 0.0], "{report}");
    } else {
        assert!((bytes - LOST[1]).abs() <= BARS * margin, "{report}");
        assert!((lost[1] - 800_000.0).abs() <= BARS * lost[3], "{report}");
        assert!(
            (lost[0] - lost[1] / 2000.0).abs() < 1e-3,
            "all have one size: {report}"
        );
        // All sampled lost objects are found: none is missed, and none is invented.
        let of_dump =
            stacks.sum("site_lost").values[IN_USE] + stacks.sum("site_chain").values[IN_USE];
        assert!((bytes - of_dump).abs() <= 4.0, "{bytes} {of_dump}");
    }
    let found = report["leaks"].as_array().expect("leaks");
    let sites = |leak: &Value| {
        ["site_lost", "site_chain"]
            .iter()
            .any(|site| leak["stack"][0] == *site)
    };
    assert!(
        found.iter().all(sites),
        "what is held is not lost: {report}"
    );
    let text = said(&inventory.scratch, &["leaks"]).stdout;
    assert_report(&text, &report);
}

/// Checks the text of a report, which is that of another check of the same objects.
fn assert_report(text: &str, report: &Value) {
    let head = after(text, "): ");
    let (lost, rest) = head.split_once(" lost in ").expect("what is lost");
    let (bytes, margin) = lost.split_once(" ± ").unwrap_or((lost, "0 B"));
    assert_short(bytes, number(&report["lost_bytes"]), head);
    assert_short(margin, number(&report["lost_bytes_margin"]), head);
    assert_short(
        count_in(rest),
        number(&report["lost_objects"]).round(),
        head,
    );
    let live = rest
        .rsplit("; ")
        .next()
        .expect("what is live")
        .trim_end_matches(" is live");
    assert_short(live, number(&report["live_bytes"]), head);
    let blocks: Vec<&str> = text.split(" leak: ").skip(1).collect();
    let leaks = report["leaks"].as_array().expect("leaks");
    assert_eq!(blocks.len(), leaks.len(), "{text}");
    for (block, leak) in blocks.iter().zip(leaks) {
        let line = block.lines().next().expect("a line");
        let (of_it, kept) = line.split_once(", and with ").unwrap_or((line, ""));
        let (bytes, objects) = of_it.split_once(" in ").expect("objects");
        let (bytes, margin) = bytes.split_once(" ± ").unwrap_or((bytes, "0 B"));
        assert_short(bytes, number(&leak["bytes"]), line);
        assert_short(margin, number(&leak["margin"]), line);
        assert_short(count_in(objects), number(&leak["objects"]).round(), line);
        if let Some((bytes, objects)) = kept.split_once(" in ") {
            let (_, bytes) = bytes.split_once(' ').expect("it or them");
            assert_short(bytes, number(&leak["kept_bytes"]), line);
            let objects = objects.split([',', ' ']).next().expect("a number");
            assert_short(objects, number(&leak["kept_objects"]), line);
        } else {
            // With an interval, what is sampled does not tell which object leads to which.
            assert!(
                number(&leak["kept_bytes"]) == 0.0 || number(&leak["margin"]) > 0.0,
                "{line}"
            );
        }
        let name = leak["stack"][0].as_str().expect("a name");
        assert!(block.contains(&format!("    {name}\n")), "{block}");
    }
}

/// Checks `leaks --path`: the variable that leads to an object, and the memory that only this
/// variable keeps alive.
fn paths(inventory: &Inventory, stacks: &Stacks) {
    for (site, variable, size) in [
        ("site_crew", "crew", 100.0),
        ("site_once", "once", 65_536.0),
    ] {
        let answer = answer(&inventory.scratch, &["leaks", "--path", site, "--json"]);
        let sum = stacks.sum(site);
        for object in answer["objects"].as_array().expect("objects") {
            assert_eq!(number(&object["bytes"]), size, "{object}");
            assert_eq!(object["stack"][0], site, "{object}");
            let root = object["root"].as_str().expect("a root");
            assert!(
                root.starts_with(&format!("variable {variable} + ")),
                "{object}"
            );
            let of = |key: &str| number(&object[key]);
            assert_eq!(of("root_alone_samples"), sum.samples, "{object}");
            assert!(
                (of("root_alone_bytes") - sum.values[IN_USE]).abs() <= 4.0,
                "{object}: {sum:?}"
            );
            assert!(
                (of("root_alone_objects") - sum.live).abs() <= 0.1,
                "{object}: {sum:?}"
            );
            assert_eq!(object["chain"][0]["address"], object["address"], "{object}");
        }
        let text = said(&inventory.scratch, &["leaks", "--path", site]).stdout;
        let kept = after(&text, "Without it, ");
        let (bytes, objects) = kept.split_once(" in ").expect("objects");
        let bytes = bytes.split(" ±").next().expect("a size");
        assert_short(bytes, sum.values[IN_USE], kept);
        assert_count(count_in(objects), sum.live, kept);
    }
}

/// Without a session, `top --once` shows only the memory that is allocated in the second that it
/// waits.
#[test]
fn a_look_shows_what_was_allocated_meanwhile() {
    let scratch = Scratch::new();
    let program = scratch.compile("inventory.c", &[]);
    let mut steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    steps.step("hold");
    let pid = steps.pid().to_string();
    // While nothing is allocated, an empty table says why.
    let idle = run(scratch
        .profiler()
        .args(["top", "--once", "-d", "100ms", "-p", &pid]));
    let why = "no samples yet: it allocated next to nothing in the session";
    assert!(idle.stderr.contains(why), "{idle:?}");
    let asked = Instant::now();
    let mut command = scratch.profiler();
    let look = Session::start(command.args(["top", "--once", "-p", &pid]));
    scratch.wait_for_sampling(steps.pid());
    let before = Instant::now();
    steps.step("more");
    let done = Instant::now();
    let text = look.wait().stdout;
    let given = Instant::now();
    // The session is a probe, which nobody has to stop.
    let title = text.lines().next().expect("a title");
    let (error, uncertain) = after(title, ", live ± ")
        .split_once(", growth ± ")
        .expect("both errors");
    // What the program allocates beside may leave no sample: three intervals of 1 KiB and more.
    let uncertain = Figure::read(uncertain.trim_end_matches("/s"), 1).expect("a rate");
    assert!((1024.0..65_536.0).contains(&uncertain.value), "{title}");
    // Objects of 64 KiB are certain to be sampled; the program itself allocates little beside.
    assert!(
        Figure::read(error, 1).is_some_and(|error| error.value < 65_536.0),
        "{title}"
    );
    let length = Figure::read(
        after(&text, "of the last ")
            .split(" only")
            .next()
            .expect("a time"),
        2,
    );
    let length = length.expect("a time").value;
    assert!(length <= (given - asked).as_secs_f64() + 0.02, "{text}");
    // 20 objects of 64 KiB, which are certain to be sampled; what was freed is older.
    let live = f64::from(20 << 16);
    let mut names = Vec::new();
    for line in below(&text, "GROWTH/s") {
        let cells = columns(line);
        let Some(name) = cells.last() else { continue };
        names.push((*name).to_owned());
        assert_short(
            cells[0],
            if *name == "site_once" { live } else { 0.0 },
            line,
        );
        assert_short(cells[1], live, line);
        for rate in &cells[2..4] {
            let rate = Figure::read(rate.trim_end_matches("/s"), 1).expect("a rate");
            assert!(
                (rate.value - live / length).abs() <= rate.half + 0.02 * live,
                "{line}: {length} s"
            );
        }
        let age = Figure::read(cells[4], 2).expect("an age").value;
        assert!(age <= (given - before).as_secs_f64() + 0.02, "{line}");
        assert!(
            age + 0.02 >= length - (done - asked).as_secs_f64(),
            "{line}"
        );
    }
    for name in ["site_once", "more", "main"] {
        assert!(names.iter().any(|shown| shown == name), "{text}");
    }
    assert!(
        !text.contains("site_churn") && !text.contains("site_power"),
        "{text}"
    );
    steps.target.finish_well();
}

/// Returns the rows of the table that ends a session: process, samples, bytes allocated and in use.
fn closing(stderr: &str) -> Vec<(String, [String; 3])> {
    let rows = stderr
        .lines()
        .filter_map(|line| line.strip_prefix("mem_profiler: "));
    let row = |line: &str| {
        let cells = columns(line);
        let dump = cells.last().filter(|cell| cell.ends_with(".heap"))?;
        let at = cells.len() - 4;
        let cells: Vec<String> = cells[at..at + 3]
            .iter()
            .map(|cell| (*cell).to_owned())
            .collect();
        Some(((*dump).to_owned(), cells.try_into().expect("three")))
    };
    rows.filter_map(row).collect()
}

/// For a program and its child, the table at the end of the session has a row each.
#[test]
fn the_table_at_the_end_has_each_process_s_figures() {
    let scratch = Scratch::new();
    let program = scratch.compile("inventory.c", &[]);
    let mut steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    let mut command = scratch.profiler();
    let session = Session::start(command.args(["-c", "1", "-o", "e_"]));
    scratch.wait_for_sampling(steps.pid());
    steps.step("hold");
    let child = steps.step("fork");
    let child = child[0].strip_prefix("child ").expect("a child").to_owned();
    scratch.wait_for_sampling(child.parse().expect("a pid"));
    let truth = steps.expected();
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let rows = closing(&outcome.stderr);
    assert_eq!(rows.len(), 2, "{outcome:?}");
    for (dump, [samples, allocated, live]) in rows {
        let profile = profile::open(&scratch.file(&dump)).expect("a dump");
        let total = |kind: &str| profile.total(profile.type_index(kind).expect("a column")) as f64;
        assert_short(&samples, total("alloc_objects"), &dump);
        assert_short(&allocated, total("alloc_space"), &dump);
        assert_short(&live, total("inuse_space"), &dump);
        let is_child = dump.contains(&format!(".{child}."));
        let site = |at: usize| truth.values().map(move |site| site.values[at]).sum::<f64>();
        let (objects, own) = if is_child {
            (200.0, 140_000.0)
        } else {
            (site(0), site(1))
        };
        let others = [total("alloc_objects") - objects, total("alloc_space") - own];
        // The C library's, for the threads.
        assert!(
            (0.0..=8.0).contains(&others[0]) && (0.0..8192.0).contains(&others[1]),
            "{dump}: {others:?}"
        );
    }
    steps.target.finish_well();
}

/// `run --leak-check` reports the live and the lost memory at the end of a program.
#[test]
fn a_checked_run_reports_what_was_lost_at_the_end() {
    let scratch = Scratch::new();
    let program = scratch.compile("inventory.c", &[]);
    for interval in ["1", "1024"] {
        let mut command = scratch.profiler();
        command.args(["run", "-c", interval, "--leak-check", "-o", "g_", "--"]);
        let outcome = run(command.arg(&program).arg("end"));
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let text = &outcome.stderr;
        let rows = closing(text);
        let (dump, [samples, allocated, live]) = &rows[0];
        let dump = scratch.file(dump);
        let mut parser = scratch.parser();
        let stacks = Stacks::read(&run(parser.arg("--json").arg(&dump)).stdout);
        let total = stacks.total();
        assert_short(
            samples,
            stacks.0.iter().map(|stack| stack.samples).sum(),
            "samples",
        );
        assert_short(allocated, total[1], "allocated");
        assert_short(live, total[IN_USE], "live");
        let lost = [&stacks.sum("site_lost"), &stacks.sum("site_chain")];
        let [objects, bytes] = [lost.map(|sum| sum.live), lost.map(|sum| sum.values[IN_USE])];
        let head = after(text, "): ");
        let (shown, rest) = head.split_once(" lost in ").expect("what is lost");
        let shown = shown.split(" ± ").next().expect("a size");
        assert_short(shown, bytes.iter().sum(), head);
        assert_count(count_in(rest), objects.iter().sum(), head);
        let shown = rest
            .rsplit("; ")
            .next()
            .expect("what is live")
            .trim_end_matches(" is live");
        assert_short(shown, total[IN_USE], head);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(" leak: "))
            .collect();
        let direct = lines[0].split_once(": ").expect("a size").1;
        let (size, rest) = direct.split_once(" in ").expect("objects");
        assert_short(size.split(" ± ").next().expect("a size"), bytes[0], direct);
        assert_count(count_in(rest), objects[0], direct);
        if interval == "1" {
            assert_eq!([objects.iter().sum::<f64>(), bytes.iter().sum()], LOST);
            let chain = "Direct leak: 1.5 KiB in 1 object, and with it 13.2 KiB in 9, from";
            assert!(lines.contains(&chain), "{text}");
        }
    }
}

/// `serve` gives the processes as JSON, the metrics, and the profile.
#[test]
fn the_server_says_what_a_dump_says() {
    for interval in ["1", "1024"] {
        let scratch = Scratch::new();
        let server = Server::start(&scratch, &[]);
        let mut steps = sampled_by(&server, &scratch, interval);
        let pid = steps.pid();
        let profile = server
            .get(&format!("/debug/pprof/heap?pid={pid}"))
            .profile();
        let mut command = scratch.profiler();
        let dumped = run(command.args(["dump", "-o", "d_", "-p", &pid.to_string()]));
        let dump = scratch.file(&dumped.dump().to_string_lossy());
        let mut parser = scratch.parser();
        let stacks = Stacks::read(&run(parser.arg("--json").arg(&dump)).stdout);
        stacks.assert_true(&steps.expected(), interval);
        let total = stacks.total();
        for (at, kind) in [
            "alloc_objects",
            "alloc_space",
            "inuse_objects",
            "inuse_space",
        ]
        .iter()
        .enumerate()
        {
            let served = profile.total(profile.type_index(kind).expect("a column")) as f64;
            assert!(
                (served - total[at]).abs() <= stacks.0.len() as f64,
                "{kind}: {served} {total:?}"
            );
        }
        let metrics = server.get("/metrics").expect(200);
        let of = |name: &str| {
            let label = format!("mem_profiler_{name}{{pid=\"{pid}\",process=\"inventory\"}} ");
            after(&metrics, &label).parse::<f64>().expect("a number")
        };
        let samples: f64 = stacks.0.iter().map(|stack| stack.samples).sum();
        let error = half_width(total[IN_USE], stacks.total_variances()[IN_USE]);
        for (name, truth, allowed) in [
            ("session_running", 1.0, 0.0),
            ("interval_bytes", interval.parse().expect("a number"), 0.0),
            ("live_bytes", total[IN_USE], 32.0),
            ("live_error_bytes", error, 1.0 + 1e-3 * error),
            ("live_objects", total[2], 32.0),
            ("allocated_bytes_total", total[1], 32.0),
            ("allocated_objects_total", total[0], 32.0),
            ("samples_total", samples, 0.0),
            ("table_full_samples_total", 0.0, 0.0),
            ("table_merged_samples_total", 0.0, 0.0),
        ] {
            let shown = of(name);
            let allowed = if interval == "1" { 0.0 } else { allowed };
            assert!(
                (shown - truth).abs() <= allowed,
                "{name} at {interval}: {shown}, {truth} is true"
            );
        }
        // The list may be a second old.
        let row = &wait::until("the row with all samples", || {
            let rows = server.get("/api/processes").expect(200);
            let rows: Value = serde_json::from_str(&rows).expect("JSON");
            let row = rows["processes"][0].clone();
            (row["samples"].as_f64() == Some(samples)).then_some(row)
        });
        assert_eq!(row["interval"].to_string(), interval, "{row}");
        assert_eq!(
            (&row["pid"], &row["ours"]),
            (&pid.into(), &true.into()),
            "{row}"
        );
        assert!(number(&row["rss_bytes"]) >= total[IN_USE] * 0.98, "{row}");
        let segments = of("segment_bytes");
        assert!(
            segments > 0.0 && segments <= scratch.shared_bytes() as f64 * 1.01,
            "{segments}"
        );
        server.stop();
        steps.target.finish_well();
    }
}
