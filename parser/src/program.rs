//! Finds the program that a dump was taken from, if the user has not given it: the file that the
//! dump names, if it is on this machine and its build id matches.

use std::path::{Path, PathBuf};

use profile::{BuildId, FileIdentity, Format, Mapping, Profile, maps, marker_at, printable};
use symbols::WrongBinary;

use crate::{hint, stdin};

/// Error if the functions of a program cannot be named.
#[derive(Debug, thiserror::Error)]
#[error(
    "{dump} {reason}.\n\
     Name the program with -p BINARY, or where to look for it with --symbol-path DIRECTORY{}; \
     --force {}.",
    if hint::has_symbol_servers() { ", or ask symbol servers with --debuginfod" } else { "" },
    reason.effect_of_force()
)]
pub struct NoProgram {
    dump: String,
    reason: Reason,
    /// Path and build id of the program, by which names may be found elsewhere.
    code: Option<(PathBuf, BuildId)>,
    /// Set if the dump has the identity of the program's file.
    is_identified: bool,
}

impl NoProgram {
    /// Returns true if names may be found elsewhere: through the running process, or in a debug
    /// file with the build id.
    pub(crate) fn names_may_be_elsewhere(&self) -> bool {
        let has_id = self.code.as_ref().is_some_and(|(_, id)| !id.is_empty());
        has_id || self.is_identified
    }

    /// Returns true if no names were found for the program's code in `profile`.
    pub(crate) fn still_applies_to(&self, profile: &Profile) -> bool {
        let Some((path, id)) = &self.code else {
            return true;
        };
        let is_program_mapping =
            |mapping: &Mapping| mapping.path == *path && mapping.build_id == *id;
        let mut locations = profile.locations.iter().filter(|location| {
            let mapping = profile.mappings.get(location.mapping as usize);
            mapping.is_some_and(is_program_mapping)
        });
        locations.all(|location| location.line_count == 0)
    }
}

/// Reason why the program that the dump names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The dump names no program.
    #[error("does not say which program it was taken from")]
    Unnamed,
    /// The dump has no build id, so any file could be the program.
    #[error("was taken from {program}, but holds no build id that would prove which file that is")]
    Unproven {
        /// Path of the program.
        program: String,
        /// Set if there is a file at that path.
        is_there: bool,
    },
    /// There is no such file.
    #[error("was taken from {program} (build id {recorded}), which is not on this machine")]
    Absent {
        /// Path of the program.
        program: String,
        /// Build id of the profiled program.
        recorded: BuildId,
    },
    /// The file was replaced, or is another machine's.
    #[error(
        "was taken from {program} with the build id {recorded}; the file there now has the build \
         id {found}"
    )]
    OtherBuild {
        /// Path of the program.
        program: String,
        /// Build id of the profiled program.
        recorded: BuildId,
        /// Build id of the file.
        found: String,
    },
    /// The file cannot be opened, or is not an ELF file.
    #[error("was taken from a program that cannot be used: {error:#}")]
    Unusable {
        /// The error.
        error: anyhow::Error,
    },
}

impl Reason {
    /// Describes what `--force` does.
    fn effect_of_force(&self) -> &'static str {
        match self {
            Self::Unproven { is_there: true, .. } => {
                "uses the file of that name, whose names are wrong if it is another one"
            }
            Self::OtherBuild { .. } => "uses the file that is there now, whose names may be wrong",
            Self::Unnamed | Self::Unproven { .. } | Self::Absent { .. } | Self::Unusable { .. } => {
                "shows the profile without the names of the program's functions"
            }
        }
    }
}

/// Finds the program of each dump that has no names itself. Returns `None` if they are of several
/// programs, all of which are present. With `force`, a program of another build is used, and one
/// that cannot be used is ignored. Only the headers of the files are read.
pub fn find(
    dumps: &[Profile],
    files: &[PathBuf],
    force: bool,
) -> Result<Option<PathBuf>, Vec<NoProgram>> {
    let mut programs = Vec::new();
    let mut missing = Vec::new();
    let mut any_ignored = false;
    let unnamed = dumps.iter().zip(files);
    let unnamed = unnamed.filter(|(p, _)| !is_symbolized(p) && has_code(p));
    for (profile, file) in unnamed {
        match program_of_dump(profile, force) {
            Ok(program) => programs.push(program),
            Err(_) if force => any_ignored = true,
            Err(reason) => missing.push(NoProgram {
                dump: stdin::display_name(file),
                reason,
                code: main_mapping(profile).map(|m| (m.path.clone(), m.build_id.clone())),
                is_identified: profile.facts.exe_file.is_some(),
            }),
        }
    }
    programs.dedup();
    if !missing.is_empty() {
        return Err(missing);
    }
    // One dump's program must not be used for another dump without a program.
    if any_ignored {
        return Ok(None);
    }
    Ok(programs.pop().filter(|_| programs.is_empty()))
}

