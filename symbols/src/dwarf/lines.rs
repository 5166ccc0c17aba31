//! Source lines of addresses.

use std::path::PathBuf;

use gimli::{Dwarf, Result, Unit};

use super::candidates::UnitQuery;
use super::rows;
use super::scan::StartAddresses;
use super::units::{Slice, Units};

/// Source line of an address.
#[derive(Clone, Copy)]
pub struct Row {
    /// Unit of the line table.
    pub unit: usize,
    /// Number of the source file.
    pub file: u64,
    /// Line; 0 if unknown.
    pub line: u32,
    /// Column; 0 if unknown.
    pub column: u32,
}

/// Finds the lines of the addresses in a unit's line table. First runs only the sequences that
/// start where the unit's ranges do, then, if addresses are left, all of them. No row is stored.
pub fn find(units: &Units, query: &UnitQuery, found: &mut [Option<Row>]) -> Result<()> {
    let opened = units.open_for_lines(query.unit)?;
    let Some(program) = &opened.line_program else {
        return Ok(());
    };
    let starts = StartAddresses::new(query.ranges);
    let residency = &units.residency;
    rows::of_sequences(program, &starts, residency, collector(query, found))?;
    if found.iter().all(Option::is_some) {
        return Ok(());
    }
    rows::each(program, residency, collector(query, found))
}

/// Returns a visitor of rows that fills in those of the addresses that have none yet.
fn collector(query: &UnitQuery, found: &mut [Option<Row>]) -> impl FnMut(&rows::Row, bool) {
    let UnitQuery { unit, wanted, .. } = *query;
    // The previous row of the same sequence, and the index of the first address at or after it.
    let mut last: Option<rows::Row> = None;
    let mut next = 0;
    move |row, ends| {
        match &last {
            Some(previous) if row.address >= previous.address => {
                while wanted.get(next).is_some_and(|&a| a < row.address) {
                    found[next].get_or_insert_with(|| Row::new(unit, previous));
                    next += 1;
                }
            }
            // A new sequence, or a row that goes back, which is invalid.
            _ => next = wanted.partition_point(|&a| a < row.address),
        }
        last = (!ends).then_some(*row);
    }
}

impl Row {
    fn new(unit: usize, row: &rows::Row) -> Self {
        let column = if row.line > 0 { row.column } else { 0 };
        Self {
            unit,
            file: row.file,
            line: row.line as u32,
            column: column as u32,
        }
    }
}

/// Returns the path of a unit's source file, empty if there is none with this number.
pub fn path<'a>(unit: &Unit<Slice<'a>>, dwarf: &Dwarf<Slice<'a>>, file: u64) -> Result<String> {
    let header = unit.line_program.as_ref().map(|program| program.header());
    let Some((header, file)) = header.and_then(|h| Some((h, h.file(file)?))) else {
        return Ok(String::new());
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut path = PathBuf::new();
    if let Some(directory) = unit.comp_dir {
        path.push(text(directory.slice()));
    }
    // Directory 0 is the compilation directory.
    if file.directory_index() != 0
        && let Some(directory) = file.directory(header)
    {
        path.push(text(dwarf.attr_string(unit, directory)?.slice()));
    }
    path.push(text(dwarf.attr_string(unit, file.path_name())?.slice()));
    Ok(path.to_string_lossy().into_owned())
}
