//! Reports of leaks name source lines, the user's own first.

use mem_tests::{Scratch, Target, run};

/// Returns the line of `line_leaks.cpp` that contains this text.
fn line(text: &str) -> usize {
    let source = include_str!("../programs/line_leaks.cpp");
    let found = source.lines().position(|line| line.contains(text));
    found.expect("a line") + 1
}

#[test]
fn two_leaks_of_one_function_differ_by_their_lines() {
    let scratch = Scratch::new();
    let program = scratch.compile("line_leaks.cpp", &[]);
    let outcome = run(scratch
        .profiler()
        .args(["run", "--leak-check", "-o", "p_", "--"])
        .arg(&program));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let blocks: Vec<&str> = outcome.stderr.split("\n\n").collect();
    for (size, call) in [
        ("195.3 KiB in 20 objects", "take(10000)"),
        ("777 B in 1 object", "take(777)"),
    ] {
        let block = blocks.iter().find(|block| block.contains(size));
        let block = block.unwrap_or_else(|| panic!("{size}: {outcome:?}"));
        for text in ["malloc(bytes)", call] {
            let place = format!("line_leaks.cpp:{}\n", line(text));
            assert!(block.contains(&place), "{place}: {block}");
        }
        // The user's own code comes first, and the program's start is left out.
        let frames: Vec<&str> = block.lines().skip(1).map(str::trim).collect();
        assert_eq!(frames.first(), Some(&"take"), "{block}");
        assert!(!block.contains("_start"), "{block}");
    }
}

#[test]
fn a_live_report_in_json_has_file_and_line_of_each_frame() {
    let scratch = Scratch::new();
    let program = scratch.compile("line_leaks.cpp", &[]);
    let mut command = scratch.preloaded(&program);
    command
        .arg("wait")
        .env("MEM_PROFILER_START", "1")
        .env("MEM_PROFILER_INTERVAL", "1");
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let pid = target.pid().to_string();
    let outcome = run(scratch.profiler().args(["leaks", "--json", "-p", &pid]));
    let report = mem_tests::leaks::report(&outcome);
    let frames: Vec<String> = report["leaks"]
        .as_array()
        .unwrap_or_else(|| panic!("{report}"))
        .iter()
        .flat_map(|leak| leak["frames"].as_array().cloned().unwrap_or_default())
        .map(|frame| format!("{}:{}", frame["file"].as_str().unwrap_or(""), frame["line"]))
        .collect();
    for text in ["malloc(bytes)", "take(10000)", "take(777)"] {
        let place = format!("line_leaks.cpp:{}", line(text));
        assert!(
            frames.iter().any(|frame| frame.ends_with(&place)),
            "{place}: {frames:?}"
        );
    }
    target.say("end");
    target.finish_well();
}
