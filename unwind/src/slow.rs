//! Slow path: frames whose rule does not fit into 64 bits.
//!
//! The CFA of such a frame depends on an expression, or on a register that is not followed. That
//! register's value is the one saved by the nearest inner frame that saved it, so the frames of the
//! walk in progress are searched from this frame inwards. Examples are the loader's lazy binding,
//! hand-written assembly, and prologues that a signal interrupted.
//!
//! A step takes about 1 µs, and as much again for each frame searched.

use crate::arch::Machine;
use crate::compile::{ENCODING, Scratch, Tables};
use crate::elf::Module;
use crate::row::Bytes;
use crate::rule::{Step, Word};
use crate::stack::Memory;
use crate::{Cause, Registers};
use core::marker::PhantomData;
use gimli::{
    CfaRule, EhFrame, Evaluation, EvaluationResult, EvaluationStorage, Piece, Register,
    RegisterRule, UnwindExpression, Value,
};

/// Maximum number of frames that are searched for a register.
const MAX_SEARCHED_FRAMES: usize = 256;
/// Maximum number of operations that one expression may execute.
const MAX_OPERATIONS: u32 = 256;

/// Storage of fixed size for `gimli`'s expression evaluation.
struct Fixed;

impl<'a> EvaluationStorage<Bytes<'a>> for Fixed {
    type Stack = [Value; 16];
    type ExpressionStack = [(Bytes<'a>, Bytes<'a>); 1];
    type Result = [Piece<Bytes<'a>>; 1];
}

/// Callees of the current frame, and what is needed to read their tables.
pub(crate) struct Callees<'a, A, F, I> {
    /// Returns the registers of the frame with this index; 0 is the innermost.
    pub(crate) frame: F,
    /// Number of frames.
    pub(crate) count: usize,
    /// Returns the module that contains a return address.
    pub(crate) module: I,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) machine: PhantomData<A>,
    /// Registers of the innermost frame by DWARF number. Empty or short if not all are known.
    pub(crate) live: &'a [u64],
}

/// Rules of one row that are needed to find the caller.
struct Row<'a> {
    frames: EhFrame<Bytes<'a>>,
    cfa: CfaRule<usize>,
    ra: RegisterRule<usize>,
    fp: RegisterRule<usize>,
    /// Rule of the caller's stack pointer; `None` if it is the CFA.
    sp: Option<RegisterRule<usize>>,
    is_signal: bool,
}

/// Steps from the frame `at` to its caller.
pub(crate) fn step<'a, A, F, I, M>(
    at: &Registers,
    stack: &mut impl Memory,
    inner: &mut Callees<'_, A, F, I>,
) -> Step
where
    A: Machine,
    F: Fn(usize) -> Registers,
    I: Fn(u64) -> Option<M>,
    M: Module<'a>,
{
    inner.step(at, stack).unwrap_or_else(Step::Truncated)
}

