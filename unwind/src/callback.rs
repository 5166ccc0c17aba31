//! Steps from Go that was called by C.
//!
//! Goroutines have stacks of their own, so a function of Go that C calls runs on one of them:
//! `runtime.cgocallback` leaves the thread's stack, on which C called it, and calls the function on
//! the stack of the goroutine that had called C. `cgocallback` has a frame record, which stays on
//! the thread's stack, and passes the frame pointer on. It is recognised by the code after its
//! call, which prepares the way back; a step continues on the thread's stack by that record. The
//! return address in the record must follow a call of `cgocallback`.

// Decision 89: from C to goroutines by the code after the call.
use crate::Registers;
use crate::arch::{Machine, Target};
use crate::elf::Module;
use crate::rule::{Rule, Step, Word};
use crate::stack::Memory;

/// Maximum distance in bytes from the start of `cgocallback` to the return address of its call.
/// Go 1.19 to 1.27 has 180 on x86-64, and 176 on aarch64.
const MAX_DISTANCE: u64 = 512;

/// Returns the rule of `ip`, if it follows a call for which the thread's stack was left.
#[cold]
pub(crate) fn rule<'a, A: Machine>(module: &impl Module<'a>, ip: u64) -> Option<Rule> {
    decode::<A>(module, ip).map(|_| Rule::CALLBACK)
}

fn decode<'a, A: Machine>(module: &impl Module<'a>, ip: u64) -> Option<u64> {
    A::callback(&module.after_call::<A>(ip)?)
}

/// Steps to the caller on the thread's stack. Returns `None` if the memory is not as expected.
pub(crate) fn step<'a, A: Machine>(
    module: &impl Module<'a>,
    at: &Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    let bytes = decode::<A>(module, at.ip)?;
    if at.fp == 0 || at.fp & 7 != 0 {
        return None;
    }
    memory.move_to(at.fp).ok()?;
    let fp = memory.read(at.fp).ok()?;
    let ip = A::return_address(memory.read(at.fp.checked_add(8)?).ok()?);
    // Not `bytes_before`, which modules of other processes do not implement.
    let [before, ..] = module.code_around(ip)?;
    let Some(Target::Known(start)) = A::call(before, ip) else {
        return None;
    };
    let calls_this_function = start < at.ip && at.ip - start <= MAX_DISTANCE;
    let registers = Registers {
        ip,
        sp: at.fp.checked_add(bytes)?,
        fp,
    };
    let none = Word::default();
    calls_this_function.then_some(Step::Caller {
        registers,
        ra: none,
        fp: none,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Aarch64, X86_64};
    use crate::elf::Section;
    use crate::stack::Copied;

    const BASE: u64 = 0x40_0f00;
    /// Return address of the call of Go, and of the call of `cgocallback` from C's side.
    const GO: u64 = 0x40_1000;
    const FROM_C: u64 = 0x40_2000;
    /// Address of the record.
    const RECORD: u64 = 0x7000_0010;

    /// Code that is all zeros but for two parts.
    struct Code(std::vec::Vec<u8>);

    impl Code {
        fn new(around: &[u8], before: usize, call: &[u8]) -> Self {
            let mut bytes = std::vec![0; 0x1200];
            let go = (GO - BASE) as usize - before;
            bytes[go..go + around.len()].copy_from_slice(around);
            let from_c = (FROM_C - BASE) as usize;
            bytes[from_c - call.len()..from_c].copy_from_slice(call);
            Self(bytes)
        }
    }

    impl<'a> Module<'a> for Code {
        fn eh_frame_hdr(&self) -> Option<Section<'a>> {
            None
        }

        fn bytes_from(&self, _: u64) -> Option<Section<'a>> {
            None
        }

        fn bytes_before(&self, address: u64) -> Option<[u8; 8]> {
            let end = usize::try_from(address.checked_sub(BASE)?).ok()?;
            let bytes = self.0.get(end.checked_sub(8)?..end)?;
            bytes.try_into().ok()
        }
    }

    /// `call *%rax`, then the code of Go 1.19 to 1.27.
    const X86_64_CODE: [u8; 38] = [
        0xff, 0xd0, 0x48, 0x8d, 0x44, 0x24, 0x28, 0x48, 0x29, 0xe0, 0x64, 0x48, 0x8b, 0x34, 0x25,
        0xf8, 0xff, 0xff, 0xff, 0x48, 0x89, 0xe7, 0x48, 0x01, 0xc7, 0x48, 0x8b, 0x5f, 0xf8, 0x48,
        0x89, 0x5e, 0x40, 0x48, 0x89, 0x7e, 0x38, 0x64,
    ];
    /// `blr x11`, then the code of Go 1.27.
    const AARCH64_CODE: [u32; 8] = [
        0xd63f_0160,
        0xf940_03e5,
        0xf900_2385,
        0xf85f_83e6,
        0xf900_3386,
        0x9100_03e4,
        0x9100_c084,
        0xf900_1f84,
    ];

    fn x86_64(distance: i32) -> Code {
        let [a, b, c, d] = distance.to_le_bytes();
        Code::new(&X86_64_CODE, 2, &[0xe8, a, b, c, d])
    }

    fn stepped<A: Machine>(code: &Code, fp: u64) -> Option<Registers> {
        assert_eq!(rule::<A>(code, GO), Some(Rule::CALLBACK));
        let at = Registers {
            ip: GO,
            sp: 0xc000_0000,
            fp,
        };
        let words = [1, 1, 77, FROM_C, 1, 1];
        let step = step::<A>(code, &at, &mut Copied::new(0x7000_0000, &words));
        step.map(|step| match step {
            Step::Caller { registers, .. } => registers,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_caller_is_on_the_threads_stack() {
        let caller = |sp| {
            Some(Registers {
                ip: FROM_C,
                sp,
                fp: 77,
            })
        };
        let code = x86_64(-0x10b4);
        assert_eq!(stepped::<X86_64>(&code, RECORD), caller(RECORD + 16));
        for wrong in [0, 4, RECORD + 8, RECORD + 1, RECORD - 8, 8, u64::MAX - 7] {
            assert_eq!(stepped::<X86_64>(&code, wrong), None, "{wrong:x}");
        }
        let code = AARCH64_CODE.map(u32::to_le_bytes);
        let call = 0x97ff_fbf0_u32.to_le_bytes();
        let code = Code::new(code.as_flattened(), 4, &call);
        assert_eq!(stepped::<Aarch64>(&code, RECORD), caller(RECORD + 56));
    }

    #[test]
    fn a_call_of_another_function_is_not_the_callers() {
        for distance in [-0x1000, -0x1300, 0x10] {
            assert_eq!(stepped::<X86_64>(&x86_64(distance), RECORD), None);
        }
    }

    #[test]
    fn other_code_has_no_such_rule() {
        for changed in (0..X86_64_CODE.len()).filter(|at| ![6, 15, 16, 17, 18].contains(at)) {
            let mut bytes = X86_64_CODE;
            bytes[changed] ^= 0x40;
            let is_followed = changed == X86_64_CODE.len() - 1;
            let found = rule::<X86_64>(&Code::new(&bytes, 2, &[]), GO);
            assert_eq!(found.is_some(), is_followed, "{changed}");
        }
    }
}
