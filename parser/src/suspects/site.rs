//! Finds the line of the user's own code at which a stack allocates.

use std::collections::BTreeSet;
use std::path::Path;

use profile::{Function, Line, Profile};
use symbols::user_code;

use crate::nodes::clean_path;
use crate::view::View;

/// A source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name of the function.
    pub function: String,
    /// Path of the file, from debug information.
    pub file: String,
    /// Line number.
    pub line: u32,
}

/// Parts of paths below which each package has a directory, and the number of components that lead
/// to it.
const PACKAGE_PATHS: [(&str, usize); 4] = [
    ("cargo/registry/src/", 2),
    ("cargo/git/checkouts/", 2),
    ("/usr/src/debug/", 1),
    ("/build/reproducible-path/", 1),
];

/// Beginning of the name of the function that calls `main` of a Rust program.
const RUST_START: &str = "std::rt::lang_start";

/// Distinguishes the user's own functions from those of standard libraries and packages.
///
/// If the program was itself built as a package (`cargo install`, a distribution), its sources are
/// where packages are: that package counts as the user's own.
pub struct UserCode {
    /// Directories of the program's own packages, each with a trailing slash.
    packages: BTreeSet<String>,
    /// Position of the program among the profile's mappings.
    program: Option<usize>,
    /// True for each function of the profile that is the user's own.
    functions: Vec<bool>,
    /// True for each mapping of the profile that is an interpreter or a system library.
    is_system: Vec<bool>,
}

impl UserCode {
    /// Finds the program's own packages: those that contain its `main` or have its name.
    pub fn new(profile: &Profile) -> Self {
        let position = symbols::main_mapping(profile);
        let file = position.map(|at| &profile.mappings[at].path);
        // An interpreter is not the user's own code, but what it runs is.
        let is_interpreted = file.is_some_and(|path| is_interpreter(path));
        let program = file.and_then(|path| path.file_name());
        let program = program.map(|name| name.to_string_lossy().replace('_', "-"));
        let functions = profile.functions.iter().filter(|_| !is_interpreted);
        let packages = functions.filter_map(|function| {
            let package = package_directory(&function.file)?;
            let called = program
                .as_deref()
                .is_some_and(|p| is_named_like(p, package));
            (called || is_main(&function.name)).then(|| package.to_owned())
        });
        let is_system = profile.mappings.iter().map(|mapping| {
            let path = &mapping.path;
            is_interpreter(path) || file != Some(path) && user_code::is_system_library(path)
        });
        let mut own = Self {
            packages: packages.collect(),
            program: position,
            functions: Vec::new(),
            is_system: is_system.collect(),
        };
        // Rust's own `main`, which the C library calls, has no lines.
        let mut functions = profile.functions.iter();
        let is_rust = functions.any(|function| function.name.starts_with(RUST_START));
        let is_users = |function: &Function| {
            let is_runtime = is_rust && function.name == "main" && function.file.is_empty();
            !is_runtime && own.contains(&function.name, &function.file)
        };
        own.functions = profile.functions.iter().map(is_users).collect();
        own
    }

    /// Returns true if a function of the profile, by its position, is the user's own.
    pub fn is_user_function(&self, function: u32) -> bool {
        self.functions[function as usize]
    }

    /// Returns true if a function is the user's own, not of a standard library or a package.
    pub fn contains(&self, name: &str, file: &str) -> bool {
        !user_code::is_library(name, file)
            && package_directory(file).is_none_or(|package| self.packages.contains(package))
    }

    /// Returns true if a location is in an interpreter or a system library.
    pub fn is_system_location(&self, view: &View, location: u32) -> bool {
        let mapping = view.profile().locations[location as usize].mapping as usize;
        self.is_system.get(mapping) == Some(&true)
    }

    /// Returns the innermost line of a stack that is the user's own, including inlined functions,
    /// without its column. `frames` are locations, innermost first.
    pub fn innermost_line(&self, view: &View, frames: &[u32]) -> Option<Line> {
        let profile = view.profile();
        let is_user_frame = |&&frame: &&u32| !self.is_system_location(view, frame);
        let lines = frames.iter().filter(is_user_frame);
        let mut lines = lines.flat_map(|&frame| view.lines(frame));
        lines.find_map(|line| {
            let function = &profile.functions[line.function as usize];
            // Perf maps have the first line of each function only.
            let is_first = line.line == 0 && function.start_line != 0;
            let number = if is_first {
                function.start_line
            } else {
                line.line
            };
            let is_builtin = is_first && !function.file.contains('/');
            let is_shown = number != 0
                && !is_builtin
                && !function.file.is_empty()
                && self.is_user_function(line.function);
            is_shown.then_some(Line {
                function: line.function,
                line: number,
                column: 0,
            })
        })
    }

