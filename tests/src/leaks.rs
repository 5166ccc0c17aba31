//! Programs that plant leaks, and reports of checks.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::{Outcome, Scratch, Session, Target};

/// Says a line to a program, which must answer so.
pub fn tell(target: &mut Target, line: &str, answer: &str) {
    target.say(line);
    assert_eq!(target.hear(), answer);
}

/// Starts a program that plants leaks when it is told to, with a session that samples everything,
/// and tells it.
#[must_use]
pub fn planted(scratch: &Scratch, program: &Path) -> (Target, Session) {
    let mut target = Target::start(&mut scratch.preloaded(program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(scratch, target.pid(), "1");
    tell(&mut target, "plant", "planted");
    (target, session)
}

/// The report on the one process checked, which there must be.
pub fn report(outcome: &Outcome) -> Value {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let reports: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    reports.as_array().expect("an array")[0].clone()
}

/// Objects that are lost, by the function `lost_…` or `by_…` that allocated them.
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
