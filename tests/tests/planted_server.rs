//! The server's history of a process: the truth is known at each of its points, and its rates are
//! those between the points.

use std::time::{SystemTime, UNIX_EPOCH};

use mem_tests::planted::{IN_USE, Stacks, sampled_by};
use mem_tests::{Scratch, Server, Steps, run, wait};
use serde_json::{Value, json};

/// Column of the bytes allocated.
const ALLOCATED: usize = 1;
/// Maximum number of points, the last ones, that a rate is computed over.
const RATE_POINTS: usize = 6;
/// Bytes that the server's sums and a dump's may differ by, from rounding.
const ROUNDING: f64 = 32.0;

fn unix_ms() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a time after 1970").as_secs_f64() * 1e3
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn row(server: &Server) -> Value {
    let list = || json_at(server, "/api/processes");
    // Both answers must be of one version of the list.
    loop {
        let before = list();
        let mut row = before["processes"][0].clone();
        if row.is_null() {
            return row;
        }
        let history = json_at(server, &format!("/api/history?pid={}", row["pid"]));
        row["history"] = history["points"].clone();
        if list()["version"] == before["version"] {
            return row;
        }
    }
}

fn json_at(server: &Server, path: &str) -> Value {
    serde_json::from_str(&server.get(path).expect(200)).expect("JSON")
}

/// Waits for a point that is not older than this, in ms.
fn wait_for_point(server: &Server, since: f64) -> Value {
    wait::until("a point of the present moment", || {
        let row = row(server);
        let last = row["history"].as_array()?.last()?[0].as_f64()?;
        (last >= since).then_some(row)
    })
}

fn totals(scratch: &Scratch, steps: &mut Steps, interval: &str) -> [f64; 4] {
    let mut command = scratch.profiler();
    let pid = steps.pid().to_string();
    let dumped = run(command.args(["dump", "-o", "d_", "-p", &pid]));
    let dump = scratch.file(&dumped.dump().to_string_lossy());
    let stacks = Stacks::read(&run(scratch.parser().arg("--json").arg(&dump)).stdout);
    stacks.assert_true(&steps.expected(), interval);
    stacks.total()
}

#[test]
fn the_servers_rates_are_those_between_its_points() {
    for interval in ["1", "1024"] {
        let scratch = Scratch::new();
        let server = Server::start(&scratch, &[]);
        let begun = unix_ms();
        let mut steps = sampled_by(&server, &scratch, interval);
        let before = totals(&scratch, &mut steps, interval);
        let first = wait_for_point(&server, unix_ms());
        steps.step("more");
        let after = totals(&scratch, &mut steps, interval);
        let last = wait_for_point(&server, unix_ms());
        let ended = unix_ms();

        // Of one point there is no rate. The program has allocated nothing between several.
        let is_alone = first["history"].as_array().expect("points").len() == 1;
        let quiet = if is_alone { Value::Null } else { json!(0.0) };
        assert_eq!(first["growth_per_second"], quiet, "{first}");
        assert_eq!(first["alloc_per_second"], quiet, "{first}");
        let points = last["history"].as_array().expect("points");
        assert!(points.len() > 1, "{last}");
        let mut previous = begun - 1.0;
        for (at, point) in points.iter().enumerate() {
            let time = number(&point[0]);
            assert!(time >= previous && time <= ended, "{point}: {last}");
            previous = time;
            let live = number(&point[1]);
            // The allocator's own figure has size classes and caches in it, and may be of a moment
            // when the step had not freed all of its objects.
            let is_of =
                |total: &[f64; 4]| (total[IN_USE] * 0.98..=total[IN_USE] * 1.3).contains(&live);
            assert!(is_of(&before) || is_of(&after), "{point}: {last}");
            assert!(at > 0 || is_of(&before), "{point}: {last}");
            assert!(number(&point[2]) >= live * 0.98, "{point}");
        }
        // Slow machines have more points than the rates are of.
        let window = &points[points.len().saturating_sub(RATE_POINTS)..];
        let is_earlier = number(&window[0][1]) < (before[IN_USE] + after[IN_USE]) / 2.0;
        let base = if is_earlier { &before } else { &after };
        // The times are rounded to milliseconds.
        let ms = number(&window[window.len() - 1][0]) - number(&window[0][0]);
        for (name, column) in [
            ("growth_per_second", IN_USE),
            ("alloc_per_second", ALLOCATED),
        ] {
            let truth = (after[column] - base[column]) / ms * 1e3;
            let shown = number(&last[name]);
            let allowed = (truth.abs() * 1.5 + 2.0 * ROUNDING * 1e3) / ms;
            assert!(
                (shown - truth).abs() <= allowed,
                "{name} at {interval}: {shown}, {truth} is true"
            );
        }
        server.stop();
        steps.target.finish_well();
    }
}
