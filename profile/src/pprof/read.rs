//! Reads pprof's `profile.proto`.

use std::collections::HashMap;
use std::path::PathBuf;

use super::wire::{Field, Fields, PartialField, Value};
use crate::error::Fault;
use crate::kind::is_text;
use crate::marker::marker_at;
use crate::profile::{
    BuildId, Format, Function, Label, LabelValue, Line, Location, Mapping, NO_MAPPING, Profile,
};
use crate::rss;
use crate::value_type::ValueType;

/// Memory that any file may take, in bytes.
const BASE_MEMORY: usize = 64 << 20;
/// Additional memory that a file may take, as a multiple of its stored size.
const MAX_EXPANSION: usize = 24;
/// Memory that an entry of a hash table takes, in bytes.
const ENTRY_SIZE: usize = 32;

/// Largest number of a field of the message `Profile` that is read.
const MAX_KNOWN_FIELD: u32 = 14;
/// Number of the field with the comments of a `Profile`.
const COMMENT: u32 = 13;

/// Maximum number of fields that are examined to recognise a profile.
const MAX_EXAMINED_FIELDS: usize = 64;
/// Maximum size of the tag and the length of a field, in bytes.
const MAX_FIELD_HEADER: usize = 20;

/// Returns true if a file that starts with these bytes may be a pprof profile: if they are fields of
/// the message `Profile`, in any order. Writers begin with sample types, but Go's begins with the
/// period type. Fields that the format does not know may precede them, but not in text.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    let mut rest = start;
    let mut has_message = false;
    let mut has_string = false;
    let mut has_known = false;
    let may_be_extended = !is_text(start);
    for examined in 0..MAX_EXAMINED_FIELDS {
        if rest.is_empty() {
            break;
        }
        let Some(field) = PartialField::take(&mut rest) else {
            // The start may end within a field's tag or length.
            return has_message && rest.len() < MAX_FIELD_HEADER;
        };
        let is_expected = match field.number {
            1..=5 | 11 => is_message(&field),
            // The first string is empty.
            6 => field.is_bytes && (has_string || field.content.is_empty()),
            7..=10 | 12 | 14 | 15 => !field.is_bytes,
            _ => has_known || may_be_extended,
        };
        // Text may begin like a single, incomplete field with a higher number.
        let is_certain = !field.is_cut || examined > 0 || field.number <= 3;
        if !is_expected || !is_certain {
            return false;
        }
        has_message |= field.number <= 5 && !field.content.is_empty();
        has_string |= field.number == 6;
        has_known |= field.number <= MAX_KNOWN_FIELD && field.number != COMMENT;
    }
    has_message
}

/// Returns true if a field may be one of the messages in a profile. A message may be empty, or begin
/// with a field that the format does not know.
fn is_message(field: &PartialField) -> bool {
    let starts = matches!(field.content, [tag, ..]
        if *tag != 0 && (*tag >> 3) <= 10 && matches!(tag & 7, 0 | 2));
    let is_valid = || Fields(field.content).all(|field| field.is_some());
    field.is_bytes && if field.is_cut { starts } else { is_valid() }
}

/// Reads a whole profile. `stored_bytes` is the size of its file, which may be compressed.
pub(crate) fn read(bytes: &[u8], stored_bytes: usize) -> Result<Profile, Fault> {
    let mut memory = Memory {
        left: stored_bytes
            .saturating_mul(MAX_EXPANSION)
            .saturating_add(BASE_MEMORY),
        is_spent: false,
    };
    parse(bytes, &mut memory).map_err(|fault| {
        if !memory.is_spent {
            return fault;
        }
        Fault::whole(format!(
            "needs more than {MAX_EXPANSION} times its size in memory, and more than {} MiB",
            BASE_MEMORY >> 20
        ))
    })
}

/// Memory that a profile may still take. The file's size does not bound it: a few bytes may stand
/// for a large structure, and a string may be referred to any number of times.
struct Memory {
    left: usize,
    is_spent: bool,
}

impl Memory {
    /// Reserves `bytes`. Returns `None` if not enough is left.
    fn reserve(&mut self, bytes: usize) -> Option<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => self.is_spent = true,
        }
        (!self.is_spent).then_some(())
    }
}

fn damaged(what: &str) -> Fault {
    Fault::whole(format!("is not a pprof profile, or is damaged: {what}"))
}

// Numbers of the integer fields of the message `Profile`.
const DROP_FRAMES: usize = 7;
const KEEP_FRAMES: usize = 8;
const TIME_NANOS: usize = 9;
const DURATION_NANOS: usize = 10;
const PERIOD: usize = 12;
const DEFAULT_SAMPLE_TYPE: usize = 14;

/// Top-level fields of the message, not decoded further.
#[derive(Default)]
struct Message<'a> {
    strings: Vec<&'a [u8]>,
    sample_types: Vec<&'a [u8]>,
    samples: Vec<&'a [u8]>,
    mappings: Vec<&'a [u8]>,
    locations: Vec<&'a [u8]>,
    functions: Vec<&'a [u8]>,
    comments: Vec<u64>,
    period_type: Option<&'a [u8]>,
    /// Integer fields, by field number. Unset fields are 0.
    numbers: [u64; 16],
}

