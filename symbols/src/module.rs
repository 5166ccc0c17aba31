//! What is asked about one file.

use heap_format::{Location, Mapping};

/// Addresses of one file.
pub struct Module {
    /// A mapping of it.
    pub mapping: Mapping,
    /// Locations in it.
    pub addresses: Vec<FileAddress>,
}

/// A location in a file.
pub struct FileAddress {
    /// Number of the location.
    pub location: usize,
    /// Offset in the file.
    pub offset: u64,
    /// Distance from the start of its mapping.
    pub distance: u64,
    /// Size of its mapping.
    pub mapped: u64,
}

impl Module {
    /// No location yet of the file that `mapping` maps.
    pub fn new(mapping: &Mapping) -> Self {
        Self {
            mapping: mapping.clone(),
            addresses: Vec::new(),
        }
    }

    /// Adds a location, which lies in `mapping`.
    pub fn note(&mut self, number: usize, location: &Location, mapping: &Mapping) {
        let distance = location.address.wrapping_sub(mapping.start);
        self.addresses.push(FileAddress {
            location: number,
            offset: distance.wrapping_add(mapping.file_offset),
            distance,
            mapped: mapping.end.saturating_sub(mapping.start),
        });
    }
}
