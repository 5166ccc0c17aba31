//! Command-line options that make a Python interpreter ignore its environment variables.

use core::ffi::{CStr, c_char, c_int};
use shm_protocol::options::ignore_environment;

/// Command line of the program, as the loader passes it to constructors.
#[derive(Clone, Copy)]
pub struct CommandLine {
    pub count: c_int,
    pub arguments: *const *const c_char,
}

impl CommandLine {
    /// Returns an argument; 0 is the program's name.
    fn get(self, index: usize) -> Option<&'static [u8]> {
        if index >= usize::try_from(self.count).ok()? || self.arguments.is_null() {
            return None;
        }
        // SAFETY: glibc passes `count` arguments, which exist until the process exits.
        unsafe {
            let argument = *self.arguments.add(index);
            (!argument.is_null()).then(|| CStr::from_ptr(argument).to_bytes())
        }
    }

    /// Returns true for `python -I` and `python -E`.
    pub fn ignores_environment(self) -> bool {
        let program = self.get(0).unwrap_or_default();
        let name = program.rsplit(|byte| *byte == b'/').next();
        let is_python = name.is_some_and(|name| name.starts_with(b"python"));
        is_python && ignore_environment((1..).map_while(|index| self.get(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_programs_are_not_pythons() {
        let ignores = |program: &CStr| {
            let arguments = [program.as_ptr(), c"-I".as_ptr()];
            let line = CommandLine {
                count: 2,
                arguments: arguments.as_ptr(),
            };
            line.ignores_environment()
        };
        assert!(ignores(c"/usr/bin/python3.11-dbg") && ignores(c"python"));
        assert!(!ignores(c"/usr/bin/uwsgi") && !ignores(c"/opt/python/uwsgi"));
        let none = CommandLine {
            count: 0,
            arguments: core::ptr::null(),
        };
        assert!(!none.ignores_environment());
    }
}
