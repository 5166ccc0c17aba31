//! aarch64 (DWARF for the Arm 64-bit Architecture, table 4.1; AAPCS64 6.4.6; Linux's
//! `asm/sigcontext.h`).

use super::{Epilogue, Machine, Numbers, SignalFrame, Switch, Target};
use gimli::{Register, Vendor};

/// aarch64.
#[derive(Clone, Copy, Debug)]
pub struct Aarch64;

/// Offset of the general registers in a signal frame: `siginfo_t` (128 bytes), `ucontext_t` up to
/// `uc_mcontext` (176), and the fault address (8).
const REGISTERS_OFFSET: i64 = 128 + 176 + 8;

/// `mov x8, #__NR_rt_sigreturn` and `svc #0`: the trampoline in the kernel's vdso, which libgcc
/// looks for as well.
const SIGNAL_RETURN: [u32; 2] = [0xd280_1168, 0xd400_0001];

impl Machine for Aarch64 {
    const NUMBERS: Numbers = Numbers {
        sp: Register(31),
        fp: Register(29),
        ra: Register(30),
    };
    const HAS_PLT_RULE: bool = false;
    const VENDOR: Vendor = Vendor::AArch64;
    const SIGNAL_FRAME: Option<SignalFrame> = Some(SignalFrame {
        fp: REGISTERS_OFFSET + 29 * 8,
        link: REGISTERS_OFFSET + 30 * 8,
        sp: REGISTERS_OFFSET + 31 * 8,
        pc: REGISTERS_OFFSET + 32 * 8,
    });
    const FRAME_RECORD_IS_OUTERMOST: bool = false;
    const PYTHON_TRAMPOLINE: Option<[u8; 11]> = None;