/// Returns true if a profile has addresses that a program could name. A profile without samples has
/// none, and some formats have names only, perhaps of the kernel only.
fn has_code(profile: &Profile) -> bool {
    match profile.format {
        Format::PerfScript | Format::Folded | Format::V8 => false,
        Format::Pprof => !profile.locations.is_empty(),
        Format::Dump | Format::Cpu | Format::HeapText | Format::Jemalloc | Format::CpuProfile => {
            true
        }
    }
}

/// Returns true if a profile has names of functions.
pub(crate) fn is_symbolized(profile: &Profile) -> bool {
    // Kernel functions, Python frames and pseudo-frames always have names.
    let named = |l: &profile::Location| {
        let is_pseudo = l.address != 0 && marker_at(l.address).is_some();
        l.line_count > 0 && !is_pseudo && !profile.is_kernel_location(l) && !profile.is_python(l)
    };
    profile.locations.iter().any(named)
}

fn program_of_dump(profile: &Profile, force: bool) -> Result<PathBuf, Reason> {
    let (path, recorded) = recorded_program(profile).ok_or(Reason::Unnamed)?;
    let mut program = printable::path(path);
    if symbols::is_in_memory(path) {
        program.push_str(", a file in its memory");
    }
    // A relative path would be searched in the current directory.
    let is_proven = !recorded.is_empty()
        || profile
            .facts
            .exe_file
            .is_some_and(|file| Some(file) == FileIdentity::of(path));
    if !path.is_absolute() || (!is_proven && !force) {
        let is_there = path.is_absolute() && symbols::check_binary(profile, path, "").is_ok();
        return Err(Reason::Unproven { program, is_there });
    }
    match symbols::check_binary(profile, path, "") {
        Ok(()) => Ok(path_as_started(path, profile.facts.process.as_deref())),
        Err(WrongBinary::OtherBuild { .. }) if force => Ok(path.to_path_buf()),
        Err(WrongBinary::OtherBuild { found, .. }) => Err(Reason::OtherBuild {
            program,
            recorded: recorded.clone(),
            found,
        }),
        Err(WrongBinary::Unusable(_)) if path.try_exists().is_ok_and(|there| !there) => {
            Err(Reason::Absent {
                program,
                recorded: recorded.clone(),
            })
        }
        Err(WrongBinary::Unusable(error)) => Err(Reason::Unusable { error }),
    }
}

/// Returns the link by which a program was started, if it has the process's name and leads to the
/// program: users know `redis-server`, not the `redis-check-rdb` that it leads to. Otherwise
/// returns the path.
fn path_as_started(path: &Path, process: Option<&str>) -> PathBuf {
    let link = process
        .filter(|name| !name.is_empty() && !name.contains('/'))
        .map(|name| path.with_file_name(name));
    let is_same = |link: &PathBuf| {
        let real = link.canonicalize();
        real.is_ok_and(|real| path.canonicalize().is_ok_and(|path| path == real))
    };
    link.filter(is_same).unwrap_or_else(|| path.to_path_buf())
}

/// Returns the file that a program without a directory names: in the working directory, or as a
/// shell finds it.
pub fn locate(program: &Path) -> PathBuf {
    let is_plain = program.components().count() == 1 && !program.as_os_str().is_empty();
    if !is_plain || program.exists() {
        return program.to_path_buf();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|directory| directory.join(program));
    let found = found.find(|file| file.is_file());
    found.unwrap_or_else(|| program.to_path_buf())
}

/// Returns path and build id of the program, as recorded in the dump.
fn recorded_program(profile: &Profile) -> Option<(&Path, &BuildId)> {
    let facts = &profile.facts;
    let main = main_mapping(profile);
    // The dump of a process that has ended lists the program's mapping only if a stack leads
    // through its code.
    let path = match main {
        Some(main) => &main.path,
        None => facts.exe.as_ref()?,
    };
    let id = match (&facts.exe_build_id, main) {
        (id, Some(main)) if id.is_empty() => &main.build_id,
        (id, _) => id,
    };
    Some((maps::strip_deleted(path).0, id))
}

/// Returns the mapping of the program's code.
pub(crate) fn main_mapping(profile: &Profile) -> Option<&Mapping> {
    Some(&profile.mappings[symbols::main_mapping(profile)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_name_by_which_it_was_started() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("check");
        std::fs::write(&program, "").unwrap();
        std::os::unix::fs::symlink("check", directory.path().join("server")).unwrap();
        std::fs::write(directory.path().join("other"), "").unwrap();
        let server = directory.path().join("server");
        assert_eq!(path_as_started(&program, Some("server")), server);
        for process in [
            None,
            Some(""),
            Some("other"),
            Some("absent"),
            Some("../check"),
        ] {
            assert_eq!(path_as_started(&program, process), program, "{process:?}");
        }
    }

    #[test]
    fn a_plain_name_is_found_as_a_shell_finds_it() {
        let shell = locate(Path::new("sh"));
        assert!(shell.is_absolute() && shell.ends_with("sh"), "{shell:?}");
        for unchanged in ["./sh", "/bin/absent", "absent-everywhere", ""] {
            assert_eq!(locate(Path::new(unchanged)), Path::new(unchanged));
        }
    }
}
