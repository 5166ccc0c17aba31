//! The program that a dump was taken from, if the caller named none: the file that the dump names,
//! if it is on this machine and its build id matches.

use std::path::{Path, PathBuf};

use heap_format::{BuildId, Mapping, Profile, maps, printable};
use symbols::WrongBinary;

use crate::hint;

/// Why there is nothing to find the names of a program's functions in.
#[derive(Debug, thiserror::Error)]
#[error(
    "{dump} {reason}.\n\
     Name the program with -p BINARY, or where to look for it with --symbol-path DIRECTORY{}; \
     --force {}.",
    if hint::has_symbol_servers() { ", or ask symbol servers with --debuginfod" } else { "" },
    reason.forced()
)]
pub struct NoProgram {
    dump: String,
    reason: Reason,
    /// Path and build id of its code, by which names may be found elsewhere than in the file.
    code: Option<(PathBuf, BuildId)>,
}

impl NoProgram {
    /// Whether names may be found elsewhere: in the process while it lives, or in a debug
    /// file with its build id.
    pub(crate) fn may_be_elsewhere(&self) -> bool {
        self.code.as_ref().is_some_and(|(_, id)| !id.is_empty())
    }

    /// Whether none were found in the profile that holds this dump.
    pub(crate) fn holds(&self, profile: &Profile) -> bool {
        let Some((path, id)) = &self.code else {
            return true;
        };
        let own = |mapping: &Mapping| mapping.path == *path && mapping.build_id == *id;
        let mut locations = profile.locations.iter().filter(|location| {
            let mapping = profile.mappings.get(location.mapping as usize);
            mapping.is_some_and(own)
        });
        locations.all(|location| location.line_count == 0)
    }
}

/// What is wrong with the program that the dump names.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The dump names none.
    #[error("does not say which program it was taken from")]
    Unnamed,
    /// Without a build id, any file could be it.
    #[error("was taken from {program}, but holds no build id that would prove which file that is")]
    Unproven {
        /// The program.
        program: String,
        /// Whether there is a file that could be it.
        is_there: bool,
    },
    /// There is no such file.
    #[error("was taken from {program} (build id {recorded}), which is not on this machine")]
    Absent {
        /// The program.
        program: String,
        /// Its build id.
        recorded: BuildId,
    },
    /// The file was replaced, or is another machine's.
    #[error(
        "was taken from {program} with the build id {recorded}; the file there now has the build \
         id {found}"
    )]
    OtherBuild {
        /// The program.
        program: String,
        /// Its build id.
        recorded: BuildId,
        /// That of the file.
        found: String,
    },
    /// It cannot be opened, or is no ELF file.
    #[error("was taken from a program that cannot be used: {error:#}")]
    Unusable {
        /// The error.
        error: anyhow::Error,
    },
}

impl Reason {
    /// What `--force` does about it.
    fn forced(&self) -> &'static str {
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

/// Finds the program of each dump that holds no names itself. `None` if they are of several
/// programs, all of which are present. With `force`, names of a program that cannot be used are
/// left out, and one of another build is used. The files are opened, but only their headers are
/// read.
pub fn find(
    dumps: &[Profile],
    files: &[PathBuf],
    force: bool,
) -> Result<Option<PathBuf>, Vec<NoProgram>> {
    let (mut programs, mut missing, mut done_without) = (Vec::new(), Vec::new(), false);
    let unnamed = dumps.iter().zip(files).filter(|(p, _)| !is_symbolized(p));
    for (profile, file) in unnamed {
        match of_dump(profile, force) {
            Ok(program) => programs.push(program),
            Err(_) if force => done_without = true,
            Err(reason) => missing.push(NoProgram {
                dump: printable::path(file),
                reason,
                code: main(profile).map(|m| (m.path.clone(), m.build_id.clone())),
            }),
        }
    }
    programs.dedup();
    match missing.is_empty() {
        // One dump's program is not another one's.
        true if done_without => Ok(None),
        true => Ok(programs.pop().filter(|_| programs.is_empty())),
        false => Err(missing),
    }
}

/// Whether a profile holds names of functions.
pub(crate) fn is_symbolized(profile: &Profile) -> bool {
    // Functions of the kernel and of Python come with names.
    let named = |l: &heap_format::Location| {
        l.line_count > 0 && !profile.is_kernels(l) && !profile.is_python(l)
    };
    profile.locations.iter().any(named)
}

fn of_dump(profile: &Profile, force: bool) -> Result<PathBuf, Reason> {
    let (path, recorded) = recorded(profile).ok_or(Reason::Unnamed)?;
    let program = printable::path(path);
    // A name alone would be looked for in whatever directory this is.
    if !path.is_absolute() || (recorded.is_empty() && !force) {
        let is_there = path.is_absolute() && symbols::check_binary(profile, path, "").is_ok();
        return Err(Reason::Unproven { program, is_there });
    }
    match symbols::check_binary(profile, path, "") {
        Ok(()) => Ok(path.to_path_buf()),
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

/// Path and build id of the program, as the dump has them.
fn recorded(profile: &Profile) -> Option<(&Path, &BuildId)> {
    let main = main(profile)?;
    let id = match &profile.facts.exe_build_id {
        id if id.is_empty() => &main.build_id,
        id => id,
    };
    Some((maps::strip_deleted(&main.path).0, id))
}

/// The mapping of the program's code.
pub(crate) fn main(profile: &Profile) -> Option<&Mapping> {
    Some(&profile.mappings[symbols::main_mapping(profile)?])
}
