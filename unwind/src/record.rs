//! Frame records: the step from code that has no unwind table.
//!
//! In a function that keeps a frame pointer, it points to a frame record: the caller's frame
//! pointer, then the return address. With that, the caller is found where there is no table: in
//! code that the program generates itself (a JIT), in linked code without tables (V8's builtins,
//! assembly), and, on aarch64, whose procedure call standard requires records (AAPCS64 6.4.6), in
//! the C libraries of 2016, which have hardly any tables.
//!
//! Even so, such a function may have no record; then the frame pointer is its caller's, or any
//! number. So a record is trusted only if
//! - it lies on the stack, above the function's stack pointer and not far from it;
//! - the return address in it follows a call instruction, in code of a module that can be read, and
//!   that call is not to a function that has a table, since this one has none (but that function
//!   may have jumped here: where the frame is nothing but the record, it does not matter); or
//! - the return address is in no module, where code bytes may be unmapped at any moment and are not
//!   read; then the records from there outwards, each above the one before, must lead to such a
//!   call;
//! - where the caller is in turn found by its own record, that lies above this one, or there is
//!   none.
//!
//! On x86-64 a record is the outermost part of its frame, and the caller's stack pointer follows.
//! On aarch64 it does not show how large its function's frame is: the caller's stack pointer
//! follows from the caller's own rule, which says where it saved its frame pointer, and so where
//! its record is. A caller that has a table but saved no frame pointer cannot be reached: the stack
//! ends at the function.
//!
//! Python 3.12 and 3.13 generate trampolines on x86-64 that only align the stack: a word, then the
//! return address. They are recognised by their instructions, which the kernel compares
//! ([`padded`]).

// Decision 53: generated code is unwound by frame records.
use crate::Registers;
use crate::arch::Machine;
use crate::rule::{Rule, Step, Word};
use crate::stack::Memory;

/// Bytes of a frame record.
const BYTES: u64 = 16;
/// Maximum number of bytes of a frame between the stack pointer and the record: functions of a C
/// library with buffers of 64 KiB exist.
const REACH: u64 = 256 << 10;
/// Records in a row that are believed without a call in a module behind them.
const ENOUGH: usize = 32;
/// Addresses of code lie between these.
const LOWEST: u64 = 1 << 16;
const HIGHEST: u64 = 1 << 48;

/// What is known of an address in code.
pub(crate) struct Caller {
    /// Its rule.
    pub(crate) rule: Rule,
    /// Whether it follows a call instruction; not known outside of modules.
    pub(crate) is_called: bool,
    /// The rule where the call goes to, if the instruction says where.
    pub(crate) to: Option<Rule>,
}

impl Caller {
    /// Whether a function may return there. The outermost has no caller: its address was put
    /// there for the first function of a coroutine, and the chain of records ends with it.
    fn is_returned_to(&self, fp: u64) -> bool {
        self.is_called || fp == 0 && self.rule.is_end()
    }

    /// Whether a function without a table may return there. `is_sure`: its record is one.
    fn is_from_bare(&self, fp: u64, is_sure: bool) -> bool {
        self.is_returned_to(fp) && (is_sure || !self.to.is_some_and(Rule::is_tabled))
    }
}

