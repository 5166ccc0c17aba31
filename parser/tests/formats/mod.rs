//! The flags of each format, so that a new format is part of every test of all formats.

use mem_parser::report::FORMATS;

/// Returns an option for each format; for a format that takes a pattern, one that matches
/// everything.
pub fn options() -> Vec<String> {
    let option = |format: &&mem_parser::Format| match format.takes_pattern {
        true => format!("--{}=.", format.flag),
        false => format!("--{}", format.flag),
    };
    FORMATS.iter().map(option).collect()
}