    /// Returns the innermost function of the program's file that is the user's own, for programs
    /// without lines: its position in the profile.
    pub fn innermost_function(&self, view: &View, frames: &[u32]) -> Option<u32> {
        let profile = view.profile();
        let program = self.program.filter(|&program| !self.is_system[program])?;
        let program = &profile.mappings[program].path;
        let is_program_frame = |&&frame: &&u32| {
            let at = profile.locations[frame as usize].mapping as usize;
            let path = profile.mappings.get(at).map(|mapping| &mapping.path);
            path == Some(program) && !view.is_hidden(frame)
        };
        let frames = frames.iter().filter(is_program_frame);
        let mut lines = frames.flat_map(|&frame| view.lines(frame));
        let found = lines.find(|line| {
            let function = &profile.functions[line.function as usize];
            !function.is_unnamed()
                && !user_code::is_start(&function.name)
                && self.is_user_function(line.function)
        })?;
        Some(found.function)
    }

    /// Returns the innermost line of a stack that is the user's own, as a site.
    pub fn innermost_site(&self, view: &View, frames: &[u32]) -> Option<Site> {
        let Line { function, line, .. } = self.innermost_line(view, frames)?;
        let function = &view.profile().functions[function as usize];
        Some(Site {
            function: function.name.clone(),
            file: clean_path(&function.file),
            line,
        })
    }
}

/// Returns true if a module is an interpreter of Python or JavaScript, wherever it was built.
fn is_interpreter(module: &Path) -> bool {
    let name = module.file_name().unwrap_or_default().to_string_lossy();
    let starts = ["python", "libpython", "libnode"];
    let names = ["node", "nodejs", "deno", "bun"];
    starts.iter().any(|start| name.starts_with(start)) || names.contains(&&*name)
}

/// Returns the package directory that a file is in, with a trailing slash.
fn package_directory(file: &str) -> Option<&str> {
    PACKAGE_PATHS.iter().find_map(|&(part, components)| {
        let below = file.find(part)? + part.len();
        let slash = file[below..].match_indices('/').nth(components - 1)?;
        Some(&file[..=below + slash.0])
    })
}

/// Returns true if a program is named like a package, possibly with a suffix: `mini-redis-server`
/// of `mini-redis-0.4.1/`.
fn is_named_like(program: &str, package: &str) -> bool {
    let directory = package.trim_end_matches('/').rsplit('/').next();
    let name =
        directory.and_then(|directory| Some(directory.rsplit_once('-')?.0.replace('_', "-")));
    let rest = name.filter(|name| !name.is_empty());
    let rest = rest.and_then(|name| program.strip_prefix(&name).map(str::to_owned));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Returns true if a function is `main` of C, C++ or Rust, or inside it.
fn is_main(name: &str) -> bool {
    let mut parts = name.split("::");
    name == "main" || (parts.next().is_some_and(is_crate_name) && parts.next() == Some("main"))
}

/// Returns true if a part of a name can be the name of a crate.
fn is_crate_name(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric())
}

