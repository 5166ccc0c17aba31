//! Fast path of rule compilation: rules from the instructions that compilers nearly always emit.
//!
//! `gimli` decodes any call frame instruction ([`crate::row`]), but takes a few hundred machine
//! instructions for each, and the FDE of a large function has hundreds. Nearly all are of a dozen
//! kinds. This module executes those in a few machine instructions each, and tracks only the CFA,
//! the return address and the frame pointer. It returns `None` for any other kind and for damaged
//! entries, which then take the general path. The result is always that of the general path.

use crate::arch::Machine;
use crate::row::{Bytes, Row};
use crate::rule::{Kind, Rule};
use gimli::{CfaRule, FrameDescriptionEntry, RegisterRule};

/// Maximum depth of `DW_CFA_remember_state`, as in [`crate::row`].
const MAX_SAVED_STATES: usize = 3;

/// Part of a row that determines the rule. Offsets are relative to the CFA. Small, since a sample
/// may be taken on a stack of 4 KiB.
#[derive(Clone, Copy, Default)]
struct State {
    cfa_register: u16,
    cfa: i32,
    ra: Offset,
    fp: Offset,
}

/// Offset at which a register was saved, or [`NONE`](Self::NONE).
#[derive(Clone, Copy)]
struct Offset(i32);

impl Default for Offset {
    fn default() -> Self {
        Self::NONE
    }
}

impl Offset {
    const NONE: Self = Self(i32::MIN);

    /// Returns `None` if the offset does not fit.
    #[inline]
    fn new(at: i64) -> Option<Self> {
        let at = i32::try_from(at).ok();
        at.filter(|at| *at != i32::MIN).map(Self)
    }

    fn get(self) -> Option<i64> {
        (self.0 != i32::MIN).then_some(i64::from(self.0))
    }
}

impl State {
    /// Returns the state for a row, or `None` if the row has other kinds of rules.
    fn of<A: Machine>(row: &Row) -> Option<Self> {
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
            return None;
        };
        if row.register(A::NUMBERS.sp).is_some() {
            return None;
        }
        let saved = |rule| match rule {
            None => Some(Offset::NONE),
            Some(RegisterRule::Offset(at)) => Offset::new(at),
            Some(_) => None,
        };
        Some(Self {
            cfa_register: register.0,
            cfa: i32::try_from(offset).ok()?,
            ra: saved(row.register(A::NUMBERS.ra))?,
            fp: saved(row.register(A::NUMBERS.fp))?,
        })
    }

    fn rule<A: Machine>(self) -> Option<Rule> {
        if self.ra.get().is_none() && !A::HAS_LINK_REGISTER {
            return None;
        }
        let kind = match self.cfa_register {
            r if r == A::NUMBERS.sp.0 => Kind::Sp,
            r if r == A::NUMBERS.fp.0 => Kind::Fp,
            _ => return None,
        };
        let rule = Rule::new(kind, i64::from(self.cfa), self.ra.get(), self.fp.get());
        rule.is_plain().then_some(rule)
    }
}

/// Returns the rule at `pc`, which is in `entry`. `section` is the section that holds the entry;
/// `initial` is the row at the start of the function.
#[inline(never)]
pub(crate) fn rule<A: Machine>(
    entry: &FrameDescriptionEntry<Bytes<'_>>,
    section: &[u8],
    initial: &Row,
    pc: u64,
) -> Option<Rule> {
    let cie = entry.cie();
    let mut program = Program {
        rest: instructions(entry, section)?,
        code_alignment: cie.code_alignment_factor(),
        data_alignment: cie.data_alignment_factor(),
        initial: State::of::<A>(initial)?,
        saved: [State::default(); MAX_SAVED_STATES],
        depth: 0,
    };
    let state = program.run::<A>(entry.initial_address(), pc)?;
    state.rule::<A>()
}

/// Returns the bytes of an entry's call frame instructions (LSB 10.6.1.1.2).
fn instructions<'a>(
    entry: &FrameDescriptionEntry<Bytes<'a>>,
    section: &'a [u8],
) -> Option<&'a [u8]> {
    const LENGTH: usize = 4;
    const CIE_POINTER: usize = 4;
    let entry_bytes = section.get(entry.offset()..)?;
    let (length, rest) = entry_bytes.split_first_chunk::<LENGTH>()?;
    // The length 0xffffffff announces a 64-bit length; no section is that long, so it fails here.
    let rest = rest.get(..u32::from_le_bytes(*length) as usize)?;
    let encoding = entry.cie().fde_address_encoding();
    let address = match encoding.map_or(0, |encoding| encoding.0 & 0x07) {
        0 | 4 => 8,
        2 => 2,
        3 => 4,
        _ => return None,
    };
    let rest = rest.get(CIE_POINTER + 2 * address..)?;
    if entry.cie().augmentation().is_none() {
        return Some(rest);
    }
    let mut augmentation = rest;
    let length = uleb(&mut augmentation)?;
    augmentation.get(usize::try_from(length).ok()?..)
}

