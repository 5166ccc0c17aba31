//! Distinguishes the user's own functions from those of standard libraries and of the runtime.

use std::ops::Range;
use std::path::Path;

/// Prefixes of function names of the standard library, in whatever file they were instantiated.
const LIBRARY_NAMES: [&str; 2] = ["std::", "__gnu_cxx::"];
/// Further prefixes, used if a function has no source file.
const LIBRARY_NAMES_WITHOUT_FILE: [&str; 8] = [
    "alloc::",
    "core::",
    "<alloc::",
    "<core::",
    "<std::",
    "hashbrown::",
    "__rust_",
    "operator new",
];
/// Parts of the paths of headers and libraries of the system and of compilers.
const LIBRARY_PATHS: [&str; 10] = [
    "/usr/include/",
    "/include/c++/",
    "/rustc/",
    // Crates inside Rust's standard library.
    "/rust/deps/",
    "/library/alloc/src/",
    "/lib/python3",
    "/site-packages/",
    "/dist-packages/",
    "/node_modules/",
    "<frozen ",
];
/// Directories of system libraries. A program installed there is nevertheless the user's.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/lib", "/lib", "/usr/lib64", "/lib64"];
/// Functions in which programs and threads start.
const STARTS: [&str; 8] = [
    "_start",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "execute_native_thread_routine",
    "runtime.goexit",
];
/// Prefixes of the names of further functions in which programs and threads start.
const START_PREFIXES: [&str; 2] = ["__libc_start_", "thread_start"];
/// Prefix of the names of the functions in which Rust's programs start.
const RUST_START: &str = "std::rt::";

/// Returns true if a function belongs to a standard library, by its name and source file (empty if
/// unknown).
pub fn is_library(name: &str, file: &str) -> bool {
    let has_prefix = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    has_prefix(&LIBRARY_NAMES)
        || file.is_empty() && has_prefix(&LIBRARY_NAMES_WITHOUT_FILE)
        || file.starts_with("node:")
        || LIBRARY_PATHS.iter().any(|part| file.contains(part))
}

/// Returns true if programs or threads start in this function.
pub fn is_start(name: &str) -> bool {
    STARTS.contains(&name) || START_PREFIXES.iter().any(|start| name.starts_with(start))
}

/// Returns true if a module is where systems install their libraries. The program itself, which may
/// be there, too, is the caller's to exclude.
pub fn is_system_library(module: &Path) -> bool {
    let mut directories = SYSTEM_DIRECTORIES.iter();
    directories.any(|directory| module.starts_with(directory))
}

/// Function in a stack, and where its code is from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Code<'a> {
    /// Name.
    pub function: &'a str,
    /// Source file; empty if unknown.
    pub file: &'a str,
    /// True if the module is a [system library](is_system_library), whatever the function is
    /// called.
    pub is_system: bool,
}

impl Code<'_> {
    /// Returns true for a function of a library.
    pub fn is_foreign(&self) -> bool {
        self.is_system || is_library(self.function, self.file)
    }
}

/// Returns the user's part of a stack, innermost first: without the library functions at its inner
/// end and the runtime at its outer end. Returns the whole stack if nothing else is left.
pub fn user_part<'a>(count: usize, code: impl Fn(usize) -> Code<'a>) -> Range<usize> {
    let mut end = count;
    while end > 0 {
        let last = code(end - 1);
        // Rust's own `main`, which the C library calls.
        let is_rust_main =
            last.function == "main" && end > 1 && code(end - 2).function.starts_with(RUST_START);
        if !is_start(last.function) && !last.is_foreign() && !is_rust_main {
            break;
        }
        end -= 1;
    }
    let first = (0..end).find(|&at| !code(at).is_foreign());
    first.map_or(0..count, |first| first..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source file that marks functions of a system library.
    const SYSTEM: &str = "./string/strdup.c";

    fn part_of(frames: &[(&'static str, &'static str)]) -> Range<usize> {
        let code = |&(function, file): &(&'static str, &'static str)| Code {
            function,
            file,
            is_system: file == SYSTEM,
        };
        let codes: Vec<Code> = frames.iter().map(code).collect();
        user_part(codes.len(), |at| codes[at])
    }

    #[test]
    fn user_code_is_between_libraries_and_the_start() {
        let vector = "/usr/include/c++/12/bits/stl_vector.h";
        let cpp = [
            ("std::vector::push_back", vector),
            ("Cache::fill", "/src/cache.cpp"),
            ("std::for_each", vector),
            ("main", "/src/main.cpp"),
            ("__libc_start_call_main", ""),
            ("_start", ""),
        ];
        assert_eq!(part_of(&cpp), 1..4);
        let rust = [
            ("alloc::vec::Vec<T>::with_capacity", ""),
            ("app::load", "/src/main.rs"),
            ("core::ops::function::FnOnce::call_once", ""),
            ("std::rt::lang_start", ""),
            ("main", ""),
            ("__libc_start_main_impl", ""),
        ];
        assert_eq!(part_of(&rust), 1..2);
        let thread = [("work", ""), ("start_thread", ""), ("clone3", "")];
        assert_eq!(part_of(&thread), 0..1);
    }

    #[test]
    fn system_libraries_are_no_user_code_whatever_is_known_of_them() {
        let thread = [
            ("strdup", SYSTEM),
            ("copy_name", "/src/app.cpp"),
            ("libstdc++.so.6+0xd4490", SYSTEM),
            ("start_thread", SYSTEM),
        ];
        assert_eq!(part_of(&thread), 1..2);
        let library = Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6");
        assert!(is_system_library(library));
        assert!(!is_system_library(Path::new("/usr/library/app")));
        assert!(!is_system_library(Path::new("/opt/app/libgeo.so")));
        let hashbrown = "/rust/deps/hashbrown-0.16.1/src/raw/alloc.rs";
        assert!(is_library(
            "hashbrown::raw::alloc::inner::do_alloc",
            hashbrown
        ));
    }

    #[test]
    fn a_stack_without_user_code_is_shown_completely() {
        let library = [("std::string::append", ""), ("_start", "")];
        assert_eq!(part_of(&library), 0..2);
        assert_eq!(part_of(&[]), 0..0);
    }
}
