//! Decodes CPython's line tables: `co_lnotab` (up to 3.9), the table of PEP 626 (3.10), the
//! location table (3.11 and later). Instructions are two bytes long and identified by their index.

use shm_protocol::codes::{Code, LineTable};

/// Returns the line of the instruction with this index, or 0 if it is unknown.
pub fn line(code: &Code<'_>, instruction: u32) -> u32 {
    let offset = u64::from(instruction) * 2;
    let first = i64::from(code.first_line);
    let line = match code.table {
        LineTable::Increments => line_from_increments(code.lines, first, offset),
        LineTable::Ranges => line_from_ranges(code.lines, first, offset),
        LineTable::Locations => line_from_locations(code.lines, first, offset),
    };
    line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
}

/// Decodes pairs of bytes: an increment of the code offset in bytes, and an increment of the line.
fn line_from_increments(table: &[u8], first_line: i64, offset: u64) -> Option<i64> {
    let mut line = first_line;
    let mut start = 0;
    for pair in table.chunks_exact(2) {
        start += u64::from(pair[0]);
        if start > offset {
            break;
        }
        line += i64::from(pair[1].cast_signed());
    }
    Some(line)
}

/// Decodes pairs of bytes: the length of a range in bytes of code, and an increment of the line;
/// -128 if the range has no line.
fn line_from_ranges(table: &[u8], first_line: i64, offset: u64) -> Option<i64> {
    let mut line = first_line;
    let mut end = 0;
    for pair in table.chunks_exact(2) {
        end += u64::from(pair[0]);
        let increment = pair[1].cast_signed();
        let has_line = increment != i8::MIN;
        if has_line {
            line += i64::from(increment);
        }
        if offset < end {
            return has_line.then_some(line);
        }
    }
    None
}

/// Decodes entries: a first byte with the kind and the length in instructions (minus 1), then data
/// that depend on the kind. Only the first byte of an entry has its highest bit set.
fn line_from_locations(table: &[u8], first_line: i64, offset: u64) -> Option<i64> {
    const NONE: u8 = 15;
    const LONG_FORM: u8 = 14;
    const NO_COLUMNS: u8 = 13;
    const ONE_LINE: core::ops::RangeInclusive<u8> = 10..=12;
    let mut line = first_line;
    let mut end = 0;
    let mut rest = table;
    while let [head, tail @ ..] = rest {
        let kind = (head >> 3) & 15;
        end += (u64::from(head & 7) + 1) * 2;
        line += match kind {
            LONG_FORM | NO_COLUMNS => read_signed(tail),
            kind if ONE_LINE.contains(&kind) => i64::from(kind - ONE_LINE.start()),
            _ => 0,
        };
        if offset < end {
            return (kind != NONE).then_some(line);
        }
        let next = tail.iter().position(|byte| byte & 0x80 != 0);
        rest = &tail[next.unwrap_or(tail.len())..];
    }
    None
}

/// Decodes a number in groups of six bits, lowest first, with the sign in the lowest bit.
fn read_signed(bytes: &[u8]) -> i64 {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(6).enumerate() {
        value |= u64::from(byte & 0x3f) << (6 * index);
        if byte & 0x40 == 0 {
            break;
        }
    }
    let size = (value >> 1).cast_signed();
    if value & 1 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm_protocol::codes::Characters;
    use std::vec;
    use std::vec::Vec;

    /// Returns the lines of the first `instructions` instructions.
    fn all(table: LineTable, first_line: u32, lines: &[u8], instructions: u32) -> Vec<u32> {
        let code = Code {
            name: Characters::default(),
            file: Characters::default(),
            first_line,
            lines,
            table,
        };
        (0..instructions).map(|index| line(&code, index)).collect()
    }

    /// Line tables of a function that ends with an expression over several lines, as compiled by
    /// CPython 3.9, 3.10, 3.11 and 3.12. The expected lines are from `dis` and `co_lines()`.
    #[test]
    fn tables_of_real_functions_are_read() {
        let nine = all(
            LineTable::Increments,
            1,
            &[0, 1, 8, 2, 2, 1, 6, 254, 4, 3],
            12,
        );
        assert_eq!(nine, [2, 2, 2, 2, 4, 5, 5, 5, 3, 3, 6, 6]);
        let ten = all(LineTable::Ranges, 1, &[8, 1, 2, 2, 6, 1, 4, 254, 4, 3], 12);
        assert_eq!(ten, nine);
        let eleven = [
            128, 0, 221, 8, 17, 144, 33, 137, 12, 140, 12, 128, 65, 224, 8, 9, 221, 8, 11, 136, 65,
            137, 6, 140, 6, 240, 5, 2, 9, 16, 128, 65, 240, 6, 0, 12, 13, 128, 72,
        ];
        let lines = [(1, 1), (2, 15), (4, 1), (5, 14), (3, 2), (6, 2)];
        assert_eq!(all(LineTable::Locations, 1, &eleven, 35), repeated(&lines));
        let twelve = [
            128, 0, 220, 8, 17, 144, 33, 139, 12, 128, 65, 224, 8, 9, 220, 8, 11, 136, 65, 139, 6,
            240, 5, 2, 9, 16, 128, 65, 240, 6, 0, 12, 13, 128, 72,
        ];
        let lines = [(1, 1), (2, 11), (4, 1), (5, 10), (3, 2), (6, 2)];
        assert_eq!(all(LineTable::Locations, 1, &twelve, 27), repeated(&lines));
    }

    fn repeated(lines: &[(u32, usize)]) -> Vec<u32> {
        lines
            .iter()
            .flat_map(|&(line, count)| vec![line; count])
            .collect()
    }

    #[test]
    fn instructions_without_a_line_have_none() {
        assert_eq!(
            all(LineTable::Ranges, 7, &[2, 0, 2, 0x80, 2, 1], 3),
            [7, 0, 8]
        );
        assert_eq!(all(LineTable::Locations, 7, &[0x80 | (15 << 3)], 2), [0, 0]);
    }

    #[test]
    fn damaged_tables_are_read_without_panic() {
        let mut bytes = Vec::new();
        for seed in 0..2000u32 {
            bytes.push((seed.wrapping_mul(2_654_435_761) >> 24) as u8);
            for table in [
                LineTable::Increments,
                LineTable::Ranges,
                LineTable::Locations,
            ] {
                all(table, u32::MAX, &bytes, 3);
            }
        }
        assert_eq!(read_signed(&[0x7f; 9]), -((1 << 35) - 1));
    }
}
