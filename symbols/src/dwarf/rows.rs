//! Running a unit's program of lines.
//!
//! There is a row for every few bytes of code, and of a row only address, file, line and column are of
//! interest: what else an instruction says is passed over. Rows are those that gimli tells, without
//! what it knows of processors whose instructions hold several operations.

use gimli::{Error, IncompleteLineProgram, LineProgramHeader, Reader, Result};

use super::residency::Residency;
use super::units::Slice;

/// Bytes between two looks at what is in memory.
const PIECE: usize = 1 << 20;
/// From here on addresses stand for code that the linker left out.
const LEFT_OUT: u64 = u64::MAX - 1;

/// A row.
#[derive(Clone, Copy)]
pub struct Row {
    /// Where its code begins.
    pub address: u64,
    /// Number of the source file.
    pub file: u64,
    /// Line; 0 when unknown.
    pub line: u64,
    /// Column; 0 when unknown.
    pub column: u64,
}

/// What a sequence begins with.
const FIRST: Row = Row {
    address: 0,
    file: 1,
    line: 1,
    column: 0,
};

/// Runs the instructions of a program.
struct Machine<'a> {
    header: LineProgramHeader<Slice<'a>>,
    /// What each instruction of one byte adds to line and address.
    added: [(i16, u64); 256],
    row: Row,
    /// The sequence is of code that the linker left out.
    left_out: bool,
}

/// Runs a program. `each` is told its rows, and whether a sequence ends with one.
pub fn each(
    program: &IncompleteLineProgram<Slice<'_>>,
    residency: &Residency,
    mut each: impl FnMut(&Row, bool),
) -> Result<()> {
    let mut machine = Machine::new(program.header().clone())?;
    let mut rest = machine.header.raw_program_buf();
    let mut noted = rest.len();
    while let Some((&code, behind)) = rest.slice().split_first() {
        if noted - rest.len() >= PIECE {
            residency.piece();
            noted = rest.len();
        }
        rest = Slice::new(behind, gimli::LittleEndian);
        let made = if code >= machine.header.opcode_base() {
            let (line, address) = machine.added[usize::from(code)];
            machine.row.line = moved(machine.row.line, line.into());
            machine.advance(address)?;
            Made::Row
        } else {
            machine.run(code, &mut rest)?
        };
        if let Made::Nothing = made {
            continue;
        }
        let ends = matches!(made, Made::End);
        if !machine.left_out {
            each(&machine.row, ends);
        }
        if ends {
            (machine.row, machine.left_out) = (FIRST, false);
        }
    }
    Ok(())
}

/// What an instruction made.
enum Made {
    Nothing,
    Row,
    End,
}

/// A line so many lines away.
fn moved(line: u64, by: i64) -> u64 {
    if by < 0 {
        line.saturating_sub(by.unsigned_abs())
    } else {
        line.wrapping_add(by.unsigned_abs())
    }
}

impl<'a> Machine<'a> {
    fn new(header: LineProgramHeader<Slice<'a>>) -> Result<Self> {
        let is_usual = header.maximum_operations_per_instruction() == 1
            && header.address_size() == 8
            && header.opcode_base() > 0
            && header.line_range() > 0;
        if !is_usual {
            return Err(Error::UnsupportedAddressSize(header.address_size()));
        }
        let mut added = [(0, 0); 256];
        let unit = u64::from(header.minimum_instruction_length());
        let (range, base) = (header.line_range(), i16::from(header.line_base()));
        for code in header.opcode_base()..=255 {
            let own = code - header.opcode_base();
            let line = base + i16::from(own % range);
            added[usize::from(code)] = (line, unit * u64::from(own / range));
        }
        Ok(Self {
            header,
            added,
            row: FIRST,
            left_out: false,
        })
    }

    fn advance(&mut self, by: u64) -> Result<()> {
        if !self.left_out {
            let address = self.row.address.checked_add(by);
            self.row.address = address.ok_or(Error::AddressOverflow)?;
        }
        Ok(())
    }

    /// Runs an instruction that has operands, or may have.
    fn run(&mut self, code: u8, rest: &mut Slice<'a>) -> Result<Made> {
        match gimli::DwLns(code) {
            gimli::DwLns(0) => return self.run_extended(rest),
            gimli::DW_LNS_copy => return Ok(Made::Row),
            gimli::DW_LNS_advance_pc => {
                let unit = u64::from(self.header.minimum_instruction_length());
                self.advance(unit.wrapping_mul(unsigned(rest)?))?;
            }
            gimli::DW_LNS_advance_line => {
                self.row.line = moved(self.row.line, rest.read_sleb128()?);
            }
            gimli::DW_LNS_set_file => self.row.file = unsigned(rest)?,
            gimli::DW_LNS_set_column => self.row.column = unsigned(rest)?,
            gimli::DW_LNS_const_add_pc => self.advance(self.added[255].1)?,
            gimli::DW_LNS_fixed_advance_pc => self.advance(rest.read_u16()?.into())?,
            gimli::DW_LNS_set_isa => {
                unsigned(rest)?;
            }
            gimli::DW_LNS_negate_stmt
            | gimli::DW_LNS_set_basic_block
            | gimli::DW_LNS_set_prologue_end
            | gimli::DW_LNS_set_epilogue_begin => {}
            _ => {
                let counts = self.header.standard_opcode_lengths();
                let count = counts.get(usize::from(code) - 1).copied();
                for _ in 0..count.unwrap_or(0) {
                    unsigned(rest)?;
                }
            }
        }
        Ok(Made::Nothing)
    }

    fn run_extended(&mut self, rest: &mut Slice<'a>) -> Result<Made> {
        let size = unsigned(rest)?;
        let size = usize::try_from(size).map_err(|_| Error::UnsupportedOffset)?;
        let mut own = rest.split(size)?;
        match gimli::DwLne(own.read_u8()?) {
            gimli::DW_LNE_end_sequence => return Ok(Made::End),
            gimli::DW_LNE_set_address => {
                let address = own.read_u64()?;
                // Some linkers leave 0, or what they would have added to it.
                self.left_out = address < self.row.address || address >= LEFT_OUT;
                if !self.left_out {
                    self.row.address = address;
                }
            }
            _ => {}
        }
        Ok(Made::Nothing)
    }
}

/// The next number.
#[inline]
fn unsigned(rest: &mut Slice<'_>) -> Result<u64> {
    match rest.slice() {
        [number, ..] if *number < 0x80 => {
            let number = u64::from(*number);
            rest.skip(1)?;
            Ok(number)
        }
        _ => rest.read_uleb128(),
    }
}
