//! Compiles rules ([`Rule`]) from `.eh_frame`.
//!
//! `gimli` parses the tables; nothing is allocated. An address that was not seen before takes about
//! 0.6 µs; callers cache the result.

use crate::Cause;
use crate::arch::{Machine, Native};
use crate::callback;
use crate::elf::{Module, Section};
use crate::epilogue;
use crate::fast_compile;
use crate::row::{Bytes, Row, Rows};
use crate::rule::{Kind, Rule};
use crate::switch;
use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, EhFrameOffset, EndianSlice, Expression,
    FrameDescriptionEntry, LittleEndian, Operation, ParsedEhFrameHdr, Register, RegisterRule,
    UnwindExpression, UnwindSection,
};

/// Working memory for call frame instructions, a few KiB. Callers keep it off small stacks.
pub struct Scratch {
    rows: Rows,
}

impl Scratch {
    /// Creates empty working memory.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "large: should be constructed in place"
    )]
    pub const fn new() -> Self {
        Self { rows: Rows::new() }
    }
}

/// Returns the rule for the frame that returns to `ip`, which lies in `module`.
#[must_use]
pub fn compile<'a>(module: &impl Module<'a>, ip: u64, scratch: &mut Scratch) -> Rule {
    compile_on::<Native>(module, ip, scratch)
}

/// Like [`compile`], for another machine's module.
#[must_use]
pub fn compile_on<'a, A: Machine>(
    module: &impl Module<'a>,
    ip: u64,
    scratch: &mut Scratch,
) -> Rule {
    let tables = Tables::of::<A>(module);
    let lookup = tables.as_ref().map_err(|cause| *cause).and_then(|tables| {
        let entry = tables.entry(ip.wrapping_sub(1))?;
        let rule = tables.rule::<A>(&entry, ip.wrapping_sub(1), scratch)?;
        Ok((rule, entry.is_signal_trampoline()))
    });
    let is_function_start = || {
        let tables = tables.as_ref();
        tables.is_ok_and(|tables| tables.is_function_start(ip))
    };
    match lookup {
        Ok((rule, false)) => rule,
        Ok((rule, true)) => signal_return::<A>(module, ip).unwrap_or(rule),
        Err(Cause::NoRule) if is_function_start() || is_startup_code(module, ip) => Rule::END,
        Err(Cause::NoRule) => signal_return::<A>(module, ip)
            .or_else(|| epilogue::rule::<A>(module, ip))
            .or_else(|| switch::rule::<A>(module, ip))
            .or_else(|| callback::rule::<A>(module, ip))
            .unwrap_or(Rule::failed(Cause::NoRule)),
        Err(cause) => Rule::failed(cause),
    }
}

/// Returns the rule of the signal trampoline (the code that a handler returns to), on machines on
/// which its own table cannot be used: aarch64's vdso has had none since Linux 5.8, and the vdso's
/// earlier CFI skips the interrupted function.
fn signal_return<'a, A: Machine>(module: &impl Module<'a>, ip: u64) -> Option<Rule> {
    let frame = A::SIGNAL_FRAME?;
    let instructions = [module.instruction(ip)?, module.instruction(ip + 4)?];
    A::is_signal_return(instructions).then(|| Rule::signal(frame))
}

/// Returns the start of the function that `ip` returns to, if the tables have an entry for it.
#[must_use]
pub fn function_start<'a>(module: &impl Module<'a>, ip: u64) -> Option<u64> {
    let entry = Tables::of::<Native>(module)
        .ok()?
        .entry(ip.wrapping_sub(1))
        .ok()?;
    Some(entry.initial_address())
}

/// Calls `visit` with the start of each function in `.eh_frame` and the address of its entry. Stops
/// at the first damaged entry.
pub fn entries(section: &Section<'_>, mut visit: impl FnMut(u64, u64)) {
    let bases = BaseAddresses::default().set_eh_frame(section.address);
    let frames = eh_frame::<Native>(section);
    let mut entries = frames.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        if let Ok(entry) = partial.parse(EhFrame::cie_from_offset) {
            let address = section.address.wrapping_add(entry.offset() as u64);
            visit(entry.initial_address(), address);
        }
    }
}

/// Maximum distance in bytes from a program's entry point to the return address of its first call.
/// In glibc's startup code it is 40.
const START_BYTES: u64 = 96;

/// Returns true if `ip` is in a program's startup code, which has no caller. That code has no
/// unwind table in aarch64 programs linked with a glibc of 2016 (Ubuntu 16.04) or by zig.
fn is_startup_code<'a>(module: &impl Module<'a>, ip: u64) -> bool {
    let entry = module.entry_point();
    entry.is_some_and(|entry| ip > entry && ip - entry <= START_BYTES)
}

