//! Runs the line number program of a unit.
//!
//! A program has a row for every few bytes of code. Only a row's address, file, line and column are
//! needed, so other registers are not tracked. The rows are those that gimli returns, except for
//! VLIW processors.

use gimli::{Error, IncompleteLineProgram, LineProgramHeader, Reader, Result};

use super::residency::Residency;
use super::scan::{Sequence, StartAddresses};
use super::units::Slice;

/// Bytes read between reports to [`Residency`].
const REPORT_EVERY: usize = 1 << 20;
/// Lowest address that linkers set for discarded code (tombstones).
const TOMBSTONE: u64 = u64::MAX - 1;

/// A row of the line table.
#[derive(Clone, Copy)]
pub struct Row {
    /// Start address of the row's code.
    pub address: u64,
    /// Number of the source file in the unit.
    pub file: u64,
    /// Line; 0 if unknown.
    pub line: u64,
    /// Column; 0 if unknown.
    pub column: u64,
}

/// Initial registers of a sequence.
const FIRST: Row = Row {
    address: 0,
    file: 1,
    line: 1,
    column: 0,
};

/// State machine of the line number program.
struct Machine<'a> {
    header: &'a LineProgramHeader<Slice<'a>>,
    bytes: &'a [u8],
    /// Offset of the next instruction or operand.
    at: usize,
    /// Advance of line and address by each special opcode.
    special_advances: [(i16, u16); 256],
    row: Row,
    /// Set while the sequence describes code that the linker discarded.
    is_discarded: bool,
}

/// Runs a program. Passes each row to `visit`, with a flag for the last one of a sequence.
pub fn each(
    program: &IncompleteLineProgram<Slice<'_>>,
    residency: &Residency,
    mut visit: impl FnMut(&Row, bool),
) -> Result<()> {
    let mut machine = Machine::new(program.header())?;
    let mut reported = 0;
    while machine.run_sequence(&mut visit)? {
        if machine.at - reported >= REPORT_EVERY {
            residency.count_mebibyte();
            reported = machine.at;
        }
    }
    Ok(())
}

/// Runs only the sequences of a program that start at one of `starts`.
pub fn of_sequences(
    program: &IncompleteLineProgram<Slice<'_>>,
    starts: &StartAddresses,
    residency: &Residency,
    mut visit: impl FnMut(&Row, bool),
) -> Result<()> {
    let mut machine = Machine::new(program.header())?;
    let mut passed = 0;
    let mut reported = 0;
    for Sequence { start, set_address } in starts.sequences(machine.bytes) {
        // A match inside a sequence that was already run is not the start of one.
        if start >= passed && machine.is_start(start, set_address) {
            machine.run_sequence(&mut visit)?;
            passed = machine.at;
        }
        if set_address - reported >= REPORT_EVERY {
            residency.count_mebibyte();
            reported = set_address;
        }
    }
    Ok(())
}

/// Effect of an instruction.
enum Effect {
    None,
    Row,
    EndSequence,
}

/// Adds `by` to a line number.
fn add_to_line(line: u64, by: i64) -> u64 {
    if by < 0 {
        line.saturating_sub(by.unsigned_abs())
    } else {
        line.wrapping_add(by.unsigned_abs())
    }
}

impl<'a> Machine<'a> {
    fn new(header: &'a LineProgramHeader<Slice<'a>>) -> Result<Self> {
        let is_supported = header.maximum_operations_per_instruction() == 1
            && header.address_size() == 8
            && header.opcode_base() > 0
            && header.line_range() > 0;
        if !is_supported {
            return Err(Error::UnsupportedAddressSize(header.address_size()));
        }
        let mut special_advances = [(0, 0); 256];
        let unit = u16::from(header.minimum_instruction_length());
        let range = header.line_range();
        let base = i16::from(header.line_base());
        for code in header.opcode_base()..=255 {
            let adjusted_opcode = code - header.opcode_base();
            // Both factors are less than 256.
            let address = unit * u16::from(adjusted_opcode / range);
            special_advances[usize::from(code)] =
                (base + i16::from(adjusted_opcode % range), address);
        }
        Ok(Self {
            header,
            bytes: header.raw_program_buf().slice(),
            at: 0,
            special_advances,
            row: FIRST,
            is_discarded: false,
        })
    }