impl<'a, A, F, I, M> Callees<'_, A, F, I>
where
    A: Machine,
    F: Fn(usize) -> Registers,
    I: Fn(u64) -> Option<M>,
    M: Module<'a>,
{
    fn tables(&self, ip: u64) -> Result<Tables<'a>, Cause> {
        Tables::of::<A>(&(self.module)(ip).ok_or(Cause::Unsupported)?)
    }

    fn row(&mut self, ip: u64) -> Result<Row<'a>, Cause> {
        let tables = self.tables(ip)?;
        let (row, is_signal) = tables.row(ip.wrapping_sub(1), self.scratch)?;
        let rule = |register| row.register(register).unwrap_or(RegisterRule::SameValue);
        Ok(Row {
            frames: *tables.frames(),
            cfa: row.cfa().clone(),
            ra: rule(A::NUMBERS.ra),
            fp: rule(A::NUMBERS.fp),
            sp: row.register(A::NUMBERS.sp),
            is_signal,
        })
    }

    fn step(&mut self, at: &Registers, stack: &mut impl Memory) -> Result<Step, Cause> {
        let row = self.row(at.ip)?;
        let count = self.count;
        let cfa = match row.cfa {
            CfaRule::RegisterAndOffset { register, offset } => {
                let base = self.register(register, at, count, stack)?;
                base.wrapping_add_signed(offset)
            }
            CfaRule::Expression(expression) => {
                self.evaluate(&expression, &row.frames, None, at, count, stack)?
            }
        };
        let mut value = |rule, register| self.value(rule, register, cfa, &row.frames, at, stack);
        let ip = A::return_address(value(row.ra, A::NUMBERS.ra)?);
        // At the end of a function, compilers omit the instruction that ends this rule, so the word
        // may be unreadable. Few callers need the frame pointer, and their steps detect that it is
        // wrong.
        let fp = value(row.fp, A::NUMBERS.fp).unwrap_or(0);
        let sp = row.sp.map_or(Ok(cfa), |rule| value(rule, A::NUMBERS.sp))?;
        if row.is_signal {
            stack.move_to(sp)?;
        } else if sp < at.sp {
            return Err(Cause::BadFrame);
        }
        if ip == 0 {
            return Ok(Step::End {
                ra: Word::default(),
            });
        }
        let registers = Registers {
            // The pc of an interrupted frame is exact; plus one, it is treated as a return address.
            ip: ip.wrapping_add(u64::from(row.is_signal)),
            sp,
            fp,
        };
        let ra = Word::default();
        let fp = Word::default();
        Ok(Step::Caller { registers, ra, fp })
    }

    /// Returns the value of a register in the caller of `at`, according to its rule.
    fn value(
        &mut self,
        rule: RegisterRule<usize>,
        register: Register,
        cfa: u64,
        frames: &EhFrame<Bytes<'_>>,
        at: &Registers,
        stack: &mut impl Memory,
    ) -> Result<u64, Cause> {
        let count = self.count;
        match rule {
            // Only the innermost frame may hold its return address in the link register. If it
            // called malloc, it has saved it.
            RegisterRule::SameValue | RegisterRule::Undefined if register == A::NUMBERS.ra => {
                if count != 0 {
                    return Err(Cause::Unsupported);
                }
                let live = self.live.get(usize::from(register.0));
                live.copied().ok_or(Cause::Unsupported)
            }
            RegisterRule::SameValue | RegisterRule::Undefined => {
                self.register(register, at, count, stack)
            }
            RegisterRule::Offset(offset) => stack.read(cfa.wrapping_add_signed(offset)),
            RegisterRule::ValOffset(offset) => Ok(cfa.wrapping_add_signed(offset)),
            RegisterRule::Register(source) => self.register(source, at, count, stack),
            RegisterRule::Expression(e) => {
                let address = self.evaluate(&e, frames, Some(cfa), at, count, stack)?;
                stack.read(address)
            }
            RegisterRule::ValExpression(e) => {
                self.evaluate(&e, frames, Some(cfa), at, count, stack)
            }
            _ => Err(Cause::Unsupported),
        }
    }

    /// Returns the value of a register in the frame `at`, which has index `index`.
    fn register(
        &mut self,
        register: Register,
        at: &Registers,
        index: usize,
        stack: &mut impl Memory,
    ) -> Result<u64, Cause> {
        match register {
            r if r == A::NUMBERS.sp => Ok(at.sp),
            r if r == A::NUMBERS.fp => Ok(at.fp),
            // Only linkage stubs use the pc. No call returns to them, so it is exact.
            r if r == A::NUMBERS.ra => Ok(at.ip.wrapping_sub(1)),
            _ => self.saved_register(register, at, index, stack),
        }
    }

    /// Returns the value that a register had in frame `index`, as saved by the nearest of the
    /// frame's callees that saved it.
    fn saved_register(
        &mut self,
        mut register: Register,
        at: &Registers,
        index: usize,
        stack: &mut impl Memory,
    ) -> Result<u64, Cause> {
        let mut outer = *at;
        let first = index.saturating_sub(MAX_SEARCHED_FRAMES);
        for inner_index in (first..index).rev() {
            let inner = (self.frame)(inner_index);
            let cfa = outer.sp;
            let mut read = |address| stack.read_callee_stack(inner.sp, address);
            let tables = self.tables(inner.ip)?;
            let (row, _) = tables.row(inner.ip.wrapping_sub(1), self.scratch)?;
            match row.register(register).unwrap_or(RegisterRule::SameValue) {
                RegisterRule::SameValue => {}
                RegisterRule::Offset(offset) => return read(cfa.wrapping_add_signed(offset)),
                RegisterRule::ValOffset(offset) => return Ok(cfa.wrapping_add_signed(offset)),
                RegisterRule::Register(r) if r == A::NUMBERS.sp => return Ok(inner.sp),
                RegisterRule::Register(r) if r == A::NUMBERS.fp => return Ok(inner.fp),
                RegisterRule::Register(other) => register = other,
                RegisterRule::Expression(e) => {
                    let address =
                        evaluate_without_frames::<A>(&e, tables.frames(), cfa, &inner, &mut read)?;
                    return read(address);
                }
                _ => return Err(Cause::Unsupported),
            }
            outer = inner;
        }
        // No inner frame has saved the register, so it still has the innermost frame's value,
        // provided that all frames were searched.
        if index > MAX_SEARCHED_FRAMES {
            return Err(Cause::Unsupported);
        }
        let live = self.live.get(usize::from(register.0));
        live.copied().ok_or(Cause::Unsupported)
    }

    fn evaluate(
        &mut self,
        expression: &UnwindExpression<usize>,
        frames: &EhFrame<Bytes<'_>>,
        initial: Option<u64>,
        at: &Registers,
        index: usize,
        stack: &mut impl Memory,
    ) -> Result<u64, Cause> {
        let mut provide = |input| match input {
            Input::Register(register) => self.register(register, at, index, stack),
            Input::Word(address) => stack.read(address),
        };
        evaluate(expression, frames, initial, &mut provide)
    }
}

