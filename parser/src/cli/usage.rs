//! Reports usage errors in two lines: the error with what was probably meant, and where to read
//! more.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use mem_parser::nearest;
use profile::printable;

use super::Cli;
use crate::destination;

/// Words from other programs, and the corresponding options.
const SYNONYMS: [(&str, &str); 11] = [
    ("callgraph", "svg"),
    ("collapsed", "folded"),
    ("compare", "diff_base"),
    ("diff", "diff_base"),
    ("flamegraph", "flame"),
    ("interactive", "html"),
    ("pdf", "svg"),
    ("png", "svg"),
    ("pprof", "proto"),
    ("table", "top"),
    ("web", "html"),
];

/// Commands of heaptrack, memray, bytehound and perf that take a recording, with their equivalents
/// here.
const COMMANDS: [(&str, &str); 8] = [
    ("analyze", "mem_parser FILE, with a dump"),
    ("dump", "mem_profiler dump, which writes one"),
    ("heaptrack_print", "mem_parser FILE, with a dump"),
    ("report", "mem_parser FILE, with a dump"),
    ("run", "mem_profiler run, which writes a dump"),
    ("server", "mem_parser FILE --html, with a dump"),
    ("stats", "mem_parser FILE --sizes, with a dump"),
    ("summary", "mem_parser FILE, with a dump"),
];

/// Options of jeprof, gperftools' pprof and Go's pprof that do not exist here, with advice.
const REPLACED_OPTIONS: [(&str, &str); 38] = [
    ("gif", WRITE_SVG),
    ("ps", WRITE_SVG),
    ("jpg", WRITE_SVG),
    ("gv", OPEN_FILE),
    ("evince", OPEN_FILE),
    (
        "http",
        "--html writes a page for a browser, which needs no server: mem_parser x.heap --html -o x.html",
    ),
    ("show_bytes", "values are shown in bytes with --unit B"),
    (
        "heapcheck",
        "the dump of a leak check is recognised: leave the option out",
    ),
    (
        "maxdegree",
        "a call graph is limited with -n, --nodefraction and --edgefraction",
    ),
    (
        "add_lib",
        "libraries are found by the paths in the dump, or with --symbol-path DIRECTORY",
    ),
    (
        "lib_prefix",
        "libraries are found by the paths in the dump, or with --symbol-path DIRECTORY",
    ),
    (
        "disasm",
        "source lines are shown with --list PATTERN; there is no disassembly",
    ),
    (
        "weblist",
        "source lines are shown with --list PATTERN, or on the page of --html",
    ),
    (
        "tagroot",
        "stacks are selected by their labels with --tagfocus KEY=VALUE",
    ),
    (
        "tagleaf",
        "stacks are selected by their labels with --tagfocus KEY=VALUE",
    ),
    (
        "tags",
        "--raw shows the labels, and --tagfocus KEY=VALUE selects stacks by them",
    ),
    ("comments", "--raw shows what a profile holds"),
    ("eog", OPEN_FILE),
    (
        "kcachegrind",
        "--callgrind writes a file for KCachegrind: mem_parser x.heap --callgrind -o callgrind.out.x",
    ),
    (
        "mean",
        "values are not averaged; --sample_index chooses the column",
    ),
    (
        "normalize",
        "values are not scaled to the base's total; --divide_by scales them",
    ),
    (
        "filefunctions",
        "rows are functions with --functions, and files with --files",
    ),
    ("buildid", "the program is named with -p BINARY"),
    (
        "call_tree",
        "a flame graph (--flame) shows each path of calls by itself",
    ),
    (
        "no_browser",
        "no browser is started: --html -o x.html writes a page",
    ),
    ("stacks", "all stacks are listed with --traces"),
    ("scale", "a viewer scales the picture: leave the option out"),
    ("symbols", SYMBOLIZED_ON_READING),
    ("tools", SYMBOLIZED_ON_READING),
    ("no_strip_temp", SYMBOLIZED_ON_READING),
    ("debug_syms_by_id", SYMBOLIZED_ON_READING),
    ("exclude", "stacks are left out with --ignore PATTERN"),
    (
        "retain",
        "only matching functions are shown with --show PATTERN",
    ),
    (
        "seconds",
        "a running process is sampled with mem_profiler -s SECONDS -p PID",
    ),
    ("contention", OFF_CPU),
    ("contentions", OFF_CPU),
    ("total_delay", OFF_CPU),
    ("mean_delay", OFF_CPU),
];
const SYMBOLIZED_ON_READING: &str =
    "functions are named when the dump is read: leave the option out";
