//! Reads folded stacks: `root;…;leaf COUNT`, one stack per line.

use std::io::Read;

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
fn split_count(line: &[u8]) -> Option<(&[u8], i64)> {
    let at = line.iter().rposition(u8::is_ascii_whitespace)?;
    let word = std::str::from_utf8(&line[at + 1..]).ok()?;
    // Some writers write fractions.
    let count = word.parse::<i64>().ok().or_else(|| {
        let number = word
            .parse::<f64>()
            .ok()
            .filter(|n| n.is_finite() && word.contains('.'));
        number.map(|n| n.round() as i64)
    })?;
    Some((line[..at].trim_ascii_end(), count))
}

/// Reads all stacks. If lines have two counts, the profile is a comparison with the columns
/// `before` and `after`.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let column = |kind: &str| ValueType::new(kind, "count");
    let mut builder: Option<(NamedBuilder, bool)> = None;
    while let Some(line) = lines.next()? {
        let text = line.text.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        let (stack, last) =
            split_count(text).ok_or_else(|| Fault::here("does not end in a count"))?;
        let before = split_count(stack);
        let (builder, compared) = builder.get_or_insert_with(|| match before {
            Some(_) => {
                let columns = vec![column("before"), column("after")];
                (NamedBuilder::new(Format::Folded, columns), true)
            }
            None => (
                NamedBuilder::new(Format::Folded, vec![column("samples")]),
                false,
            ),
        });
        let (stack, values) = match before {
            Some((stack, first)) if *compared => (stack, vec![first, last]),
            _ if *compared => return Err(Fault::here("has one count where others have two")),
            _ => (stack, vec![last]),
        };
        builder.stack(
            stack.rsplit(|&c| c == b';').filter(|name| !name.is_empty()),
            &values,
        );
    }
    let (builder, _) = builder.ok_or_else(|| Fault::whole("holds no stack"))?;
    Ok(builder.profile)
}
