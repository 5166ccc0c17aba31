//! The line of the user's own code at which a stack allocates.

use heap_format::Function;

use crate::view::View;

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name of the function.
    pub function: String,
    /// Path of the file, as the debug information has it.
    pub file: String,
    /// The line.
    pub line: u32,
}

/// Beginnings of names that no user has written, whatever file they were instantiated in.
const LIBRARY_NAMES: [&str; 2] = ["std::", "__gnu_cxx::"];
/// Parts of paths at which headers and libraries of systems and compilers are.
const LIBRARY_PATHS: [&str; 6] = [
    "/usr/include/",
    "/include/c++/",
    "/usr/src/debug/",
    "/rustc/",
    "/library/alloc/src/",
    "/.cargo/registry/",
];

/// Where a system keeps its libraries; a program that is installed there is the user's all the same.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/lib", "/lib", "/usr/lib64", "/lib64"];

/// Whether a function is the user's own: not of a standard library, nor of a package.
pub fn is_own(name: &str, file: &str) -> bool {
    !LIBRARY_NAMES.iter().any(|start| name.starts_with(start))
        && !LIBRARY_PATHS.iter().any(|part| file.contains(part))
}

/// The innermost line of a stack that is the user's own, inlined functions included. `frames` are
/// locations, the allocating one first.
pub fn of(view: &View, frames: &[u32]) -> Option<Site> {
    let profile = view.profile();
    let functions = &profile.functions;
    let program = symbols::main_mapping(profile);
    let is_system = |&&frame: &&u32| {
        let at = profile.locations[frame as usize].mapping as usize;
        let path = profile
            .mappings
            .get(at)
            .map(|mapping| mapping.path.as_path());
        let at_home =
            SYSTEM_DIRECTORIES.map(|start| path.is_some_and(|path| path.starts_with(start)));
        program != Some(at) && at_home.contains(&true)
    };
    let own = frames.iter().filter(|frame| !is_system(frame));
    let lines = own.flat_map(|&frame| view.lines(frame));
    let known = lines.filter(|line| line.line != 0);
    let mut sites = known.filter_map(|line| {
        let Function { name, file, .. } = functions.get(line.function as usize)?;
        let own = !file.is_empty() && is_own(name, file);
        own.then(|| Site {
            function: name.clone(),
            file: file.clone(),
            line: line.line,
        })
    });
    sites.next()
}

impl Site {
    /// File name and line, for people who know the file.
    pub fn short(&self) -> String {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        format!("{name}:{}", self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heap_format::{Line, Location, NO_MAPPING, Profile, ValueType};

    #[test]
    fn standard_libraries_are_nobodys_own() {
        assert!(is_own("open_session", "/home/you/server.cpp"));
        assert!(is_own("core::Engine::start", "/home/you/engine.cpp"));
        assert!(!is_own("std::string::append", "/home/you/server.cpp"));
        assert!(!is_own("grow", "/usr/include/c++/12/bits/stl_vector.h"));
        assert!(!is_own(
            "finish_grow",
            "/rustc/4d/library/alloc/src/raw_vec.rs"
        ));
    }

    #[test]
    fn the_innermost_line_of_ones_own_counts() {
        let function = |name: &str, file: &str| Function {
            name: name.into(),
            file: file.into(),
            ..Function::default()
        };
        let line = |function, line| Line {
            function,
            line,
            column: 0,
        };
        let location = |first_line, line_count| Location {
            address: 0,
            mapping: NO_MAPPING,
            first_line,
            line_count,
        };
        let profile = Profile {
            sample_types: vec![ValueType {
                kind: "inuse_space".into(),
                unit: "bytes".into(),
            }],
            functions: vec![
                function("std::vector::push_back", "/usr/include/c++/12/vector"),
                function("fill", "/src/fill.cpp"),
                function("main", "/src/main.cpp"),
                function("unknown", ""),
            ],
            lines: vec![line(0, 7), line(1, 30), line(2, 5), line(3, 0)],
            locations: vec![location(3, 1), location(0, 2), location(2, 1)],
            ..Profile::default()
        };
        let view = View::new(profile, None).unwrap();
        let site = of(&view, &[0, 1, 2]).unwrap();
        assert_eq!(
            (site.function.as_str(), site.short()),
            ("fill", "fill.cpp:30".to_owned())
        );
        assert_eq!(of(&view, &[0]), None);
    }
}
