//! Reads folded stacks: `root;…;leaf COUNT`, one stack per line.
//!
//! Some writers write fractions. Values are integers here, so those of a file with fractions are
//! multiplied by a power of ten, which the unit shows: `count/100`.

use std::io::Read;

use crate::decimal::Decimal;
use crate::error::Fault;
use crate::lines::Lines;
use crate::named::NamedBuilder;
use crate::profile::{Format, Profile};
use crate::value_type::ValueType;

/// Returns true if the first line of a file looks like a folded stack.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    let mut lines = start.split(|&c| c == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"));
    first
        .and_then(split_count)
        .is_some_and(|(stack, _)| !stack.is_empty())
}

/// Splits a count off the end of a line.
fn split_count(line: &[u8]) -> Option<(&[u8], Decimal)> {
    let at = line.iter().rposition(u8::is_ascii_whitespace)?;
    let count = Decimal::parse(&line[at + 1..])?;
    Some((line[..at].trim_ascii_end(), count))
}

/// Stacks and their values read so far.
struct Reader {
    builder: NamedBuilder,
    /// Set if lines have two counts.
    compared: bool,
    /// Values of all stacks, by stack.
    values: Vec<Decimal>,
}

impl Reader {
    fn new(compared: bool) -> Self {
        let kinds: &[&str] = if compared {
            &["before", "after"]
        } else {
            &["samples"]
        };
        let columns = kinds.iter().map(|kind| ValueType::new(kind, "count"));
        Self {
            builder: NamedBuilder::new(Format::Folded, columns.collect()),
            compared,
            values: Vec::new(),
        }
    }

    /// Adds a line's stack with its last count, which another count may precede.
    fn line(&mut self, stack: &[u8], last: Decimal) -> Result<(), Fault> {
        let stack = match split_count(stack).filter(|_| self.compared) {
            Some((stack, first)) => {
                self.values.push(first);
                stack
            }
            None if self.compared => {
                return Err(Fault::here("has one count where others have two"));
            }
            None => stack,
        };
        self.values.push(last);
        let names = stack.rsplit(|&c| c == b';').filter(|name| !name.is_empty());
        self.builder.stack_of(names.map(|name| (name, false)));
        Ok(())
    }

    fn finish(self) -> Profile {
        let mut profile = self.builder.profile;
        let places = Decimal::common_places(&self.values);
        profile.values = self
            .values
            .iter()
            .map(|value| value.scaled(places))
            .collect();
        if places > 0 {
            for column in &mut profile.sample_types {
                column.unit = format!("count/{}", 10u64.pow(places));
            }
        }
        profile
    }
}

/// Reads all stacks. If lines have two counts, the profile is a comparison with the columns
/// `before` and `after`.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let mut reader: Option<Reader> = None;
    while let Some(line) = lines.next()? {
        let text = line.text.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        let (stack, last) =
            split_count(text).ok_or_else(|| Fault::here("does not end in a count"))?;
        let is_first_compared = || split_count(stack).is_some();
        reader
            .get_or_insert_with(|| Reader::new(is_first_compared()))
            .line(stack, last)?;
    }
    let reader = reader.ok_or_else(|| Fault::whole("holds no stack"))?;
    Ok(reader.finish())
}
