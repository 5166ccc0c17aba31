//! Writes pprof's `profile.proto`.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::wire::{put_bytes, put_number, put_numbers};
use crate::profile::{Label, LabelValue, NO_MAPPING, Profile};
use crate::value_type::ValueType;

/// Writes `profile` as a gzipped `profile.proto`, with all columns, symbols, build ids and labels.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, Compression::fast());
    encoder.write_all(&encode(profile))?;
    encoder.finish()?.flush()
}

/// String table under construction.
struct Strings<'a> {
    numbers: HashMap<std::borrow::Cow<'a, str>, u64>,
    table: Vec<u8>,
}

impl<'a> Strings<'a> {
    fn new() -> Self {
        let mut strings = Self {
            numbers: HashMap::new(),
            table: Vec::new(),
        };
        strings.add("");
        strings
    }

    fn add(&mut self, text: impl Into<std::borrow::Cow<'a, str>>) -> u64 {
        let next = self.numbers.len() as u64;
        let table = &mut self.table;
        *self.numbers.entry(text.into()).or_insert_with_key(|text| {
            put_bytes(table, 6, text.as_bytes());
            next
        })
    }
}

fn encode(profile: &Profile) -> Vec<u8> {
    let mut strings = Strings::new();
    let mut out = Vec::new();
    for value_type in &profile.sample_types {
        let message = encode_type(&mut strings, value_type);
        put_bytes(&mut out, 1, &message);
    }
    put_samples(profile, &mut strings, &mut out);
    put_mappings(profile, &mut strings, &mut out);
    put_locations(profile, &mut out);
    put_functions(profile, &mut strings, &mut out);
    put_header(profile, &mut strings, &mut out);
    out.extend_from_slice(&strings.table);
    out
}

fn encode_type<'a>(strings: &mut Strings<'a>, value_type: &'a ValueType) -> Vec<u8> {
    let mut message = Vec::new();
    put_number(&mut message, 1, strings.add(value_type.kind.as_str()));
    put_number(&mut message, 2, strings.add(value_type.unit.as_str()));
    message
}

fn put_samples<'a>(profile: &'a Profile, strings: &mut Strings<'a>, out: &mut Vec<u8>) {
    let mut labels = profile.labels.iter().peekable();
    for (i, frames) in profile.stacks.iter().enumerate() {
        let mut message = Vec::new();
        put_numbers(&mut message, 1, frames.iter().map(|&f| u64::from(f) + 1));
        put_numbers(
            &mut message,
            2,
            profile.values_of(i).iter().map(|&v| v as u64),
        );
        while let Some(label) = labels.next_if(|l| l.stack as usize == i) {
            let label = encode_label(strings, label);
            put_bytes(&mut message, 3, &label);
        }
        if let Some(&size) = profile.block_sizes.get(i).filter(|&&size| size != 0) {
            let mut label = Vec::new();
            put_number(&mut label, 1, strings.add("bytes"));
            put_number(&mut label, 3, size as u64);
            put_bytes(&mut message, 3, &label);
        }
        put_bytes(out, 2, &message);
    }
}

fn encode_label<'a>(strings: &mut Strings<'a>, label: &'a Label) -> Vec<u8> {
    let mut message = Vec::new();
    put_number(&mut message, 1, strings.add(label.key.as_str()));
    match &label.value {
        LabelValue::Text(text) => put_number(&mut message, 2, strings.add(text.as_str())),
        LabelValue::Number(number, unit) => {
            put_number(&mut message, 3, *number as u64);
            put_number(&mut message, 4, strings.add(unit.as_str()));
        }
    }
    message
}

fn put_mappings<'a>(profile: &'a Profile, strings: &mut Strings<'a>, out: &mut Vec<u8>) {
    let mut named = vec![false; profile.mappings.len()];
    for location in profile.locations.iter().filter(|l| l.line_count > 0) {
        if let Some(named) = named.get_mut(location.mapping as usize) {
            *named = true;
        }
    }
    for (i, mapping) in profile.mappings.iter().enumerate() {
        let mut message = Vec::new();
        put_number(&mut message, 1, i as u64 + 1);
        put_number(&mut message, 2, mapping.start);
        put_number(&mut message, 3, mapping.end);
        put_number(&mut message, 4, mapping.file_offset);
        put_number(&mut message, 5, strings.add(mapping.path.to_string_lossy()));
        put_number(&mut message, 6, strings.add(mapping.build_id.to_string()));
        // Flags for functions, file names, line numbers and inlined frames: without them, readers
        // would symbolize again.
        (7..=10).for_each(|flag| put_number(&mut message, flag, named[i].into()));
        put_bytes(out, 3, &message);
    }
}

fn put_locations(profile: &Profile, out: &mut Vec<u8>) {
    for (i, location) in profile.locations.iter().enumerate() {
        let mut message = Vec::new();
        put_number(&mut message, 1, i as u64 + 1);
        if location.mapping != NO_MAPPING {
            put_number(&mut message, 2, u64::from(location.mapping) + 1);
        }
        put_number(&mut message, 3, location.address);
        for line in profile.lines_of(location) {
            let mut encoded_line = Vec::new();
            put_number(&mut encoded_line, 1, u64::from(line.function) + 1);
            put_number(&mut encoded_line, 2, line.line.into());
            put_number(&mut encoded_line, 3, line.column.into());
            put_bytes(&mut message, 4, &encoded_line);
        }
        put_bytes(out, 4, &message);
    }
}

fn put_functions<'a>(profile: &'a Profile, strings: &mut Strings<'a>, out: &mut Vec<u8>) {
    for (i, function) in profile.functions.iter().enumerate() {
        let mut message = Vec::new();
        put_number(&mut message, 1, i as u64 + 1);
        put_number(&mut message, 2, strings.add(function.name.as_str()));
        put_number(&mut message, 3, strings.add(function.system_name.as_str()));
        put_number(&mut message, 4, strings.add(function.file.as_str()));
        put_number(&mut message, 5, function.start_line.into());
        put_bytes(out, 5, &message);
    }
}

fn put_header<'a>(profile: &'a Profile, strings: &mut Strings<'a>, out: &mut Vec<u8>) {
    put_number(out, 7, strings.add(profile.drop_frames.as_str()));
    put_number(out, 8, strings.add(profile.keep_frames.as_str()));
    put_number(out, 9, profile.facts.start_unix_ns.unwrap_or(0));
    put_number(out, 10, profile.facts.duration_ns.unwrap_or(0));
    if let Some(period_type) = &profile.period_type {
        let message = encode_type(strings, period_type);
        put_bytes(out, 11, &message);
    }
    put_number(out, 12, profile.period as u64);
    put_numbers(
        out,
        13,
        profile.comments.iter().map(|c| strings.add(c.as_str())),
    );
    if let Some(default) = profile.sample_types.get(profile.default_type) {
        put_number(out, 14, strings.add(default.kind.as_str()));
    }
}