impl Site {
    /// Formats file name and line, for users who know the file.
    pub fn short(&self) -> String {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        format!("{name}:{}", self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{Location, Mapping, NO_MAPPING, ValueType};

    fn function(name: &str, file: &str) -> Function {
        Function {
            name: name.into(),
            file: file.into(),
            ..Function::default()
        }
    }

    #[test]
    fn standard_libraries_are_not_user_code() {
        let own = UserCode::new(&Profile::default());
        assert!(own.contains("open_session", "/home/you/server.cpp"));
        assert!(own.contains("core::Engine::start", "/home/you/engine.cpp"));
        assert!(!own.contains("std::string::append", "/home/you/server.cpp"));
        assert!(!own.contains("grow", "/usr/include/c++/12/bits/stl_vector.h"));
        assert!(own.contains("make_thumbnail", "/srv/app.py"));
        assert!(!own.contains("loads", "/usr/lib/python3.11/json/__init__.py"));
        assert!(!own.contains(
            "fit",
            "/srv/venv/lib/python3.11/site-packages/xgboost/core.py"
        ));
        assert!(!own.contains("_find_and_load", "<frozen importlib._bootstrap>"));
        assert!(!own.contains("finish_grow", "/rustc/4d/library/alloc/src/raw_vec.rs"));
    }

    #[test]
    fn the_main_that_rust_adds_is_not_the_users() {
        let rust = vec![
            function("app::main", "/src/main.rs"),
            function("std::rt::lang_start_internal", ""),
            function("main", ""),
        ];
        let own = own_of("/opt/app", rust);
        let has = |own: &UserCode, count| {
            (0..count)
                .map(|f| own.is_user_function(f))
                .collect::<Vec<_>>()
        };
        assert_eq!(has(&own, 3), [true, false, false]);
        // C's, with and without lines.
        let c = vec![function("main", ""), function("main", "/src/main.c")];
        assert_eq!(has(&own_of("/opt/app", c), 2), [true, true]);
    }

    const REGISTRY: &str = "/home/you/.cargo/registry/src/index.crates.io-6f17/";

    fn own_of(program: &str, functions: Vec<Function>) -> UserCode {
        UserCode::new(&Profile {
            mappings: vec![Mapping {
                path: program.into(),
                ..Mapping::default()
            }],
            functions,
            ..Profile::default()
        })
    }

    #[test]
    fn an_installed_program_is_user_code_but_its_dependencies_are_not() {
        let db = format!("{REGISTRY}mini-redis-0.4.1/src/db.rs");
        let channel = format!("{REGISTRY}tokio-1.20.0/src/sync/broadcast.rs");
        let functions = vec![function("subscribe", &db), function("channel", &channel)];
        let own = own_of("/usr/local/bin/mini-redis-server", functions.clone());
        assert!(own.contains("subscribe", &db) && !own.contains("channel", &channel));
        let other = own_of("/usr/local/bin/mini", functions);
        assert!(!other.contains("subscribe", &db) && !other.contains("channel", &channel));
    }

    #[test]
    fn an_interpreter_is_not_user_code_but_its_scripts_are() {
        let interpreter = "/build/reproducible-path/python3.11-3.11.2/Objects/obmalloc.c";
        let functions = vec![function("main", interpreter)];
        let own = own_of("/usr/bin/python3.11", functions.clone());
        assert!(!own.contains("_PyMem_RawMalloc", interpreter));
        assert!(own.contains("make_thumbnail", "/srv/app.py"));
        assert!(own_of("/usr/bin/tool", functions).contains("work", interpreter));
    }

    #[test]
    fn a_renamed_program_is_recognised_by_its_main() {
        for (main, dependency) in [
            (
                format!("{REGISTRY}ripgrep-14.1.0/crates/core/main.rs"),
                format!("{REGISTRY}regex-1.0.0/src/lib.rs"),
            ),
            (
                "/usr/local/cargo/git/checkouts/ripgrep-94/3b7fd44/main.rs".to_owned(),
                "/usr/local/cargo/git/checkouts/regex-94/3b7fd44/lib.rs".to_owned(),
            ),
            (
                "/usr/src/debug/tool-1.0/src/main.cc".to_owned(),
                "/usr/src/debug/libtool-2.0/src/lib.cc".to_owned(),
            ),
        ] {
            for name in ["main", "rg::main", "rg::main::{{closure}}"] {
                let functions = vec![function(name, &main), function("compile", &dependency)];
                let own = own_of("/usr/bin/rg", functions);
                assert!(own.contains("search", &main), "{main}");
                assert!(!own.contains("compile", &dependency), "{dependency}");
            }
        }
    }

    #[test]
    fn scripts_of_node_are_user_code_but_its_own_are_not() {
        let script = |name: &str, file: &str, start_line| Function {
            start_line,
            ..function(name, file)
        };
        let frame = |function| Line {
            function,
            ..Line::default()
        };
        let location = |mapping, line| Location {
            address: 0,
            mapping,
            first_line: line,
            line_count: 1,
        };
        let profile = Profile {
            sample_types: vec![ValueType {
                kind: "inuse_space".into(),
                unit: "bytes".into(),
            }],
            mappings: vec![Mapping {
                path: "/usr/bin/node".into(),
                ..Mapping::default()
            }],
            functions: vec![
                function("node::Allocate", "/home/build/src/api.cc"),
                script("createUnsafeBuffer", "buffer", 1056),
                script("allocUnsafeSlow", "node:buffer", 414),
                script("read", "/srv/node_modules/png/index.js", 9),
                script("loadImage", "/srv/leak.js", 2),
            ],
            lines: vec![
                Line {
                    line: 70,
                    ..frame(0)
                },
                frame(1),
                frame(2),
                frame(3),
                frame(4),
            ],
            locations: vec![
                location(0, 0),
                location(NO_MAPPING, 1),
                location(NO_MAPPING, 2),
                location(NO_MAPPING, 3),
                location(NO_MAPPING, 4),
            ],
            ..Profile::default()
        };
        let view = View::new(profile, None).unwrap();
        let own = UserCode::new(view.profile());
        let site = own.innermost_site(&view, &[0, 1, 2, 3, 4, 0]).unwrap();
        assert_eq!(
            (site.function.as_str(), site.short()),
            ("loadImage", "leak.js:2".to_owned())
        );
        assert_eq!(own.innermost_site(&view, &[0, 1, 2, 3]), None);
    }

    #[test]
    fn odd_paths_belong_to_no_package() {
        for file in [
            "cargo/registry/src/",
            "/usr/src/debug/x.c",
            "",
            "\u{fc}/\u{fc}",
        ] {
            assert_eq!(package_directory(file), None);
        }
    }

    #[test]
    fn the_innermost_user_line_is_used() {
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
        let own = UserCode::new(view.profile());
        let site = own.innermost_site(&view, &[0, 1, 2]).unwrap();
        assert_eq!(
            (site.function.as_str(), site.short()),
            ("fill", "fill.cpp:30".to_owned())
        );
        assert_eq!(own.innermost_site(&view, &[0]), None);
        // An interpreter that was built in a home directory is not user code.
        let mut profile = view.profile().clone();
        profile.mappings = vec![Mapping {
            path: "/home/you/.pyenv/bin/python3.13".into(),
            ..Mapping::default()
        }];
        profile.locations[1].mapping = 0;
        let view = View::new(profile, None).unwrap();
        let site = UserCode::new(view.profile())
            .innermost_site(&view, &[0, 1, 2])
            .unwrap();
        assert_eq!(site.short(), "main.cpp:5");
    }
}