/// Offset in `.eh_frame_hdr` of the byte that encodes the type of the entry count.
const COUNT_ENCODING: usize = 2;

/// First bytes of an `.eh_frame_hdr` as all linkers write it (LSB 10.6.2): the version, and the
/// encodings of the frame pointer (4 bytes, pc-relative), the entry count (4 bytes) and the search
/// table (pairs of 4 bytes, relative to the section).
const USUAL_HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// A module's unwind tables.
pub(crate) struct Tables<'a> {
    header: ParsedEhFrameHdr<Bytes<'a>>,
    /// Section `.eh_frame_hdr`.
    index: Section<'a>,
    frames: EhFrame<Bytes<'a>>,
    /// Section `.eh_frame`.
    section: Section<'a>,
    bases: BaseAddresses,
}

impl<'a> Tables<'a> {
    pub(crate) fn of<A: Machine>(module: &impl Module<'a>) -> Result<Self, Cause> {
        let index = module.eh_frame_hdr().ok_or(Cause::NoRule)?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(index.address);
        if index.bytes.get(COUNT_ENCODING) != Some(&gimli::DW_EH_PE_udata4.0) {
            // No linker writes another type. A wider count would overflow the search.
            return Err(Cause::NoRule);
        }
        let header = EhFrameHdr::from(EndianSlice::new(index.bytes, LittleEndian))
            .parse(&bases, 8)
            .map_err(|_| Cause::NoRule)?;
        let gimli::Pointer::Direct(pointer) = header.eh_frame_ptr() else {
            return Err(Cause::NoRule);
        };
        let frames = module.bytes_from(pointer).ok_or(Cause::NoRule)?;
        Ok(Self {
            header,
            index,
            bases: bases.set_eh_frame(frames.address),
            frames: eh_frame::<A>(&frames),
            section: frames,
        })
    }

    pub(crate) fn frames(&self) -> &EhFrame<Bytes<'a>> {
        &self.frames
    }

    fn entry(&self, pc: u64) -> Result<FrameDescriptionEntry<Bytes<'a>>, Cause> {
        let entry_address = if self.index.bytes.starts_with(&USUAL_HEADER) {
            self.search(pc).ok_or(Cause::NoRule)?
        } else {
            let table = self.header.table().ok_or(Cause::NoRule)?;
            let pointer = table.lookup(pc, &self.bases).map_err(cause)?;
            let gimli::Pointer::Direct(address) = pointer else {
                return Err(Cause::NoRule);
            };
            address
        };
        let entry = self
            .frames
            .fde_from_offset(
                &self.bases,
                self.offset(entry_address)?,
                EhFrame::cie_from_offset,
            )
            .map_err(cause)?;
        if entry.contains(pc) {
            Ok(entry)
        } else {
            Err(Cause::NoRule)
        }
    }

    /// Returns the address of the last entry that starts at or before `pc`, in a header that begins
    /// with [`USUAL_HEADER`].
    fn search(&self, pc: u64) -> Option<u64> {
        const COUNT: usize = USUAL_HEADER.len() + 4;
        let (head, rest) = self.index.bytes.split_at_checked(COUNT + 4)?;
        let count = u32::from_le_bytes(head.get(COUNT..)?.try_into().ok()?) as usize;
        let (rows, _) = rest.as_chunks::<8>();
        let rows = rows.get(..count)?;
        let pc = pc.wrapping_sub(self.index.address).cast_signed();
        let begin = |row: &[u8; 8]| i32::from_le_bytes([row[0], row[1], row[2], row[3]]);
        let after = rows.partition_point(|row| i64::from(begin(row)) <= pc);
        let row = rows.get(after.checked_sub(1)?)?;
        let entry = i32::from_le_bytes([row[4], row[5], row[6], row[7]]);
        Some(self.index.address.wrapping_add_signed(i64::from(entry)))
    }

    /// Returns the offset in `.eh_frame` of an address found in the search table. In a damaged
    /// module, that may be any address.
    fn offset(&self, address: u64) -> Result<EhFrameOffset, Cause> {
        let offset = address.checked_sub(self.section.address);
        offset
            .filter(|offset| *offset < self.section.bytes.len() as u64)
            .map(|offset| EhFrameOffset(offset as usize))
            .ok_or(Cause::NoRule)
    }

    /// Returns the table row of the instruction at `pc`, and true if the instruction is in a signal
    /// trampoline.
    pub(crate) fn row<'s>(
        &self,
        pc: u64,
        scratch: &'s mut Scratch,
    ) -> Result<(&'s Row, bool), Cause> {
        let entry = self.entry(pc)?;
        let row = scratch
            .rows
            .compute(&entry, &self.frames, &self.bases, pc)?;
        Ok((row, entry.is_signal_trampoline()))
    }

    /// Returns the rule of the instruction at `pc`, which is in `entry`.
    fn rule<A: Machine>(
        &self,
        entry: &FrameDescriptionEntry<Bytes<'a>>,
        pc: u64,
        scratch: &mut Scratch,
    ) -> Result<Rule, Cause> {
        let rows = &mut scratch.rows;
        let initial = rows.initial(entry, &self.frames, &self.bases)?;
        if let Some(rule) = fast_compile::rule::<A>(entry, self.section.bytes, initial, pc) {
            return Ok(rule);
        }
        let row = rows.compute(entry, &self.frames, &self.bases, pc)?;
        Ok(pack::<A>(row, &self.frames))
    }

    /// Returns true if a function starts at `ip`. Then `ip` is not the return address of a call:
    /// `makecontext` put it on the stack, for the first function of a coroutine to return to.
    fn is_function_start(&self, ip: u64) -> bool {
        self.entry(ip)
            .is_ok_and(|entry| entry.initial_address() == ip)
    }
}

