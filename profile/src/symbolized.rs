//! Reads what `jeprof --raw` and `google-pprof --raw` write: the names of addresses, then the
//! unsymbolized profile.
//!
//! ```text
//! --- symbol
//! binary=/usr/bin/x
//! 0x0000000000401126 inlined--work    innermost function first
//! ---
//! --- heap                            or profile, growth
//! heap profile: …
//! ```

use std::collections::HashMap;
use std::io::Read;

use crate::cpu::gperftools;
use crate::error::Fault;
use crate::lines::Lines;
use crate::maps::hex;
use crate::profile::{Function, Line, Profile};
use crate::{heap_text, jemalloc};

/// First bytes of the file.
pub(crate) const START: &[u8] = b"--- symbol";

/// Separates the functions that were inlined into each other.
const INLINED: &str = "--";

/// Reads a whole file.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let names = read_names(lines)?;
    let Some(marker) = lines.next()? else {
        return Err(Fault::whole("ends after its names: it holds no profile"));
    };
    if !marker.text.starts_with(b"--- ") {
        return Err(Fault::here(
            "is not the start of a profile, such as \u{201c}--- heap\u{201d}",
        ));
    }
    let start = lines.peek(gperftools::HEADER_SIZE)?;
    let mut profile = if start.starts_with(heap_text::START) {
        heap_text::read(lines)?
    } else if start.starts_with(jemalloc::START) {
        jemalloc::read(lines)?
    } else if gperftools::looks_like(start) {
        gperftools::read_raw(&lines.rest()?)?
    } else {
        return Err(Fault::here(
            "is followed by neither a heap profile nor a CPU profile",
        ));
    };
    name_locations(&mut profile, &names);
    Ok(profile)
}

/// Reads the names up to the line `---`, by address.
fn read_names<R: Read>(lines: &mut Lines<R>) -> Result<HashMap<u64, String>, Fault> {
    let mut names = HashMap::new();
    // The first line is the header.
    lines.next()?;
    while let Some(line) = lines.next()? {
        if line.text.trim_ascii() == b"---" {
            return Ok(names);
        }
        let text = line.text.trim_ascii();
        let end = text.iter().position(u8::is_ascii_whitespace);
        let (word, name) = text.split_at(end.unwrap_or(text.len()));
        let is_address = word.starts_with(b"0x");
        if is_address && let Some(address) = hex(word) {
            let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
            names.insert(address, name);
        }
    }
    Err(Fault::here(
        "the file ends before the line \u{201c}---\u{201d}: it was cut off",
    ))
}

/// Gives each location its functions. Names are listed by the address in the profile or by the
/// address that was looked up, which is one less for return addresses.
fn name_locations(profile: &mut Profile, names: &HashMap<u64, String>) {
    let mut known: HashMap<&str, u32> = HashMap::new();
    for location in &mut profile.locations {
        let address = location.address;
        let found = names.get(&address);
        let found = found.or_else(|| names.get(&address.wrapping_add(1)));
        // An address without a symbol is listed under its own value.
        let Some(text) = found.filter(|name| !name.is_empty() && !name.starts_with("0x")) else {
            continue;
        };
        location.first_line = profile.lines.len() as u32;
        for function in text.split(INLINED).filter(|name| !name.is_empty()) {
            let number = *known.entry(function).or_insert_with(|| {
                profile.functions.push(Function {
                    name: function.to_owned(),
                    ..Function::default()
                });
                profile.functions.len() as u32 - 1
            });
            profile.lines.push(Line {
                function: number,
                ..Line::default()
            });
        }
        location.line_count = profile.lines.len() as u32 - location.first_line;
    }
}
