//! Frame records: the step from code that has no unwind table.
//!
//! Where a machine's procedure call standard has the frame pointer point to a frame record (the
//! caller's frame pointer, then the return address: AAPCS64 6.4.6), the caller of a function without
//! a table can be found by it. C libraries for aarch64 of 2016 have hardly any tables, and gcc has
//! always kept the frame pointer there.
//!
//! Such a function may have no record all the same; then the frame pointer is its caller's, or any
//! number. So a record is believed only if
//! - it lies on the stack, above the function's stack pointer and not far from it;
//! - the return address in it follows a call instruction, in code of a module that can be read, and
//!   not the call of a function that has a table, as this one has none;
//! - the caller's record lies above it, or there is none, and it holds up in the same way where the
//!   caller's stack pointer is computed from it.
//!
//! A record does not tell how large its function's frame is. The caller's stack pointer follows from
//! its own rule, which says where it saved its frame pointer: that is where its record is. A caller
//! that has a table but saved no frame pointer cannot be reached: the stack ends at the function.
//!
//! A generated code's stacks could be followed by the same check, given who says that an address is
//! code: [`step`] asks `caller` alone, which might know of more than modules.

use crate::Registers;
use crate::arch::Machine;
use crate::rule::{Rule, Step, Word};
use crate::stack::Memory;

/// Bytes of a frame record.
const BYTES: u64 = 16;
/// Most bytes of a frame between the stack pointer and the record: functions of a C library
/// with buffers of 64 KiB exist.
const REACH: u64 = 256 << 10;

/// What is known of an address in code.
pub(crate) struct Caller {
    /// Its rule.
    pub(crate) rule: Rule,
    /// Whether it follows a call instruction.
    pub(crate) is_called: bool,
    /// The rule where the call goes to, if the instruction says where.
    pub(crate) to: Option<Rule>,
}

impl Caller {
    /// Whether a function may return there. Nobody has called the outermost: its address was put
    /// there for the first function of a coroutine, and the chain of records ends with it.
    fn is_returned_to(&self, fp: u64) -> bool {
        self.is_called || fp == 0 && self.rule.is_end()
    }
}

/// Steps from a frame by its record. `is_chained`: it was found by the record of the frame further
/// in. `caller` tells of an address in code, and `None` of any other. `None`: there is no record.
pub(crate) fn step<A: Machine>(
    at: &Registers,
    is_chained: bool,
    memory: &mut impl Memory,
    mut caller: impl FnMut(u64) -> Option<Caller>,
) -> Option<Step> {
    if at.fp == 0 {
        // The chain's end, as the standard has it, if it is one.
        let ra = Word::default();
        return is_chained.then_some(Step::End { ra });
    }
    if at.fp < at.sp || at.fp - at.sp > REACH {
        return None;
    }
    let (fp, ra) = words(at.fp, memory)?;
    let ip = A::return_address(ra.value);
    let low = at.fp.checked_add(BYTES)?;
    if ip == 0 {
        return (fp.value == 0).then_some(Step::End { ra });
    }
    let found = caller(ip)?;
    if !found.is_returned_to(fp.value) || found.to.is_some_and(Rule::is_tabled) {
        return None;
    }
    let rule = found.rule;
    if fp.value != 0 && fp.value < low {
        return None;
    }
    let sp = rule.sp_of_record(low, fp.value)?;
    if rule.is_plain() {
        let (fp, outer) = words(fp.value, memory)?;
        let outer = A::return_address(outer.value);
        if outer != 0 && !caller(outer)?.is_returned_to(fp.value) {
            return None;
        }
    }
    let registers = Registers {
        ip,
        sp,
        fp: fp.value,
    };
    Some(Step::Caller { registers, ra, fp })
}

/// The saved frame pointer and the return address of a record.
fn words(at: u64, memory: &mut impl Memory) -> Option<(Word, Word)> {
    let mut word = |at: u64| {
        let value = memory.read(at).ok()?;
        Some(Word { at, value })
    };
    Some((word(at)?, word(at.checked_add(8)?)?))
}