impl<'a> Message<'a> {
    fn parse(bytes: &'a [u8], memory: &mut Memory) -> Option<Self> {
        let mut message = Self::default();
        for field in Fields(bytes) {
            let Field { number, value } = field?;
            memory.reserve(size_of::<&[u8]>())?;
            match number {
                1 => message.sample_types.push(value.bytes()?),
                2 => message.samples.push(value.bytes()?),
                3 => message.mappings.push(value.bytes()?),
                4 => message.locations.push(value.bytes()?),
                5 => message.functions.push(value.bytes()?),
                6 => message.strings.push(value.bytes()?),
                11 => message.period_type = Some(value.bytes()?),
                13 => {
                    memory.reserve(value.max_numbers() * size_of::<(u64, String)>())?;
                    value.numbers(&mut message.comments)?;
                }
                7..=10 | 12 | 14 => message.numbers[number as usize] = value.number()?,
                _ => {}
            }
        }
        Some(message)
    }
}

fn parse(bytes: &[u8], memory: &mut Memory) -> Result<Profile, Fault> {
    let message = Message::parse(bytes, memory).ok_or_else(|| damaged("a field is malformed"))?;
    if message.strings.first().is_none_or(|s| !s.is_empty()) {
        return Err(damaged("it has no string table"));
    }
    let mut reader = Reader {
        strings: &message.strings,
        memory,
        profile: Profile {
            format: Format::Pprof,
            ..Profile::default()
        },
        mappings: HashMap::new(),
        functions: HashMap::new(),
        locations: HashMap::new(),
    };
    reader.read_header(&message)?;
    let malformed_part =
        |name: &str| damaged(&format!("a {name} is malformed or refers to nothing"));
    for part in &message.mappings {
        reader
            .add_mapping(part)
            .ok_or_else(|| malformed_part("mapping"))?;
    }
    for part in &message.functions {
        reader
            .add_function(part)
            .ok_or_else(|| malformed_part("function"))?;
    }
    for part in &message.locations {
        reader
            .add_location(part)
            .ok_or_else(|| malformed_part("location"))?;
    }
    for part in &message.samples {
        reader
            .add_sample(part)
            .ok_or_else(|| malformed_part("sample"))?;
    }
    let mut profile = reader.profile;
    rss::take_facts(&mut profile);
    Ok(profile)
}

struct Reader<'a> {
    strings: &'a [&'a [u8]],
    memory: &'a mut Memory,
    profile: Profile,
    mappings: HashMap<u64, u32>,
    functions: HashMap<u64, u32>,
    locations: HashMap<u64, u32>,
}

