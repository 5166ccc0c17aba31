//! Hints that clap does not give for usage errors. It suggests similar options and commands, but
//! does not know that a word may name a process or a program.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use mem_agents::text;

use super::Cli;

/// Commands that take no processes.
const WITHOUT_PROCESSES: [&str; 3] = ["completions", "man", "help"];

/// Adds a hint to a usage error, if there is one.
pub fn add_hint(mut error: Error) -> Error {
    if let Some(word_error) = error_of_word(&error) {
        error = word_error;
    }
    if is_far_fetched(&error) {
        error.remove(ContextKind::SuggestedSubcommand);
    }
    let hints = hints(&error);
    if !hints.is_empty() {
        let hints = hints.into_iter().map(Into::into).collect();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hints));
    }
    error
}

/// Returns true if a word is too long, or too short, to be a misspelling of the command that clap
/// suggests: clap suggests `rss` for `redis-server`.
fn is_far_fetched(error: &Error) -> bool {
    /// Maximum number of letters by which a misspelling is longer or shorter than the command.
    const MAX_DIFFERENCE: usize = 2;
    let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) else {
        return false;
    };
    let word = context_text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
    let is_far = |name: &String| name.len().abs_diff(word.len()) > MAX_DIFFERENCE;
    similar.iter().all(is_far)
}

/// Returns the command that `words` begin with, so that errors show its usage. Stops at the first
/// word that is not a subcommand.
pub fn command_of(words: &[&str]) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    for word in words {
        match command.find_subcommand(word) {
            Some(subcommand) => command = subcommand.clone(),
            None => break,
        }
    }
    command
}

/// Returns the option of `run` or `cpu run` that is most similar to an unknown one. clap treats an
/// unknown option of these commands as the program to start, so it suggests nothing.
pub fn similar_option(command: &[&str], typed: &OsStr) -> Option<String> {
    let root = Cli::command();
    let subcommand = command
        .iter()
        .try_fold(&root, |parent, name| parent.find_subcommand(name))?;
    let options = subcommand
        .get_arguments()
        .filter(|option| !option.is_positional());
    let probe = clap::Command::new("run").args(options.cloned());
    let error = probe
        .try_get_matches_from([OsStr::new("run"), typed])
        .err()?;
    match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(option)) => Some(option.clone()),
        _ => None,
    }
}

/// Returns the error to report instead of `error`, if options of a session without a command are
/// followed by a word that is not a command. clap reports a conflict, but the word is the mistake.
fn error_of_word(error: &Error) -> Option<Error> {
    let word = context_text(error, ContextKind::InvalidSubcommand)?;
    let is_conflict = error.kind() == ErrorKind::ArgumentConflict;
    if !is_conflict {
        return None;
    }
    let word_error = Cli::try_parse_word(word).err()?;
    (word_error.kind() == ErrorKind::InvalidSubcommand).then_some(word_error)
}

