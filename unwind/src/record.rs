//! Frame records: steps from code that has no unwind table.
//!
//! The frame pointer of a function that keeps one points to a frame record: the caller's frame
//! pointer, then the return address. Through it, the caller is found in code without tables:
//! generated code (a JIT), linked code without tables (V8's builtins, assembly), and, on aarch64,
//! where the procedure call standard requires records (AAPCS64 6.4.6), the C libraries of 2016,
//! which have hardly any tables.
//!
//! A function without a table does not necessarily have a record. If it has none, the frame pointer
//! is its caller's, or any number. So a record is trusted only under these conditions:
//! - It is on the stack, above the function's stack pointer and not far from it.
//! - Its return address, if in a module, follows a call instruction that can be read. The call's
//!   target must not have a table, since this function has none. The exception is a frame that
//!   consists of the record alone: it may belong to a function with a table that has jumped here.
//! - Its return address, if in no module, cannot be checked, since code there may be unmapped at
//!   any moment. Instead, the records from there outwards, each above the one before, must lead to
//!   such a call.
//! - If the caller will be unwound by its own record, that lies above this one or is absent.
//!
//! On x86-64, a record is the outermost part of its frame, so the caller's stack pointer follows
//! it. On aarch64, the record does not show how large the frame is. The caller's stack pointer is
//! computed from the caller's rule, which gives the location of the saved frame pointer and so of
//! the caller's record. A caller that has a table but saved no frame pointer cannot be reached, and
//! the stack ends at the function.
//!
//! Python 3.12 and 3.13 generate trampolines on x86-64 that only align the stack: a word, then the
//! return address. These are recognised by their instructions, which the kernel compares
//! ([`step_from_trampoline`]).

// Decision 53: generated code is unwound by frame records.
use crate::Registers;
use crate::arch::Machine;
use crate::rule::{Rule, Step, Word};
use crate::stack::Memory;

/// Size of a frame record in bytes.
const BYTES: u64 = 16;
/// Maximum distance in bytes between the stack pointer and the record. Functions of C libraries
/// have buffers of 64 KiB.
const MAX_DISTANCE: u64 = 256 << 10;
/// Maximum number of consecutive records that are followed in search of a call in a module. A
/// longer chain is trusted without one.
const MAX_CHAIN: usize = 32;
/// Bounds of plausible code addresses.
const LOWEST: u64 = 1 << 16;
const HIGHEST: u64 = 1 << 48;

/// Properties of a return address.
pub(crate) struct Caller {
    /// Rule of the code there.
    pub(crate) rule: Rule,
    /// True if it follows a call instruction. Always false outside of modules.
    pub(crate) is_called: bool,
    /// Rule of the call's target, or `None` if the instruction does not name it.
    pub(crate) target: Option<Rule>,
}

impl Caller {
    /// Returns true if a function may return there: after a call, or to a coroutine's outermost
    /// frame, whose address was put on the stack without a call and where the chain of records ends
    /// (`fp` is 0). Go has no table for that frame, so code without one is accepted at the end of a
    /// chain too.
    fn is_returned_to(&self, fp: u64, is_chained: bool) -> bool {
        let is_outermost = self.rule.is_end() || (is_chained && self.rule.lacks_table());
        self.is_called || (fp == 0 && is_outermost)
    }

    /// Returns true if a function without a table may return there. With `any_target`, the call may
    /// have been to a function with a table.
    fn is_caller_of_bare(&self, fp: u64, is_chained: bool, any_target: bool) -> bool {
        let target_has_table = self.target.is_some_and(Rule::may_have_table);
        self.is_returned_to(fp, is_chained) && (any_target || !target_has_table)
    }
}