/// Steps from a frame by its record. `is_chained`: it was found by the record of the frame further
/// in. `caller` tells of an address in code, and `None` of one that no call leads to. `None`: there
/// is no record.
pub(crate) fn step<A: Machine>(
    at: &Registers,
    is_chained: bool,
    memory: &mut impl Memory,
    mut caller: impl FnMut(u64) -> Option<Caller>,
) -> Option<Step> {
    if at.fp == 0 {
        // The chain's end, as in the standard, if it is one.
        let ra = Word::default();
        return is_chained.then_some(Step::End { ra });
    }
    if !is_near(at.sp, at.fp) {
        return None;
    }
    let (fp, ra) = words(at.fp, memory)?;
    let ip = A::return_address(ra.value);
    let low = at.fp.checked_add(BYTES)?;
    if ip == 0 {
        // Where no standard requires records, zeros may be anything.
        let is_record = is_chained || !A::RECORD_ENDS_FRAME;
        return (is_record && fp.value == 0).then_some(Step::End { ra });
    }
    let found = caller(ip)?;
    let rule = found.rule;
    if rule.is_outside() {
        let leads = is_plausible(ip, at.fp)
            && (is_chained || leads_to_call::<A>((at.fp, fp.value), memory, &mut caller));
        if !leads {
            return None;
        }
    } else if !found.is_from_bare(fp.value, A::RECORD_ENDS_FRAME && at.fp == at.sp) {
        return None;
    }
    let sp = match A::RECORD_ENDS_FRAME {
        true if rule.is_bare() && fp.value != 0 && fp.value < low => return None,
        true => low,
        false => sp_of_caller::<A>((rule, low), fp.value, memory, caller)?,
    };
    let registers = Registers {
        ip,
        sp,
        fp: fp.value,
    };
    Some(Step::Caller { registers, ra, fp })
}

/// The caller's stack pointer where a record does not give it: its frame pointer points to its own
/// record, which holds up in the same way where the stack pointer is computed from it.
fn sp_of_caller<A: Machine>(
    (rule, low): (Rule, u64),
    fp: u64,
    memory: &mut impl Memory,
    mut caller: impl FnMut(u64) -> Option<Caller>,
) -> Option<u64> {
    if fp != 0 && fp < low {
        return None;
    }
    let sp = rule.sp_of_record(low, fp)?;
    if rule.is_plain() {
        let (outer, ra) = words(fp, memory)?;
        let ip = A::return_address(ra.value);
        if ip == 0 {
            return Some(sp);
        }
        let found = caller(ip)?;
        let holds = match found.rule.is_outside() {
            true => {
                is_plausible(ip, fp) && leads_to_call::<A>((fp, outer.value), memory, &mut caller)
            }
            false => found.is_returned_to(outer.value),
        };
        if !holds {
            return None;
        }
    }
    Some(sp)
}

/// Whether the records from `outer` on, the frame pointer that the record at `inner` holds, lead to
/// a return address behind a call in a module, or are many.
fn leads_to_call<A: Machine>(
    (mut inner, mut outer): (u64, u64),
    memory: &mut impl Memory,
    caller: &mut impl FnMut(u64) -> Option<Caller>,
) -> bool {
    for _ in 0..ENOUGH {
        if outer <= inner || !is_near(inner, outer) {
            return false;
        }
        let Some((fp, ra)) = words(outer, memory) else {
            return false;
        };
        let ip = A::return_address(ra.value);
        match caller(ip) {
            Some(found) if found.rule.is_outside() => {
                if !is_plausible(ip, outer) {
                    return false;
                }
            }
            found => return found.is_some_and(|found| found.is_from_bare(fp.value, false)),
        }
        (inner, outer) = (outer, fp.value);
    }
    true
}

/// Steps from a trampoline of Python 3.12 or 3.13: its instructions are compared, by who may do so.
/// `None`: it is none.
pub(crate) fn padded<A: Machine>(
    at: &Registers,
    memory: &mut impl Memory,
    mut caller: impl FnMut(u64) -> Option<Caller>,
) -> Option<Step> {
    let code = A::PADDED?;
    let start = at.ip.checked_sub(6)?;
    // The two or three words at multiples of four that lie in it.
    let skip = (start.next_multiple_of(4) - start) as usize;
    for (word, place) in code[skip..].chunks_exact(4).zip(0..) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if !memory.code_is(start + skip as u64 + 4 * place, word) {
            return None;
        }
    }
    let ra = word(at.sp.checked_add(8)?, memory)?;
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

