//! Views of a program whose history is known by construction (`history.c`): values are exact if
//! everything is sampled, and within their error bars if one byte in 1024 is sampled. Also verdicts
//! in words.
//!
//! `MEM_TESTS_PLANTED=all` repeats it at more intervals and with more steps, as before a release.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mem_tests::figures::{Figure, after};
use mem_tests::planted::{BARS, Suspect, suspects_of};
use mem_tests::{Scratch, Session, Steps, run};
use profile::variance::QUANTILE;
use serde_json::Value;

/// What a site has in truth: objects and bytes in use, and those allocated so far.
type Truth = BTreeMap<String, [f64; 4]>;

/// The dumps of a history, one after each step, and the truth at each.
struct History {
    scratch: Scratch,
    steps: Steps,
    session: Session,
    dumps: Vec<PathBuf>,
    truths: Vec<Truth>,
    /// When its steps were taken.
    times: Vec<Instant>,
}

fn is_full() -> bool {
    std::env::var("MEM_TESTS_PLANTED").is_ok_and(|what| what == "all")
}

fn truth(lines: &[String]) -> Truth {
    let site = |line: &String| {
        let mut fields = line.split(' ');
        let name = fields.next().expect("a name").to_owned();
        let mut number = || {
            fields
                .next()
                .and_then(|n| n.parse().ok())
                .expect("a number")
        };
        (name, [number(), number(), number(), number()])
    };
    lines.iter().map(site).collect()
}

impl History {
    /// Runs it for so many steps, in a session with this interval.
    fn of(interval: &str, steps: usize) -> Self {
        Self::paced(interval, steps, Duration::ZERO)
    }

    /// Runs it with steps at equal distances: at larger ones while the machine is too busy for
    /// these.
    fn even(interval: &str, steps: usize) -> Self {
        let mut distance = Duration::from_millis(250);
        for _ in 0..8 {
            let history = Self::paced(interval, steps, distance);
            let even = history.times.windows(2).all(|pair| {
                let off = (pair[1] - pair[0]).as_secs_f64() / distance.as_secs_f64() - 1.0;
                off.abs() < 0.3
            });
            if even {
                return history;
            }
            history.end();
            distance = distance * 3 / 2;
        }
        panic!("no history of even steps, not even {distance:?} apart");
    }

    fn paced(interval: &str, steps: usize, distance: Duration) -> Self {
        let scratch = Scratch::new();
        let program = scratch.compile("history.c", &[]);
        let mut program = Steps::run(program.clone(), &mut scratch.preloaded(&program));
        let session = Session::of(&scratch, program.pid(), interval);
        program.step("begin");
        let (mut dumps, mut truths, mut times) = (Vec::new(), Vec::new(), Vec::new());
        let begun = Instant::now();
        for step in 0..steps {
            let due = begun + distance * step as u32;
            sleep(due.saturating_duration_since(Instant::now()));
            program.step("step");
            times.push(Instant::now());
            let mut command = scratch.profiler();
            let pid = program.pid().to_string();
            let outcome = run(command.args(["dump", "-o", "d_", "-p", &pid]));
            dumps.push(scratch.file(&outcome.dump().to_string_lossy()));
            truths.push(truth(&program.step("expected")));
        }
        Self {
            scratch,
            steps: program,
            session,
            dumps,
            truths,
            times,
        }
    }

    fn parse(&self, args: &[&str], dumps: &[PathBuf]) -> String {
        let mut command = self.scratch.parser();
        let outcome = run(command.args(args).args(dumps));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.stdout
    }

    /// Returns the figures of `--leaks` for each site, with the time in seconds that its rates are
    /// for.
    fn suspects(&self) -> (BTreeMap<String, Suspect>, f64) {
        let text = self.parse(&["--leaks"], &self.dumps);
        let unit = after(&text, "growth/").split(' ').next().expect("a unit");
        let units = [("s", 1.0), ("min", 60.0), ("h", 3600.0), ("day", 86_400.0)];
        let seconds = units
            .iter()
            .find(|(name, _)| *name == unit)
            .expect("a unit")
            .1;
        let rows = suspects_of(&text).into_iter();
        (
            rows.map(|row| (row.frames[0].clone(), row)).collect(),
            seconds,
        )
    }

