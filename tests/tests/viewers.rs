//! One dump in other viewers: jeprof, google-pprof, go tool pprof.

use std::path::Path;

use mem_tests::Scratch;
use mem_tests::receiver::dump;
use mem_tests::session::tool;
use profile::Profile;

const COLUMNS: [&str; 4] = [
    "inuse_space",
    "inuse_objects",
    "alloc_space",
    "alloc_objects",
];

/// Checks each column's total as `viewer` tells it. Counts and bytes are whole numbers in
/// the dump and are scaled back from these, so each stack may be half a unit of its own
/// scale off; a viewer may cut each to a whole number again.
fn same_totals(profile: &Profile, viewer: impl Fn(&str) -> f64) {
    for column in COLUMNS {
        let ours = profile.total(profile.type_index(column).expect("a column")) as f64;
        let theirs = viewer(column);
        let off = (ours - theirs).abs();
        assert!(
            ours > 0.0 && off <= ours * 1e-3 + 1.0,
            "{column}: ours {ours}, theirs {theirs}"
        );
    }
}

/// Returns the total of `Total: 1234 B` or `Total: 1234 objects`, as the two Perl programs print
/// it.
fn perl_total(viewer: &str, column: &str, program: &Path, dump: &Path) -> f64 {
    let option = format!("--{column}");
    let (program, dump) = (
        program.to_str().expect("ours"),
        dump.to_str().expect("ours"),
    );
    let mut arguments = vec!["--text", &option, program, dump];
    if column.ends_with("space") {
        arguments.insert(1, "--show_bytes");
    }
    let text = tool(viewer, arguments);
    let total = text.lines().find_map(|line| line.strip_prefix("Total: "));
    let number = total.and_then(|rest| rest.split_whitespace().next());
    number
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{viewer}: {text}"))
}

#[test]
fn jeprof_has_our_totals_and_names() {
    let scratch = Scratch::new();
    let (program, dump, profile) = dump(&scratch);
    same_totals(&profile, |column| {
        perl_total("jeprof", column, &program, &dump)
    });
    let text = tool("jeprof", [Path::new("--text"), &program, &dump]);
    assert!(text.contains("site_mixed"), "{text}");
}

#[test]
fn google_pprof_has_our_totals_and_names() {
    let scratch = Scratch::new();
    let (program, dump, profile) = dump(&scratch);
    same_totals(&profile, |column| {
        perl_total("google-pprof", column, &program, &dump)
    });
    let text = tool("google-pprof", [Path::new("--text"), &program, &dump]);
    assert!(text.contains("site_mixed"), "{text}");
}

/// The symbol reader of `go tool pprof` knows only Go programs, so other names are not compared.
#[test]
fn go_tool_pprof_has_our_totals() {
    let scratch = Scratch::new();
    let (program, dump, profile) = dump(&scratch);
    same_totals(&profile, |column| {
        let index = format!("-sample_index={column}");
        let paths = [
            program.to_str().expect("ours"),
            dump.to_str().expect("ours"),
        ];
        let options = [
            "tool",
            "pprof",
            "-top",
            "-unit=B",
            "-nodefraction=0",
            &index,
        ];
        let text = tool("go", options.iter().chain(&paths));
        // Showing nodes accounting for 123B, 100% of 123B total
        let total = text
            .split_once("% of ")
            .and_then(|(_, rest)| rest.split_once(" total"));
        let number = total.and_then(|(number, _)| number.trim_end_matches('B').parse().ok());
        number.unwrap_or_else(|| panic!("{text}"))
    });
}
