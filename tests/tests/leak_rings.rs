//! Objects that only io_uring's rings, or the kernel behind them, know.

use std::collections::BTreeMap;

use mem_tests::leaks::{kinds, planted, report, tell};
use mem_tests::{Scratch, run};
use serde_json::Value;

#[test]
fn entries_in_a_ring_keep_objects_and_running_requests_are_noted() {
    let scratch = Scratch::new();
    let program = scratch.compile("rings.c", &[]);
    let (mut target, session) = planted(&scratch, &program);
    let pid = target.pid().to_string();
    let check = |options: &[&str]| {
        let mut command = scratch.profiler();
        let command = command.args(["leaks", "--json", "-p", &pid]).args(options);
        report(&run(command))
    };
    let ways: [&[&str]; 3] = [&[], &["--stop"], &["--gentle=2"]];
    for options in ways {
        let found = check(options);
        assert_eq!(kinds(&found), BTreeMap::new(), "{options:?}");
        assert_eq!(found["notes"], Value::Array(Vec::new()), "{options:?}");
    }
    let root = |what: &str| {
        let kept = check(&["--path", what]);
        let root = kept["objects"][0]["root"]
            .as_str()
            .unwrap_or("none")
            .to_owned();
        assert!(root.contains("io_uring"), "{what}: {kept:#}");
    };
    ["kept_waiting", "kept_buffer", "kept_result"]
        .into_iter()
        .for_each(root);

    tell(&mut target, "submit", "submitted");
    let lost = |name: &str, bytes: f64| ((name.to_owned(), "direct".to_owned()), (1.0, bytes));
    let expected = BTreeMap::from([lost("lost_under_way", 112.0), lost("lost_buffer", 128.0)]);
    for options in ways {
        let found = check(options);
        assert_eq!(kinds(&found), expected, "{options:?}");
        let notes = found["notes"].as_array().expect("notes").iter();
        let said = notes.filter_map(Value::as_str);
        let under_way = "io_uring has requests under way (1): what only these point to";
        let count = said.filter(|note| note.starts_with(under_way)).count();
        assert_eq!(count, 1, "{options:?}: {found:#}");
    }
    session.stop();
}
