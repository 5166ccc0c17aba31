//! Builds profiles of names, for formats without addresses.

use std::collections::HashMap;

use crate::cpu::KERNEL;
use crate::profile::{Format, Function, Line, Location, Mapping, NO_MAPPING, Profile};
use crate::value_type::ValueType;

/// Builds a profile from stacks of names.
pub(crate) struct NamedBuilder {
    pub(crate) profile: Profile,
    /// Index of each location, by name and whether it is a kernel function.
    locations: HashMap<(Vec<u8>, bool), u32>,
}

impl NamedBuilder {
    pub(crate) fn new(format: Format, sample_types: Vec<ValueType>) -> Self {
        let default_type = sample_types.len() - 1;
        let profile = Profile {
            format,
            sample_types,
            default_type,
            ..Profile::default()
        };
        Self {
            profile,
            locations: HashMap::new(),
        }
    }

    /// Adds a stack, innermost first, without its values. A frame is a name, and whether it is a
    /// kernel function.
    pub(crate) fn add_stack<'a>(&mut self, frames: impl Iterator<Item = (&'a [u8], bool)>) {
        for (name, kernel) in frames {
            let number = self.add_location(name, kernel);
            self.profile.stacks.push_frame(number);
        }
        self.profile.stacks.close();
    }

    fn add_location(&mut self, name: &[u8], kernel: bool) -> u32 {
        let key = (name.to_vec(), kernel);
        if let Some(&number) = self.locations.get(&key) {
            return number;
        }
        let number = self.profile.locations.len() as u32;
        self.locations.insert(key, number);
        let mapping = if kernel {
            self.kernel_mapping()
        } else {
            NO_MAPPING
        };
        let shown = String::from_utf8_lossy(name).into_owned();
        self.profile.functions.push(Function {
            name: shown,
            ..Function::default()
        });
        self.profile.lines.push(Line {
            function: number,
            ..Line::default()
        });
        self.profile.locations.push(Location {
            address: 0,
            mapping,
            first_line: number,
            line_count: 1,
        });
        number
    }

    /// Returns the index of the kernel's mapping; adds it if necessary.
    fn kernel_mapping(&mut self) -> u32 {
        if self.profile.mappings.is_empty() {
            self.profile.mappings.push(Mapping {
                path: KERNEL.into(),
                ..Mapping::default()
            });
        }
        0
    }
}
