//! Distinguishes the user's own functions from those of standard libraries and of the runtime.

use std::ops::Range;

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
const LIBRARY_PATHS: [&str; 9] = [
    "/usr/include/",
    "/include/c++/",
    "/rustc/",
    "/library/alloc/src/",
    "/lib/python3",
    "/site-packages/",
    "/dist-packages/",
    "/node_modules/",
    "<frozen ",
];
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
/// Prefixes of the names of such functions.
const START_NAMES: [&str; 2] = ["__libc_start_", "thread_start"];
/// Prefix of the names of the functions in which Rust's programs start.
const RUST_START: &str = "std::rt::";

/// Returns true if a function belongs to a standard library, by its name and source file (empty if
/// unknown).
pub fn is_library(name: &str, file: &str) -> bool {
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    begins(&LIBRARY_NAMES)
        || file.is_empty() && begins(&LIBRARY_NAMES_WITHOUT_FILE)
        || file.starts_with("node:")
        || LIBRARY_PATHS.iter().any(|part| file.contains(part))
}

/// Returns true if programs or threads start in this function.
pub fn is_start(name: &str) -> bool {
    STARTS.contains(&name) || START_NAMES.iter().any(|start| name.starts_with(start))
}

/// Returns the user's part of a stack, innermost first: without the library functions at its inner
/// end and the runtime at its outer end. Returns the whole stack if nothing else is left. `frame`
/// returns name and source file.
pub fn part<'a>(count: usize, frame: impl Fn(usize) -> (&'a str, &'a str)) -> Range<usize> {
    let is_foreign = |at: usize| {
        let (name, file) = frame(at);
        is_library(name, file)
    };
    let mut end = count;
    while end > 0 {
        let name = frame(end - 1).0;
        // Rust's own `main`, which the C library calls.
        let is_rust_main = name == "main" && end > 1 && frame(end - 2).0.starts_with(RUST_START);
        if !is_start(name) && !is_foreign(end - 1) && !is_rust_main {
            break;
        }
        end -= 1;
    }
    let first = (0..end).find(|&at| !is_foreign(at));
    first.map_or(0..count, |first| first..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part_of(frames: &[(&str, &str)]) -> Range<usize> {
        part(frames.len(), |at| frames[at])
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
    fn a_stack_without_user_code_is_shown_completely() {
        let library = [("std::string::append", ""), ("_start", "")];
        assert_eq!(part_of(&library), 0..2);
        assert_eq!(part_of(&[]), 0..0);
    }
}
