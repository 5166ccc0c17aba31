//! Usage of the command line: dumps without options, help, suggestions, completions, and
//! destinations of outputs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use mem_parser::report::FORMATS;

mod invoke;

use invoke::{stderr, stdout};

/// Runs the parser beside a dump called `x.heap`.
fn parser_in(directory: &Path, arguments: &[&str]) -> Output {
    let dump = directory.join("x.heap");
    if !dump.exists() {
        let shop = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.heap");
        fs::copy(shop, dump).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .current_dir(directory)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn parser(arguments: &[&str]) -> Output {
    parser_in(tempfile::tempdir().unwrap().path(), arguments)
}

#[test]
fn a_bare_dump_is_shown_as_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let table = |arguments: &[&str]| {
        let output = parser_in(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let wanted = table(&["-f", "x.heap", "-t"]);
    assert!(wanted.contains("flat  flat%"), "{wanted}");
    let same: [&[&str]; 4] = [
        &["x.heap"],
        &["-f", "x.heap"],
        &["x.heap", "-t"],
        &["-t", "x.heap"],
    ];
    for arguments in same {
        assert_eq!(table(arguments), wanted, "{arguments:?}");
    }
    let two = table(&["-f", "x.heap", "x.heap", "-t", "--force"]);
    assert_ne!(two, wanted);
    assert_eq!(table(&["x.heap", "x.heap", "--force"]), two);
    assert_eq!(table(&["x.heap", "-f", "x.heap", "--force"]), two);
    assert_eq!(
        table(&["x.heap", "--tree"]),
        table(&["-f", "x.heap", "--tree"])
    );
}

#[test]
fn dumps_may_be_named_like_commands() {
    let directory = tempfile::tempdir().unwrap();
    let table = stdout(&parser_in(directory.path(), &["x.heap"]));
    for name in ["man", "completions", "help"] {
        fs::copy(directory.path().join("x.heap"), directory.path().join(name)).unwrap();
        let local = format!("./{name}");
        let ways: [&[&str]; 3] = [&["-f", name], &[&local], &["-t", name]];
        for arguments in ways {
            let output = parser_in(directory.path(), arguments);
            assert_eq!(stdout(&output), table, "{arguments:?}: {}", stderr(&output));
        }
    }
    let refused = parser_in(directory.path(), &["man"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("./man"), "{}", stderr(&refused));
}

#[test]
fn help_fits_80_columns_and_has_examples() {
    for option in ["-h", "--help"] {
        let output = parser(&[option]);
        assert_eq!(output.status.code(), Some(0));
        let help = stdout(&output);
        let wide: Vec<&str> = help.lines().filter(|l| l.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{option}: {wide:#?}");
        let (_, examples) = help.split_once("\nExamples:\n").unwrap();
        assert!((3..=5).contains(&examples.lines().count()), "{examples}");
        for format in FORMATS {
            assert!(
                help.contains(&format!("--{}", format.flag)),
                "{}",
                format.flag
            );
        }
    }
}

/// The examples in the help are accepted, except for their files.
#[test]
fn examples_are_valid() {
    let help = stdout(&parser(&["-h"]));
    let (_, examples) = help.split_once("\nExamples:\n").unwrap();
    for line in examples.lines() {
        let command = line.trim().split("  ").next().unwrap().replace('\'', "");
        let arguments: Vec<&str> = command.split(' ').skip(1).collect();
        let output = parser(&arguments);
        assert_ne!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
    }
}

#[test]
fn misspelt_options_and_values_get_suggestions() {
    for (typed, meant) in [
        (&["x.heap", "--flam"][..], "--flame?"),
        (&["x.heap", "--inuse_spce"], "--inuse_space?"),
        (&["x.heap", "--nodecuont=5"], "--nodecount?"),
        (&["x.heap", "--flamegraph"], "--flame?"),
        (&["x.heap", "--granularity", "line"], "'lines'?"),
        (&["x.heap", "-n", "many"], "whole number"),
        (&["x.heap", "-t", "-s"], "cannot be used with"),
        (&["-t"], "no dump"),
        (&[], "no dump"),
        (&["completions", "bsh"], "'bash'?"),
    ] {
        let output = parser(typed);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{typed:?}: {message}");
        assert!(message.contains(meant), "{typed:?}: {message}");
        assert_eq!(message.lines().count(), 2, "{typed:?}: {message}");
        assert!(
            message.starts_with("error: ") && message.contains("mem_parser --help"),
            "{message}"
        );
        assert!(output.stdout.is_empty());
    }
    let message = stderr(&parser(&["x.heap", "--zzzzzz"]));
    assert!(!message.contains("did you mean"), "{message}");
    let hostile = stderr(&parser(&["x.heap", "--a\x1b[2Jb\nc"]));
    assert!(
        !hostile.contains('\x1b') && hostile.lines().count() == 2,
        "{hostile:?}"
    );
}

#[test]
fn a_missing_dump_gets_a_suggestion() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let shop = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.heap");
    fs::copy(shop, path("prof_redis.heap")).unwrap();
    fs::create_dir(path("prof_red.heap")).unwrap();
    let missing = path("prof_reds.heap");
    for arguments in [
        &[&missing[..]][..],
        &["-f", &missing],
        &["x.heap", "--base", &missing],
    ] {
        let output = parser(arguments);
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        assert!(
            message.contains(&missing) && message.contains(&path("prof_redis.heap")),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let output = parser_in(directory.path(), &["prof_reds.heap"]);
    assert!(
        stderr(&output).contains("did you mean prof_redis.heap?"),
        "{}",
        stderr(&output)
    );
    let output = parser(&[&path("unlike anything")]);
    assert!(
        !stderr(&output).contains("did you mean"),
        "{}",
        stderr(&output)
    );
    // A name without the pid and the number of dumps.
    fs::copy(shop, path("web_nginx.4711.0001.heap")).unwrap();
    let output = parser(&[&path("web_nginx.heap")]);
    assert!(
        stderr(&output).contains(&path("web_nginx.4711.0001.heap?")),
        "{}",
        stderr(&output)
    );
    // A command, and a format without its dashes.
    let output = parser(&["completion", "bash"]);
    assert!(
        stderr(&output).contains("did you mean mem_parser completions?"),
        "{}",
        stderr(&output)
    );
    let output = parser(&["x.heap", "flame"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("did you mean --flame?"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_pattern_without_matches_gets_suggestions() {
    for option in ["--peek", "--list"] {
        let output = parser(&["x.heap", option, "^pushback$"]);
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        let wanted = "no function matches ^pushback$; the nearest name is std::vector::push_back";
        assert!(message.contains(wanted), "{message}");
    }
    let output = parser(&["x.heap", "--focus", "^pushback$"]);
    assert_eq!(output.status.code(), Some(0));
    let message = stderr(&output);
    assert!(
        message.contains("--focus matches nothing; the nearest name is std::vector"),
        "{message}"
    );
    for option in ["--show_from", "--prune_from"] {
        let output = parser(&["x.heap", "-t", option, "zzzz"]);
        assert_eq!(output.status.code(), Some(0));
        let message = stderr(&output);
        assert!(
            message.contains(&format!("{option} matches nothing")),
            "{message}"
        );
    }
    assert!(stderr(&parser(&["x.heap", "--peek", "zzzz"])).ends_with("matches zzzz\n"));
}

#[test]
fn completions_and_man_pages_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let output = parser(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        assert!(
            text.contains("mem_parser") && text.contains("inuse_space"),
            "{shell}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let output = parser(&["man", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = fs::read_to_string(directory.path().join("mem_parser.1")).unwrap();
    assert!(
        page.contains("Examples:") && page.contains("nodecount"),
        "{page}"
    );
    let output = parser(&["man", "/nonexistent/pages"]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(
        message.contains("/nonexistent/pages") && message.contains("mkdir -p"),
        "{message}"
    );
}

#[test]
fn without_a_terminal_outputs_go_to_standard_output() {
    let directory = tempfile::tempdir().unwrap();
    for output in ["--html", "--svg", "--flame", "--proto", "-t", "--dot"] {
        let piped = parser_in(directory.path(), &["x.heap", output]);
        assert_eq!(piped.status.code(), Some(0), "{}", stderr(&piped));
        assert!(
            !piped.stdout.is_empty() && stderr(&piped).is_empty(),
            "{output}"
        );
        let requested = parser_in(directory.path(), &["x.heap", output, "-o", "-"]);
        assert_eq!(requested.stdout, piped.stdout, "{output}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

/// Returns the output of a command line in a terminal of 80 columns. Needs `script` of util-linux.
fn in_terminal(directory: &Path, arguments: &str) -> String {
    parser_in(directory, &["--version"]);
    let command = format!(
        "stty cols 80 rows 24; '{}' {arguments}",
        env!("CARGO_BIN_EXE_mem_parser")
    );
    let output = Command::new("script")
        .current_dir(directory)
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    stdout(&output).replace('\r', "")
}

#[test]
fn in_a_terminal_pictures_and_pages_go_to_files() {
    let directory = tempfile::tempdir().unwrap();
    let piped = parser_in(directory.path(), &["x.heap", "--html"]).stdout;
    for (option, file) in [
        ("--html", "x.html"),
        ("-s", "x.svg"),
        ("--flame", "x.flame.svg"),
        ("--proto", "x.pb.gz"),
    ] {
        let shown = in_terminal(directory.path(), &format!("x.heap {option}"));
        assert_eq!(shown, format!("mem_parser: {file}: written\n"), "{option}");
        assert!(directory.path().join(file).exists());
    }
    assert_eq!(fs::read(directory.path().join("x.html")).unwrap(), piped);
    // Writing again, and over another file.
    assert!(in_terminal(directory.path(), "x.heap --html").contains("x.html: written"));
    fs::write(directory.path().join("x.html"), "<p>my own").unwrap();
    assert!(in_terminal(directory.path(), "x.heap --html").contains("x.html exists"));
    assert_eq!(
        fs::read(directory.path().join("x.html")).unwrap(),
        b"<p>my own"
    );
    // Tables, and outputs with -o, are the same as without a terminal.
    assert!(in_terminal(directory.path(), "x.heap").contains("flat%"));
    assert!(in_terminal(directory.path(), "x.heap -s -o -").contains("<svg"));
    assert_eq!(in_terminal(directory.path(), "x.heap -s -o y.svg"), "");
    assert!(directory.path().join("y.svg").exists());
}

#[test]
fn both_spellings_of_units_are_accepted_and_pprofs_is_shown_on_request() {
    let shown = |arguments: &[&str]| {
        let output = parser(&[&["x.heap"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    for report in ["-t", "-s", "--flame"] {
        let [ours, theirs] = ["KiB", "kB"].map(|unit| shown(&[report, "--unit", unit]));
        // Scripts name units, too.
        let text = ours.split("<script><![CDATA[").next().unwrap();
        assert!(text.contains("KiB") && !text.contains("kB"), "{report}");
        if report != "-t" {
            assert!(ours == theirs, "{report}");
            continue;
        }
        assert!(theirs.contains("kB") && !theirs.contains("KiB"), "{theirs}");
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(words(&ours.replace("KiB", "kB")), words(&theirs));
    }
    for report in ["--tree", "--peek=.", "--traces", "--raw", "--list=."] {
        let text = shown(&[report]);
        assert!(!text.contains("kB"), "{report}: {text}");
    }
    let refused = parser(&["x.heap", "-t", "--unit", "stone"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    assert!(
        message.contains("KiB") && message.contains("kB"),
        "{message}"
    );
    let help = stdout(&parser(&["--help"]));
    assert!(
        help.contains("KiB, MiB and so on (kB, MB are the same"),
        "{help}"
    );
}

#[test]
fn words_of_other_profilers_lead_to_what_does_the_same_here() {
    for (words, expected) in [
        ("dump", "did you mean mem_profiler dump"),
        ("summary x.bin", "did you mean mem_parser FILE"),
        (
            "-web x.heap",
            "there is no option --web; did you mean --html?",
        ),
        (
            "-tagroot=bytes x.heap",
            "there is no option -tagroot: stacks are selected",
        ),
        (
            "-tags x.heap",
            "there is no option -tags: --raw shows the labels",
        ),
        (
            "--call_tree x.heap",
            "there is no option --call_tree: a flame graph",
        ),
        (
            "http://localhost:6060/debug/pprof/heap",
            "did you mean curl -s http://localhost:6060/debug/pprof/heap | mem_parser -?",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_mem_parser"))
            .current_dir(directory.path())
            .args(words.split(' '))
            .output()
            .unwrap();
        assert_ne!(output.status.code(), Some(0), "{words}");
        assert!(
            stderr(&output).contains(expected),
            "{words}: {}",
            stderr(&output)
        );
    }
}