const OFF_CPU: &str = "where threads wait is recorded with mem_profiler cpu --offcpu";
const WRITE_SVG: &str = "pictures are written as SVG (--svg, --flame), which rsvg-convert or a browser \
                       converts: mem_parser x.heap --svg -o x.svg";
const OPEN_FILE: &str = "write the picture to a file, and open that in a browser: mem_parser x.heap \
                     --svg -o x.svg";

/// Exits with code 2 if an option of another program was given. Advises what to use instead.
pub fn reject_foreign_options(arguments: impl Iterator<Item = String>) {
    for argument in arguments.take_while(|argument| argument != "--") {
        if let Some(message) = replacement_advice(&argument) {
            fail(&format!(
                "{message}\nFor all options, try 'mem_parser --help'."
            ));
            std::process::exit(2);
        }
    }
}

/// Returns the message about an option of another program.
fn replacement_advice(argument: &str) -> Option<String> {
    let option = argument.split('=').next().unwrap_or(argument);
    let name = option
        .strip_prefix("--")
        .or_else(|| option.strip_prefix('-'))?;
    let normalized = name.replace('-', "_").to_lowercase();
    let (_, advice) = REPLACED_OPTIONS
        .iter()
        .find(|(theirs, _)| *theirs == normalized)?;
    Some(format!("there is no option {option}: {advice}"))
}

/// Exits: prints help or the version, or prints an error and exits with code 2.
pub fn exit_with(error: Error) -> ! {
    if !error.use_stderr() {
        let text = error.render();
        let text = if std::io::stdout().is_terminal() {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        let written = destination::to_stdout(text.as_bytes());
        if let Err(error) = &written {
            let _ = writeln!(std::io::stderr(), "mem_parser: {error:#}");
        }
        std::process::exit(i32::from(written.is_err()));
    }
    let message = message(&error);
    // Names in the message must not begin lines of their own.
    let message = message.replace('\n', " ");
    fail(&format!(
        "{message}\nFor all options, try 'mem_parser --help'."
    ));
    std::process::exit(2);
}

/// Prints a usage error. Returns the exit code.
pub fn fail(message: &str) -> ExitCode {
    // If standard error cannot be written, the message is lost.
    let _ = writeln!(std::io::stderr(), "error: {}", printable::text(message));
    ExitCode::from(2)
}

/// Returns the message with what was probably meant.
fn message(error: &Error) -> String {
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => argument.as_str(),
        _ => "",
    };
    if error.kind() == ErrorKind::UnknownArgument && argument.starts_with('-') {
        return unknown_option_message(argument);
    }
    let text = message_line(error);
    if is_about_man(error) {
        format!("{text}; a dump called man is read as ./man")
    } else {
        text
    }
}

/// Returns true if the error is about the first argument `man`, which may be meant as a file.
fn is_about_man(error: &Error) -> bool {
    error.kind() == ErrorKind::MissingRequiredArgument
        && std::env::args_os()
            .nth(1)
            .is_some_and(|first| first == "man")
}

/// Returns clap's message on one line, without the usage.
fn message_line(error: &Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let is_end = |line: &&str| line.starts_with("Usage:") || line.starts_with("For more");
    let lines = text.lines().take_while(|line| !is_end(line));
    let mut reported = String::new();
    for line in lines.map(str::trim).filter(|line| !line.is_empty()) {
        let between = match reported.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) if line.starts_with('[') => " ",
            Some(_) => "; ",
        };
        reported += between;
        reported += line.strip_prefix("tip: ").unwrap_or(line);
    }
    reword(reported)
}

