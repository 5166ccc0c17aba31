//! Parser on dumps of real programs, complete and damaged.

use std::fs;
use std::path::PathBuf;

use mem_tests::{Scratch, Session, Steps, run};

/// Returns a small dump of `steps`, and the program.
fn small_dump(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let mut program = Steps::start(scratch);
    let session = Session::of(scratch, program.pid(), "1");
    program.step("keep 20");
    let dump = session.stop().dump();
    program.target.finish_well();
    (program.program, dump)
}

#[test]
fn a_file_that_is_not_a_dump_is_refused_by_name() {
    let scratch = Scratch::new();
    let file = scratch.file("thing.heap");
    let nowhere = scratch.file("nowhere.heap");
    let parse = |path: &PathBuf| {
        run(scratch
            .parser()
            .args(["-t", "-p", "/bin/true", "-f"])
            .arg(path))
    };
    for bad in [
        &b""[..],
        b"\n",
        b"hello\n",
        b"\x7fELF\x02\x01\x01",
        &[0; 5000],
    ] {
        fs::write(&file, bad).expect("to be written");
        parse(&file).refused(1, &["thing.heap"]);
    }
    parse(&nowhere).refused(1, &["nowhere.heap"]);
    parse(&scratch.files().to_owned()).refused(1, &["directory"]);
}

#[test]
fn a_dump_cut_off_anywhere_is_refused_with_the_line() {
    let scratch = Scratch::new();
    let (_, dump) = small_dump(&scratch);
    let whole = fs::read(&dump).expect("a dump");
    profile::read(&whole, "whole").expect("the whole is good");
    let lines = |bytes: &[u8]| bytes.iter().filter(|b| **b == b'\n').count();
    for length in 1..whole.len() - 1 {
        let cut = &whole[..length];
        let error = match profile::read(cut, "cut.heap") {
            Err(error) => error.to_string(),
            Ok(_) => panic!(
                "cut after {length} of {} bytes, and not noticed",
                whole.len()
            ),
        };
        if lines(cut) == 0 {
            assert!(error.contains("cut.heap"), "{error}");
            continue;
        }
        // The line that was cut, or where the next was expected.
        let (last, next) = (lines(cut), lines(cut) + 1);
        let said = |n: usize| error.contains(&format!("line {n}:"));
        assert!(said(last) || said(next), "line {last} or {next}: {error}");
    }
    let file = scratch.file("cut.heap");
    fs::write(&file, &whole[..whole.len() / 2]).expect("to be written");
    let outcome = run(scratch
        .parser()
        .args(["-t", "-p", "/bin/true", "-f"])
        .arg(&file));
    outcome.refused(1, &["cut.heap", "line "]);
}

#[test]
fn a_binary_that_was_not_profiled_is_refused_unless_forced() {
    let scratch = Scratch::new();
    let (program, dump) = small_dump(&scratch);
    let other = scratch.compile_as("steps.c", "steps2", &["-DOTHER", "-O1"]);
    let parse = |options: &[&str]| {
        let mut command = scratch.parser();
        run(command
            .args(["-t", "-p"])
            .arg(&other)
            .arg("-f")
            .arg(&dump)
            .args(options))
    };
    let id = |path: &PathBuf| {
        let notes = mem_tests::session::tool("readelf", [PathBuf::from("-n"), path.clone()]);
        let id = notes.split("Build ID: ").nth(1).expect("a build id");
        id.split_whitespace().next().expect("a build id").to_owned()
    };
    parse(&[]).refused(1, &[&id(&program), &id(&other), "--force"]);
    let forced = parse(&["--force"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
}

#[test]
fn tables_and_pictures_go_where_they_are_asked_to() {
    let scratch = Scratch::new();
    let (program, dump) = small_dump(&scratch);
    let parse = |options: &[&str]| {
        let mut command = scratch.parser();
        run(command
            .arg("-p")
            .arg(&program)
            .arg("-f")
            .arg(&dump)
            .args(options))
    };
    let table = parse(&["-t"]);
    assert!(table.stdout.contains("site_main"), "{table:?}");
    assert!(
        table.stdout.contains("flat%") && table.stdout.contains("cum%"),
        "{table:?}"
    );
    let picture = parse(&["-s"]);
    assert!(picture.stdout.trim_start().starts_with("<?xml") || picture.stdout.starts_with("<svg"));
    assert_eq!(parse(&["-s", "-o", "out.svg"]).stdout, "");
    assert_eq!(
        fs::read_to_string(scratch.file("out.svg")).expect("a picture"),
        picture.stdout
    );
    for part in ["site_main", "Total ", "</svg>"] {
        assert!(
            picture.stdout.contains(part),
            "{part} is not in the picture"
        );
    }
    parse(&["-s", "-o", "no/such/directory/out.svg"]).refused(1, &["no/such/directory"]);
}
