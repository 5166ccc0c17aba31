//! The addresses to look up in one file.

use profile::{Location, Mapping};

/// Addresses of one file.
pub struct Module {
    /// One of the file's mappings.
    pub mapping: Mapping,
    /// Locations in the file.
    pub addresses: Vec<FileAddress>,
}

/// A location in a file.
pub struct FileAddress {
    /// Index of the location in the profile.
    pub location: usize,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Distance from the start of the mapping, in bytes.
    pub distance: u64,
    /// Size of the mapping, in bytes.
    pub mapped: u64,
}

impl Module {
    /// Returns a module without locations, for the file that `mapping` maps.
    pub fn new(mapping: &Mapping) -> Self {
        Self {
            mapping: mapping.clone(),
            addresses: Vec::new(),
        }
    }

    /// Adds location `number`, which lies in `mapping`.
    pub fn add(&mut self, number: usize, location: &Location, mapping: &Mapping) {
        let distance = location.address.wrapping_sub(mapping.start);
        self.addresses.push(FileAddress {
            location: number,
            offset: distance.wrapping_add(mapping.file_offset),
            distance,
            mapped: mapping.end.saturating_sub(mapping.start),
        });
    }
}