/// Steps from a frame by its record. Returns `None` if it has none that can be trusted.
///
/// `is_chained` is true if the frame itself was found by the record of its callee. `caller`
/// describes a return address; it returns `None` if the code there cannot be read.
pub(crate) fn step<A: Machine>(
    at: &Registers,
    is_chained: bool,
    memory: &mut impl Memory,
    mut caller: impl FnMut(u64) -> Option<Caller>,
) -> Option<Step> {
    if at.fp == 0 {
        // The standard defines this as the end of the chain.
        let ra = Word::default();
        return is_chained.then_some(Step::End { ra });
    }
    if !is_near(at.sp, at.fp) {
        return None;
    }
    let (fp, ra) = read_record(at.fp, memory)?;
    let ip = A::return_address(ra.value);
    let low = at.fp.checked_add(BYTES)?;
    if ip == 0 {
        // If no standard requires records, a pair of zeros may be something else.
        let is_record = is_chained || !A::FRAME_RECORD_IS_OUTERMOST;
        return (is_record && fp.value == 0).then_some(Step::End { ra });
    }
    let found = caller(ip)?;
    let rule = found.rule;
    if rule.is_outside() {
        let is_trusted = is_plausible(ip, at.fp)
            && (is_chained || leads_to_call::<A>(at.fp, fp.value, memory, &mut caller));
        if !is_trusted {
            return None;
        }
    } else {
        let is_only_a_record = A::FRAME_RECORD_IS_OUTERMOST && at.fp == at.sp;
        if !found.is_caller_of_bare(fp.value, is_chained, is_only_a_record) {
            return None;
        }
    }
    let sp = if A::FRAME_RECORD_IS_OUTERMOST {
        if rule.is_bare() && fp.value != 0 && fp.value < low {
            return None;
        }
        low
    } else {
        sp_of_caller::<A>(rule, low, fp.value, memory, caller)?
    };
    let registers = Registers {
        ip,
        sp,
        fp: fp.value,
    };
    Some(Step::Caller { registers, ra, fp })
}

/// Returns the caller's stack pointer on machines where a record does not give it. `fp` is the
/// caller's frame pointer, which points to the caller's own record. If the stack pointer is
/// computed from that record, the record is checked like the first.
fn sp_of_caller<A: Machine>(
    rule: Rule,
    low: u64,
    fp: u64,
    memory: &mut impl Memory,
    mut caller: impl FnMut(u64) -> Option<Caller>,
) -> Option<u64> {
    if fp != 0 && fp < low {
        return None;
    }
    let sp = rule.sp_of_record(low, fp)?;
    if rule.is_plain() {
        let (outer, ra) = read_record(fp, memory)?;
        let ip = A::return_address(ra.value);
        if ip == 0 {
            return Some(sp);
        }
        let found = caller(ip)?;
        let is_valid = if found.rule.is_outside() {
            is_plausible(ip, fp) && leads_to_call::<A>(fp, outer.value, memory, &mut caller)
        } else {
            found.is_returned_to(outer.value, false)
        };
        if !is_valid {
            return None;
        }
    }
    Some(sp)
}

/// Returns true if the chain of records leads to a return address that follows a call in a module,
/// or is longer than [`MAX_CHAIN`]. `outer` is the frame pointer in the record at `inner`.
fn leads_to_call<A: Machine>(
    mut inner: u64,
    mut outer: u64,
    memory: &mut impl Memory,
    caller: &mut impl FnMut(u64) -> Option<Caller>,
) -> bool {
    for _ in 0..MAX_CHAIN {
        if outer <= inner || !is_near(inner, outer) {
            return false;
        }
        let Some((fp, ra)) = read_record(outer, memory) else {
            return false;
        };
        let ip = A::return_address(ra.value);
        match caller(ip) {
            Some(found) if found.rule.is_outside() => {
                if !is_plausible(ip, outer) {
                    return false;
                }
            }
            Some(found) => return found.is_caller_of_bare(fp.value, false, false),
            None => return false,
        }
        inner = outer;
        outer = fp.value;
    }
    true
}

/// Steps from a trampoline of Python 3.12 or 3.13, which is recognised by its instructions. Returns
/// `None` if the code is not such a trampoline.
pub(crate) fn step_from_trampoline<A: Machine>(
    at: &Registers,
    memory: &mut impl Memory,
    mut caller: impl FnMut(u64) -> Option<Caller>,
) -> Option<Step> {
    let code = A::PYTHON_TRAMPOLINE?;
    let start = at.ip.checked_sub(6)?;
    // The code contains two or three aligned words, depending on its address.
    let skip = (start.next_multiple_of(4) - start) as usize;
    for (bytes, index) in code[skip..].chunks_exact(4).zip(0..) {
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if !memory.code_is(start + skip as u64 + 4 * index, word) {
            return None;
        }
    }
    let ra = read_word(at.sp.checked_add(8)?, memory)?;
    let registers = Registers {
        ip: A::return_address(ra.value),
        sp: at.sp.checked_add(BYTES)?,
        fp: at.fp,
    };
    let fp = Word::default();
    caller(registers.ip)?
        .is_called
        .then_some(Step::Caller { registers, ra, fp })
}

/// Returns true if a record at `fp` may belong to a frame whose stack pointer is `sp`.
fn is_near(sp: u64, fp: u64) -> bool {
    fp >= sp && fp - sp <= MAX_DISTANCE
}