fn cause(error: gimli::Error) -> Cause {
    match error {
        gimli::Error::NoUnwindInfoForAddress => Cause::NoRule,
        _ => Cause::Unsupported,
    }
}

fn eh_frame<'a, A: Machine>(frames: &Section<'a>) -> EhFrame<Bytes<'a>> {
    let mut section = EhFrame::from(EndianSlice::new(frames.bytes, LittleEndian));
    section.set_vendor(A::VENDOR);
    section
}

/// Returns the rule for a row, or [`Rule::SLOW`] if the row does not fit into a rule.
fn pack<A: Machine>(row: &Row, section: &EhFrame<Bytes<'_>>) -> Rule {
    let ra = row.register(A::NUMBERS.ra);
    if is_outermost::<A>(row) {
        return Rule::END;
    }
    let packed = match row.cfa() {
        // At a switch of stacks, the caller's stack pointer is not the CFA.
        CfaRule::RegisterAndOffset { .. } if row.register(A::NUMBERS.sp).is_some() => None,
        CfaRule::RegisterAndOffset { register, offset } => match *register {
            r if r == A::NUMBERS.sp => {
                plain::<A>(Kind::Sp, *offset, ra, row.register(A::NUMBERS.fp))
            }
            r if r == A::NUMBERS.fp => {
                plain::<A>(Kind::Fp, *offset, ra, row.register(A::NUMBERS.fp))
            }
            _ => None,
        },
        CfaRule::Expression(expression) => {
            by_expression::<A>(expression, ra, row.register(A::NUMBERS.fp), section)
        }
    };
    packed
        .filter(|rule| *rule != Rule::failed(Cause::Unsupported))
        .unwrap_or(Rule::SLOW)
}

fn is_outermost<A: Machine>(row: &Row) -> bool {
    matches!(row.register(A::NUMBERS.ra), Some(RegisterRule::Undefined))
}

pub(crate) type MaybeRule = Option<RegisterRule<usize>>;

/// Returns the rule for a CFA at an offset from a register.
fn plain<A: Machine>(kind: Kind, cfa: i64, ra: MaybeRule, fp: MaybeRule) -> Option<Rule> {
    let ra_at = match ra {
        Some(RegisterRule::Offset(offset)) => Some(offset),
        None | Some(RegisterRule::SameValue) if A::HAS_LINK_REGISTER => None,
        _ => return None,
    };
    let fp_at = match fp {
        // The register keeps its value.
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => None,
        Some(RegisterRule::Offset(offset)) => Some(offset),
        _ => return None,
    };
    Some(Rule::new(kind, cfa, ra_at, fp_at))
}

fn by_expression<A: Machine>(
    cfa: &UnwindExpression<usize>,
    ra: MaybeRule,
    fp: MaybeRule,
    section: &EhFrame<Bytes<'_>>,
) -> Option<Rule> {
    match shape::<A>(cfa, section)? {
        Shape::Plt { threshold } => Some(Rule::new(Kind::Plt, threshold, Some(-8), None)),
        Shape::Deref { register, offset } if register == A::NUMBERS.sp => {
            let at = |rule: MaybeRule| match rule {
                Some(RegisterRule::Expression(e)) => match shape::<A>(&e, section)? {
                    Shape::Address { register, offset } if register == A::NUMBERS.sp => {
                        Some(offset)
                    }
                    _ => None,
                },
                _ => None,
            };
            Some(Rule::new(
                Kind::Context,
                offset,
                Some(at(ra)?),
                Some(at(fp)?),
            ))
        }
        Shape::Deref { register, offset } if register == A::NUMBERS.fp => {
            let Some(RegisterRule::Offset(ra_at)) = ra else {
                return None;
            };
            let fp_at = match fp {
                None | Some(RegisterRule::SameValue) => None,
                Some(RegisterRule::Expression(e)) => match shape::<A>(&e, section)? {
                    Shape::Address { register, offset } if register == A::NUMBERS.fp => {
                        Some(offset)
                    }
                    _ => return None,
                },
                _ => return None,
            };
            Some(Rule::new(Kind::FpDeref, offset, Some(ra_at), fp_at))
        }
        _ => None,
    }
}

