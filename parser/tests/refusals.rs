//! Refusals: they come before anything is overwritten, and their messages say why.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

mod invoke;

use invoke::{parser, stderr};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// Runs the parser with words that are separated by blanks, in which `@` is the directory.
fn run(directory: &Path, words: &str) -> std::process::Output {
    let words = words.replace('@', directory.to_str().unwrap());
    parser(&words.split(' ').collect::<Vec<_>>())
}

#[test]
fn an_input_is_never_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    for name in ["a.heap", "base.heap", "program", "map"] {
        fs::copy(data("shop.heap"), at(name)).unwrap();
    }
    fs::hard_link(at("a.heap"), at("hard.heap")).unwrap();
    symlink(at("a.heap"), at("soft.heap")).unwrap();
    let before = fs::read(at("a.heap")).unwrap();
    for words in [
        "@/a.heap -o @/a.heap",
        "-f @/a.heap --svg -o @/./a.heap",
        "@/a.heap --html -o @/hard.heap",
        "@/a.heap --symbolize -o @/soft.heap",
        "@/a.heap --base @/base.heap -o @/base.heap",
        "@/a.heap --diff_base @/base.heap -o @/base.heap",
        "@/a.heap -p @/program -o @/program",
        "@/a.heap --perf-map @/map -o @/map",
    ] {
        let output = run(scratch.path(), words);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words}: {message}");
        assert!(
            message.contains("would be replaced, but is read"),
            "{words}: {message}"
        );
        for name in [
            "a.heap",
            "base.heap",
            "program",
            "map",
            "hard.heap",
            "soft.heap",
        ] {
            assert!(
                fs::read(at(name)).unwrap() == before,
                "{words} changed {name}"
            );
        }
    }
    // Files that are not inputs are replaced. A device is not a file that could be replaced.
    fs::write(at("old.txt"), "old").unwrap();
    for words in ["@/a.heap --raw -o @/old.txt", "@/a.heap --raw -o /dev/null"] {
        let output = run(scratch.path(), words);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert!(fs::read(at("old.txt")).unwrap().len() > 100);
}

