//! The main program: finds its mapping, and checks that a file is that program.

use std::path::Path;

use profile::{BuildId, FileIdentity, Mapping, Profile, maps, printable};

use super::elf::{Elf, format_id};

/// Returns the index of the main program's mapping: the one that the dump names, otherwise the
/// first that is neither a library nor special.
pub fn main_mapping(profile: &Profile) -> Option<usize> {
    let named = profile.facts.exe.as_deref().and_then(|exe| {
        let exe = maps::strip_deleted(exe).0;
        profile
            .mappings
            .iter()
            .position(|m| maps::strip_deleted(&m.path).0 == exe && !m.past)
    });
    named.or_else(|| profile.mappings.iter().position(may_be_program))
}

fn may_be_program(mapping: &Mapping) -> bool {
    let path = mapping.path.to_string_lossy();
    let name = path.trim();
    let library = name.ends_with(".so")
        || name.match_indices(".so").any(|(at, _)| {
            let rest = &name.as_bytes()[at + 3..];
            matches!(rest, [b'.' | b'_', b'0'..=b'9', ..])
        });
    !name.is_empty() && !name.starts_with('[') && !name.starts_with("//anon") && !library
}

/// Returns a warning if `binary` is named differently from the profiled program and no build id
/// proves that they are equal.
pub fn doubt_binary(profile: &Profile, binary: &Path) -> Option<String> {
    let main = &profile.mappings[main_mapping(profile)?];
    let recorded = maps::strip_deleted(&main.path).0;
    let same_file = |a: &Path, b: &Path| a.canonicalize().ok() == b.canonicalize().ok();
    let identity = profile.facts.exe_file;
    let known = !profile.facts.exe_build_id.is_empty()
        || !main.build_id.is_empty()
        || identity.is_some_and(|identity| Some(identity) == FileIdentity::of(binary));
    if known || recorded.file_name() == binary.file_name() || same_file(recorded, binary) {
        return None;
    }
    Some(format!(
        "the dump has no build id of {}; that {} is the same program cannot be checked",
        printable::path(recorded),
        printable::path(binary),
    ))
}

/// Reason why a file is not accepted as the profiled program.
#[derive(Debug, thiserror::Error)]
pub enum WrongBinary {
    /// The file cannot be opened, or is not an ELF file.
    #[error("{0:#}")]
    Unusable(anyhow::Error),
    /// The build id differs.
    #[error(
        "{binary} is not the program that was profiled:\n  it has the build id        {found}\n  \
         {dump} was taken from {program} with build id {recorded}\n\
         Pass that program with -p, or --force to use this one anyway."
    )]
    OtherBuild {
        /// The file.
        binary: String,
        /// Build id of the file.
        found: String,
        /// Path of the dump.
        dump: String,
        /// The profiled program.
        program: String,
        /// Build id of the profiled program.
        recorded: BuildId,
    },
}

/// Returns an error if a binary is not the profiled program, by its build id.
pub fn check_binary(profile: &Profile, binary: &Path, dump: &str) -> Result<(), WrongBinary> {
    let elf = Elf::open(binary).map_err(WrongBinary::Unusable)?;
    let main = main_mapping(profile).map(|i| &profile.mappings[i]);
    let recorded = match &profile.facts.exe_build_id {
        id if !id.is_empty() => id,
        _ => match main {
            Some(mapping) => &mapping.build_id,
            None => return Ok(()),
        },
    };
    if recorded.is_empty() || elf.build_id == *recorded {
        return Ok(());
    }
    let exe = profile
        .facts
        .exe
        .as_deref()
        .or(main.map(|m| m.path.as_path()));
    Err(WrongBinary::OtherBuild {
        binary: printable::path(binary),
        found: format_id(&elf.build_id),
        dump: dump.to_owned(),
        program: printable::path(exe.unwrap_or(Path::new("a program"))),
        recorded: recorded.clone(),
    })
}
