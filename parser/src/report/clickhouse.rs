//! Rows for ClickHouse, in the format of `deploy/clickhouse/schema.sql`: tab-separated, one row for
//! each stack and column with a value. The first row of a stack also describes its frames; the
//! schema stores frames once for all dumps, by a hash of what is equal in all processes.

// Decision 44: rows for ClickHouse.
use anyhow::Result;
use std::collections::BTreeMap;

use profile::printable::printable;
use profile::{Location, Profile, marker_at};
use sha2::{Digest, Sha256};

use super::context::Context;
use super::format::{Dumps, Format, Needs, Symbols};

/// `--clickhouse`.
pub const FORMAT: Format = Format {
    needs: Needs {
        dumps: Dumps::Single,
        symbols: Symbols::Optional,
        ..Needs::TABLE
    },
    ..Format::report(
        "clickhouse",
        "Tab-separated rows for the schema in deploy/clickhouse",
        render,
    )
};

/// Label with a column of its own: the service.
const SERVICE: &str = "service";
/// Label with a column of its own: the host.
const HOST: &str = "host";

fn render(context: &Context) -> Result<String> {
    let profile = context.view.materialize();
    let frames = Frames::new(&profile);
    let common = common_columns(&profile, &context.options.labels);
    let columns = profile.sample_types.len();
    // Equal stacks with different labels or size classes are summed, by hash.
    let mut sums: BTreeMap<u64, StackSums> = BTreeMap::new();
    for stack in 0..profile.stacks.len() {
        let hash = frames.hash(profile.stacks.get(stack));
        let values = profile.values_of(stack);
        let entry = sums.entry(hash).or_insert_with(|| StackSums {
            stack,
            values: vec![0; columns],
        });
        for (sum, value) in entry.values.iter_mut().zip(values) {
            *sum = sum.saturating_add(*value);
        }
    }
    let mut out = String::new();
    for (hash, StackSums { stack, values }) in &sums {
        let mut described = frames.describe(profile.stacks.get(*stack));
        for column in (0..columns).filter(|&c| values[c] != 0) {
            let value_type = &profile.sample_types[column];
            let row = [
                common.as_str(),
                &field(&value_type.kind),
                &field(&value_type.unit),
                &hash.to_string(),
                &values[column].to_string(),
                &described,
            ];
            out += &row.join("\t");
            out.push('\n');
            described = ["[]"; 5].join("\t");
        }
    }
    Ok(out)
}

/// Sums of all stacks with the same frames.
struct StackSums {
    /// Index of one of these stacks.
    stack: usize,
    /// Sum of each column of the profile.
    values: Vec<i64>,
}

/// Returns the columns that are equal in all rows: service, host, process, pid, build id, start,
/// time, labels.
fn common_columns(profile: &Profile, labels: &[(String, String)]) -> String {
    let facts = &profile.facts;
    let label = |key: &str| {
        labels
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    };
    let process = facts.process.as_deref().unwrap_or_default();
    let boot = facts.boot_id.as_deref().unwrap_or_default();
    let start = facts.start_unix_ns.unwrap_or(0);
    let end = facts
        .end_unix_ns
        .unwrap_or_else(|| start.saturating_add(facts.duration_ns.unwrap_or(0)));
    let seconds = |ns: u64| format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000);
    let others = labels.iter().filter(|(k, _)| k != SERVICE && k != HOST);
    let others: BTreeMap<&str, &str> = others.map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let pairs = others
        .iter()
        .map(|(k, v)| format!("{}:{}", quote(k), quote(v)));
    [
        field(label(SERVICE).unwrap_or(process)),
        field(label(HOST).unwrap_or(boot)),
        field(process),
        facts.pid.unwrap_or(0).to_string(),
        facts.exe_build_id.to_string(),
        seconds(start),
        seconds(end),
        format!("{{{}}}", pairs.collect::<Vec<_>>().join(",")),
    ]
    .join("\t")
}

/// Locations of a profile, identified by what is equal in all processes that run the same code.
struct Frames<'a> {
    profile: &'a Profile,
    /// Position of each location in its object file.
    positions: Vec<Position>,
    /// Hash of each location, from which the hashes of stacks are computed.
    keys: Vec<[u8; 32]>,
}

