//! Writes OpenTelemetry profiles (`opentelemetry.proto.profiles.v1development`, version 1.10 of the
//! protocol): an export request with one `Profile` message per column.
//!
//! Messages refer to the tables of a dictionary by index. The first entry of each table is empty by
//! definition.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::pprof::{put_bytes, put_fixed, put_number, put_numbers};
use crate::profile::{NO_MAPPING, Profile};

/// Key of the attribute with a mapping's build id.
const BUILD_ID: &str = "process.executable.build_id.gnu";

/// Encodes an `ExportProfilesServiceRequest` with one resource, which has the given attributes.
/// `scope` is the name of the instrumentation scope, which some receivers use as the profile's
/// name. `id` must be unique; the column is appended to it as a 16th byte.
pub fn encode(
    profile: &Profile,
    attributes: &[(&str, &str)],
    scope: &str,
    id: [u8; 15],
) -> Vec<u8> {
    let mut tables = Tables::new();
    let mut stacks = Vec::new();
    put_bytes(&mut stacks, 7, &[]);
    for stack in profile.stacks.iter() {
        let mut message = Vec::new();
        put_numbers(&mut message, 1, stack.iter().map(|&f| u64::from(f) + 1));
        put_bytes(&mut stacks, 7, &message);
    }
    let mut scope_profiles = Vec::new();
    let mut scope_message = Vec::new();
    put_bytes(&mut scope_message, 1, scope.as_bytes());
    put_bytes(&mut scope_profiles, 1, &scope_message);
    for column in 0..profile.sample_types.len() {
        put_bytes(
            &mut scope_profiles,
            2,
            &column_of(profile, column, id, &mut tables),
        );
    }
    let mut resource = Vec::new();
    for (key, value) in attributes {
        let mut pair = Vec::new();
        put_bytes(&mut pair, 1, key.as_bytes());
        put_bytes(&mut pair, 2, &text_value(value));
        put_bytes(&mut resource, 1, &pair);
    }
    let mut resource_profiles = Vec::new();
    put_bytes(&mut resource_profiles, 1, &resource);
    put_bytes(&mut resource_profiles, 2, &scope_profiles);
    let mut out = Vec::new();
    put_bytes(&mut out, 1, &resource_profiles);
    put_bytes(&mut out, 2, &tables.dictionary(profile, &stacks));
    out
}

/// Encodes an `AnyValue` with a string.
fn text_value(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, text.as_bytes());
    out
}

/// Encodes the `Profile` message of one column. Drops stacks without a value in it.
fn column_of(profile: &Profile, column: usize, id: [u8; 15], tables: &mut Tables) -> Vec<u8> {
    let value_type = &profile.sample_types[column];
    let mut out = Vec::new();
    put_bytes(
        &mut out,
        1,
        &tables.value_type(&value_type.kind, &value_type.unit),
    );
    for stack in 0..profile.stacks.len() {
        let value = profile.values_of(stack)[column];
        if value != 0 {
            let mut sample = Vec::new();
            put_number(&mut sample, 1, stack as u64 + 1);
            put_numbers(&mut sample, 4, std::iter::once(value as u64));
            put_bytes(&mut out, 2, &sample);
        }
    }
    put_fixed(&mut out, 3, profile.facts.start_unix_ns.unwrap_or(0));
    put_number(&mut out, 4, profile.facts.duration_ns.unwrap_or(0));
    if let Some(value_type) = &profile.period_type {
        put_bytes(
            &mut out,
            5,
            &tables.value_type(&value_type.kind, &value_type.unit),
        );
    }
    put_number(&mut out, 6, profile.period as u64);
    let mut whole_id = id.to_vec();
    whole_id.push(column as u8);
    put_bytes(&mut out, 7, &whole_id);
    out
}

/// String and attribute tables of the dictionary under construction.
struct Tables {
    strings: HashMap<String, u64>,
    texts: Vec<u8>,
    attributes: Vec<u8>,
    attribute_count: u64,
}

impl Tables {
    fn new() -> Self {
        let mut tables = Self {
            strings: HashMap::new(),
            texts: Vec::new(),
            attributes: Vec::new(),
            attribute_count: 1,
        };
        tables.string("");
        put_bytes(&mut tables.attributes, 6, &[]);
        tables
    }

    fn string<'a>(&mut self, text: impl Into<Cow<'a, str>>) -> u64 {
        let text = text.into();
        if let Some(&known) = self.strings.get(text.as_ref()) {
            return known;
        }
        let next = self.strings.len() as u64;
        put_bytes(&mut self.texts, 5, text.as_bytes());
        self.strings.insert(text.into_owned(), next);
        next
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, 1, self.string(kind));
        put_number(&mut out, 2, self.string(unit));
        out
    }

    fn attribute(&mut self, key: &str, value: &str) -> u64 {
        let mut message = Vec::new();
        put_number(&mut message, 1, self.string(key));
        put_bytes(&mut message, 2, &text_value(value));
        put_bytes(&mut self.attributes, 6, &message);
        self.attribute_count += 1;
        self.attribute_count - 1
    }

    fn dictionary(mut self, profile: &Profile, stacks: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, 1, &[]);
        for mapping in &profile.mappings {
            let mut message = Vec::new();
            put_number(&mut message, 1, mapping.start);
            put_number(&mut message, 2, mapping.end);
            put_number(&mut message, 3, mapping.file_offset);
            put_number(&mut message, 4, self.string(mapping.path.to_string_lossy()));
            if !mapping.build_id.is_empty() {
                let attribute = self.attribute(BUILD_ID, &mapping.build_id.to_string());
                put_numbers(&mut message, 5, std::iter::once(attribute));
            }
            put_bytes(&mut out, 1, &message);
        }
        self.locations(profile, &mut out);
        put_bytes(&mut out, 3, &[]);
        for function in &profile.functions {
            let mut message = Vec::new();
            put_number(&mut message, 1, self.string(function.name.as_str()));
            put_number(&mut message, 2, self.string(function.system_name.as_str()));
            put_number(&mut message, 3, self.string(function.file.as_str()));
            put_number(&mut message, 4, function.start_line.into());
            put_bytes(&mut out, 3, &message);
        }
        put_bytes(&mut out, 4, &[]);
        out.extend_from_slice(&self.texts);
        out.extend_from_slice(&self.attributes);
        out.extend_from_slice(stacks);
        out
    }

    fn locations(&mut self, profile: &Profile, out: &mut Vec<u8>) {
        put_bytes(out, 2, &[]);
        for location in &profile.locations {
            let mut message = Vec::new();
            if location.mapping != NO_MAPPING {
                put_number(&mut message, 1, u64::from(location.mapping) + 1);
            }
            put_number(&mut message, 2, location.address);
            for line in profile.lines_of(location) {
                let mut part = Vec::new();
                put_number(&mut part, 1, u64::from(line.function) + 1);
                put_number(&mut part, 2, line.line.into());
                put_number(&mut part, 3, line.column.into());
                put_bytes(&mut message, 3, &part);
            }
            put_bytes(out, 2, &message);
        }
    }
}