    /// Runs instructions up to the end of a sequence. Returns false at the end of the program.
    #[inline]
    fn run_sequence(&mut self, visit: &mut impl FnMut(&Row, bool)) -> Result<bool> {
        let base = self.header.opcode_base();
        while let Some(&code) = self.bytes.get(self.at) {
            self.at += 1;
            let effect = if code >= base {
                let (line, address) = self.special_advances[usize::from(code)];
                self.row.line = add_to_line(self.row.line, line.into());
                self.advance(address.into())?;
                Effect::Row
            } else {
                self.run(code)?
            };
            if let Effect::None = effect {
                continue;
            }
            let ends = matches!(effect, Effect::EndSequence);
            if !self.is_discarded {
                visit(&self.row, ends);
            }
            if ends {
                self.row = FIRST;
                self.is_discarded = false;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves to `start`. Returns true if the instructions from there lead to the one at
    /// `set_address`, which sets the address, without emitting a row.
    fn is_start(&mut self, start: usize, set_address: usize) -> bool {
        self.at = start;
        self.row = FIRST;
        self.is_discarded = false;
        let base = self.header.opcode_base();
        while self.at < set_address {
            let code = self.bytes[self.at];
            self.at += 1;
            if code >= base || !matches!(self.run(code), Ok(Effect::None)) {
                return false;
            }
        }
        self.at == set_address
    }

    /// Advances the address.
    #[inline]
    fn advance(&mut self, by: u64) -> Result<()> {
        if !self.is_discarded {
            let address = self.row.address.checked_add(by);
            self.row.address = address.ok_or(Error::AddressOverflow)?;
        }
        Ok(())
    }

    /// Runs a standard or extended opcode.
    #[inline]
    fn run(&mut self, code: u8) -> Result<Effect> {
        match gimli::DwLns(code) {
            gimli::DW_LNS_copy => return Ok(Effect::Row),
            gimli::DW_LNS_set_column => self.row.column = self.unsigned()?,
            gimli::DW_LNS_advance_line => {
                self.row.line = add_to_line(self.row.line, self.signed()?);
            }
            gimli::DW_LNS_set_file => self.row.file = self.unsigned()?,
            gimli::DW_LNS_negate_stmt
            | gimli::DW_LNS_set_basic_block
            | gimli::DW_LNS_set_prologue_end
            | gimli::DW_LNS_set_epilogue_begin => {}
            gimli::DW_LNS_advance_pc => {
                let unit = u64::from(self.header.minimum_instruction_length());
                let by = unit.wrapping_mul(self.unsigned()?);
                self.advance(by)?;
            }
            gimli::DW_LNS_const_add_pc => self.advance(self.special_advances[255].1.into())?,
            gimli::DwLns(0) => return self.run_extended(),
            _ => self.run_rare(code)?,
        }
        Ok(Effect::None)
    }

    /// Runs a standard opcode that is rare or has no effect here.
    #[cold]
    fn run_rare(&mut self, code: u8) -> Result<()> {
        if gimli::DwLns(code) == gimli::DW_LNS_fixed_advance_pc {
            let by = self.read_by(Reader::read_u16)?;
            return self.advance(by.into());
        }
        let counts = self.header.standard_opcode_lengths();
        let count = match gimli::DwLns(code) {
            gimli::DW_LNS_set_isa => Some(1),
            _ => counts.get(usize::from(code) - 1).copied(),
        };
        for _ in 0..count.unwrap_or(0) {
            self.unsigned()?;
        }
        Ok(())
    }

    /// Runs an extended opcode.
    fn run_extended(&mut self) -> Result<Effect> {
        let size = self.unsigned()?;
        let size = usize::try_from(size).map_err(|_| Error::UnsupportedOffset)?;
        let mut operands = self.read_by(|rest| rest.split(size))?;
        match gimli::DwLne(operands.read_u8()?) {
            gimli::DW_LNE_end_sequence => return Ok(Effect::EndSequence),
            gimli::DW_LNE_set_address => {
                let address = operands.read_u64()?;
                // For discarded code, linkers leave 0 or set a tombstone.
                self.is_discarded = address < self.row.address || address >= TOMBSTONE;
                if !self.is_discarded {
                    self.row.address = address;
                }
            }
            _ => {}
        }
        Ok(Effect::None)
    }

    /// Reads an unsigned LEB128 number. Most take one byte.
    #[inline]
    fn unsigned(&mut self) -> Result<u64> {
        match self.bytes.get(self.at) {
            Some(&number) if number < 0x80 => {
                self.at += 1;
                Ok(number.into())
            }
            _ => self.read_by(Reader::read_uleb128),
        }
    }

    /// Reads a signed LEB128 number.
    #[inline]
    fn signed(&mut self) -> Result<i64> {
        match self.bytes.get(self.at) {
            Some(&number) if number < 0x40 => {
                self.at += 1;
                Ok(number.into())
            }
            Some(&number) if number < 0x80 => {
                self.at += 1;
                Ok(i64::from(number) - 0x80)
            }
            _ => self.read_by(Reader::read_sleb128),
        }
    }

    /// Reads an operand with gimli's reader.
    fn read_by<T>(&mut self, read: impl FnOnce(&mut Slice<'a>) -> Result<T>) -> Result<T> {
        let mut rest = Slice::new(&self.bytes[self.at..], gimli::LittleEndian);
        let result = read(&mut rest)?;
        self.at = self.bytes.len() - rest.len();
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use gimli::{DebugLine, DebugLineOffset, LittleEndian};

    use super::*;

    /// Returns a line section of version 4 with this program, whose instructions have a length of
    /// two bytes.
    fn section(program: &[u8]) -> Vec<u8> {
        let mut header = vec![2, 1, 1, 0xfb, 14, 14];
        header.extend([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 2]);
        // No directory, one file.
        header.extend(b"\0a.c\0\0\0\0\0");
        let mut section = vec![4, 0];
        section.extend((header.len() as u32).to_le_bytes());
        section.extend(header);
        section.extend(program);
        let length = section.len() as u32;
        section.splice(0..0, length.to_le_bytes());
        section
    }

    /// Returns gimli's rows, and true if gimli reached the end of the program.
    fn by_gimli(section: &[u8]) -> (Vec<[u64; 5]>, bool) {
        let line = DebugLine::new(section, LittleEndian);
        let program = line.program(DebugLineOffset(0), 8, None, None).unwrap();
        let mut all = Vec::new();
        let mut rows = program.rows();
        loop {
            match rows.next_row() {
                Ok(Some((_, row))) => all.push([
                    row.address(),
                    row.file_index(),
                    row.line().map_or(0, |line| line.get()),
                    match row.column() {
                        gimli::ColumnType::LeftEdge => 0,
                        gimli::ColumnType::Column(column) => column.get(),
                    },
                    row.end_sequence().into(),
                ]),
                Ok(None) => return (all, true),
                Err(_) => return (all, false),
            }
        }
    }

    fn by_us(section: &[u8]) -> (Vec<[u64; 5]>, bool) {
        let line = DebugLine::new(section, LittleEndian);
        let program = line.program(DebugLineOffset(0), 8, None, None).unwrap();
        let mut all = Vec::new();
        let end = each(&program, &Residency::of(None), |row, ends| {
            all.push([row.address, row.file, row.line, row.column, ends.into()]);
        });
        (all, end.is_ok())
    }

    fn address(address: u64) -> Vec<u8> {
        [&[0, 9, 2][..], &address.to_le_bytes()].concat()
    }

    #[test]
    fn rows_match_gimli() {
        let end = vec![0, 1, 1];
        let usual = [
            address(0x1000),
            // Lines, columns and files with numbers of one and two bytes, forwards and backwards.
            vec![
                5, 7, 20, 5, 0x80, 1, 3, 0x7e, 1, 3, 0xe4, 0, 1, 4, 0x81, 1, 1, 3, 0x40, 1,
            ],
            // Addresses, and instructions without an effect on rows.
            vec![
                8, 1, 9, 0x34, 0x12, 1, 2, 0x90, 1, 1, 6, 7, 10, 11, 12, 9, 255, 14, 200,
            ],
            // Unknown instructions, and one that defines a file.
            vec![
                13, 0x81, 0x82, 1, 3, 0, 2, 4, 9, 0, 6, 3, b'x', 0, 0, 0, 0, 0, 2, 0x99, 1, 100,
            ],
        ]
        .concat();
        let left_out = [
            address(u64::MAX),
            vec![30, 40, 2, 5, 1],
            end.clone(),
            address(0x2000),
            vec![50],
            address(0x1fff),
            vec![60],
            address(0x3000),
            vec![70],
            end.clone(),
            address(0),
            vec![1],
        ]
        .concat();
        let whole = [usual, end, left_out].concat();
        let (rows, whole_run) = by_us(&section(&whole));
        assert!(rows.len() > 15 && whole_run, "{rows:?}");
        // Programs that are truncated at any byte.
        for length in 0..=whole.len() {
            let section = section(&whole[..length]);
            assert_eq!(by_us(&section), by_gimli(&section), "{length}");
        }
        for broken in [
            // Addresses that overflow, and extended instructions with wrong lengths.
            [address(u64::MAX - 2), vec![1, 2, 1, 1]].concat(),
            vec![0, 0, 1],
            vec![0, 0x90, 1],
            vec![0, 4, 2, 1, 2, 3, 1],
            vec![
                3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 1,
            ],
            vec![
                5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1,
            ],
        ] {
            let section = section(&broken);
            assert_eq!(by_us(&section), by_gimli(&section), "{broken:?}");
        }
    }

    #[test]
    fn a_single_sequence_has_the_same_rows_as_in_the_whole_program() {
        let end = vec![0, 1, 1];
        let whole = [
            vec![5, 9],
            address(0x1000),
            vec![30, 40, 2, 5, 1],
            end.clone(),
            vec![4, 3, 6, 5, 0x81, 1],
            address(0x2000),
            vec![50, 60],
            end.clone(),
            // Not the beginning of a sequence: a row precedes the address.
            vec![70],
            address(0x3000),
            vec![60],
            end.clone(),
        ]
        .concat();
        let section = section(&whole);
        let (all, _) = by_us(&section);
        let line = DebugLine::new(&section, LittleEndian);
        let program = line.program(DebugLineOffset(0), 8, None, None).unwrap();
        let rows_of = |begin: u64| {
            let range = gimli::Range {
                begin,
                end: begin + 1,
            };
            let mut rows = Vec::new();
            let residency = Residency::of(None);
            of_sequences(
                &program,
                &StartAddresses::new(&[range]),
                &residency,
                |row, ends| {
                    rows.push([row.address, row.file, row.line, row.column, ends.into()]);
                },
            )
            .unwrap();
            rows
        };
        let first = rows_of(0x1000);
        let second = rows_of(0x2000);
        assert_eq!((first.len(), second.len()), (4, 3));
        assert_eq!(all[..7], [first, second].concat());
        assert_eq!((rows_of(0x3000).len(), rows_of(0x1001).len()), (0, 0));
    }
}
