//! Views of a session whose interval follows a limit on its cost, for a program with several kinds
//! of histories, all of which are known by construction.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mem_tests::figures::{Figure, after};
use mem_tests::planted::{BARS, COLUMNS, Stacks, suspects_of};
use mem_tests::truth::{self, Site};
use mem_tests::{Outcome, Scratch, Session, Steps, run, sums, wait};
use profile::{IntervalPeriod, Profile};
use serde_json::Value;

/// Dumps of a session.
const DUMPS: usize = 4;
/// Steps of the program between two dumps: as many as empty the cache twice.
const STEPS: usize = 6;
/// Half-width of a printed 95 % interval, in standard errors.
const BAR: f64 = 1.96;

/// A dump with the truth at its moment. The program rests while one is taken.
struct Moment {
    dump: PathBuf,
    truth: BTreeMap<String, Site>,
}

struct Workshop {
    scratch: Scratch,
    steps: Steps,
    session: Session,
    moments: Vec<Moment>,
}

impl Workshop {
    /// Runs the program in a session with the default limit, and takes the dumps.
    fn run() -> Self {
        let scratch = Scratch::new();
        let program = scratch.compile("workshop.c", &["-lpthread"]);
        let mut steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
        let pid = steps.pid().to_string();
        let prefix = scratch.file("prof_");
        let session = Session::start(scratch.profiler().args(["-p", &pid, "-o"]).arg(prefix));
        scratch.wait_for_sampling(steps.pid());
        steps.step("begin");
        let mut shop = Self {
            scratch,
            steps,
            session,
            moments: Vec::new(),
        };
        for _ in 0..DUMPS {
            for _ in 0..STEPS {
                shop.steps.step("step");
            }
            let truth = truth::expected(&shop.steps.step("expected"));
            let outcome = shop.said(&["dump", "-o", "d_", "-p", &pid]);
            let dump = shop.scratch.file(&outcome.dump().to_string_lossy());
            shop.moments.push(Moment { dump, truth });
        }
        shop
    }

    #[track_caller]
    fn said(&self, args: &[&str]) -> Outcome {
        let outcome = run(self.scratch.profiler().args(args));
        assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
        outcome
    }

    /// Returns the output of the parser for the last dump.
    #[track_caller]
    fn parsed(&self, args: &[&str], dumps: &[&PathBuf]) -> String {
        let outcome = run(self.scratch.parser().args(args).args(dumps));
        assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
        outcome.stdout
    }
}

fn opened(moment: &Moment) -> Profile {
    profile::open(&moment.dump).expect("a dump that can be read")
}

/// Checks the sites of each dump: within [`BARS`] bars where there are 300 samples or more.
fn check_estimates(shop: &Workshop) {
    for moment in &shop.moments {
        let stacks = Stacks::read(&shop.parsed(&["--json"], &[&moment.dump]));
        for (name, site) in &moment.truth {
            let sum = stacks.sum(name);
            let live = sum.samples * sum.values[2] / sum.values[0].max(1.0);
            for (column, what) in COLUMNS.iter().enumerate() {
                let samples = if column < 2 { sum.samples } else { live };
                let is_sure = sum.variances[column] == 0.0;
                if samples < 300.0 && !is_sure {
                    continue;
                }
                let allowed = BARS * BAR * sum.variances[column].sqrt() + 2.0;
                let off = (sum.values[column] - site.values[column]).abs();
                assert!(off <= allowed, "{name}, {what}: off by {off}, ± {allowed}");
            }
        }
        let huge = stacks.sum("site_huge");
        assert_eq!(huge.values[3], 40.0 * 1_048_576.0);
    }
}

