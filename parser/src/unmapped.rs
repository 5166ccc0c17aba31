//! Profiles that do not say where the program was loaded: they have no mappings, or one that names
//! no file. Their addresses are interpreted as addresses in the program's file. pprof does that,
//! too, and it is right for programs that are not position-independent.

use std::path::Path;

use profile::{Mapping, NO_MAPPING, Profile, maps, printable};
use symbols::Elf;

/// Assigns the addresses of a profile without files to the program given by the user. Returns a
/// warning if the program contains none of the addresses.
pub fn assign_to_program(profile: &mut Profile, binary: &Path) -> Option<String> {
    let has_file = |mapping: &Mapping| !mapping.path.as_os_str().is_empty();
    if profile.mappings.iter().any(has_file) {
        return None;
    }
    // A mapping without a file is the program's if its bounds are known. pprof assumes that, too.
    let is_range = |mapping: &&mut Mapping| mapping.start > 0 && mapping.end > mapping.start;
    if let Some(mapping) = profile.mappings.iter_mut().find(is_range) {
        mapping.path = binary.to_path_buf();
        return None;
    }
    let needs_name = |l: &profile::Location| l.line_count == 0 && l.address != 0;
    if !profile.locations.iter().any(needs_name) {
        return None;
    }
    // An unusable file is reported where symbols are read.
    let code = Elf::open(binary).ok()?.code(binary);
    for location in &mut profile.locations {
        location.mapping = NO_MAPPING;
    }
    profile.mappings = code;
    maps::assign(profile);
    let is_within = |l: &profile::Location| l.mapping != NO_MAPPING;
    if profile.locations.iter().any(is_within) {
        return None;
    }
    profile.mappings.clear();
    Some(format!(
        "the profile does not say where {} was loaded: functions cannot be named; record it with \
         the list of mappings (MAPPED_LIBRARIES)",
        printable::path(binary)
    ))
}
