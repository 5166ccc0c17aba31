//! Programs that plant leaks, and reports of checks.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::{Outcome, Scratch, Session, Target};

/// Writes a line to a program, which must print `answer`.
pub fn tell(target: &mut Target, line: &str, answer: &str) {
    target.say(line);
    assert_eq!(target.hear(), answer);
}

/// Starts a program that plants leaks on request, with a session that samples every allocation, and
/// makes the request.
#[must_use]
pub fn planted(scratch: &Scratch, program: &Path) -> (Target, Session) {
    let mut target = Target::start(&mut scratch.preloaded(program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(scratch, target.pid(), "1");
    tell(&mut target, "plant", "planted");
    (target, session)
}

/// Returns the report on the process that was checked. There must be exactly one.
pub fn report(outcome: &Outcome) -> Value {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let reports: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    reports.as_array().expect("an array")[0].clone()
}

/// Returns the objects that are lost, by the function `lost_…` or `by_…` that allocated them.
#[must_use]
pub fn lost(report: &Value) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for leak in report["leaks"].as_array().expect("leaks") {
        let stack = leak["stack"].as_array().expect("a stack").iter();
        let mut names = stack.filter_map(Value::as_str);
        let name = names.find(|name| name.starts_with("lost_") || name.starts_with("by_"));
        if let Some(name) = name {
            let objects = leak["objects"].as_f64().expect("objects");
            *sums.entry(name.to_owned()).or_default() += objects;
        }
    }
    sums
}

/// Losses of `planted.cpp`: function, kind of loss, objects, bytes.
const PLANTED: [(&str, &str, f64, f64); 11] = [
    ("lost_plain", "direct", 10.0, 1045.0),
    ("lost_list", "direct", 2.0, 96.0),
    ("lost_list", "indirect", 18.0, 864.0),
    ("lost_ring", "cycle", 10.0, 480.0),
    ("lost_container", "direct", 1.0, 32.0),
    ("lost_container", "indirect", 1.0, 201.0),
    ("lost_with_thread", "direct", 1.0, 300.0),
    ("lost_large", "direct", 1.0, (3 << 20) as f64),
    ("lost_disguised", "direct", 1.0, 500.0),
    ("lost_aligned", "direct", 1.0, 9000.0),
    ("lost_shrunk", "direct", 1.0, 110.0),
];

/// Returns the objects and bytes lost by the functions `lost_…`, `kept_…` and `site_…`, and how.
#[must_use]
pub fn kinds(report: &Value) -> BTreeMap<(String, String), (f64, f64)> {
    let mut sums = BTreeMap::new();
    for leak in report["leaks"].as_array().expect("leaks") {
        let stack = leak["stack"].as_array().expect("a stack").iter();
        let mut names = stack.filter_map(Value::as_str);
        let known = ["lost_", "kept_", "site_"];
        let name = names.find(|name| known.iter().any(|prefix| name.starts_with(prefix)));
        let name = name.unwrap_or("something else").to_owned();
        let kind = leak["kind"].as_str().expect("a kind").to_owned();
        let sum: &mut (f64, f64) = sums.entry((name, kind)).or_default();
        sum.0 += leak["objects"].as_f64().expect("objects");
        sum.1 += leak["bytes"].as_f64().expect("bytes");
    }
    sums
}

/// Returns the losses of `planted.cpp`, objects and bytes, by function and kind of loss.
#[must_use]
pub fn planted_losses() -> BTreeMap<(String, String), (f64, f64)> {
    PLANTED
        .iter()
        .map(|(name, how, objects, bytes)| (((*name).into(), (*how).into()), (*objects, *bytes)))
        .collect()
}