/// Whether a record at `fp` may be of a frame whose stack pointer is `sp`.
fn is_near(sp: u64, fp: u64) -> bool {
    fp >= sp && fp - sp <= REACH
}

/// Whether code may be there: neither on the stack, of which `place` is a part, nor where nothing
/// can be.
fn is_plausible(ip: u64, place: u64) -> bool {
    (LOWEST..HIGHEST).contains(&ip) && ip.abs_diff(place) > REACH
}

/// The saved frame pointer and the return address of a record.
fn words(at: u64, memory: &mut impl Memory) -> Option<(Word, Word)> {
    Some((word(at, memory)?, word(at.checked_add(8)?, memory)?))
}

fn word(at: u64, memory: &mut impl Memory) -> Option<Word> {
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
    /// Addresses in a module: behind a call through a register, of a function with a table, of one
    /// without, and behind none.
    const BY_REGISTER: u64 = 0x40_1001;
    const OF_TABLED: u64 = 0x40_1002;
    const OF_BARE: u64 = 0x40_1003;
    const NOT_CALLED: u64 = 0x40_1004;
    /// In no module.
    const MADE: u64 = 0x5000_0000;

    /// Frames in the module have 32 bytes, the outermost word of which is the return address.
    fn caller(ip: u64) -> Option<Caller> {
        if ip >> 12 != 0x401 {
            let rule = Rule::failed(Cause::NoModule);
            let (is_called, to) = (false, None);
            return Some(Caller {
                rule,
                is_called,
                to,
            });
        }
        let rule = Rule::new(Kind::Sp, 32, Some(-8), None);
        Some(Caller {
            rule,
            is_called: ip != NOT_CALLED,
            to: match ip {
                OF_TABLED => Some(rule),
                OF_BARE => Some(Rule::failed(Cause::NoRule)),
                _ => None,
            },
        })
    }

    fn at(word: u64) -> u64 {
        LOW + 8 * word
    }

    /// The caller of a frame at the stack's begin whose frame pointer leads to this word.
    fn stepped(fp: u64, words: &[u64]) -> Option<Registers> {
        let from = Registers {
            ip: MADE,
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
    fn a_record_ends_its_frame_and_its_return_address_follows_a_call() {
        let with = |ip| stepped(2, &[1, 2, 77, ip, 5]);
        for ip in [BY_REGISTER, OF_BARE] {
            let (sp, fp) = (at(4), 77);
            assert_eq!(with(ip), Some(Registers { ip, sp, fp }));
        }
        for ip in [OF_TABLED, NOT_CALLED, 0, 8, at(2)] {
            assert_eq!(with(ip), None, "{ip:x}");
        }
        let outside = stepped(9, &[1, 2, 77, BY_REGISTER]);
        assert_eq!(outside, None);
    }

    #[test]
    fn records_of_made_code_must_lead_to_a_call() {
        let chain = |saved: [u64; 2], last: u64| {
            let words = [at(3), MADE, 9, saved[0], MADE + 64, 9, saved[1], last, 9];
            stepped(0, &words)
        };
        let (ip, sp, fp) = (MADE, at(2), at(3));
        let whole = Some(Registers { ip, sp, fp });
        assert_eq!(chain([at(6), 1], BY_REGISTER), whole);
        for (saved, last) in [
            ([at(6), 1], NOT_CALLED),
            ([at(6), 1], OF_TABLED),
            ([at(6), 1], 0),
            ([at(6), 1], MADE),
            ([at(3), 1], BY_REGISTER),
            ([at(0), 1], BY_REGISTER),
            ([0, 1], BY_REGISTER),
        ] {
            assert_eq!(chain(saved, last), None, "{saved:x?} {last:x}");
        }
    }

    /// On aarch64 the caller's own record counts, which lies at the bottom of its frame of 32
    /// bytes: what has called it may be made code again.
    #[test]
    fn made_code_may_have_called_the_caller_too() {
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
            let (ip, sp, fp) = (MADE, LOW, at(0));
            let mut memory = Copied::new(LOW, &words);
            let from = Registers { ip, sp, fp };
            step::<Aarch64>(&from, false, &mut memory, caller).map(|step| match step {
                Step::Caller { registers, .. } => registers,
                other => panic!("{other:?}"),
            })
        };
        let (ip, sp, fp) = (BY_REGISTER, at(3), at(3));
        let whole = Some(Registers { ip, sp, fp });
        for (saved, outer) in [
            (at(7), [MADE + 64, BY_REGISTER]),
            (at(7), [BY_REGISTER, 9]),
            (0, [0, 9]),
        ] {
            assert_eq!(stepped(saved, outer), whole, "{saved:x} {outer:x?}");
        }
        for (saved, outer) in [
            (at(7), [MADE + 64, NOT_CALLED]),
            (at(7), [MADE + 64, OF_TABLED]),
            (at(3), [MADE + 64, BY_REGISTER]),
            (at(7), [at(5), BY_REGISTER]),
            (at(7), [NOT_CALLED, BY_REGISTER]),
        ] {
            assert_eq!(stepped(saved, outer), None, "{saved:x} {outer:x?}");
        }
    }

    /// A stack, and code at [`MADE`].
    struct Made<'a>(Copied<'a>, &'a [u8]);

    impl Memory for Made<'_> {
        fn read(&mut self, address: u64) -> Result<u64, Cause> {
            self.0.read(address)
        }

        fn read_inner(&mut self, sp: u64, address: u64) -> Result<u64, Cause> {
            self.0.read_inner(sp, address)
        }

        fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
            self.0.move_to(sp)
        }

        fn code_is(&self, address: u64, value: u32) -> bool {
            let at = address.wrapping_sub(MADE) as usize;
            assert!(address.is_multiple_of(4));
            self.1.get(at..at.saturating_add(4)) == Some(&value.to_le_bytes())
        }
    }

    #[test]
    fn a_trampoline_of_two_words_is_stepped_over() {
        let walked = |ip: u64, code: &[u8], ra: u64| {
            let words = [1, ra, 1, 2];
            let mut memory = Made(Copied::new(LOW, &words), code);
            let (sp, fp) = (LOW, 3);
            let step = padded::<X86_64>(&Registers { ip, sp, fp }, &mut memory, caller);
            step.map(|step| match step {
                Step::Caller { registers, .. } => registers,
                other => panic!("{other:?}"),
            })
        };
        // Python 3.12 writes one right behind the other.
        let code = X86_64::PADDED.expect("some").repeat(5);
        let returns: [u64; 4] = [6, 17, 28, 39];
        for at_return in returns.map(|offset| MADE + offset) {
            for ip in [BY_REGISTER, OF_TABLED] {
                let (sp, fp) = (at(2), 3);
                let expected = Some(Registers { ip, sp, fp });
                assert_eq!(walked(at_return, &code, ip), expected);
            }
            for ra in [NOT_CALLED, MADE, 0] {
                assert_eq!(walked(at_return, &code, ra), None, "{ra:x}");
            }
        }
        let others = (0..44).filter(|offset| !returns.contains(offset));
        for ip in others.map(|offset| MADE + offset) {
            assert_eq!(walked(ip, &code, BY_REGISTER), None, "{ip:x}");
        }
        for changed in 0..11 {
            let mut code = code.clone();
            code[changed + 11] ^= 1;
            let found = walked(MADE + 17, &code, BY_REGISTER).is_some();
            assert_eq!(found, !(1..9).contains(&changed), "{changed}");
        }
    }

    #[test]
    fn a_frame_of_a_record_alone_may_have_been_jumped_to() {
        let found = stepped(0, &[77, OF_TABLED, 5]);
        let (ip, sp, fp) = (OF_TABLED, at(2), 77);
        assert_eq!(found, Some(Registers { ip, sp, fp }));
    }
}
