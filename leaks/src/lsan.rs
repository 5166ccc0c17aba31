//! Parses LeakSanitizer options from `LSAN_OPTIONS`: `NAME=VALUE`, separated by white space, commas
//! or colons.

use super::options::Options;

/// Default exit code of a program with leaks.
const EXIT_CODE: i32 = 23;

/// Options of LeakSanitizer that are supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LsanOptions {
    /// True if checks are enabled.
    pub detect_leaks: bool,
    /// True if the check at exit is enabled.
    pub at_exit: bool,
    /// Path of a file with suppressions, if any.
    pub suppressions: Option<String>,
    /// True if matching suppressions are to be listed.
    pub print_suppressions: bool,
    /// Maximum number of stacks to show; 0 shows all.
    pub max_leaks: usize,
    /// Exit code after a fatal check that found leaks.
    pub exit_code: i32,
    globals: bool,
    stacks: bool,
    registers: bool,
    thread_variables: bool,
    unaligned: bool,
}

impl Default for LsanOptions {
    fn default() -> Self {
        Self {
            detect_leaks: true,
            at_exit: true,
            suppressions: None,
            print_suppressions: true,
            max_leaks: 0,
            exit_code: EXIT_CODE,
            globals: true,
            stacks: true,
            registers: true,
            thread_variables: true,
            unaligned: false,
        }
    }
}

impl LsanOptions {
    /// Parses strings of options; later ones override earlier ones. Unknown options are ignored,
    /// since the variable may contain options of all sanitizers; so are invalid values.
    pub fn read<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for text in texts {
            let mut rest = text;
            while let Some(first) = first_option(rest) {
                all.set(first.name, first.value);
                rest = first.rest;
            }
        }
        all
    }

    fn set(&mut self, name: &str, value: &str) {
        let flag = |flag: &mut bool| match value {
            "0" | "no" | "false" => *flag = false,
            "1" | "yes" | "true" => *flag = true,
            _ => {}
        };
        match name {
            "detect_leaks" => flag(&mut self.detect_leaks),
            "leak_check_at_exit" => flag(&mut self.at_exit),
            "print_suppressions" => flag(&mut self.print_suppressions),
            "use_globals" => flag(&mut self.globals),
            "use_stacks" => flag(&mut self.stacks),
            "use_tls" => flag(&mut self.thread_variables),
            "use_registers" => flag(&mut self.registers),
            "use_unaligned" => flag(&mut self.unaligned),
            "max_leaks" => self.max_leaks = value.parse().unwrap_or(self.max_leaks),
            "exitcode" => self.exit_code = value.parse().unwrap_or(self.exit_code),
            "suppressions" => {
                self.suppressions = Some(value.to_owned()).filter(|file| !file.is_empty());
            }
            _ => {}
        }
    }

    /// Returns the option that disables the check at exit, if one does.
    pub fn disabling_option(&self) -> Option<&'static str> {
        match (self.detect_leaks, self.at_exit) {
            (false, _) => Some("detect_leaks"),
            (true, false) => Some("leak_check_at_exit"),
            (true, true) => None,
        }
    }

    /// Returns the maximum number of stacks to show.
    pub fn max_stacks(&self) -> usize {
        if self.max_leaks == 0 {
            usize::MAX
        } else {
            self.max_leaks
        }
    }

    /// Converts to the options of a search.
    pub fn search(&self) -> Options {
        Options {
            stacks: self.stacks,
            registers: self.registers,
            thread_variables: self.thread_variables,
            globals: self.globals,
            alignment: if self.unaligned { 1 } else { 8 },
            ..Options::default()
        }
    }
}

/// Option at the start of a text.
struct FirstOption<'a> {
    name: &'a str,
    value: &'a str,
    /// Text after the option.
    rest: &'a str,
}

/// Splits off the first option. Values may be quoted.
fn first_option(options: &str) -> Option<FirstOption<'_>> {
    let is_separator = |c: char| matches!(c, ' ' | ',' | ':' | '\n' | '\t' | '\r');
    let options = options.trim_start_matches(is_separator);
    let (name, value) = options.split_once('=')?;
    if let Some(quote) = value.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        let (value, rest) = value[1..].split_once(quote)?;
        return Some(FirstOption { name, value, rest });
    }
    let (value, rest) = value.split_at(value.find(is_separator).unwrap_or(value.len()));
    Some(FirstOption { name, value, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_texts_override_earlier_ones() {
        assert_eq!(LsanOptions::read([]), LsanOptions::default());
        let program = "exitcode=7:max_leaks=3,use_globals=0 report_objects=1";
        let options = LsanOptions::read([program, "exitcode=0 use_unaligned=1"]);
        assert_eq!((options.exit_code, options.max_stacks()), (0, 3));
        let search = options.search();
        assert_eq!(
            (search.globals, search.stacks, search.alignment),
            (false, true, 1)
        );
        let neither = LsanOptions::read(["use_stacks=false:use_registers=no"]);
        assert!(!neither.search().stacks && !neither.search().registers);
        let search = LsanOptions::read(["use_stacks=0"]).search();
        assert!(!search.stacks && search.registers && search.thread_variables);
        assert!(!LsanOptions::read(["use_tls=0"]).search().thread_variables);
        assert!(LsanOptions::read([]).disabling_option().is_none());
        for text in ["leak_check_at_exit=0", "detect_leaks=false"] {
            let unwanted = LsanOptions::read([text]).disabling_option();
            assert!(text.starts_with(unwanted.expect("a reason")));
        }
        assert!(!LsanOptions::read(["detect_leaks=0"]).detect_leaks);
        assert!(!LsanOptions::read(["print_suppressions=0"]).print_suppressions);
    }

    #[test]
    fn the_suppressions_file_is_parsed() {
        for (options, file) in [
            ("suppressions=a.txt", Some("a.txt")),
            ("verbosity=1:suppressions=/b c", Some("/b")),
            ("suppressions='/b c:d',x=1", Some("/b c:d")),
            ("print_suppressions=0 suppressions=\"x\"", Some("x")),
            ("suppressions=a:suppressions=b", Some("b")),
            ("suppressions=", None),
            ("verbosity=1", None),
            ("suppressions='open", None),
            ("", None),
            ("=::=,==", None),
        ] {
            assert_eq!(
                LsanOptions::read([options]).suppressions.as_deref(),
                file,
                "{options}"
            );
        }
    }

    #[test]
    fn invalid_values_are_ignored() {
        let text = "exitcode=many:max_leaks=-1:use_globals=perhaps:=:==:detect_leaks";
        assert_eq!(LsanOptions::read([text]), LsanOptions::default());
    }
}
