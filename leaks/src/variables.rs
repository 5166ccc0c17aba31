//! Environment variables of gperftools' heap checker, interpreted as gperftools does.

use proc::is_traced;

use super::Method;
use super::options::Options;

const GLOBALS: &str = "HEAP_CHECK_IGNORE_GLOBAL_LIVE";
const THREADS: &str = "HEAP_CHECK_IGNORE_THREAD_LIVE";
const ALIGNMENT: &str = "HEAP_CHECK_POINTER_SOURCE_ALIGNMENT";
const OFFSET: &str = "HEAP_CHECK_MAX_POINTER_OFFSET";
const LEAKS: &str = "HEAP_CHECK_MAX_LEAKS";
const IDENTIFY: &str = "HEAP_CHECK_IDENTIFY_LEAKS";
const TEST_ALIGNMENT: &str = "HEAP_CHECK_TEST_POINTER_ALIGNMENT";
const UNDER_DEBUGGER: &str = "HEAP_CHECK_RUN_UNDER_GDB";

/// Number of searches of a process under a debugger.
const SEARCHES: u32 = 5;
/// Default number of stacks shown, as in gperftools.
const DEFAULT_SHOWN: usize = 20;

/// Settings of a check at exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variables {
    /// Options of the search. The variables choose the roots only in the mode `as-is`.
    pub options: Options,
    /// Maximum number of stacks to show.
    pub max_stacks: usize,
    /// True if each lost object is to be listed.
    pub identify: bool,
    /// True if a check that finds leaks is to be repeated with pointers at any address.
    pub test_alignment: bool,
    /// True if a process under a debugger is to be checked; it runs during the check.
    pub under_debugger: bool,
}

impl Variables {
    /// Reads the variables through `get`. With `as_is`, they choose the roots.
    ///
    /// # Errors
    /// Text for display, if a value is not a number or out of range.
    pub fn read(get: impl Fn(&str) -> Option<String>, as_is: bool) -> Result<Self, String> {
        let mut options = Options::default();
        if as_is {
            options.globals = get(GLOBALS).is_none_or(|text| is_true(&text));
            options.stacks = get(THREADS).is_none_or(|text| is_true(&text));
            options.registers = options.stacks;
            options.thread_variables = options.stacks;
        }
        let number = |name: &str| get(name).map(|text| number(name, &text)).transpose();
        options.alignment = match number(ALIGNMENT)? {
            None => options.alignment,
            Some(n @ (1 | 2 | 4 | 8)) => n as usize,
            Some(n) => return Err(format!("{ALIGNMENT}={n}: expected 1, 2, 4 or 8")),
        };
        // A negative value means no limit.
        options.max_offset = number(OFFSET)?.and_then(|bytes| u64::try_from(bytes).ok());
        let max_stacks = match number(LEAKS)? {
            None => DEFAULT_SHOWN,
            Some(n) if n <= 0 => usize::MAX,
            Some(n) => usize::try_from(n).unwrap_or(usize::MAX),
        };
        let is_set = |name: &str| get(name).is_some_and(|text| is_true(&text));
        Ok(Self {
            options,
            max_stacks,
            identify: is_set(IDENTIFY),
            test_alignment: is_set(TEST_ALIGNMENT),
            under_debugger: is_set(UNDER_DEBUGGER),
        })
    }
}

impl Variables {
    /// Returns how to check a process. A process under a debugger is checked while it runs, if
    /// enabled.
    pub fn method(&self, pid: i32, usual: Method) -> Method {
        if self.under_debugger && is_traced(pid) {
            Method::Running(SEARCHES)
        } else {
            usual
        }
    }
}

fn is_true(text: &str) -> bool {
    text.is_empty() || text.starts_with(['t', 'T', 'y', 'Y', '1'])
}

fn number(name: &str, text: &str) -> Result<i64, String> {
    let number = text.trim().parse();
    number.map_err(|_| format!("{name}={}: expected a number", text.escape_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)], as_is: bool) -> Result<Variables, String> {
        let get = |name: &str| {
            let entry = set.iter().find(|(n, _)| *n == name);
            entry.map(|(_, value)| (*value).to_owned())
        };
        Variables::read(get, as_is)
    }

    #[test]
    fn unset_variables_mean_the_defaults() {
        for as_is in [false, true] {
            let variables = read(&[], as_is).unwrap();
            assert_eq!(variables.options, Options::default());
            assert_eq!(variables.max_stacks, 20);
        }
    }

    #[test]
    fn roots_are_excluded_only_in_the_mode_as_is() {
        for (value, is_root) in [("0", false), ("false", false), ("1", true), ("", true)] {
            let set = [(GLOBALS, value), (THREADS, "no")];
            let variables = read(&set, true).unwrap().options;
            assert_eq!((variables.globals, variables.stacks), (is_root, false));
            assert_eq!(read(&set, false).unwrap().options, Options::default());
        }
    }

    #[test]
    fn additional_output_is_off_by_default() {
        let flags = |set: &[(&str, &str)]| {
            let read = read(set, false).unwrap();
            (read.identify, read.test_alignment, read.under_debugger)
        };
        assert_eq!(flags(&[]), (false, false, false));
        assert_eq!(flags(&[(IDENTIFY, "1")]), (true, false, false));
        assert_eq!(flags(&[(TEST_ALIGNMENT, "true")]), (false, true, false));
        assert_eq!(flags(&[(UNDER_DEBUGGER, "yes")]), (false, false, true));
        assert_eq!(flags(&[(UNDER_DEBUGGER, "0")]), (false, false, false));
    }

    #[test]
    fn numbers_are_checked() {
        let offset = |text: &str| read(&[(OFFSET, text)], false).map(|v| v.options.max_offset);
        assert_eq!(offset("1024"), Ok(Some(1024)));
        assert_eq!(offset("-1"), Ok(None));
        assert!(offset("many").unwrap_err().contains("MAX_POINTER_OFFSET"));
        let max_stacks = |text: &str| read(&[(LEAKS, text)], false).map(|v| v.max_stacks);
        assert_eq!((max_stacks("3"), max_stacks("0")), (Ok(3), Ok(usize::MAX)));
        let aligned = |text: &str| read(&[(ALIGNMENT, text)], false).map(|v| v.options.alignment);
        assert_eq!(aligned("1"), Ok(1));
        assert!(aligned("3").unwrap_err().contains("1, 2, 4 or 8"));
        assert!(aligned("99999999999999999999").is_err());
    }
}
