//! The last profile of a program whose history is known by construction (`history.c`): what it frees
//! at its exit, and the ages of its objects at that time.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mem_tests::planted::suspects_of;
use mem_tests::{Scratch, Session, Steps, run};
use serde_json::Value;

/// Sites of `history.c`.
const SITES: [&str; 7] = [
    "site_once",
    "site_steady",
    "site_stopped",
    "site_cache",
    "site_ring",
    "site_shrinks",
    "site_moment",
];

fn start(scratch: &Scratch, environment: &[(&str, &str)]) -> Steps {
    let program = scratch.compile("history.c", &[]);
    let mut command = scratch.preloaded(&program);
    Steps::run(program, command.envs(environment.iter().copied()))
}

/// Returns the sum of a number over the stacks of a site.
fn sum(json: &Value, site: &str, key: &str) -> f64 {
    let stacks = json["stacks"].as_array().expect("stacks").iter();
    let of_site = stacks.filter(|stack| {
        let frame = stack["frames"][0].as_u64().expect("a frame") as usize;
        json["frames"][frame]["name"] == site
    });
    let number = |stack: &Value| stack["detail"][key].as_f64().expect("a number");
    of_site.map(number).sum()
}

fn parse(scratch: &Scratch, arguments: &[&str], dumps: &[PathBuf]) -> String {
    let outcome = run(scratch.parser().args(arguments).args(dumps));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}

fn json(scratch: &Scratch, dump: &Path) -> Value {
    let text = parse(scratch, &["--json"], &[dump.to_owned()]);
    serde_json::from_str(&text).expect("JSON")
}

/// A program that frees everything at its exit holds nothing in the last profile, has allocated all
/// of it, and its growth is that of the time before: the exit is not one more moment of the series.
#[test]
fn what_a_program_frees_at_its_exit_is_no_part_of_its_growth() {
    let scratch = Scratch::new();
    let mut program = start(&scratch, &[]);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("begin");
    let mut dumps = Vec::new();
    for _ in 0..6 {
        program.step("step");
        let pid = program.pid().to_string();
        let outcome = run(scratch.profiler().args(["dump", "-o", "d_", "-p", &pid]));
        dumps.push(scratch.file(&outcome.dump().to_string_lossy()));
    }
    program.step("free");
    let truth = program.step("expected");
    program.target.finish_well();
    let last = session.wait().dump();
    let json = json(&scratch, &last);
    for line in &truth {
        let mut fields = line.split(' ');
        let site = fields.next().expect("a site");
        let [objects, bytes, all, all_bytes]: [f64; 4] = std::array::from_fn(|_| {
            fields
                .next()
                .and_then(|n| n.parse().ok())
                .expect("a number")
        });
        assert!(
            SITES.contains(&site) && [objects, bytes] == [0.0; 2],
            "{line}"
        );
        for (key, value) in [
            ("alloc_objects", all),
            ("alloc_bytes", all_bytes),
            ("freed_objects", all),
            ("freed_bytes", all_bytes),
        ] {
            assert_eq!(sum(&json, site, key), value, "{site} {key}");
        }
    }
    let verdicts = |dumps: &[PathBuf]| -> Vec<(String, String)> {
        let text = parse(&scratch, &["--leaks"], dumps);
        let rows = suspects_of(&text).into_iter();
        rows.map(|row| (row.frames[0].clone(), row.verdict))
            .collect()
    };
    let before = verdicts(&dumps);
    let word = |site: &str| {
        let row = before.iter().find(|(name, _)| name == site);
        row.map(|(_, verdict)| verdict.as_str()).expect("a row")
    };
    assert_eq!(word("site_once"), "level");
    assert_eq!(word("site_shrinks"), "shrinks");
    dumps.push(last);
    assert_eq!(verdicts(&dumps), before);
}

/// The ages in the profile of a program that has exited are those at its exit, by whatever exit, not
/// those when somebody fetches the profile.
#[test]
fn ages_are_those_at_the_exit() {
    for how in ["return", "leave"] {
        let scratch = Scratch::new();
        let environment = [("MEM_PROFILER_START", "1"), ("MEM_PROFILER_INTERVAL", "1")];
        let mut program = start(&scratch, &environment);
        let begun = Instant::now();
        program.step("begin");
        let allocated = Instant::now();
        sleep(Duration::from_millis(300));
        let least = allocated.elapsed();
        if how == "leave" {
            program.target.say("leave");
        }
        program.target.finish_well();
        let most = begun.elapsed();
        // More than what is known of a process that was killed: a second.
        sleep(Duration::from_millis(1500));
        let outcome = run(scratch.profiler().args(["recover", "-o", "r_"]));
        let json = json(&scratch, &scratch.file(&outcome.dump().to_string_lossy()));
        let [ages, objects] =
            ["live_age_ms_sum", "alloc_objects"].map(|key| sum(&json, "site_once", key));
        assert_eq!(objects, 320.0, "{how}");
        let age = Duration::from_secs_f64(ages / objects / 1e3);
        /// Resolution of ages: two ticks of the agent's clock.
        const TICKS: Duration = Duration::from_millis(10);
        assert!(
            (least.saturating_sub(TICKS)..=most + TICKS).contains(&age),
            "{how}: {age:?}, {least:?} to {most:?} is true"
        );
    }
}