/// Checks the intervals of the last dump, and the lines about them.
fn check_intervals(shop: &Workshop) {
    let last = shop.moments.last().expect("a moment");
    let facts = opened(last).facts;
    let periods = &facts.intervals;
    assert!(
        periods.len() >= 2,
        "the interval has not changed: {periods:?}"
    );
    assert_eq!(periods[0].interval, 1024);
    // At 1024, the first step takes far more than the limit, and each period's share is its own.
    let share = |period: &IntervalPeriod| period.overhead.map(|share| f64::from(share) / 1e6);
    let first = share(&periods[0]).expect("a share");
    assert!((0.01..=1.0).contains(&first), "{periods:?}");
    assert!(periods.iter().all(|period| period.interval >= 1024));
    let table = shop.parsed(&["-t"], &[&last.dump]);
    let line = after(&table, "\nInterval: ");
    let shown = line.split(['(', '%']).nth(1).expect("a share");
    let shown: f64 = shown.parse().expect("a number");
    assert!((shown / 100.0 - first).abs() < 0.0001, "{line}, {first}");
    // The difference has those since its start.
    let earlier = &shop.moments[1];
    let change = shop.parsed(&["-t", "--base"], &[&earlier.dump, &last.dump]);
    let start = opened(earlier).facts.end_unix_ns.expect("an end");
    let later = periods
        .iter()
        .filter(|period| period.from_unix_ns > start)
        .count();
    let listed = change.lines().find(|line| line.starts_with("Interval: "));
    assert_eq!(later > 0, listed.is_some(), "{change}");
    let current = periods
        .iter()
        .rev()
        .find(|period| period.from_unix_ns <= start);
    if let (Some(line), Some(current)) = (listed, current) {
        let begins = format!("Interval: {} bytes ", current.interval);
        assert!(line.starts_with(&begins), "{line}, {begins}");
    }
    let cost = [earlier, last].map(|moment| opened(moment).facts.cost.expect("a cost"));
    let since = format!("Cost: {} of CPU time", cost[1].since(&cost[0]).share());
    assert!(change.contains(&since), "{change}, {since}");
}

/// Checks the functions of a difference: within [`BARS`] of the bars that are printed.
fn check_change(shop: &Workshop) {
    let [earlier, last] = [&shop.moments[1], &shop.moments[DUMPS - 1]];
    for (column, what) in COLUMNS.iter().enumerate() {
        let args = ["--json", "--ci", what, "--base"];
        let json = shop.parsed(&args, &[&earlier.dump, &last.dump]);
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let functions = json["functions"].as_array().expect("functions");
        for (name, site) in &last.truth {
            let truth = site.values[column] - earlier.truth[name].values[column];
            let row = functions.iter().find(|row| row["name"] == name.as_str());
            let number = |key: &str| row.map_or(0.0, |row| row[key].as_f64().expect("a number"));
            let (change, bar) = (number("flat"), number("flat_error"));
            if name == "site_huge" {
                assert_eq!((change, bar), (0.0, 0.0), "{what}");
            } else if row.is_some() {
                let off = (change - truth).abs();
                assert!(
                    off <= BARS * bar + 2.0,
                    "{name}, {what}: {change} ± {bar}, true {truth}"
                );
            }
        }
    }
}

/// Returns the growth in bytes per second of a line through the points, in time and bytes.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let time = points.iter().map(|point| point.0).sum::<f64>() / count;
    let spread: f64 = points.iter().map(|point| (point.0 - time).powi(2)).sum();
    let sum: f64 = points.iter().map(|point| (point.0 - time) * point.1).sum();
    sum / spread
}

/// Checks growth: within [`BARS`] of the bars that are printed. Verdicts may be by chance, but for
/// what is certain.
fn check_growth(shop: &Workshop) {
    let dumps: Vec<&PathBuf> = shop.moments.iter().map(|moment| &moment.dump).collect();
    let text = shop.parsed(&["--leaks", "-n", "0"], &dumps);
    let suspects = suspects_of(&text);
    let unit = after(&text, " growth/").split(' ').next().expect("a unit");
    let unit_seconds = match unit {
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        other => panic!("growth per {other:?}"),
    };
    let end = |moment: &Moment| opened(moment).facts.end_unix_ns.expect("an end");
    let ends: Vec<u64> = shop.moments.iter().map(end).collect();
    let times = ends.iter().map(|end| (end - ends[0]) as f64 / 1e9);
    let mut compared = 0;
    for site in shop.moments[0].truth.keys() {
        let is_it = |name: &String| name == site;
        let Some(row) = suspects
            .iter()
            .find(|suspect| suspect.frames.iter().any(is_it))
        else {
            continue;
        };
        let [rate, bar] = [0, 1].map(|at| {
            let figure = Figure::read(&row.growth[at], 2);
            figure.unwrap_or_else(|| panic!("{site}: {:?}", row.growth))
        });
        let live = shop
            .moments
            .iter()
            .map(|moment| moment.truth[site].values[3]);
        let points: Vec<(f64, f64)> = times.clone().zip(live).collect();
        let growth = match row.verdict.as_str() {
            "once" | "stopped" => slope(&[points[0], points[DUMPS - 1]]),
            _ => slope(&points),
        };
        let truth = growth * unit_seconds;
        let off = (rate.value - truth).abs();
        let allowed = BARS * bar.value + rate.half + bar.half;
        assert!(off <= allowed, "{site}: {:?}, true {truth}", row.growth);
        if site == "site_huge" {
            assert_eq!((row.verdict.as_str(), bar.value), ("level", 0.0));
        }
        compared += 1;
    }
    assert!(compared >= 5, "only {compared} sites have a row");
}