/// Returns true if `ip` may be an address of code: in user space, and not near `stack_address`.
fn is_plausible(ip: u64, stack_address: u64) -> bool {
    (LOWEST..HIGHEST).contains(&ip) && ip.abs_diff(stack_address) > MAX_DISTANCE
}

/// Returns the saved frame pointer and the return address of a record.
fn read_record(at: u64, memory: &mut impl Memory) -> Option<(Word, Word)> {
    Some((
        read_word(at, memory)?,
        read_word(at.checked_add(8)?, memory)?,
    ))
}

fn read_word(at: u64, memory: &mut impl Memory) -> Option<Word> {
    let value = memory.read(at).ok()?;
    Some(Word { at, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;
    use crate::arch::{Aarch64, X86_64};
    use crate::rule::Kind;
    use crate::stack::Copied;

    const LOW: u64 = 0x7000_0000;
    /// Address in a module, after a call through a register.
    const BY_REGISTER: u64 = 0x40_1001;
    /// Address in a module, after a call of a function with an unwind table.
    const OF_TABLED: u64 = 0x40_1002;
    /// Address in a module, after a call of a function without an unwind table.
    const OF_BARE: u64 = 0x40_1003;
    /// Address in a module that does not follow a call.
    const NOT_CALLED: u64 = 0x40_1004;
    /// Address of generated code, in no module.
    const GENERATED: u64 = 0x5000_0000;

    /// Frames in the module have 32 bytes, the outermost word of which is the return address.
    fn caller(ip: u64) -> Option<Caller> {
        if ip >> 12 != 0x401 {
            let rule = Rule::failed(Cause::NoModule);
            let is_called = false;
            let target = None;
            return Some(Caller {
                rule,
                is_called,
                target,
            });
        }
        let rule = Rule::new(Kind::Sp, 32, Some(-8), None);
        Some(Caller {
            rule,
            is_called: ip != NOT_CALLED,
            target: match ip {
                OF_TABLED => Some(rule),
                OF_BARE => Some(Rule::failed(Cause::NoRule)),
                _ => None,
            },
        })
    }

    fn at(word: u64) -> u64 {
        LOW + 8 * word
    }

    /// Returns the caller of a frame at the start of the stack whose frame pointer points to this
    /// word.
    fn stepped(fp: u64, words: &[u64]) -> Option<Registers> {
        let from = Registers {
            ip: GENERATED,
            sp: LOW,
            fp: at(fp),
        };
        let step = step::<X86_64>(&from, false, &mut Copied::new(LOW, words), caller);
        step.map(|step| match step {
            Step::Caller { registers, .. } => registers,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_record_gives_the_caller_if_its_return_address_follows_a_call() {
        let with = |ip| stepped(2, &[1, 2, 77, ip, 5]);
        for ip in [BY_REGISTER, OF_BARE] {
            let sp = at(4);
            let fp = 77;
            assert_eq!(with(ip), Some(Registers { ip, sp, fp }));
        }
        for ip in [OF_TABLED, NOT_CALLED, 0, 8, at(2)] {
            assert_eq!(with(ip), None, "{ip:x}");
        }
        let outside = stepped(9, &[1, 2, 77, BY_REGISTER]);
        assert_eq!(outside, None);
    }

    #[test]
    fn records_of_generated_code_must_lead_to_a_call() {
        let chain = |saved: [u64; 2], last: u64| {
            let words = [
                at(3),
                GENERATED,
                9,
                saved[0],
                GENERATED + 64,
                9,
                saved[1],
                last,
                9,
            ];
            stepped(0, &words)
        };
        let ip = GENERATED;
        let sp = at(2);
        let fp = at(3);
        let whole = Some(Registers { ip, sp, fp });
        assert_eq!(chain([at(6), 1], BY_REGISTER), whole);
        for (saved, last) in [
            ([at(6), 1], NOT_CALLED),
            ([at(6), 1], OF_TABLED),
            ([at(6), 1], 0),
            ([at(6), 1], GENERATED),
            ([at(3), 1], BY_REGISTER),
            ([at(0), 1], BY_REGISTER),
            ([0, 1], BY_REGISTER),
        ] {
            assert_eq!(chain(saved, last), None, "{saved:x?} {last:x}");
        }
    }

    /// On aarch64, the caller's own record must be valid. It lies at the bottom of the caller's
    /// 32-byte frame, and the caller's caller may be generated code again.
    #[test]
    fn generated_code_may_have_called_the_caller() {
        let caller = |ip| {
            caller(ip).map(|mut found| {
                if !found.rule.is_outside() {
                    found.rule = Rule::new(Kind::Sp, 32, Some(-24), Some(-32));
                }
                found
            })
        };
        let stepped = |saved: u64, outer: [u64; 2]| {
            let words = [at(3), BY_REGISTER, 9, saved, outer[0], 9, 9, 1, outer[1], 9];
            let ip = GENERATED;
            let sp = LOW;
            let fp = at(0);
            let mut memory = Copied::new(LOW, &words);
            let from = Registers { ip, sp, fp };
            step::<Aarch64>(&from, false, &mut memory, caller).map(|step| match step {
                Step::Caller { registers, .. } => registers,
                other => panic!("{other:?}"),
            })
        };
        let ip = BY_REGISTER;
        let sp = at(3);
        let fp = at(3);
        let whole = Some(Registers { ip, sp, fp });
        for (saved, outer) in [
            (at(7), [GENERATED + 64, BY_REGISTER]),
            (at(7), [BY_REGISTER, 9]),
            (0, [0, 9]),
        ] {
            assert_eq!(stepped(saved, outer), whole, "{saved:x} {outer:x?}");
        }
        for (saved, outer) in [
            (at(7), [GENERATED + 64, NOT_CALLED]),
            (at(7), [GENERATED + 64, OF_TABLED]),
            (at(3), [GENERATED + 64, BY_REGISTER]),
            (at(7), [at(5), BY_REGISTER]),
            (at(7), [NOT_CALLED, BY_REGISTER]),
        ] {
            assert_eq!(stepped(saved, outer), None, "{saved:x} {outer:x?}");
        }
    }

    /// Memory with a stack, and with code at [`GENERATED`].
    struct WithCode<'a>(Copied<'a>, &'a [u8]);

    impl Memory for WithCode<'_> {
        fn read(&mut self, address: u64) -> Result<u64, Cause> {
            self.0.read(address)
        }

        fn read_callee_stack(&mut self, sp: u64, address: u64) -> Result<u64, Cause> {
            self.0.read_callee_stack(sp, address)
        }

        fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
            self.0.move_to(sp)
        }

        fn code_is(&self, address: u64, value: u32) -> bool {
            let at = address.wrapping_sub(GENERATED) as usize;
            assert!(address.is_multiple_of(4));
            self.1.get(at..at.saturating_add(4)) == Some(&value.to_le_bytes())
        }
    }

    #[test]
    fn a_two_word_trampoline_is_stepped_over() {
        let walked = |ip: u64, code: &[u8], ra: u64| {
            let words = [1, ra, 1, 2];
            let mut memory = WithCode(Copied::new(LOW, &words), code);
            let sp = LOW;
            let fp = 3;
            let step =
                step_from_trampoline::<X86_64>(&Registers { ip, sp, fp }, &mut memory, caller);
            step.map(|step| match step {
                Step::Caller { registers, .. } => registers,
                other => panic!("{other:?}"),
            })
        };
        // Python 3.12 writes the trampolines one after another.
        let code = X86_64::PYTHON_TRAMPOLINE.expect("some").repeat(5);
        let returns: [u64; 4] = [6, 17, 28, 39];
        for at_return in returns.map(|offset| GENERATED + offset) {
            for ip in [BY_REGISTER, OF_TABLED] {
                let sp = at(2);
                let fp = 3;
                let expected = Some(Registers { ip, sp, fp });
                assert_eq!(walked(at_return, &code, ip), expected);
            }
            for ra in [NOT_CALLED, GENERATED, 0] {
                assert_eq!(walked(at_return, &code, ra), None, "{ra:x}");
            }
        }
        let others = (0..44).filter(|offset| !returns.contains(offset));
        for ip in others.map(|offset| GENERATED + offset) {
            assert_eq!(walked(ip, &code, BY_REGISTER), None, "{ip:x}");
        }
        for changed in 0..11 {
            let mut code = code.clone();
            code[changed + 11] ^= 1;
            let found = walked(GENERATED + 17, &code, BY_REGISTER).is_some();
            assert_eq!(found, !(1..9).contains(&changed), "{changed}");
        }
    }

    #[test]
    fn a_function_with_only_a_record_may_have_been_jumped_to() {
        let found = stepped(0, &[77, OF_TABLED, 5]);
        let ip = OF_TABLED;
        let sp = at(2);
        let fp = 77;
        assert_eq!(found, Some(Registers { ip, sp, fp }));
    }
}
