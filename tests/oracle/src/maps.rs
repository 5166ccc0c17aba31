//! Mapped files, from `/proc/self/maps`.

use std::ops::Range;

/// Mappings of one loaded file, in the order of their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// From the file's first page to the last mapping of it.
    pub range: Range<u64>,
    /// Path, or `[vdso]`.
    pub name: String,
    /// Set if a mapping is executable.
    pub has_code: bool,
}

/// Returns all files mapped.
pub fn read() -> Vec<Mapped> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<Mapped> = Vec::new();
    for line in text.lines() {
        let Some((range, offset, executable, name)) = parse(line) else {
            continue;
        };
        match files.last_mut() {
            Some(last) if last.name == name && offset != 0 => {
                last.range.end = range.end;
                last.has_code |= executable;
            }
            _ if offset == 0 => files.push(Mapped {
                range,
                name: name.to_owned(),
                has_code: executable,
            }),
            _ => {}
        }
    }
    files
}

fn parse(line: &str) -> Option<(Range<u64>, u64, bool, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let executable = fields.next()?.contains('x');
    let offset = number(fields.next()?)?;
    let name = fields.nth(2)?;
    let is_file = name.starts_with('/') || name == "[vdso]";
    is_file.then_some((number(start)?..number(end)?, offset, executable, name))
}

/// `module+offset` of an address.
pub fn describe(files: &[Mapped], address: u64) -> String {
    match files.iter().find(|file| file.range.contains(&address)) {
        Some(file) => {
            let name = file.name.rsplit('/').next().unwrap_or_default();
            format!("{name}+{:#x}", address - file.range.start)
        }
        None => format!("{address:#x}"),
    }
}