    /// Returns the growth of a site's bytes in use per second in truth: the slope of a line through
    /// them, or, where it ended, the change over the whole time.
    fn growth(&self, site: &str, has_ended: bool) -> f64 {
        let at = |dump: &PathBuf| {
            let facts = profile::open(dump).expect("a dump").facts;
            facts.end_unix_ns.expect("a time") as f64 / 1e9
        };
        let bytes = self.truths.iter().map(|truth| truth[site][1]);
        let points: Vec<[f64; 2]> = self
            .dumps
            .iter()
            .map(at)
            .zip(bytes)
            .map(|(t, b)| [t, b])
            .collect();
        let [first, last] = [points[0], points[points.len() - 1]];
        if has_ended {
            return (last[1] - first[1]) / (last[0] - first[0]);
        }
        let mean =
            |at: usize| points.iter().map(|point| point[at]).sum::<f64>() / points.len() as f64;
        let (time, level) = (mean(0), mean(1));
        let spread: f64 = points.iter().map(|point| (point[0] - time).powi(2)).sum();
        let product: f64 = points
            .iter()
            .map(|point| (point[0] - time) * (point[1] - level))
            .sum();
        product / spread
    }

    fn end(self) {
        let outcome = self.session.stop();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        self.steps.target.finish_well();
    }

    fn last(&self) -> (&Path, &Truth) {
        let dump = self.dumps.last().expect("a dump");
        (dump, self.truths.last().expect("its truth"))
    }
}

/// Estimates of each site by the page's data and their standard errors: objects and bytes in use,
/// and all.
fn estimates(json: &str) -> BTreeMap<String, ([f64; 4], [f64; 4])> {
    let json: Value = serde_json::from_str(json).expect("JSON");
    let mut sites: BTreeMap<String, ([f64; 4], [f64; 4])> = BTreeMap::new();
    for stack in json["stacks"].as_array().expect("stacks") {
        let frame = stack["frames"][0].as_u64().expect("a frame") as usize;
        let name = json["frames"][frame]["name"].as_str().expect("a name");
        let number = |key: &str| stack["detail"][key].as_f64().expect("a number");
        let all = [number("alloc_objects"), number("alloc_bytes")];
        let values = [
            all[0] - number("freed_objects"),
            all[1] - number("freed_bytes"),
            all[0],
            all[1],
        ];
        let variances = [
            number("live_object_variance"),
            number("live_variance"),
            number("alloc_object_variance"),
            number("alloc_variance"),
        ];
        let site = sites.entry(name.to_owned()).or_default();
        for at in 0..4 {
            site.0[at] += values[at];
            site.1[at] += variances[at];
        }
    }
    sites
}

/// Checks that values differ from the truth by at most six of the standard errors that the dump
/// states: more occurs by chance once in 1e9 values.
#[track_caller]
fn assert_values(found: &BTreeMap<String, ([f64; 4], [f64; 4])>, truth: &Truth, what: &str) {
    for (site, truth) in truth {
        let (values, variances) = found.get(site).copied().unwrap_or_default();
        for at in 0..4 {
            let allowed = 6.0 * variances[at].sqrt() + 1e-6 * truth[at];
            let off = (values[at] - truth[at]).abs();
            assert!(
                off <= allowed,
                "{what}, {site}, value {at}: {} where {} is true, ± {allowed}",
                values[at],
                truth[at]
            );
        }
    }
}

/// Returns the size in bytes of a number with a unit.
fn bytes(number: &str, unit: &str) -> f64 {
    let scale = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        _ => panic!("{number} {unit}: no such unit"),
    };
    number.parse::<f64>().expect("a number") * scale
}

#[test]
fn every_dump_of_a_history_has_its_values() {
    let (intervals, steps) = match is_full() {
        true => (&["1", "128", "1024", "16384"][..], 40),
        false => (&["1", "1024"][..], 8),
    };
    for interval in intervals {
        let history = History::of(interval, steps);
        for (dump, truth) in history.dumps.iter().zip(&history.truths) {
            let json = history.parse(&["--json"], std::slice::from_ref(dump));
            assert_values(&estimates(&json), truth, &format!("-c {interval}"));
        }
        history.end();
    }
}

