//! Finds the files that may have the symbols of a mapping.
//!
//! Searched in this order: debug information from `debuginfod-find`; the program given with `-p`;
//! the directories of `--symbol-path`, as the root of another machine's filesystem and as plain
//! directories; the path in the dump; the process itself while it lives; debug files by build id;
//! executables from `debuginfod-find`. A file with another build id is only used with `--force`;
//! otherwise a warning names it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use profile::{BuildId, FileIdentity, Mapping, Profile, maps, printable};

use super::elf::{Elf, format_id};
use super::is_in_memory;
use super::module::Module;
use super::options::Options;
use super::process;
use super::program::main_mapping;
use super::reader::{Request, is_regular_file};

/// Standard directories of separate debug files.
const DEBUG_DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/lib/debug"];

/// The search for the files of one profile.
pub struct Files<'a> {
    options: &'a Options<'a>,
    /// Path of the main program, as recorded in the dump.
    main: Option<PathBuf>,
    /// Directory in `/proc` of the profiled process; `None` if it cannot be running here.
    process: Option<PathBuf>,
    /// Identity of the program's file, if it has no build id.
    exe_file: Option<FileIdentity>,
    /// Directories to search for debug files by build id and debug link.
    pub debug_directories: Vec<PathBuf>,
}

/// Reason why a mapping's functions are not named.
#[derive(Debug, thiserror::Error)]
pub enum NoSource {
    /// The file cannot be opened, or is not an ELF file.
    #[error("{0:#}; its functions are not named")]
    Unusable(anyhow::Error),
    /// The build id differs from the recorded one.
    #[error(
        "{path} has the build id {found}, the profiled file had {recorded}; its functions are not \
         named (--force uses it anyway)"
    )]
    OtherBuild {
        /// The file.
        path: String,
        /// Build id of the file.
        found: String,
        /// Build id of the profiled file.
        recorded: BuildId,
    },
    /// The mapped file was deleted, and no build id proves that the file at its path is equal.
    #[error(
        "{path} was replaced while the program ran; its functions are not named (--force uses the \
         new file)"
    )]
    Replaced {
        /// The file.
        path: String,
    },
    /// The file is in none of the directories given.
    #[error("{path} is not in the directories given; its functions are not named")]
    Absent {
        /// The file.
        path: String,
    },
}

/// A file with symbols.
pub struct Source {
    path: PathBuf,
    elf: Elf,
    /// Set for a separate debug file, whose segments have no contents.
    debug: bool,
    /// For a debug file: the program's own headers, if found, which relate offsets to
    /// addresses.
    code: Option<Elf>,
}

impl Source {
    /// Returns the request for those locations of `module` that `wants` selects, and the
    /// locations that it covers.
    pub fn request(&self, module: &Module, wants: impl Fn(usize) -> bool) -> (Request, Vec<usize>) {
        let mut addresses = Vec::new();
        let mut locations = Vec::new();
        let wanted = module.addresses.iter().filter(|at| wants(at.location));
        for at in wanted {
            let address = match &self.code {
                Some(code) => code.address_in_mapping(at.offset, at.distance, at.mapped),
                None if self.debug => self.elf.address_in_code(at.distance, at.mapped),
                None => (self.elf).address_in_mapping(at.offset, at.distance, at.mapped),
            };
            if let Some(address) = address {
                addresses.push(address);
                locations.push(at.location);
            }
        }
        let request = Request {
            path: self.path.clone(),
            module: None,
            addresses,
            tables_only: false,
        };
        (request, locations)
    }
}

impl<'a> Files<'a> {
    /// Prepares the search for the mappings of `profile`.
    pub fn new(profile: &Profile, options: &'a Options<'a>) -> Self {
        let main = main_mapping(profile).map(|i| {
            maps::strip_deleted(&profile.mappings[i].path)
                .0
                .to_path_buf()
        });
        let process = process::pid_here(profile).and_then(process::directory);
        let default_directories = DEBUG_DIRECTORIES.map(PathBuf::from);
        let given = options.directories.iter().cloned();
        let roots = options.directories.iter().map(|f| f.join("usr/lib/debug"));
        Self {
            options,
            main,
            process,
            exe_file: profile.facts.exe_file,
            debug_directories: given.chain(roots).chain(default_directories).collect(),
        }
    }