    /// Strips the pointer-authentication code, whose position depends on the kernel's address space
    /// (at least 39 bits). On other machines, strips all bits above an address space of 48 bits.
    #[inline(always)]
    fn return_address(word: u64) -> u64 {
        #[cfg(target_arch = "aarch64")]
        let word = {
            let address: u64;
            // SAFETY: XPACLRI, encoded as a hint, which is a no-op on cores without pointer
            // authentication. It changes only x30, which is declared.
            unsafe {
                core::arch::asm!(
                    "hint #7",
                    inout("x30") word => address,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            address
        };
        word & 0xffff_ffff_ffff
    }

    fn call(before: [u8; 8], ip: u64) -> Option<Target> {
        let [.., a, b, c, d] = before;
        let instruction = u32::from_le_bytes([a, b, c, d]);
        if !ip.is_multiple_of(4) {
            return None;
        }
        if instruction & 0xfc00_0000 == 0x9400_0000 {
            // BL: a signed offset of 26 bits, in words.
            let distance = i64::from((instruction << 6) as i32 >> 6) * 4;
            let at = ip.wrapping_sub(4);
            return Some(Target::Known(at.wrapping_add_signed(distance)));
        }
        // BLR, and its forms that authenticate the target (BLRAA, BLRABZ and so on).
        let is_by_register =
            instruction & 0xffff_fc1f == 0xd63f_0000 || instruction & 0xfeff_f800 == 0xd63f_0800;
        is_by_register.then_some(Target::Unknown)
    }

    fn epilogue(code: &[u8]) -> Option<Epilogue> {
        const RET: u32 = 0xd65f_03c0;
        const RETAA: u32 = 0xd65f_0bff;
        const AUTIASP: u32 = 0xd503_23bf;
        // Bytes popped so far, and the positions of the saved registers among them.
        let mut popped = 0;
        let mut saved = Saved::default();
        for word in code.chunks_exact(4) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            match word {
                RET | RETAA => {
                    // The stack pointer is a multiple of 16 (AAPCS64 6.2.2), and a function that
                    // makes a call has saved its return address.
                    let is_whole = popped > 0 && popped % 16 == 0;
                    return saved.link.filter(|_| is_whole).map(|link| Epilogue {
                        by_fp: false,
                        cfa: popped,
                        ra: link - popped,
                        fp: saved.fp.map(|at| at - popped),
                    });
                }
                AUTIASP => {}
                // mov to a general register below 29, from another or of a constant.
                _ if word & 0x7fe0_ffe0 == 0x2a00_03e0 && word & 31 < 29 => {}
                _ if word & 0x7f80_0000 == 0x5280_0000 && word & 31 < 29 => {}
                // add sp, sp, #n.
                _ if word & 0xffc0_03ff == 0x9100_03ff => popped += i64::from((word >> 10) & 0xfff),
                // ldp d, d, [sp, #n].
                _ if word & 0xffc0_03e0 == 0x6d40_03e0 => {}
                // ldr x, [sp], #n; ldr x, [sp, #n].
                _ if word & 0xffe0_0fe0 == 0xf840_07e0 => {
                    record_position(word & 31, popped, &mut saved)?;
                    popped += signed(word >> 12, 9);
                }
                _ if word & 0xffc0_03e0 == 0xf940_03e0 => {
                    let at = popped + i64::from((word >> 10) & 0xfff) * 8;
                    record_position(word & 31, at, &mut saved)?;
                }
                // ldp x, x, [sp], #n, which adds n after loading; ldp x, x, [sp, #n].
                _ if word & 0xffc0_03e0 == 0xa8c0_03e0 || word & 0xffc0_03e0 == 0xa940_03e0 => {
                    let distance = signed(word >> 15, 7) * 8;
                    let is_post_indexed = word & 0x0100_0000 == 0;
                    let at = popped + if is_post_indexed { 0 } else { distance };
                    record_position(word & 31, at, &mut saved)?;
                    record_position((word >> 10) & 31, at + 8, &mut saved)?;
                    popped += if is_post_indexed { distance } else { 0 };
                }
                _ => return None,
            }
        }
        None
    }

    fn switch(code: &[u8]) -> Option<Switch> {
        /// `bl` without its distance.
        const CALL: u32 = 0x9400_0000;
        // `asmcgocall` has two calls: the first after leaving the goroutine's stack, the second if
        // it was on the thread's stack already.
        let (words, _) = code.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let mut next = || words.next();
        let goroutine = match next()? {
            // mov x9, x0; ldr x28, [sp]; bl runtime.save_g; ldr x5, [x28, #8]; ldr x6, [sp, #8];
            // sub x5, x5, x6; mov x0, x9; mov sp, x5.
            0xaa00_03e9 => {
                let is_switch = next()? == 0xf940_03fc
                    && next()? & 0xfc00_0000 == CALL
                    && [
                        0xf940_0785,
                        0xf940_07e6,
                        0xcb06_00a5,
                        0xaa09_03e0,
                        0x9100_00bf,
                    ]
                    .into_iter()
                    .all(|word| next() == Some(word));
                is_switch.then_some(Some(0))
            }
            // ldr x2, [sp, #8]; mov sp, x2.
            0xf940_07e2 => (next()? == 0x9100_005f).then_some(None),
            _ => None,
        }?;
        // The return address is at the bottom of the frame, and the saved frame pointer one word
        // below it. The caller's frame is laid out likewise: its frame record begins one word
        // below its stack pointer.
        Some(Switch {
            goroutine,
            depth: 8,
            ra: 0,
            fp: Some(-8),
            caller: 8,
        })
    }

    fn callback(code: &[u8]) -> Option<u64> {
        let (words, _) = code.as_chunks::<4>();
        let mut words = words
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .peekable();
        // ldr x5, [sp]; str x5, [x28, #64].
        if words.next()? != 0xf940_03e5 || words.next()? != 0xf900_2385 {
            return None;
        }
        // ldur x6, [sp, #-8]; str x6, [x28, #n], since Go 1.22.
        if words.next_if_eq(&0xf85f_83e6).is_some() && words.next()? & 0xffc0_03ff != 0xf900_0386 {
            return None;
        }
        // mov x4, sp; add x4, x4, #n; str x4, [x28, #56].
        let is_moved = words.next()? == 0x9100_03e4;
        let add = words.next()?;
        let is_stored = add & 0xffc0_03ff == 0x9100_0084 && words.next()? == 0xf900_1f84;
        let frame = u64::from((add >> 10) & 0xfff);
        // The frame record begins one word below the frame.
        (is_moved && is_stored).then_some(8 + frame)
    }

    fn is_signal_return(instructions: [u32; 2]) -> bool {
        instructions == SIGNAL_RETURN
    }
}

/// Positions of saved registers, in bytes above the stack pointer at the start of an epilogue.
#[derive(Default)]
struct Saved {
    link: Option<i64>,
    fp: Option<i64>,
}

/// Records the position `at` of a saved register. Returns `None` if no epilogue restores that
/// register.
fn record_position(register: u32, at: i64, saved: &mut Saved) -> Option<()> {
    match register {
        19..=28 => {}
        29 => saved.fp = Some(at),
        30 => saved.link = Some(at),
        _ => return None,
    }
    Some(())
}

/// Sign-extends the lowest `bits` bits of a field.
fn signed(field: u32, bits: u32) -> i64 {
    i64::from((field << (32 - bits)) as i32 >> (32 - bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_distinguished_from_other_branches() {
        // blr x1; blraa x1, x2; blraaz x3; blrab x30, sp; blrabz x9.
        let calls = [
            0xd63f_0020,
            0xd73f_0822,
            0xd63f_087f,
            0xd73f_0fdf,
            0xd63f_0d3f,
        ];
        // b; br x1; ret; retaa; nop; cbz; zero.
        let others = [
            0x1400_0010,
            0xd61f_0020,
            0xd65f_03c0,
            0xd65f_0bff,
            0xd503_201f,
            0xb400_0040,
            0,
        ];
        let call = |instruction: u32, ip| {
            let [a, b, c, d] = instruction.to_le_bytes();
            Aarch64::call([0, 0, 0, 0, a, b, c, d], ip)
        };
        for instruction in calls {
            assert_eq!(call(instruction, 0x1004), Some(Target::Unknown));
        }
        for other in others {
            assert_eq!(call(other, 0x1004), None, "{other:x}");
        }
        for (instruction, to) in [(0x9400_0010, 0x1040), (0x97ff_fff0, 0xfc0)] {
            assert_eq!(call(instruction, 0x1004), Some(Target::Known(to)));
        }
        assert_eq!(call(0x9400_0010, 0x1002), None);
    }

    fn epilogue(words: &[u32]) -> Option<Epilogue> {
        let bytes: std::vec::Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Aarch64::epilogue(&bytes)
    }

    #[test]
    fn a_functions_epilogue_reveals_its_frame() {
        let frame = |cfa, ra, fp| {
            Some(Epilogue {
                by_fp: false,
                cfa,
                ra,
                fp,
            })
        };
        // ldr x30, [sp], #16; ret.
        assert_eq!(epilogue(&[0xf841_07fe, 0xd65f_03c0]), frame(16, -16, None));
        // mov w0, #0; ldp x29, x30, [sp], #16; autiasp; ret.
        let code = [0x5280_0000, 0xa8c1_7bfd, 0xd503_23bf, 0xd65f_03c0];
        assert_eq!(epilogue(&code), frame(16, -8, Some(-16)));
        // mov x0, x19; ldp x20, x19, [sp, #32]; ldp x29, x30, [sp, #16]; add sp, sp, #48; ret.
        let code = [
            0xaa13_03e0,
            0xa942_4ff4,
            0xa941_7bfd,
            0x9100_c3ff,
            0xd65f_03c0,
        ];
        assert_eq!(epilogue(&code), frame(48, -24, Some(-32)));
        // ret alone; without x30; a stack that is not aligned; x0 restored; b; nothing.
        let others: [&[u32]; 6] = [
            &[0xd65f_03c0],
            &[0x9100_43ff, 0xd65f_03c0],
            &[0xf840_87fe, 0xd65f_03c0],
            &[0xf841_07e0, 0xd65f_03c0],
            &[0x1400_0010],
            &[],
        ];
        for other in others {
            assert_eq!(epilogue(other), None, "{other:x?}");
        }
    }
}