/// Each column of each view adds up to the program's true values, which are exact at `-c 1`.
#[test]
fn views_of_one_moment_agree_with_the_history() {
    let history = History::of("1", 6);
    let (dump, truth) = history.last();
    let (dump, first) = (dump.to_owned(), history.dumps[0].clone());
    let live = |site: &str| truth[site][1];
    let csv = |args: &[&str]| {
        let text = history.parse(
            &[&["--csv", "--nodefraction", "0"], args].concat(),
            std::slice::from_ref(&dump),
        );
        let row = |line: &str| {
            let mut fields = line.split(',');
            let name = fields.next()?.trim_matches('"').to_owned();
            let value: f64 = fields.next()?.parse().ok()?;
            name.starts_with("site_").then_some((name, value))
        };
        text.lines().filter_map(row).collect::<BTreeMap<_, _>>()
    };
    for (flag, at) in [
        ("--inuse_objects", 0),
        ("--inuse_space", 1),
        ("--alloc_objects", 2),
        ("--alloc_space", 3),
    ] {
        let rows = csv(&[flag]);
        for (site, truth) in truth {
            let value = rows.get(site).copied().unwrap_or(0.0);
            assert_eq!(value, truth[at], "{flag} {site}");
        }
    }
    // Changes since the first dump.
    let base = csv(&["--inuse_space", "--base", &first.to_string_lossy()]);
    for (site, truth) in truth {
        let change = truth[1] - history.truths[0][site][1];
        let value = base.get(site).copied().unwrap_or(0.0);
        assert_eq!(value, change, "--base {site}");
    }
    // Sizes of powers of two are the first of their class.
    let sizes = history.parse(&["--sizes"], std::slice::from_ref(&dump));
    let class = |name: &str| {
        let line = sizes
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name}: not in {sizes}"));
        let rest = line.trim_start().strip_prefix(name).expect("a class");
        let mut words = rest.split_whitespace();
        bytes(
            words.next().expect("a number"),
            words.next().expect("a unit"),
        )
    };
    let near = |found: f64, truth: f64| (found - truth).abs() <= truth * 0.005;
    let of_4096 = live("site_stopped") + live("site_cache") + live("site_shrinks");
    for (name, truth) in [
        ("4-8 KiB", of_4096),
        ("64-128 KiB", live("site_once")),
        ("512-1023 B", live("site_ring")),
        ("256-511 B", live("site_steady")),
    ] {
        assert!(near(class(name), truth), "{name}: {truth} in {sizes}");
    }
    assert!(
        !sizes.contains("2-4 KiB") && !sizes.contains("32-64 KiB"),
        "{sizes}"
    );
    // All of it is freed at once at one site. On a fast machine, the ring's objects may live for a
    // few milliseconds only, but the last ones stay.
    let temporary = history.parse(&["--temporary"], &[dump]);
    let is_all = |site: &str| {
        let mut rows = temporary.lines().filter(|line| line.ends_with(site));
        rows.any(|row| row.split_whitespace().nth(3) == Some("100%"))
    };
    assert!(is_all("site_moment"), "{temporary}");
    assert!(!is_all("site_ring"), "{temporary}");
    history.end();
}

