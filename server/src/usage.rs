//! Hints for usage errors: what to use instead of options that other commands have.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Adds a hint to the usage error of a command, if there is one.
pub fn hinted(mut error: Error, command: &str) -> Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(hint) = instead_of(command, option)
    {
        let hint = vec![hint.to_owned().into()];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hint));
    }
    error
}

/// Returns what to use instead of an option with which other commands write files, or print for
/// programs.
fn instead_of(command: &str, option: &str) -> Option<&'static str> {
    let is_file = matches!(option, "-o" | "--output");
    let is_page = matches!(option, "--html" | "--open");
    let is_json = option == "--json";
    Some(match command {
        "serve" if is_page => {
            "open the address that it prints in a browser; 'mem_profiler dump --html' writes a page"
        }
        "serve" if is_file => {
            "clients download the profiles: curl -O ADDRESS/dump?pid=PID; 'mem_profiler dump -o' writes them"
        }
        "serve" if is_json => "clients get JSON: curl ADDRESS/api/processes",
        "push" if is_page => {
            "the receiver shows the profiles; 'mem_profiler --every TIME --html' writes pages"
        }
        "push" if is_file => {
            "'mem_profiler --every TIME -o PREFIX --push URL --to PROTOCOL' also writes the profiles"
        }
        "push" if is_json => {
            "what it sends is all that it makes: 'mem_profiler --every TIME --push URL --json' lists files"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn an_option_that_a_command_lacks_gets_what_to_use_instead() {
        for (command, option, instead) in [
            ("serve", "--html", "in a browser"),
            ("serve", "-o", "/dump?pid=PID"),
            ("serve", "--json", "/api/processes"),
            ("push", "--html", "--every TIME --html"),
            ("push", "-o", "-o PREFIX --push URL"),
            ("push", "--json", "--json"),
        ] {
            let error = Cli::try_parse_from(["mem_server", command, option]).unwrap_err();
            let said = hinted(error, command).render().to_string();
            assert!(
                said.contains("tip: ") && said.contains(instead),
                "{command} {option}: {said}"
            );
            assert!(!said.contains("as a value"), "{said}");
        }
        let error = Cli::try_parse_from(["mem_server", "serve", "--zzz"]).unwrap_err();
        assert!(!hinted(error, "serve").render().to_string().contains("tip:"));
    }
}