    /// Returns the prefix for names of code without a symbol: the file's name without directories;
    /// for the main program, the name of the binary given with `-p`, if any.
    pub fn name_of(&self, mapping: &Mapping) -> String {
        let recorded = maps::strip_deleted(&mapping.path).0;
        let is_main = self.main.as_deref() == Some(recorded);
        let path = self.options.binary.filter(|_| is_main).unwrap_or(recorded);
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Returns the files to try for a mapping, in order. The error is a warning for users.
    pub fn sources_of(&self, mapping: &Mapping) -> Result<Vec<Source>, NoSource> {
        let (path, deleted) = maps::strip_deleted(&mapping.path);
        let is_main = self.main.as_deref() == Some(path);
        let mut refused = Vec::new();
        let mut sources = Vec::new();
        if self.options.debuginfod {
            sources.extend(self.by_debuginfod("debuginfo", &mapping.build_id));
        }
        if let Some(binary) = self.options.binary.filter(|_| is_main) {
            // The deletion of the mapped file says nothing about a binary elsewhere.
            let is_elsewhere = || binary.canonicalize().is_ok_and(|binary| binary != path);
            let deleted = deleted && !is_in_memory(path) && !is_elsewhere();
            sources.extend(self.check_file(binary, mapping, deleted, &mut refused));
        } else {
            sources.extend(self.in_directories(path, mapping, &mut refused));
            // With search directories, the dump may be from another machine, whose files differ
            // from ours.
            let proven = self.options.directories.is_empty() || !mapping.build_id.is_empty();
            let proven = proven && !(is_main && self.is_replaced(path, mapping));
            if path.is_absolute() && (proven || self.options.force) && !have_code(&sources) {
                sources.extend(self.check_file(path, mapping, deleted, &mut refused));
            }
        }
        if !have_code(&sources) {
            sources.extend(self.in_process(path, mapping, is_main));
        }
        sources.extend(self.debug_file(&mapping.build_id));
        if !have_code(&sources) && self.options.debuginfod {
            sources.extend(self.by_debuginfod("executable", &mapping.build_id));
        }
        attach_code(&mut sources);
        if !sources.is_empty() {
            return Ok(sources);
        }
        match refused.into_iter().next() {
            Some(refusal) => Err(refusal),
            None if is_main && self.is_replaced(path, mapping) => Err(NoSource::Replaced {
                path: printable::path(path),
            }),
            None if path.is_absolute() => Err(NoSource::Absent {
                path: printable::path(path),
            }),
            // A bare name, as in some formats: there is nothing to open.
            None => Ok(sources),
        }
    }

    /// Returns true if the dump identifies the program's file, for lack of a build id, and the file
    /// at `path` is another one.
    fn is_replaced(&self, path: &Path, mapping: &Mapping) -> bool {
        let is_identified = mapping.build_id.is_empty() && self.exe_file.is_some();
        is_identified && self.exe_file != FileIdentity::of(path)
    }

    /// Returns the file at `path` if it is the profiled one. Otherwise adds the reason to
    /// `refused`.
    fn check_file(
        &self,
        path: &Path,
        mapping: &Mapping,
        deleted: bool,
        refused: &mut Vec<NoSource>,
    ) -> Option<Source> {
        let elf = match Elf::open(path) {
            Ok(elf) => elf,
            Err(error) => {
                refused.push(NoSource::Unusable(error));
                return None;
            }
        };
        let recorded = &mapping.build_id;
        let force = self.options.force;
        if !force && !recorded.is_empty() && elf.build_id != *recorded {
            refused.push(NoSource::OtherBuild {
                path: printable::path(path),
                found: format_id(&elf.build_id),
                recorded: recorded.clone(),
            });
            return None;
        }
        if !force && deleted && recorded.is_empty() {
            refused.push(NoSource::Replaced {
                path: printable::path(path),
            });
            return None;
        }
        Some(Source {
            path: path.to_path_buf(),
            elf,
            debug: false,
            code: None,
        })
    }

    /// Searches the given directories, by the file's whole path below each and by its name
    /// alone.
    fn in_directories(
        &self,
        path: &Path,
        mapping: &Mapping,
        refused: &mut Vec<NoSource>,
    ) -> Option<Source> {
        let below_root = path.strip_prefix("/").unwrap_or(path);
        let is_inside = below_root
            .components()
            .all(|c| matches!(c, std::path::Component::Normal(_)));
        let candidates = self.options.directories.iter().flat_map(|directory| {
            let whole = is_inside.then(|| directory.join(below_root));
            whole
                .into_iter()
                .chain(path.file_name().map(|n| directory.join(n)))
        });
        for candidate in candidates {
            // A symbolic link may lead out of the directory. That is safe, because the build id is
            // checked.
            if is_regular_file(&candidate) {
                let found = self.check_file(&candidate, mapping, false, refused);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Opens the file through the running process's `/proc` directory, which also works for
    /// containers and deleted files. Requires a matching build id, or the identity of the program's
    /// file, because the pid may have been reused.
    fn in_process(&self, path: &Path, mapping: &Mapping, is_main: bool) -> Option<Source> {
        let process = self.process.as_ref()?;
        if mapping.build_id.is_empty() {
            let exe = process.join("exe");
            let is_same = self.exe_file.is_some() && self.exe_file == FileIdentity::of(&exe);
            let elf = Elf::open(&exe).ok().filter(|_| is_main && is_same)?;
            return Some(Source {
                path: exe,
                elf,
                debug: false,
                code: None,
            });
        }
        let range = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
        let root = process.join("root");
        let mut candidates = vec![root.join(path.strip_prefix("/").unwrap_or(path))];
        if is_main {
            candidates.push(process.join("exe"));
        }
        candidates.push(process.join(range));
        candidates.into_iter().find_map(|path| {
            let elf = Elf::open(&path).ok()?;
            (elf.build_id == mapping.build_id).then_some(Source {
                path,
                elf,
                debug: false,
                code: None,
            })
        })
    }

    /// Finds the separate debug file of a build id: `.build-id/xx/yyyy.debug`.
    fn debug_file(&self, id: &BuildId) -> Option<Source> {
        let hex = id.to_string();
        let (first, rest) = hex.split_at_checked(2).filter(|_| hex.len() >= 8)?;
        let inside = format!("{first}/{rest}.debug");
        let directories = self.debug_directories.iter();
        let candidates = directories.flat_map(|f| {
            let by_id = f.join(".build-id").join(&inside);
            [by_id, f.join(&inside)]
        });
        candidates
            .filter(|path| is_regular_file(path))
            .find_map(|path| with_id(path, id))
    }

    /// Runs `debuginfod-find` for a build id. `what` is `debuginfo` or `executable`.
    fn by_debuginfod(&self, what: &str, id: &BuildId) -> Option<Source> {
        if id.is_empty() {
            return None;
        }
        let output = Command::new("debuginfod-find")
            .args([what, &id.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        let source = with_id(PathBuf::from(path.trim_end()), id)?;
        Some(Source {
            debug: what == "debuginfo",
            ..source
        })
    }
}

/// Gives the headers of the program itself to its debug files, if the program was found.
fn attach_code(sources: &mut [Source]) {
    let code = sources.iter().find(|source| !source.debug);
    let Some(code) = code.map(|source| source.elf.clone()) else {
        return;
    };
    let has_its_id = |source: &&mut Source| source.debug && source.elf.build_id == code.build_id;
    for source in sources.iter_mut().filter(has_its_id) {
        source.code = Some(code.clone());
    }
}

/// Returns true if one of the files contains the code itself.
fn have_code(sources: &[Source]) -> bool {
    sources.iter().any(|s| !s.debug)
}

/// Opens a debug file if it has this build id.
fn with_id(path: PathBuf, id: &BuildId) -> Option<Source> {
    let elf = Elf::open(&path).ok().filter(|elf| elf.build_id == *id)?;
    Some(Source {
        path,
        elf,
        debug: true,
        code: None,
    })
}