impl Reader<'_> {
    fn string(&mut self, value: Value) -> Option<String> {
        let text = self.strings.get(usize::try_from(value.number()?).ok()?)?;
        self.memory.reserve(text.len())?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn read_header(&mut self, message: &Message) -> Result<(), Fault> {
        let malformed = || damaged("the header is malformed");
        for part in &message.sample_types {
            let value_type = self.value_type(part).ok_or_else(malformed)?;
            self.profile.sample_types.push(value_type);
        }
        if self.profile.sample_types.is_empty() {
            return Err(damaged("it has no sample types"));
        }
        if let Some(part) = message.period_type {
            self.profile.period_type = Some(self.value_type(part).ok_or_else(malformed)?);
        }
        let mut text = |n: u64| self.string(Value::Number(n)).ok_or_else(malformed);
        let drop = text(message.numbers[DROP_FRAMES])?;
        let keep = text(message.numbers[KEEP_FRAMES])?;
        let default = text(message.numbers[DEFAULT_SAMPLE_TYPE])?;
        let comments = message
            .comments
            .iter()
            .map(|&c| text(c))
            .collect::<Result<_, _>>()?;
        let profile = &mut self.profile;
        profile.drop_frames = drop;
        profile.keep_frames = keep;
        profile.comments = comments;
        profile.period = message.numbers[PERIOD] as i64;
        profile.default_type = profile
            .type_index(&default)
            .unwrap_or(profile.sample_types.len() - 1);
        let known = |n: u64| (n != 0 && n <= i64::MAX as u64).then_some(n);
        profile.facts.start_unix_ns = known(message.numbers[TIME_NANOS]);
        profile.facts.duration_ns = known(message.numbers[DURATION_NANOS]);
        Ok(())
    }

    fn value_type(&mut self, part: &[u8]) -> Option<ValueType> {
        self.memory.reserve(size_of::<ValueType>())?;
        let mut value_type = ValueType::new("", "");
        for field in Fields(part) {
            let Field { number, value } = field?;
            match number {
                1 => value_type.kind = self.string(value)?,
                2 => value_type.unit = self.string(value)?,
                _ => {}
            }
        }
        Some(value_type)
    }

    fn add_mapping(&mut self, part: &[u8]) -> Option<()> {
        let mut id = 0;
        self.memory.reserve(size_of::<Mapping>() + ENTRY_SIZE)?;
        let mut mapping = Mapping::default();
        for field in Fields(part) {
            let Field { number, value } = field?;
            match number {
                1 => id = value.number()?,
                2 => mapping.start = value.number()?,
                3 => mapping.end = value.number()?,
                4 => mapping.file_offset = value.number()?,
                5 => mapping.path = PathBuf::from(self.string(value)?),
                6 => mapping.build_id = BuildId::from_hex(&self.string(value)?).unwrap_or_default(),
                _ => {}
            }
        }
        self.mappings.insert(id, self.profile.mappings.len() as u32);
        self.profile.mappings.push(mapping);
        Some(())
    }

    fn add_function(&mut self, part: &[u8]) -> Option<()> {
        let mut id = 0;
        self.memory.reserve(size_of::<Function>() + ENTRY_SIZE)?;
        let mut function = Function::default();
        for field in Fields(part) {
            let Field { number, value } = field?;
            match number {
                1 => id = value.number()?,
                2 => function.name = self.string(value)?,
                3 => function.system_name = self.string(value)?,
                4 => function.file = self.string(value)?,
                5 => function.start_line = u32::try_from(value.number()?).unwrap_or(0),
                _ => {}
            }
        }
        if function.name.is_empty() {
            function.name = function.system_name.clone();
        }
        self.functions
            .insert(id, self.profile.functions.len() as u32);
        self.profile.functions.push(function);
        Some(())
    }

    fn add_location(&mut self, part: &[u8]) -> Option<()> {
        self.memory.reserve(size_of::<Location>() + ENTRY_SIZE)?;
        let first_line = self.profile.lines.len() as u32;
        let mut id = 0;
        let mut location = Location {
            address: 0,
            mapping: NO_MAPPING,
            first_line,
            line_count: 0,
        };
        for field in Fields(part) {
            let Field { number, value } = field?;
            match number {
                1 => id = value.number()?,
                2 if value.number()? != 0 => {
                    location.mapping = *self.mappings.get(&value.number()?)?;
                }
                3 => location.address = value.number()?,
                4 => self.add_line(value.bytes()?)?,
                _ => {}
            }
        }
        location.line_count = self.profile.lines.len() as u32 - first_line;
        if self.only_looks_reserved(&location) {
            location.address = 0;
        }
        self.locations
            .insert(id, self.profile.locations.len() as u32);
        self.profile.locations.push(location);
        Some(())
    }

    /// Returns true if a location has the address of a pseudo-frame, but is not one: programs of
    /// boards without a kernel, for example, have code there.
    fn only_looks_reserved(&self, location: &Location) -> bool {
        marker_at(location.address).is_some_and(|marker| {
            let [line] = self.profile.lines_of(location) else {
                return true;
            };
            self.profile.functions[line.function as usize].name != marker.name
        })
    }

    /// Adds a line to the last location. Ignores a line without a function.
    fn add_line(&mut self, part: &[u8]) -> Option<()> {
        self.memory.reserve(size_of::<Line>())?;
        let mut line = Line::default();
        let mut function = 0;
        for field in Fields(part) {
            let Field { number, value } = field?;
            match number {
                1 => function = value.number()?,
                2 => line.line = u32::try_from(value.number()?).unwrap_or(0),
                3 => line.column = u32::try_from(value.number()?).unwrap_or(0),
                _ => {}
            }
        }
        if function != 0 {
            line.function = *self.functions.get(&function)?;
            self.profile.lines.push(line);
        }
        Some(())
    }

    fn add_sample(&mut self, part: &[u8]) -> Option<()> {
        let mut ids = Vec::new();
        let mut values = Vec::new();
        let stack = u32::try_from(self.profile.stacks.len()).ok()?;
        for field in Fields(part) {
            let Field { number, value } = field?;
            match number {
                1 | 2 => {
                    self.memory
                        .reserve(value.max_numbers() * size_of::<u64>())?;
                    value.numbers(if number == 1 { &mut ids } else { &mut values })?;
                }
                3 => self.add_label(stack, value.bytes()?)?,
                _ => {}
            }
        }
        if values.len() != self.profile.sample_types.len() {
            return None;
        }
        for id in ids {
            self.profile.stacks.push_frame(*self.locations.get(&id)?);
        }
        self.profile.stacks.close();
        self.profile.values.extend(values.iter().map(|&v| v as i64));
        Some(())
    }

    /// Adds a label of a stack. Ignores a label without a value.
    fn add_label(&mut self, stack: u32, part: &[u8]) -> Option<()> {
        self.memory.reserve(size_of::<Label>())?;
        let mut key = String::new();
        let mut text = None;
        let mut unit = String::new();
        let mut number_value = 0;
        for field in Fields(part) {
            let Field { number, value } = field?;
            match number {
                1 => key = self.string(value)?,
                2 if value.number()? != 0 => text = Some(self.string(value)?),
                3 => number_value = value.signed()?,
                4 => unit = self.string(value)?,
                _ => {}
            }
        }
        let value = match text {
            Some(text) => LabelValue::Text(text),
            None if number_value != 0 || !unit.is_empty() => LabelValue::Number(number_value, unit),
            None => return Some(()),
        };
        self.profile.labels.push(Label { stack, key, value });
        Some(())
    }
}
