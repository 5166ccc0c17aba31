//! Profiles of names rather than addresses, under construction.

use std::collections::HashMap;

use crate::profile::{Format, Function, Line, Location, NO_MAPPING, Profile, ValueType};

/// Builds a profile from stacks of names.
pub(crate) struct NamedBuilder {
    pub(crate) profile: Profile,
    known: HashMap<Vec<u8>, u32>,
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
            known: HashMap::new(),
        }
    }

    /// Adds a stack, leaf first, with its values.
    pub(crate) fn stack<'a>(&mut self, names: impl Iterator<Item = &'a [u8]>, values: &[i64]) {
        for name in names {
            let number = self.location(name);
            self.profile.stacks.push_frame(number);
        }
        self.profile.stacks.close();
        self.profile.values.extend_from_slice(values);
    }

    fn location(&mut self, name: &[u8]) -> u32 {
        if let Some(&number) = self.known.get(name) {
            return number;
        }
        let number = self.profile.locations.len() as u32;
        self.known.insert(name.to_vec(), number);
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
            mapping: NO_MAPPING,
            first_line: number,
            line_count: 1,
        });
        number
    }
}
