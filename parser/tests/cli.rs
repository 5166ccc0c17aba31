//! The command line: what is refused and how, and what ends up where.

use std::fs;
use std::path::{Path, PathBuf};

use profile::{BuildId, Detail, Facts, Mapping, ProfileBuilder, TABLE_FULL_ADDRESS, dump};
use tempfile::TempDir;

mod invoke;

use invoke::{parser, stderr, stdout};

/// Returns the path of this test's own program, which stands for the profiled one.
fn this_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Returns the mapping of this program's code.
fn text_mapping() -> Mapping {
    let maps = fs::read("/proc/self/maps").unwrap();
    let here = text_mapping as *const () as u64;
    profile::maps::parse(&maps)
        .into_iter()
        .find(|m| m.contains(here))
        .unwrap()
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn function_that_allocates_in_the_test() -> u64 {
    17
}

/// Writes a dump of this program with one stack in a function of known name.
fn write_dump(directory: &TempDir, name: &str, build_id: &[u8], bytes: f64) -> PathBuf {
    let mut builder = ProfileBuilder::new(1);
    let mapping = Mapping {
        build_id: BuildId(build_id.to_vec()),
        ..text_mapping()
    };
    builder.facts(Facts {
        exe: Some(mapping.path.clone()),
        exe_build_id: mapping.build_id.clone(),
        ..Facts::default()
    });
    builder.module(mapping);
    let detail = Detail {
        alloc_samples: 1,
        alloc_objects: 1.0,
        alloc_bytes: bytes,
        ..Detail::default()
    };
    let address = function_that_allocates_in_the_test as *const () as u64 + 1;
    builder.stack([address], &detail);
    builder.stack([TABLE_FULL_ADDRESS], &detail);
    let path = directory.path().join(name);
    dump::write(&builder.finish(), &mut fs::File::create(&path).unwrap()).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn bad_usage_exits_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write_dump(&directory, "x.heap", b"", 4096.0);
    let dump = text(&dump).to_owned();
    let program = this_program();
    let program = text(&program);
    let cases: [&[&str]; 7] = [
        &["-p", program, "-f", &dump, "-t", "-s"],
        &["-f", &dump, "-t"],
        &["-p", program, "-t"],
        &["-p", program, "-f", "/nonexistent", "-t", "--nonsense"],
        &["-p", program, "-f", &dump, "-t", "-n", "many"],
        &[
            "-p",
            program,
            "-f",
            &dump,
            "-t",
            "--inuse_space",
            "--alloc_space",
        ],
        &["-p", program, "-f", &dump, "-t", "--lines", "--files"],
    ];
    for arguments in cases {
        let output = parser(arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty());
        assert!(stderr(&output).contains("error"), "{}", stderr(&output));
    }
}

#[test]
fn unusable_files_exit_with_1_and_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let good = write_dump(&directory, "good.heap", b"", 4096.0);
    let bytes = fs::read(&good).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let cases = [
        (write("empty.heap", b""), "is empty"),
        (write("cut.heap", &bytes[..bytes.len() - 3]), "line "),
        (write("elf.heap", b"\x7fELF whatever"), "is a program"),
        (write("other.heap", b"#!whatever"), "profile"),
        (directory.path().to_path_buf(), "is a directory"),
        (directory.path().join("missing.heap"), "cannot be read"),
    ];
    for (path, expected) in cases {
        let output = parser(&["-p", text(&this_program()), "-f", text(&path), "-t"]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(
            message.contains(text(&path)) && message.contains(expected),
            "{message}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn another_program_is_refused_with_both_build_ids() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write_dump(&directory, "x.heap", &[0xab, 0xcd, 0xef], 4096.0);
    let program = this_program();
    let arguments = ["-p", text(&program), "-f", text(&dump), "-t"];
    let output = parser(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.contains("abcdef") && message.contains("--force"),
        "{message}"
    );
    assert!(
        message.contains(text(&program)) && message.contains("x.heap"),
        "{message}"
    );
    let forced = parser(&[&arguments[..], &["--force"]].concat());
    assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
    assert!(stdout(&forced).contains("function_that_allocates_in_the_test"));
}

#[test]
fn the_table_has_names_and_pseudo_frames() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write_dump(&directory, "x.heap", b"", 4096.0);
    let output = parser(&["-p", text(&this_program()), "-f", text(&dump), "-t"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    let lines: Vec<&str> = table.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "Type: inuse_space",
            "Showing nodes accounting for 8KiB, 100% of 8KiB total",
            "      flat  flat%   sum%        cum   cum%",
            "      4KiB 50.00% 50.00%       4KiB 50.00%  [table full]",
            "      4KiB 50.00%   100%       4KiB 50.00%  function_that_allocates_in_the_test",
        ]
    );
}

#[test]
fn pictures_are_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write_dump(&directory, "x.heap", b"", 4096.0);
    let program = this_program();
    let arguments = ["-p", text(&program), "-f", text(&dump), "-s", "-o"];
    let picture = directory.path().join("out.svg");
    let output = parser(&[&arguments[..], &[text(&picture)]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(
        svg.starts_with("<?xml") || svg.starts_with("<svg"),
        "{}",
        &svg[..40]
    );
    assert!(svg.contains("Total KiB: 8.0 (inuse_space)") && svg.trim_end().ends_with("</svg>"));
    let nowhere = directory.path().join("no/out.svg");
    let output = parser(&[&arguments[..], &[text(&nowhere)]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("does not exist"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_symbolized_dump_needs_no_program() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write_dump(&directory, "x.heap", b"", 4096.0);
    let own = directory.path().join("own.heap");
    let output = parser(&["--symbolize", "-f", text(&dump), "-o", text(&own)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = parser(&["-f", text(&own), "-t"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("function_that_allocates_in_the_test"));
}

#[test]
fn dumps_are_added_and_subtracted() {
    let directory = tempfile::tempdir().unwrap();
    let one = write_dump(&directory, "1.heap", b"", 1024.0);
    let two = write_dump(&directory, "2.heap", b"", 4096.0);
    let program = this_program();
    let table = |rest: &[&str]| {
        let output = parser(&[&["-p", text(&program), "-t"], rest].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    assert!(table(&["-f", text(&one), "-f", text(&two)]).contains("of 10KiB total"));
    let less = table(&["-f", text(&one), "--base", text(&two)]);
    assert!(
        less.contains("-3KiB 50.00%") && less.contains("of 6KiB total"),
        "{less}"
    );
    let of_base = table(&["-f", text(&one), "--diff_base", text(&two)]);
    assert!(
        of_base.contains("-3KiB 37.50%") && of_base.contains("of 8KiB total"),
        "{of_base}"
    );
}

/// Returns the path of a dump in `tests/data`.
fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn only_the_last_dump_of_a_session_is_used() {
    let shop = data("shop.heap");
    let before = data("shop_before.heap");
    let once = parser(&["-f", &shop, "-t"]);
    let series = parser(&["-f", &shop, "-f", &shop, "-t"]);
    assert_eq!(stdout(&series), stdout(&once));
    assert!(
        stderr(&series).contains("2 dumps are of one session"),
        "{}",
        stderr(&series)
    );
    let sum = parser(&["-f", &shop, "-f", &shop, "-t", "--force"]);
    assert_ne!(stdout(&sum), stdout(&once));

    for base in ["--base", "--diff_base"] {
        let refused = parser(&["-f", &shop, base, &before, "-t"]);
        assert_eq!(refused.status.code(), Some(1));
        let error = stderr(&refused);
        for part in [
            "shop.heap",
            "shop_before.heap",
            "not of one session",
            "--force",
        ] {
            assert!(error.contains(part), "{part:?} is not in {error}");
        }
        let forced = parser(&["-f", &shop, base, &before, "-t", "--force"]);
        assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
    }
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.folded");
    fs::write(&path, "main;a\x1b[31m</script>\"b 3\n").unwrap();
    for output in [
        "-t", "--tree", "--traces", "--csv", "--json", "--dot", "-s", "--folded",
    ] {
        let run = parser(&["-f", text(&path), output]);
        assert_eq!(run.status.code(), Some(0), "{output}: {}", stderr(&run));
        assert!(
            !run.stdout.contains(&0x1b),
            "{output} lets escape sequences through"
        );
    }
}