/// Checks continuing growth, growth that ended, and no growth.
#[test]
fn verdicts_are_those_of_the_history() {
    let intervals = if is_full() {
        &["1", "128", "1024"][..]
    } else {
        &["1", "1024"]
    };
    for interval in intervals {
        let history = History::even(interval, 12);
        let (suspects, seconds) = history.suspects();
        for (site, expected) in [
            ("site_once", &["level"][..]),
            ("site_steady", &["steady"]),
            ("site_stopped", &["stopped"]),
            // At 1024 their samples differ from dump to dump: chance may give them a trend that is
            // as small as their bars, and never more.
            ("site_cache", &["level", "unclear", "shrinks", "steady"]),
            ("site_ring", &["level", "unclear", "shrinks", "steady"]),
            ("site_shrinks", &["shrinks"]),
        ] {
            let expected = match *interval {
                "1" if expected.len() > 1 => &expected[..1],
                _ => expected,
            };
            let suspect = &suspects[site];
            let found = suspect.verdict.as_str();
            assert!(expected.contains(&found), "-c {interval} {site}: {found}");
            let truth = history.growth(site, found == "stopped");
            let [rate, bar] =
                [0, 1].map(|at| Figure::read(&suspect.growth[at], 2).expect("a number"));
            let off = (rate.value / seconds - truth).abs();
            // Dumps have their times in two clocks, which differ by one tick of the agent.
            const TIMES: f64 = 0.005;
            // If every object is sampled, the error bar is the variation of the program.
            let by_chance = if *interval == "1" {
                0.0
            } else {
                BARS * bar.value
            };
            let allowed = (rate.half + bar.half + by_chance) / seconds + truth.abs() * TIMES;
            assert!(
                off <= allowed,
                "-c {interval} {site}: {:?}, {truth} B/s is true",
                suspect.growth
            );
        }
        assert!(!suspects.contains_key("site_moment"));
        history.end();
    }
}

/// While the lifetimes of objects stay the same, so do their ages, in each second of the session.
#[test]
fn the_age_of_a_ring_does_not_drift() {
    const LIFETIME_MS: f64 = 500.0;
    let seconds = if is_full() { 600 } else { 12 };
    let scratch = Scratch::new();
    let program = scratch.compile("history.c", &[]);
    let mut steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    let session = Session::of(&scratch, steps.pid(), "1024");
    steps.step("begin");
    for second in 1..=seconds {
        let begun = Instant::now();
        steps.step(&format!("age {LIFETIME_MS}"));
        // On a machine that stalls the program, objects grow older than they should.
        let stalled_ms = (begun.elapsed().as_secs_f64() - 1.0).max(0.0) * 1e3;
        if second < 3 || second % 4 != 0 {
            continue;
        }
        let mut command = scratch.profiler();
        let pid = steps.pid().to_string();
        let outcome = run(command.args(["dump", "-o", "d_", "-p", &pid]));
        let dump = scratch.file(&outcome.dump().to_string_lossy());
        let taken_ms = begun.elapsed().as_secs_f64() * 1e3 - 1000.0;
        let json = run(scratch.parser().arg("--json").arg(dump)).stdout;
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let (mut ages, mut objects, mut bars) = (0.0, 0.0, Vec::new());
        for stack in json["stacks"].as_array().expect("stacks") {
            let frame = stack["frames"][0].as_u64().expect("a frame") as usize;
            if json["frames"][frame]["name"] == "site_ring" {
                let number = |key: &str| stack["detail"][key].as_f64().expect("a number");
                ages += number("live_age_ms_sum");
                let live = number("alloc_objects") - number("freed_objects");
                objects += live;
                if live == 0.0 {
                    continue;
                }
                // Ages are spread evenly from 0 to the lifetime, whatever the session's length.
                let samples = number("alloc_samples") - number("free_samples");
                let spread = LIFETIME_MS / 12_f64.sqrt();
                let exact = QUANTILE * spread * ((1.0 - samples / live) / samples).sqrt();
                bars.push((number("live_age_error_ms"), exact));
            }
        }
        let age = ages / objects;
        let [(bar, exact)] = bars[..] else {
            panic!("one stack: {bars:?}");
        };
        let stretched = exact * (1.0 + (taken_ms + stalled_ms) / LIFETIME_MS);
        assert!(
            (exact * 0.8..=stretched * 1.3).contains(&bar),
            "after {second} s: ± {bar} ms, {exact} is right"
        );
        let (least, most) = (LIFETIME_MS * 0.4, LIFETIME_MS * 0.6 + taken_ms + stalled_ms);
        assert!(
            (least..=most).contains(&age),
            "after {second} s: {age} ms, at most {most}"
        );
    }
    session.stop();
    steps.target.finish_well();
}