fn context_text(error: &Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

fn hints(error: &Error) -> Vec<String> {
    let has = |kind| error.get(kind).is_some();
    let command = context_text(error, ContextKind::InvalidSubcommand);
    if has(ContextKind::SuggestedArg) || has(ContextKind::SuggestedSubcommand) {
        // A process may have a name that is similar to a command's.
        let process = command.filter(|word| is_process(word));
        return process.map_or(Vec::new(), hints_for);
    }
    match (
        error.kind(),
        command,
        context_text(error, ContextKind::InvalidArg),
    ) {
        (ErrorKind::ArgumentConflict, Some(command), _) => vec![format!(
            "options before a command belong to a session without one; 'mem_profiler {command} \
             --help' lists those of '{command}'"
        )],
        (ErrorKind::InvalidSubcommand, Some(word), _) => hints_for(word),
        (ErrorKind::UnknownArgument, _, Some(option)) if option.starts_with('-') => {
            alternative_to(command_word().to_str().unwrap_or_default(), option)
                .map(str::to_owned)
                .into_iter()
                .collect()
        }
        (ErrorKind::UnknownArgument, _, Some("run")) => {
            instead_of_run(command_word().to_str().unwrap_or_default())
                .map(str::to_owned)
                .into_iter()
                .collect()
        }
        (ErrorKind::UnknownArgument, _, Some(word)) if takes_processes() => hints_for(word),
        _ => Vec::new(),
    }
}

/// Returns a hint on what to use instead of an option that `command` lacks.
pub fn alternative_to(command: &str, option: &str) -> Option<&'static str> {
    const FILE_OPTIONS: [&str; 2] = ["-o", "--output"];
    const PAGE_OPTIONS: [&str; 2] = ["--html", "--open"];
    let is_file = FILE_OPTIONS.contains(&option);
    let is_page = PAGE_OPTIONS.contains(&option);
    Some(match command {
        "list" if is_page => "'mem_profiler serve' shows the processes in a browser",
        "list" if is_file => "'mem_profiler list > FILE' writes the list; --json is for programs",
        "why" if is_page => "'mem_profiler rss --html -p' makes a page of resident memory",
        "why" if is_file => "'mem_profiler why > FILE' writes it; --json is for programs",
        "top" if is_page => {
            "'mem_profiler dump --html' makes a page of what it shows; 'serve' shows a live one"
        }
        "run" if option == "--rss" => "'mem_profiler rss run' samples resident memory",
        "top" if option == "--rss" => "'mem_profiler rss --every 10' writes it regularly",
        "clean" if is_page || is_file => "'clean' writes no files; 'recover' writes profiles first",
        "list" | "why" | "top" if matches!(option, "-q" | "--quiet") => {
            "what it prints is all that it makes: use '> /dev/null' for the exit code alone"
        }
        _ => return None,
    })
}

/// Returns how to start a program for a command that has no `run` of its own, as `cpu` has.
fn instead_of_run(command: &str) -> Option<&'static str> {
    Some(match command {
        "leaks" => {
            "to start a program and check it, use 'mem_profiler run --leak-check -- PROGRAM'"
        }
        "top" | "both" | "dump" | "stop" | "why" | "list" => {
            "to start a program with the agent, use 'mem_profiler run -- PROGRAM'"
        }
        "go" => "it needs no agent: start the program as usual, then select it with -p NAME",
        _ => return None,
    })
}

/// Returns hints on what a word that is neither an option nor a command may have meant.
fn hints_for(word: &str) -> Vec<String> {
    if word.starts_with('-') {
        return Vec::new();
    }
    let quoted = text::shell_word(word);
    let process = format!("to select a process, use '-p {quoted}'");
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        return vec![process];
    }
    let program = format!("to start a program, use 'mem_profiler run {quoted}'");
    vec![process, program]
}

/// Returns true if a process has this name.
fn is_process(word: &str) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return false;
    };
    let mut names = processes.flatten().filter_map(|process| {
        let name = std::fs::read(process.path().join("comm")).ok()?;
        Some(name.trim_ascii_end().to_vec())
    });
    names.any(|name| name == word.as_bytes())
}

fn takes_processes() -> bool {
    let command = command_word();
    !WITHOUT_PROCESSES.iter().any(|name| command == *name)
}

