//! Steps from code that was called from another stack.
//!
//! Goroutines have small stacks, so Go calls C on the thread's stack. `runtime.asmcgocall` switches
//! to the thread's stack, stores there the goroutine and the depth of the goroutine's stack, and
//! calls C. It has no unwind table, and no frame record on the thread's stack. It is recognised by
//! the code after its call, which switches back; a step does what that code would do. The resulting
//! stack pointer must lie in the bounds of the goroutine's stack; otherwise the stack ends.

// Decision 89: from C to goroutines by the code after the call.
use crate::Registers;
use crate::arch::{Machine, Switch};
use crate::elf::Module;
use crate::rule::{Rule, Step, Word};
use crate::stack::Memory;

/// Returns the rule of `ip`, if it follows a call for which the stack was switched.
#[cold]
pub(crate) fn rule<'a, A: Machine>(module: &impl Module<'a>, ip: u64) -> Option<Rule> {
    decode::<A>(module, ip).map(|_| Rule::SWITCH)
}

fn decode<'a, A: Machine>(module: &impl Module<'a>, ip: u64) -> Option<Switch> {
    A::switch(&module.after_call::<A>(ip)?)
}

/// Steps to the caller on the stack that was left. Returns `None` if the memory is not as expected.
pub(crate) fn step<'a, A: Machine>(
    module: &impl Module<'a>,
    at: &Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    let switch = decode::<A>(module, at.ip)?;
    let mut saved = |offset: i64| memory.read(at.sp.checked_add_signed(offset)?).ok();
    let depth = saved(switch.depth)?;
    let sp = match switch.goroutine {
        None => {
            let is_outward = depth > at.sp;
            is_outward.then_some(depth)?
        }
        Some(offset) => {
            let goroutine = saved(offset)?;
            let low = memory.word(goroutine)?;
            let high = memory.word(goroutine.checked_add(8)?)?;
            let sp = high.checked_sub(depth)?;
            let is_inside = low < sp && sp < high;
            is_inside.then_some(sp)?
        }
    };
    if sp & 7 != 0 {
        return None;
    }
    if switch.goroutine.is_some() {
        memory.move_to(sp).ok()?;
    }
    let ra = memory.read(sp.checked_add_signed(switch.ra)?).ok()?;
    let fp = match switch.fp {
        None => at.fp,
        Some(offset) => memory.read(sp.checked_add_signed(offset)?).ok()?,
    };
    let ip = A::return_address(ra);
    let word = Word::default();
    if ip == 0 {
        return Some(Step::End { ra: word });
    }
    let registers = Registers {
        ip,
        sp: sp.checked_add_signed(switch.caller)?,
        fp,
    };
    Some(Step::Caller {
        registers,
        ra: word,
        fp: word,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Aarch64, X86_64};
    use crate::elf::Section;
    use crate::stack::Copied;

    const CALL: u64 = 0x40_1000;
    const LOW: u64 = 0x7000_0000;
    /// Return address in the goroutine's stack.
    const CALLER: u64 = 0x40_2000;

    /// Code with a call that ends at [`CALL`].
    struct Code<'a>(&'a [u8]);

    impl<'a> Module<'a> for Code<'a> {
        fn eh_frame_hdr(&self) -> Option<Section<'a>> {
            None
        }

        fn bytes_from(&self, _: u64) -> Option<Section<'a>> {
            None
        }

        fn bytes_before(&self, address: u64) -> Option<[u8; 8]> {
            let from = usize::try_from((address + 8).checked_sub(CALL + 8)?).ok()?;
            let mut bytes = [0; 8];
            for (byte, at) in bytes.iter_mut().zip(from..) {
                *byte = *self.0.get(at).unwrap_or(&0);
            }
            Some(bytes)
        }
    }

    /// `call *%rax`, then the code of Go 1.24.
    const X86_64_CODE: &[u8] = &[
        0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0, 0x48, 0x8b, 0x7c, 0x24, 0x08, 0x48, 0x8b,
        0x77, 0x08, 0x48, 0x2b, 0x34, 0x24, 0x64, 0x48, 0x89, 0x3c, 0x25, 0xf8, 0xff, 0xff, 0xff,
        0x48, 0x89, 0xf4, 0x89, 0x44, 0x24, 0x20, 0x5d, 0xc3,
    ];
    /// `nop`, `blr x1`, then the code of Go 1.19 to 1.27.
    const AARCH64_CODE: [u32; 10] = [
        0xd503_201f,
        0xd63f_0020,
        0xaa00_03e9,
        0xf940_03fc,
        0x97ff_fc00,
        0xf940_0785,
        0xf940_07e6,
        0xcb06_00a5,
        0xaa09_03e0,
        0x9100_00bf,
    ];

    fn at(word: u64) -> u64 {
        LOW + 8 * word
    }

    fn stepped<A: Machine>(code: &[u8], words: &[u64]) -> Option<Registers> {
        let module = Code(code);
        assert_eq!(rule::<A>(&module, CALL), Some(Rule::SWITCH));
        let from = Registers {
            ip: CALL,
            sp: LOW,
            fp: 77,
        };
        let step = step::<A>(&module, &from, &mut Copied::new(LOW, words));
        step.map(|step| match step {
            Step::Caller { registers, .. } => registers,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_caller_is_on_the_goroutines_stack() {
        let stack = |depth: u64| {
            [
                depth,
                at(4),
                1,
                1,
                at(8),
                at(16),
                1,
                1,
                1,
                1,
                1,
                1,
                55,
                CALLER,
            ]
        };
        let expected = Registers {
            ip: CALLER,
            sp: at(14),
            fp: 55,
        };
        assert_eq!(stepped::<X86_64>(X86_64_CODE, &stack(32)), Some(expected));
        // Depths that are outside of the goroutine's stack, or not aligned.
        for depth in [0, 64, 72, 33, u64::MAX, 1 << 40] {
            assert_eq!(
                stepped::<X86_64>(X86_64_CODE, &stack(depth)),
                None,
                "{depth}"
            );
        }
    }

    #[test]
    fn aarch64_keeps_the_frame_pointer_below_the_return_address() {
        let code = AARCH64_CODE.map(u32::to_le_bytes);
        let stack = [
            at(4),
            32,
            1,
            1,
            at(8),
            at(16),
            1,
            1,
            1,
            1,
            1,
            at(13),
            CALLER,
            1,
        ];
        let expected = Registers {
            ip: CALLER,
            sp: at(13),
            fp: at(13),
        };
        assert_eq!(
            stepped::<Aarch64>(code.as_flattened(), &stack),
            Some(expected)
        );
    }

    #[test]
    fn wrong_words_end_the_stack() {
        for goroutine in [0, 8, LOW + 1, at(13), at(1000), u64::MAX, u64::MAX - 7] {
            let words = [32, goroutine, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
            assert_eq!(
                stepped::<X86_64>(X86_64_CODE, &words),
                None,
                "{goroutine:x}"
            );
        }
    }

    #[test]
    fn other_code_has_no_such_rule() {
        assert_eq!(rule::<X86_64>(&Code(&X86_64_CODE[..30]), CALL), None);
        // Without the call.
        let mut code = [0; 39];
        code.copy_from_slice(X86_64_CODE);
        code[6] = 0x90;
        code[7] = 0x90;
        assert_eq!(rule::<X86_64>(&Code(&code), CALL), None);
    }
}