/// Rewords errors about numbers, which clap words for programmers.
fn reword(reported: String) -> String {
    let reported = reported
        .replace("invalid digit found in string", "expected a whole number")
        .replace("invalid float literal", "expected a number");
    match reported.split_once("a similar value exists: ") {
        Some((before, value)) => format!("{before}did you mean {value}?"),
        None => reported,
    }
}

/// Returns the message about an unknown option, with the option that was probably meant.
fn unknown_option_message(argument: &str) -> String {
    match option_like(argument.trim_start_matches('-')) {
        Some(meant) => format!("there is no option {argument}; did you mean {meant}?"),
        None => format!("there is no option {argument}"),
    }
}

/// Returns the arguments of this program. Bytes that are not UTF-8 are replaced: file names may
/// have them, options do not.
pub fn arguments() -> impl Iterator<Item = String> {
    let given = std::env::args_os().skip(1);
    given.map(|argument| argument.to_string_lossy().into_owned())
}

/// Returns the command line of this process. Long options that were given with one dash, as in
/// pprof, get two: `-top` would otherwise be `-t -o p`, which writes a file called `p`.
pub fn with_two_dashes() -> impl Iterator<Item = OsString> {
    let names = option_names();
    let is_name = move |name: &str| {
        let is_synonym = SYNONYMS.iter().any(|(theirs, _)| *theirs == name);
        name.len() > 1 && (is_synonym || names.iter().any(|ours| ours == name))
    };
    let mut are_options = true;
    std::env::args_os().map(move |argument| {
        are_options &= argument != "--";
        let text = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let name = text.and_then(|text| text.split('=').next());
        if are_options && name.is_some_and(&is_name) {
            format!("-{}", argument.to_string_lossy()).into()
        } else {
            argument
        }
    })
}

/// Returns the equivalent here of a command of another program.
pub fn command_of_another(typed: &str) -> Option<String> {
    let found = COMMANDS.iter().find(|(theirs, _)| *theirs == typed)?;
    Some(found.1.to_owned())
}

/// Returns the option with the nearest name, with its dashes.
pub fn option_like(typed: &str) -> Option<String> {
    let typed = typed.split('=').next().unwrap_or(typed);
    let names = option_names();
    let normalized = typed.replace('-', "_").to_lowercase();
    let synonym = SYNONYMS.iter().find(|(theirs, _)| *theirs == normalized);
    let name = match synonym {
        Some((_, ours)) => (*ours).to_owned(),
        None => nearest::word(typed, names.iter().map(String::as_str))?.to_owned(),
    };
    Some(format!("--{name}"))
}

/// Returns the command with the nearest name.
pub fn command_like(typed: &str) -> Option<String> {
    let command = Cli::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let name = nearest::word(typed, names)?;
    Some(format!("mem_parser {name}"))
}

/// Returns the long names of all options.
fn option_names() -> Vec<String> {
    let mut command = Cli::command();
    command.build();
    let longs = command.get_arguments().flat_map(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases)
    });
    longs.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_programs_get_advice() {
        let names = option_names();
        for (theirs, ours) in SYNONYMS {
            assert!(names.iter().any(|name| name == ours), "{ours}");
            assert!(!names.iter().any(|name| name == theirs), "{theirs}");
        }
    }

    #[test]
    fn options_of_other_pprofs_get_advice() {
        let names = option_names();
        for (theirs, _) in REPLACED_OPTIONS {
            assert!(!names.iter().any(|name| name == theirs), "{theirs}");
            let advice = replacement_advice(&format!("--{theirs}=x")).unwrap();
            assert!(advice.starts_with(&format!("there is no option --{theirs}: ")));
        }
        assert!(
            replacement_advice("-http=:8080")
                .unwrap()
                .contains("--html")
        );
        assert!(
            replacement_advice("--add-lib")
                .unwrap()
                .contains("--symbol-path")
        );
        for other in ["-h", "--html", "x.heap", "-", "--", "--focus=web"] {
            assert_eq!(replacement_advice(other), None);
        }
    }

    #[test]
    fn unknown_options_get_no_advice() {
        assert_eq!(option_like("zzzzzz"), None);
        assert_eq!(option_like("flam").as_deref(), Some("--flame"));
        assert_eq!(
            option_like("granularty=lines").as_deref(),
            Some("--granularity")
        );
    }
}