/// Returns the first argument of this program.
fn command_word() -> OsString {
    std::env::args_os().nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Returns the error message for a command line.
    fn message(line: &[&str]) -> String {
        let line = [&["mem_profiler"], line].concat();
        let error = add_hint(Cli::try_parse_from(line).unwrap_err());
        assert_eq!(error.exit_code(), 2);
        error.render().to_string()
    }

    #[test]
    fn a_pid_or_name_without_its_option_gets_a_hint() {
        for line in [
            &["1234"][..],
            &["list", "1234"],
            &["cpu", "1234"],
            &["cpu", "-s", "5", "1234"],
            &["-s", "5", "1234"],
            &["leaks", "1234"],
        ] {
            let message = message(line);
            assert!(message.contains("'-p 1234'"), "{line:?}: {message}");
            assert!(!message.contains("mem_profiler run"), "{line:?}: {message}");
        }
        let message = message(&["redis-server"]);
        for part in ["'-p redis-server'", "'mem_profiler run redis-server'"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_process_named_almost_like_a_command_gets_a_hint() {
        let directory = std::env::temp_dir().join(format!("lisst.{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let program = directory.join("lisst");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut process = std::process::Command::new(&program)
            .arg("600")
            .spawn()
            .unwrap();
        // The kernel closes files on exec before it changes the name, so `spawn` may return between.
        while !is_process("lisst") {
            std::thread::yield_now();
        }
        let message = message(&["lisst"]);
        process.kill().unwrap();
        process.wait().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(
            message.contains("'-p lisst'") && message.contains("'list'"),
            "{message}"
        );
    }

    #[test]
    fn misspelt_commands_and_options_get_claps_suggestion() {
        for (line, meant) in [
            (&["lsit"][..], "'list'"),
            (&["-s", "5", "lsit"], "'list'"),
            (&["--intervall", "5"], "'--interval'"),
            (&["top", "--sorrt", "live"], "'--sort'"),
        ] {
            let message = message(line);
            assert!(
                message.contains("similar") && message.contains(meant),
                "{message}"
            );
            assert!(!message.contains("-p "), "{message}");
        }
    }

    #[test]
    fn options_of_a_session_are_distinguished_from_those_of_a_command() {
        let before = message(&["-q", "list"]);
        assert!(before.contains("'mem_profiler list --help'"), "{before}");
        let unknown = message(&["list", "-x"]);
        assert!(!unknown.contains("tip:"), "{unknown}");
    }

    #[test]
    fn an_option_that_a_command_lacks_gets_what_to_use_instead() {
        for (command, option, instead) in [
            ("list", "-q", "/dev/null"),
            ("list", "--html", "mem_profiler serve"),
            ("list", "--output", "list > FILE"),
            ("why", "--open", "rss --html"),
            ("why", "-o", "why > FILE"),
            ("top", "--html", "dump --html"),
            ("top", "--quiet", "/dev/null"),
            ("clean", "-o", "recover"),
        ] {
            let found = alternative_to(command, option);
            assert!(
                found.is_some_and(|found| found.contains(instead)),
                "{command} {option}"
            );
        }
        for other in ["--zzz", "-x"] {
            assert_eq!(alternative_to("list", other), None, "{other}");
        }
    }

    #[test]
    fn commands_without_run_say_how_to_start_a_program() {
        for (command, instead) in [
            ("leaks", "run --leak-check -- PROGRAM"),
            ("top", "'mem_profiler run -- PROGRAM'"),
            ("go", "-p NAME"),
        ] {
            let found = instead_of_run(command);
            assert!(found.is_some_and(|f| f.contains(instead)), "{command}");
        }
        assert_eq!(instead_of_run("cpu"), None);
    }

    #[test]
    fn errors_show_the_usage_of_their_command() {
        for (words, usage) in [
            (&["run", "--zzz"][..], "Usage: mem_profiler run "),
            (&["cpu", "run", "x"], "Usage: mem_profiler cpu run "),
            (&["cpu", "-s", "run"], "Usage: mem_profiler cpu "),
            (&[], "Usage: mem_profiler "),
        ] {
            let error = command_of(words).error(ErrorKind::ValueValidation, "no");
            let said = error.render().to_string();
            assert!(said.contains(usage), "{words:?}: {said}");
        }
    }

    #[test]
    fn an_option_that_is_taken_for_a_program_gets_the_nearest_suggestion() {
        let near = |command: &[&str], typed: &str| similar_option(command, OsStr::new(typed));
        let found = near(&["run"], "--intervall");
        assert_eq!(found.as_deref(), Some("--interval"));
        let found = near(&["cpu", "run"], "--frequencyy=5");
        assert_eq!(found.as_deref(), Some("--frequency"));
        for none in ["-q", "--zzzzzz", "--interval"] {
            assert_eq!(near(&["run"], none), None, "{none}");
        }
    }
}