/// Checks what `list`, `top` and `leaks` say of the interval, while the program rests.
fn check_controller(shop: &Workshop) {
    let pid = shop.steps.pid().to_string();
    let last = opened(shop.moments.last().expect("a moment")).facts;
    let now = last.intervals.last().expect("a period").interval;
    let list = shop.said(&["list", "-p", &pid, "--json"]).stdout;
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list[0]["interval"].as_u64(), Some(now), "{list}");
    let top = shop.said(&["top", "--once", "-p", &pid]).stdout;
    let title = if now == 1024 {
        "every 1024 bytes, ".to_owned()
    } else {
        format!("every {now} bytes now, ")
    };
    assert!(top.contains(&title), "{top}, {title}");
    // Nothing is lost. A leak might have begun at the widest interval.
    let widest = last.intervals.iter().map(|period| period.interval).max();
    let leaks = shop.said(&["leaks", "-p", &pid]).stdout;
    let least = after(&leaks, "one of less than ");
    let least = least.trim_end_matches("may have no sample");
    let figure = Figure::read(least, 1).unwrap_or_else(|| panic!("{leaks}"));
    assert!(figure.is(3.0 * widest.expect("a period") as f64), "{leaks}");
}

#[test]
fn a_session_with_a_limit_is_described_truly() {
    let shop = Workshop::run();
    check_estimates(&shop);
    check_intervals(&shop);
    check_change(&shop);
    check_growth(&shop);
    check_controller(&shop);
    shop.session.stop();
    shop.steps.target.finish_well();
}

/// Objects of the children of `workers.c`, by the number of the child.
const OF_CHILD: [f64; 3] = [1000.0, 2000.0, 3000.0];

/// Children that allocate at different rates have separate dumps. The profile of a process ends
/// when it executes a program, even the same one again.
#[test]
fn children_are_described_apart_and_until_they_execute_a_program() {
    let scratch = Scratch::new();
    let program = scratch.compile("workers.c", &[]);
    let mut steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    let session = Session::of(&scratch, steps.pid(), "1");
    let said = steps.step("work");
    let pids = after(&said.join("\n"), "children ").to_owned();
    let pids: Vec<u32> = (pids.split(' '))
        .map(|pid| pid.parse().expect("a pid"))
        .collect();
    // Its dump is written when the controller has seen the next image.
    let of_third = format!(".{}.", pids[2]);
    let executed = wait::until("the dump of what has executed a program", || {
        let files = std::fs::read_dir(scratch.files()).expect("a directory");
        let mut paths = files.map(|file| file.expect("a file").path());
        paths.find(|path| {
            let name = path.to_string_lossy();
            name.contains(&of_third) && name.ends_with(".heap")
        })
    });
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for (pid, objects) in pids.iter().zip(OF_CHILD) {
        let profile = outcome.profile_of(*pid);
        let column = profile.type_index("inuse_space").expect("a column");
        let site = sums(&profile, &[&program], "site_worker");
        let live: f64 = site.values().map(|sum| sum.detail.live_bytes()).sum();
        assert_eq!(live, objects * 500.0, "{pid}");
        assert!(profile.total(column) as f64 >= live, "{pid}");
    }
    let ended = profile::open(&executed).expect("a dump").facts;
    let other = outcome.profile_of(pids[0]).facts;
    assert!(ended.end_unix_ns < other.end_unix_ns, "{ended:?} {other:?}");
    steps.target.finish_well();
}