/// Evaluates an expression that uses only the followed registers.
fn evaluate_without_frames<A: Machine>(
    expression: &UnwindExpression<usize>,
    frames: &EhFrame<Bytes<'_>>,
    cfa: u64,
    at: &Registers,
    read: &mut impl FnMut(u64) -> Result<u64, Cause>,
) -> Result<u64, Cause> {
    let mut provide = |input| match input {
        Input::Register(r) if r == A::NUMBERS.sp => Ok(at.sp),
        Input::Register(r) if r == A::NUMBERS.fp => Ok(at.fp),
        Input::Register(_) => Err(Cause::Unsupported),
        Input::Word(address) => read(address),
    };
    evaluate(expression, frames, Some(cfa), &mut provide)
}

/// Input that the evaluation of an expression requires.
enum Input {
    /// Value of a register.
    Register(Register),
    /// Word at an address.
    Word(u64),
}

fn evaluate(
    expression: &UnwindExpression<usize>,
    frames: &EhFrame<Bytes<'_>>,
    initial: Option<u64>,
    provide: &mut impl FnMut(Input) -> Result<u64, Cause>,
) -> Result<u64, Cause> {
    let unsupported = |_| Cause::Unsupported;
    let bytes = expression.get(frames).map_err(unsupported)?.0;
    let mut evaluation = Evaluation::<Bytes<'_>, Fixed>::new_in(bytes, ENCODING);
    evaluation.set_max_iterations(MAX_OPERATIONS);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let mut state = evaluation.evaluate().map_err(unsupported)?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register: r, .. } => {
                evaluation.resume_with_register(Value::Generic(provide(Input::Register(r))?))
            }
            EvaluationResult::RequiresMemory {
                address, size: 8, ..
            } => evaluation.resume_with_memory(Value::Generic(provide(Input::Word(address))?)),
            _ => return Err(Cause::Unsupported),
        }
        .map_err(unsupported)?;
    }
    match evaluation.as_result() {
        [
            Piece {
                location: gimli::Location::Address { address },
                ..
            },
        ] => Ok(*address),
        _ => Err(Cause::Unsupported),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
