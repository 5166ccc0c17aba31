//! Rules from what compilers nearly always write, straight from an entry's bytes.
//!
//! `gimli` decodes any call-frame instruction ([`crate::row`]), at some hundred machine
//! instructions each, and a large function's entry has hundreds. Nearly all are of a dozen kinds;
//! of these, only what concerns the CFA, the return address and the frame pointer is kept here, in
//! a few machine instructions. What is of another kind, or damaged, is left to the general path:
//! there is no rule that only this one finds.

use crate::arch::Machine;
use crate::row::{Bytes, Row};
use crate::rule::{Kind, Rule};
use gimli::{CfaRule, FrameDescriptionEntry, RegisterRule};

/// Maximum number of states on the stack of `DW_CFA_remember_state`; as in [`crate::row`].
const MOST_SAVED: usize = 3;

/// The part of a row that a rule is made of; offsets are from the CFA. Small: a sample may be taken on
/// a stack of 4 KiB.
#[derive(Clone, Copy, Default)]
struct State {
    cfa_register: u16,
    cfa: i32,
    ra: Offset,
    fp: Offset,
}

/// Where a register was saved, if it was.
#[derive(Clone, Copy)]
struct Offset(i32);

impl Default for Offset {
    fn default() -> Self {
        Self::NONE
    }
}

impl Offset {
    const NONE: Self = Self(i32::MIN);

    /// `None`: out of reach.
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
    /// That part of a row, if there is nothing unusual in it.
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
        if self.ra.get().is_none() && A::LINKED.is_none() {
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

/// The rule at `pc`, which lies in `entry`; `section` holds the entry, and `initial` is the row that
/// its function begins with.
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
        code: cie.code_alignment_factor(),
        data: cie.data_alignment_factor(),
        initial: State::of::<A>(initial)?,
        saved: [State::default(); MOST_SAVED],
        depth: 0,
    };
    let state = program.run::<A>(entry.initial_address(), pc)?;
    state.rule::<A>()
}

/// The instructions of an entry (LSB 10.6.1.1.2).
fn instructions<'a>(
    entry: &FrameDescriptionEntry<Bytes<'a>>,
    section: &'a [u8],
) -> Option<&'a [u8]> {
    const LENGTH: usize = 4;
    const CIE_POINTER: usize = 4;
    let entry_bytes = section.get(entry.offset()..)?;
    let (length, rest) = entry_bytes.split_first_chunk::<LENGTH>()?;
    // A 64-bit length begins with 0xffffffff, which no section has.
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

/// Takes a ULEB128 number of at most 32 bits from the front.
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

/// Takes bytes of a number from the front.
#[inline]
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, more) = rest.split_first_chunk::<N>()?;
    *rest = more;
    Some(*bytes)
}

struct Program<'a> {
    rest: &'a [u8],
    code: u64,
    data: i64,
    initial: State,
    saved: [State; MOST_SAVED],
    depth: usize,
}

impl Program<'_> {
    /// The state at `pc`, of a function that begins at `at`.
    fn run<A: Machine>(&mut self, mut at: u64, pc: u64) -> Option<State> {
        let mut state = self.initial;
        while let Some((&opcode, rest)) = self.rest.split_first() {
            self.rest = rest;
            let delta = match (opcode >> 6, opcode) {
                (1, _) => u32::from(opcode & 0x3f),
                (2, _) => {
                    let at = self.data.wrapping_mul(i64::from(uleb(&mut self.rest)?));
                    set::<A>(&mut state, opcode & 0x3f, Offset::new(at)?)?;
                    continue;
                }
                (3, _) => {
                    self.restore::<A>(&mut state, opcode & 0x3f);
                    continue;
                }
                (_, 0x02) => u32::from(take::<1>(&mut self.rest)?[0]),
                (_, 0x03) => u32::from(u16::from_le_bytes(take(&mut self.rest)?)),
                (_, 0x04) => u32::from_le_bytes(take(&mut self.rest)?),
                _ => {
                    self.other::<A>(&mut state, opcode)?;
                    continue;
                }
            };
            let next = at.checked_add(u64::from(delta).checked_mul(self.code)?)?;
            if pc < next {
                break;
            }
            at = next;
        }
        Some(state)
    }

    /// `DW_CFA_restore`.
    #[inline]
    fn restore<A: Machine>(&self, state: &mut State, register: u8) {
        match u16::from(register) {
            r if r == A::NUMBERS.ra.0 => state.ra = self.initial.ra,
            r if r == A::NUMBERS.fp.0 => state.fp = self.initial.fp,
            _ => {}
        }
    }

    /// Instructions whose opcode takes the whole byte.
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
            // DW_CFA_AARCH64_negate_ra_state: the signature is taken off, if there is one.
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

/// `DW_CFA_offset`.
#[inline]
fn set<A: Machine>(state: &mut State, register: u8, at: Offset) -> Option<()> {
    match u16::from(register) {
        r if r == A::NUMBERS.ra.0 => state.ra = at,
        r if r == A::NUMBERS.fp.0 => state.fp = at,
        // Where stacks are switched.
        r if r == A::NUMBERS.sp.0 => return None,
        _ => {}
    }
    Some(())
}