/// Expressions that compilers, C libraries and linkers emit.
enum Shape {
    /// `breg N`.
    Address { register: Register, offset: i64 },
    /// `breg N; deref`.
    Deref { register: Register, offset: i64 },
    /// `breg7 8; breg16 0; lit15; and; lit T; ge; lit3; shl; plus` (x86-64 PLT).
    Plt { threshold: i64 },
}

/// Encoding of DWARF expressions in `.eh_frame`.
pub(crate) const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 5,
};

fn shape<A: Machine>(
    expression: &UnwindExpression<usize>,
    section: &EhFrame<Bytes<'_>>,
) -> Option<Shape> {
    let expression: Expression<Bytes<'_>> = expression.get(section).ok()?;
    let mut operations = expression.operations(ENCODING);
    let mut next = || operations.next().ok().flatten();
    let Some(Operation::RegisterOffset {
        register, offset, ..
    }) = next()
    else {
        return None;
    };
    match (next(), next()) {
        (None, _) => Some(Shape::Address { register, offset }),
        (Some(Operation::Deref { .. }), None) => Some(Shape::Deref { register, offset }),
        (
            Some(Operation::RegisterOffset {
                register: ip,
                offset: 0,
                ..
            }),
            Some(Operation::UnsignedConstant { value: 15 }),
        ) if A::HAS_PLT_RULE && register == A::NUMBERS.sp && offset == 8 && ip == A::NUMBERS.ra => {
            let Some(Operation::And) = next() else {
                return None;
            };
            let Some(Operation::UnsignedConstant { value }) = next() else {
                return None;
            };
            let Some(Operation::Ge) = next() else {
                return None;
            };
            Some(Shape::Plt {
                threshold: i64::try_from(value).ok()?,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Native;
    use crate::elf::Image;
    use std::string::String;
    use std::vec::Vec;

    /// Returns the modules that this process has mapped: their first and last addresses.
    fn modules() -> Vec<(u64, u64)> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut modules: Vec<(String, u64, u64)> = Vec::new();
        for line in maps.lines() {
            let mut fields = line.split_whitespace();
            let (start, end) = fields.next().unwrap().split_once('-').unwrap();
            let number = |hex| u64::from_str_radix(hex, 16).unwrap();
            let Some(path) = fields.nth(4).filter(|path| path.starts_with('/')) else {
                continue;
            };
            match modules.iter_mut().find(|(known, ..)| known == path) {
                Some(known) => known.2 = number(end),
                None => modules.push((path.into(), number(start), number(end))),
            }
        }
        modules
            .into_iter()
            .map(|(_, start, end)| (start, end))
            .collect()
    }

    #[test]
    fn the_fast_path_gives_the_same_rules_as_gimli() {
        let mut scratch = Scratch::new();
        let mut all = 0;
        let mut brief = 0;
        for (start, end) in modules() {
            // SAFETY: nothing here unloads modules.
            let Some(image) = (unsafe { Image::at(start, end) }) else {
                continue;
            };
            let Ok(tables) = Tables::of::<Native>(&image) else {
                continue;
            };
            let mut functions = Vec::new();
            entries(&tables.section, |function, _| functions.push(function));
            for function in functions {
                let Ok(entry) = tables.entry(function) else {
                    continue;
                };
                let step = usize::try_from(entry.len() / 13 + 1).unwrap();
                for pc in (function..entry.end_address()).step_by(step) {
                    let section = tables.section.bytes;
                    let rows = &mut scratch.rows;
                    let initial = rows.initial(&entry, &tables.frames, &tables.bases);
                    let found = fast_compile::rule::<Native>(&entry, section, initial.unwrap(), pc);
                    let row = rows
                        .compute(&entry, &tables.frames, &tables.bases, pc)
                        .unwrap();
                    let rule = pack::<Native>(row, &tables.frames);
                    assert!(found.is_none_or(|found| found == rule), "{pc:x}");
                    all += 1;
                    brief += usize::from(found.is_some());
                }
            }
        }
        assert!(all > 10_000 && brief > all / 10 * 9, "{brief} of {all}");
    }
}