/// Reads a ULEB128 number of at most 32 bits from the front.
#[inline]
fn uleb(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, more) = rest.split_first()?;
        *rest = more;
        if shift == 28 && *byte > 0x0f {
            return None;
        }
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a number's bytes from the front.
#[inline]
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, more) = rest.split_first_chunk::<N>()?;
    *rest = more;
    Some(*bytes)
}

/// Interpreter of an entry's call frame instructions.
struct Program<'a> {
    /// Instructions that have not been executed yet.
    rest: &'a [u8],
    code_alignment: u64,
    data_alignment: i64,
    /// State at the start of the function, for `DW_CFA_restore`.
    initial: State,
    saved: [State; MAX_SAVED_STATES],
    depth: usize,
}

impl Program<'_> {
    /// Returns the state at `pc`, in a function that starts at `at`.
    fn run<A: Machine>(&mut self, mut at: u64, pc: u64) -> Option<State> {
        let mut state = self.initial;
        while let Some((&opcode, rest)) = self.rest.split_first() {
            self.rest = rest;
            let delta = match (opcode >> 6, opcode) {
                // DW_CFA_advance_loc
                (1, _) => u32::from(opcode & 0x3f),
                // DW_CFA_offset
                (2, _) => {
                    let factored = i64::from(uleb(&mut self.rest)?);
                    let offset = Offset::new(self.data_alignment.wrapping_mul(factored))?;
                    set::<A>(&mut state, opcode & 0x3f, offset)?;
                    continue;
                }
                // DW_CFA_restore
                (3, _) => {
                    self.restore::<A>(&mut state, opcode & 0x3f);
                    continue;
                }
                // DW_CFA_advance_loc1, DW_CFA_advance_loc2 and DW_CFA_advance_loc4
                (_, 0x02) => u32::from(take::<1>(&mut self.rest)?[0]),
                (_, 0x03) => u32::from(u16::from_le_bytes(take(&mut self.rest)?)),
                (_, 0x04) => u32::from_le_bytes(take(&mut self.rest)?),
                _ => {
                    self.other::<A>(&mut state, opcode)?;
                    continue;
                }
            };
            let next = at.checked_add(u64::from(delta).checked_mul(self.code_alignment)?)?;
            if pc < next {
                break;
            }
            at = next;
        }
        Some(state)
    }

    /// Executes `DW_CFA_restore`.
    #[inline]
    fn restore<A: Machine>(&self, state: &mut State, register: u8) {
        match u16::from(register) {
            r if r == A::NUMBERS.ra.0 => state.ra = self.initial.ra,
            r if r == A::NUMBERS.fp.0 => state.fp = self.initial.fp,
            _ => {}
        }
    }

    /// Executes an instruction whose opcode takes the whole byte.
    #[inline]
    fn other<A: Machine>(&mut self, state: &mut State, opcode: u8) -> Option<()> {
        match opcode {
            // DW_CFA_nop
            0x00 => {}
            // DW_CFA_remember_state
            0x0a => {
                *self.saved.get_mut(self.depth)? = *state;
                self.depth += 1;
            }
            // DW_CFA_restore_state
            0x0b => {
                self.depth = self.depth.checked_sub(1)?;
                *state = self.saved[self.depth];
            }
            // DW_CFA_def_cfa
            0x0c => {
                state.cfa_register = u16::try_from(uleb(&mut self.rest)?).ok()?;
                state.cfa = i32::try_from(uleb(&mut self.rest)?).ok()?;
            }
            // DW_CFA_def_cfa_register
            0x0d => state.cfa_register = u16::try_from(uleb(&mut self.rest)?).ok()?,
            // DW_CFA_def_cfa_offset
            0x0e => state.cfa = i32::try_from(uleb(&mut self.rest)?).ok()?,
            // DW_CFA_AARCH64_negate_ra_state: no state is needed, since signatures are always
            // stripped.
            0x2d if A::VENDOR == gimli::Vendor::AArch64 => {}
            // DW_CFA_GNU_args_size
            0x2e => {
                uleb(&mut self.rest)?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// Executes `DW_CFA_offset`.
#[inline]
fn set<A: Machine>(state: &mut State, register: u8, at: Offset) -> Option<()> {
    match u16::from(register) {
        r if r == A::NUMBERS.ra.0 => state.ra = at,
        r if r == A::NUMBERS.fp.0 => state.fp = at,
        // A rule for the stack pointer: a switch of stacks.
        r if r == A::NUMBERS.sp.0 => return None,
        _ => {}
    }
    Some(())
}