#[test]
fn views_of_one_moment_name_themselves() {
    let scratch = tempfile::tempdir().unwrap();
    let early = data("shop_before.heap");
    let late = data("shop.heap");
    for view in ["--rss", "--temporary", "--sizes", "--threads"] {
        let words = format!("{} {} {view}", early.display(), late.display());
        let output = run(scratch.path(), &words);
        assert_eq!(output.status.code(), Some(1));
        let expected = format!("{view} shows one moment: give it one dump");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
}

#[test]
fn invalid_option_values_are_bad_usage() {
    let scratch = tempfile::tempdir().unwrap();
    let shop = data("shop.heap");
    for words in [
        "--focus (",
        "--ignore (",
        "--hide [",
        "--show (",
        "--show_from (",
        "--prune_from (",
        "--tagfocus (",
        "--tagignore a=(",
        "--list (",
        "--peek [",
        "--divide_by 0",
        "--divide_by=-1",
        "--divide_by inf",
        "--divide_by nan",
        "--divide_by 1e-300",
        "--divide_by 1e300",
        "--nodefraction nan",
        "--nodefraction 2",
        "--nodefraction=-0.1",
        "--edgefraction inf",
        "--edgefraction 1.01",
    ] {
        let output = run(scratch.path(), &format!("{} {words}", shop.display()));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words}: {message}");
        let option = words.split([' ', '=']).next().unwrap();
        assert!(
            message.starts_with("error: ") && message.contains(option),
            "{message}"
        );
        assert!(output.stdout.is_empty());
        // One line has the error, the other where to read more.
        assert_eq!(message.lines().count(), 2, "{message}");
    }
    for words in ["--nodefraction 0", "--edgefraction 1", "--divide_by 1e6"] {
        let output = run(scratch.path(), &format!("{} {words}", shop.display()));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn the_help_names_inputs_and_trim() {
    let help = String::from_utf8(parser(&["--help"]).stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "Reads heap and CPU profiles",
        "CPU profiles (.cpu)",
        "Apply -n, --nodefraction and --edgefraction; --trim=false",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn the_file_extension_selects_the_default_output() {
    let scratch = tempfile::tempdir().unwrap();
    let shop = data("shop.heap");
    for (name, options, start) in [
        ("x.html", "", "<!DOCTYPE html>"),
        ("x.HTML", "", "<!DOCTYPE html>"),
        ("x.svg", "", "<?xml"),
        ("x.flame.svg", "", "<?xml"),
        ("x.pb.gz", "", "\u{1f}"),
        ("x.json", "", "{"),
        ("x.csv", "", "function,"),
        ("x.dot", "", "digraph"),
        ("x.txt", "", "File: shop"),
        ("html", "", "File: shop"),
        ("y.svg", " -t", "File: shop"),
        ("y.html", " --dot", "digraph"),
    ] {
        let words = format!("{} -o @/{name}{options}", shop.display());
        let output = run(scratch.path(), &words);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let written = fs::read(scratch.path().join(name)).unwrap();
        let shown = String::from_utf8_lossy(&written[..written.len().min(40)]);
        assert!(shown.starts_with(start), "{name}: {shown}");
    }
    let read = |name: &str| fs::read_to_string(scratch.path().join(name)).unwrap();
    assert!(read("x.svg") != read("x.flame.svg"));
    for options in ["", " --svg"] {
        let words = format!("{} -o @/x.PNG{options}", shop.display());
        let output = run(scratch.path(), &words);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("written as SVG") && message.contains("/x.svg"));
        assert!(!scratch.path().join("x.PNG").exists());
    }
}

#[test]
fn missing_directories_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    for option in ["--symbol-path", "--source_path"] {
        for (directory, is_missing) in [("@/none", true), ("@", false)] {
            let words = format!("{} {option} {directory}", data("shop.heap").display());
            let output = run(scratch.path(), &words);
            assert_eq!(output.status.code(), Some(0));
            let message = stderr(&output).contains("/none: there is no such directory");
            assert_eq!(message, is_missing, "{}", stderr(&output));
        }
    }
}

#[test]
fn a_missing_proc_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let unshared_by = |options: &[&str], words: &str| {
        let script = format!("mount -t tmpfs none /proc && exec {words}");
        let mut command = Command::new("unshare");
        command.args(options).args(["sh", "-c", &script]);
        command.output().unwrap()
    };
    // Root needs no namespace of users, which may be forbidden.
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let works = |way: &&&[&str]| unshared_by(way, "true").status.success();
    let way = ways.iter().find(works);
    let way = way.expect("root, or namespaces of users: /proc must be taken away");
    let unshared = |words: &str| unshared_by(way, words);
    let file = scratch.path().join("x.heap");
    fs::copy(data("shop.heap"), &file).unwrap();
    let program = env!("CARGO_BIN_EXE_mem_parser");
    let output = unshared(&format!("{program} {}", file.display()));
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("x.heap: cannot be opened: /proc is not mounted"),
        "{message}"
    );
    assert!(!message.contains("did you mean"), "{message}");
    let output = unshared(&format!("{program} {}.no", file.display()));
    assert!(
        stderr(&output).contains("did you mean"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_given_as_a_dump_is_recognised() {
    let scratch = tempfile::tempdir().unwrap();
    fs::copy(data("shop.heap"), scratch.path().join("x.heap")).unwrap();
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    for (words, expected) in [
        (
            "-p @/x.heap -f PROGRAM",
            "they seem to be swapped; use -p PROGRAM -f @/x.heap",
        ),
        ("-f PROGRAM", "PROGRAM is a program (ELF), not a profile"),
        (
            "-p PROGRAM -f PROGRAM",
            "PROGRAM is a program (ELF), not a profile",
        ),
        (
            "@/x.heap --base PROGRAM",
            "PROGRAM is a program (ELF), not a profile",
        ),
    ] {
        let filled = |text: &str| text.replace("PROGRAM", program);
        let output = run(scratch.path(), &filled(words));
        let expected = filled(expected).replace('@', scratch.path().to_str().unwrap());
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(&expected), "{message}");
        assert!(!message.contains("it starts with"), "{message}");
    }
}
