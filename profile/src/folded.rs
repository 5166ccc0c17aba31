//! Reads folded stacks: `root;…;leaf COUNT`, one stack per line.
//!
//! Some writers write fractions. Values are integers here, so those of a file with fractions are
//! multiplied by a power of ten, which the unit shows: `count/100`. Numbers may be written as in
//! other locales: `0,25`, `1,234,567` and `1,234.5`.

use std::io::Read;

use crate::decimal::{Commas, Decimal};
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
        .is_some_and(|counted| !counted.stack.is_empty())
}

/// A line's count, and what precedes it.
struct Counted<'a> {
    stack: &'a [u8],
    /// The count as it is written.
    word: &'a [u8],
    count: Decimal,
    /// Meaning of the count's commas. `None`: it has none.
    commas: Option<Commas>,
}

/// Splits a count off the end of a line.
fn split_count(line: &[u8]) -> Option<Counted<'_>> {
    let at = line.iter().rposition(u8::is_ascii_whitespace)?;
    let stack = line[..at].trim_ascii_end();
    let word = &line[at + 1..];
    if let Some(count) = Decimal::parse(word) {
        return Some(Counted {
            stack,
            word,
            count,
            commas: None,
        });
    }
    let (count, commas) = Decimal::parse_with_commas(word)?;
    Some(Counted {
        stack,
        word,
        count,
        commas: Some(commas),
    })
}

/// Returns true for three digits that begin with 0: the last group of a count such as `5 000`. No
/// tool pads counts with zeros.
fn begins_with_zeros(word: &[u8]) -> bool {
    word.len() == 3 && word.starts_with(b"0") && word.iter().all(u8::is_ascii_digit)
}

/// Stacks and their values read so far.
struct Reader {
    builder: NamedBuilder,
    /// Set if lines have two counts.
    compared: bool,
    /// Values of all stacks, by stack.
    values: Vec<Decimal>,
    /// Indices of values whose commas are unclear.
    unclear: Vec<usize>,
    /// Meaning of the commas of the other values. `None`: they have none.
    commas: Option<Commas>,
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
            unclear: Vec::new(),
            commas: None,
        }
    }

    /// Adds a line's stack with its last count, which another count may precede.
    fn add_line(&mut self, last: &Counted<'_>) -> Result<(), Fault> {
        let mut stack = last.stack;
        if self.compared {
            let first = split_count(stack)
                .ok_or_else(|| Fault::here("has one count where others have two"))?;
            if begins_with_zeros(last.word) {
                return Err(Fault::here(
                    "has digits grouped by a space; write the counts without it, for example with \
                     LC_ALL=C",
                ));
            }
            self.add_value(&first)?;
            stack = first.stack;
        }
        self.add_value(last)?;
        let names = stack.rsplit(|&c| c == b';').filter(|name| !name.is_empty());
        self.builder.add_stack(names.map(|name| (name, false)));
        Ok(())
    }

    fn add_value(&mut self, counted: &Counted<'_>) -> Result<(), Fault> {
        match counted.commas {
            None => {}
            Some(Commas::Unclear) => self.unclear.push(self.values.len()),
            commas if self.commas.is_none_or(|known| Some(known) == commas) => self.commas = commas,
            Some(_) => {
                return Err(Fault::here(
                    "has a comma of another meaning than the lines before: decimals, or thousands",
                ));
            }
        }
        self.values.push(counted.count);
        Ok(())
    }

    fn finish(mut self) -> Result<Profile, Fault> {
        match (self.commas, self.unclear.is_empty()) {
            (None, false) => {
                return Err(Fault::whole(
                    "has counts such as 1,234, which may be a fraction or thousands; write them \
                     without a comma, for example with LC_ALL=C",
                ));
            }
            (Some(Commas::Groups), _) => {
                for index in std::mem::take(&mut self.unclear) {
                    self.values[index] = self.values[index].with_groups();
                }
            }
            _ => {}
        }
        let are_all_zero = self.values.iter().all(|value| value.is_zero());
        if are_all_zero && self.values.iter().any(|value| value.is_too_small()) {
            return Err(Fault::whole(
                "has only counts below 1e-18, which are too small; multiply them",
            ));
        }
        let mut profile = self.builder.profile;
        let places = Decimal::common_places(&self.values);
        profile.values = self
            .values
            .iter()
            .map(|value| value.scale_to(places))
            .collect();
        if places > 0 {
            for column in &mut profile.sample_types {
                column.unit = format!("count/{}", 10u64.pow(places));
            }
        }
        Ok(profile)
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
        let counted = split_count(text)
            .ok_or_else(|| Fault::here("does not end in a count, as folded stacks do"))?;
        let is_first_compared = || split_count(counted.stack).is_some();
        reader
            .get_or_insert_with(|| Reader::new(is_first_compared()))
            .add_line(&counted)?;
    }
    let reader = reader.ok_or_else(|| Fault::whole("holds no stack"))?;
    reader.finish()
}
