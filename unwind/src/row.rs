//! Computes the unwind table row of an instruction (DWARF 5 §6.4.2) in preallocated memory.
//!
//! `gimli` decodes the call frame instructions; they are executed here. `gimli`'s own interpreter
//! copies whole rows, which takes 5.5 KiB of stack, but a sample may be taken on a stack of 4 KiB.

use crate::Cause;
use core::mem::MaybeUninit;
use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CfaRule, EhFrame, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Register, RegisterRule,
};

/// Bytes of an unwind section.
pub(crate) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Maximum number of registers with a rule. There are 33 general ones.
const MAX_RULES: usize = 40;
/// Maximum depth of `DW_CFA_remember_state`.
const MAX_SAVED_STATES: usize = 3;

/// Rules of the CFA and of the registers at one instruction.
pub(crate) struct Row {
    cfa: CfaRule<usize>,
    len: usize,
    rules: [MaybeUninit<(Register, RegisterRule<usize>)>; MAX_RULES],
}

impl Row {
    const fn new() -> Self {
        Self {
            cfa: NO_CFA,
            len: 0,
            rules: [const { MaybeUninit::uninit() }; MAX_RULES],
        }
    }

    /// Returns the rule of the CFA.
    pub(crate) fn cfa(&self) -> &CfaRule<usize> {
        &self.cfa
    }

    /// Returns the rule of a register, if it has one.
    pub(crate) fn register(&self, register: Register) -> Option<RegisterRule<usize>> {
        self.find(register).map(|index| self.rule(index).1.clone())
    }

    fn rule(&self, index: usize) -> &(Register, RegisterRule<usize>) {
        debug_assert!(index < self.len);
        // SAFETY: the first `len` rules are initialized, and `index` comes from `find` or a loop
        // below `len`.
        unsafe { self.rules[index].assume_init_ref() }
    }

    fn find(&self, register: Register) -> Option<usize> {
        (0..self.len).find(|index| self.rule(*index).0 == register)
    }

    fn set(&mut self, register: Register, rule: RegisterRule<usize>) -> Result<(), Cause> {
        let index = self.find(register).unwrap_or(self.len);
        let slot = self.rules.get_mut(index).ok_or(Cause::Unsupported)?;
        slot.write((register, rule));
        self.len = self.len.max(index + 1);
        Ok(())
    }

    fn clear(&mut self, register: Register) {
        if let Some(index) = self.find(register) {
            self.len -= 1;
            self.rules.swap(index, self.len);
        }
    }

    fn reset(&mut self) {
        self.cfa = NO_CFA;
        self.len = 0;
    }

    fn copy(&mut self, other: &Self) {
        self.cfa = other.cfa.clone();
        self.len = other.len;
        for index in 0..other.len {
            self.rules[index].write(other.rule(index).clone());
        }
    }
}

const NO_CFA: CfaRule<usize> = CfaRule::RegisterAndOffset {
    register: Register(0),
    offset: 0,
};

/// Factors by which operands of call frame instructions are multiplied.
#[derive(Clone, Copy)]
struct Factors {
    code: u64,
    data: i64,
}

impl Factors {
    fn of(entry: &FrameDescriptionEntry<Bytes<'_>>) -> Self {
        Self {
            code: entry.cie().code_alignment_factor(),
            data: entry.cie().data_alignment_factor(),
        }
    }
}

/// Memory in which rows are computed: 5 KiB.
pub(crate) struct Rows {
    row: Row,
    /// Row that the CIE defines, for `DW_CFA_restore`.
    initial: Row,
    /// States of `DW_CFA_remember_state`.
    saved: [Row; MAX_SAVED_STATES],
    /// Number of states in `saved`.
    depth: usize,
}

impl Rows {
    pub(crate) const fn new() -> Self {
        Self {
            row: Row::new(),
            initial: Row::new(),
            saved: [const { Row::new() }; MAX_SAVED_STATES],
            depth: 0,
        }
    }

    /// Returns the row of the instruction at `pc`, which is in `entry`.
    pub(crate) fn compute(
        &mut self,
        entry: &FrameDescriptionEntry<Bytes<'_>>,
        frames: &EhFrame<Bytes<'_>>,
        bases: &BaseAddresses,
        pc: u64,
    ) -> Result<&Row, Cause> {
        self.initial(entry, frames, bases)?;
        let span = Some((entry.initial_address(), pc));
        let instructions = entry.instructions(frames, bases);
        self.run(instructions, Factors::of(entry), span)?;
        Ok(&self.row)
    }

    /// Returns the row at the start of the function, which the CIE of `entry` defines.
    pub(crate) fn initial(
        &mut self,
        entry: &FrameDescriptionEntry<Bytes<'_>>,
        frames: &EhFrame<Bytes<'_>>,
        bases: &BaseAddresses,
    ) -> Result<&Row, Cause> {
        let instructions = entry.cie().instructions(frames, bases);
        self.row.reset();
        self.depth = 0;
        self.run(instructions, Factors::of(entry), None)?;
        self.initial.copy(&self.row);
        Ok(&self.initial)
    }