impl<'a> Frames<'a> {
    fn new(profile: &'a Profile) -> Self {
        let locations = profile.locations.iter();
        let positions: Vec<Position> = locations
            .map(|location| Position::new(profile, location))
            .collect();
        let key = |(location, position): (&Location, &Position)| {
            let mut hash = Sha256::new();
            hash.update(position.object.as_bytes());
            hash.update([0]);
            hash.update(position.offset.to_le_bytes());
            if position.object.is_empty() {
                names(profile, location).for_each(|name| hash.update(name));
            }
            hash.finalize().into()
        };
        let keys = profile.locations.iter().zip(&positions).map(key).collect();
        Self {
            profile,
            positions,
            keys,
        }
    }

    fn hash(&self, frames: &[u32]) -> u64 {
        let mut hash = Sha256::new();
        for &frame in frames {
            hash.update(self.keys[frame as usize]);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let first = digest.first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(first)
    }

    /// Returns the columns of a stack's frames, leaf first: objects, offsets, modules, functions,
    /// lines. The last two also have an entry for each inlined function.
    fn describe(&self, frames: &[u32]) -> String {
        let profile = self.profile;
        let [
            mut objects,
            mut offsets,
            mut modules,
            mut functions,
            mut lines,
        ] = [const { Vec::new() }; 5];
        for &frame in frames {
            let location = &profile.locations[frame as usize];
            let Position { object, offset } = &self.positions[frame as usize];
            objects.push(quote(object));
            offsets.push(offset.to_string());
            let mapping = profile.mappings.get(location.mapping as usize);
            let path = mapping
                .map(|m| m.path.to_string_lossy())
                .unwrap_or_default();
            modules.push(quote(&path));
            functions.extend(names(profile, location).map(quote));
            let known = profile.lines_of(location).iter().map(|line| {
                match &profile.functions[line.function as usize] {
                    function if function.file.is_empty() => quote(""),
                    function => quote(&format!("{}:{}", function.file, line.line)),
                }
            });
            lines.extend(known);
            lines.resize(functions.len(), quote(""));
        }
        [objects, offsets, modules, functions, lines]
            .map(|list| format!("[{}]", list.join(",")))
            .join("\t")
    }
}

/// Position of code in an object file.
struct Position {
    /// Build id of the file, or if unknown its path; empty without a file.
    object: String,
    /// Offset in the file; the address without a file.
    offset: u64,
}

impl Position {
    fn new(profile: &Profile, location: &Location) -> Self {
        let Some(mapping) = profile.mappings.get(location.mapping as usize) else {
            return Self {
                object: String::new(),
                offset: location.address,
            };
        };
        let object = if mapping.build_id.is_empty() {
            mapping.path.to_string_lossy().into_owned()
        } else {
            mapping.build_id.to_string()
        };
        let offset = location
            .address
            .wrapping_sub(mapping.start)
            .wrapping_add(mapping.file_offset);
        Self { object, offset }
    }
}

/// Returns the functions of a location, innermost first; for a pseudo-frame, its name; for code
/// without a name, an empty string.
fn names<'a>(profile: &'a Profile, location: &Location) -> impl Iterator<Item = &'a str> {
    let lines = profile.lines_of(location);
    let known = lines
        .iter()
        .map(|line| profile.functions[line.function as usize].name.as_str());
    let marker = marker_at(location.address).map_or("", |marker| marker.name);
    known.chain(lines.is_empty().then_some(marker))
}

/// Escapes a field.
fn field(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '\\' => out += "\\\\",
            '\'' => out += "\\'",
            '\t' => out += "\\t",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            c => out.push(c),
        }
    }
    out
}

/// Quotes text in an array or a map.
fn quote(text: &str) -> String {
    format!("'{}'", field(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_end_rows_or_strings() {
        assert_eq!(field("a\tb\nc\\d'e"), "a\\\\tb\\\\nc\\\\d\\'e");
        assert_eq!(quote("operator\"\" _x"), "'operator\"\" _x'");
    }
}