    /// Executes call frame instructions. For an FDE, `span` holds the start of the function and the
    /// pc up to which instructions are executed. If it is `None`, all instructions of a CIE are
    /// executed.
    #[inline(never)]
    fn run(
        &mut self,
        mut instructions: CallFrameInstructionIter<'_, Bytes<'_>>,
        factors: Factors,
        span: Option<(u64, u64)>,
    ) -> Result<(), Cause> {
        use CallFrameInstruction::{AdvanceLoc, SetLoc};
        let mut at = span.map_or(0, |(start, _)| start);
        while let Some(instruction) = instructions.next().map_err(|_| Cause::Unsupported)? {
            let next = match instruction {
                SetLoc { address } if address >= at => address,
                SetLoc { .. } => return Err(Cause::Unsupported),
                AdvanceLoc { delta } => u64::from(delta)
                    .checked_mul(factors.code)
                    .and_then(|delta| at.checked_add(delta))
                    .ok_or(Cause::Unsupported)?,
                other => {
                    self.apply(other, factors, span.is_some())?;
                    continue;
                }
            };
            if span.is_some_and(|(_, pc)| pc < next) {
                break;
            }
            at = next;
        }
        Ok(())
    }

    #[inline(never)]
    fn apply(
        &mut self,
        instruction: CallFrameInstruction<usize>,
        factors: Factors,
        has_initial: bool,
    ) -> Result<(), Cause> {
        use CallFrameInstruction as I;
        let data = |factored: i64| factored.wrapping_mul(factors.data);
        let (register, rule) = match instruction {
            I::Undefined { register } => (register, RegisterRule::Undefined),
            I::SameValue { register } => (register, RegisterRule::SameValue),
            I::Offset {
                register,
                factored_offset: n,
            } => (register, RegisterRule::Offset(data(n as i64))),
            I::OffsetExtendedSf {
                register,
                factored_offset: n,
            } => (register, RegisterRule::Offset(data(n))),
            I::ValOffset {
                register,
                factored_offset: n,
            } => (register, RegisterRule::ValOffset(data(n as i64))),
            I::ValOffsetSf {
                register,
                factored_offset: n,
            } => (register, RegisterRule::ValOffset(data(n))),
            I::Register {
                dest_register,
                src_register,
            } => (dest_register, RegisterRule::Register(src_register)),
            I::Expression {
                register,
                expression,
            } => (register, RegisterRule::Expression(expression)),
            I::ValExpression {
                register,
                expression,
            } => (register, RegisterRule::ValExpression(expression)),
            I::Restore { register } if has_initial => match self.initial.register(register) {
                Some(rule) => (register, rule),
                None => {
                    self.row.clear(register);
                    return Ok(());
                }
            },
            other => return self.apply_other(other, factors),
        };
        self.row.set(register, rule)
    }

    /// Executes an instruction that sets no register's rule.
    fn apply_other(
        &mut self,
        instruction: CallFrameInstruction<usize>,
        factors: Factors,
    ) -> Result<(), Cause> {
        use CallFrameInstruction as I;
        let cfa = match instruction {
            I::DefCfa { register, offset } => CfaRule::RegisterAndOffset {
                register,
                offset: offset as i64,
            },
            I::DefCfaSf {
                register,
                factored_offset: n,
            } => CfaRule::RegisterAndOffset {
                register,
                offset: n.wrapping_mul(factors.data),
            },
            I::DefCfaRegister { register } => CfaRule::RegisterAndOffset {
                register,
                offset: self.simple_cfa()?.1,
            },
            I::DefCfaOffset { offset } => CfaRule::RegisterAndOffset {
                register: self.simple_cfa()?.0,
                offset: offset as i64,
            },
            I::DefCfaOffsetSf { factored_offset: n } => CfaRule::RegisterAndOffset {
                register: self.simple_cfa()?.0,
                offset: n.wrapping_mul(factors.data),
            },
            I::DefCfaExpression { expression } => CfaRule::Expression(expression),
            I::RememberState => {
                let state = self.saved.get_mut(self.depth).ok_or(Cause::Unsupported)?;
                state.copy(&self.row);
                self.depth += 1;
                return Ok(());
            }
            I::RestoreState => {
                self.depth = self.depth.checked_sub(1).ok_or(Cause::Unsupported)?;
                self.row.copy(&self.saved[self.depth]);
                return Ok(());
            }
            // Signed return addresses need no state here: signatures are always stripped.
            I::ArgsSize { .. } | I::NegateRaState | I::Nop => return Ok(()),
            _ => return Err(Cause::Unsupported),
        };
        self.row.cfa = cfa;
        Ok(())
    }

    fn simple_cfa(&self) -> Result<(Register, i64), Cause> {
        match self.row.cfa {
            CfaRule::RegisterAndOffset { register, offset } => Ok((register, offset)),
            CfaRule::Expression(_) => Err(Cause::Unsupported),
        }
    }
}
