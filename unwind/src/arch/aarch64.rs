//! aarch64 (DWARF for the Arm 64-bit Architecture, table 4.1; AAPCS64 6.4.6; Linux's
//! `asm/sigcontext.h`).

use super::{Machine, Numbers, SignalFrame, Target};
use gimli::{Register, Vendor};

/// aarch64.
#[derive(Clone, Copy, Debug)]
pub struct Aarch64;

/// Distance of the general registers in a signal's frame: `siginfo_t` (128 bytes), `ucontext_t` up
/// to `uc_mcontext` (176), and the address of the fault (8).
const SAVED: i64 = 128 + 176 + 8;

/// `mov x8, #__NR_rt_sigreturn` and `svc #0`: what the kernel's vdso has, and libgcc looks for.
const SIGNAL_RETURN: [u32; 2] = [0xd280_1168, 0xd400_0001];

impl Machine for Aarch64 {
    const NUMBERS: Numbers = Numbers {
        sp: Register(31),
        fp: Register(29),
        ra: Register(30),
    };
    const HAS_PLT_RULE: bool = false;
    const VENDOR: Vendor = Vendor::AArch64;
    const LINKED: Option<SignalFrame> = Some(SignalFrame {
        fp: SAVED + 29 * 8,
        link: SAVED + 30 * 8,
        sp: SAVED + 31 * 8,
        pc: SAVED + 32 * 8,
    });
    const RECORD_ENDS_FRAME: bool = false;
    const PADDED: Option<[u8; 11]> = None;

    /// Without its pointer-authentication code, whose bits depend on the kernel's address space
    /// (from 39 bits on). Elsewhere, those of an address space of 48 bits are taken off.
    #[inline(always)]
    fn return_address(word: u64) -> u64 {
        #[cfg(target_arch = "aarch64")]
        let word = {
            let address: u64;
            // SAFETY: XPACLRI, spelled as the hint that it is to cores that sign nothing. It
            // changes the one register that is named.
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
            // BL: a distance of 26 bits, in words.
            let distance = i64::from((instruction << 6) as i32 >> 6) * 4;
            let at = ip.wrapping_sub(4);
            return Some(Target::Known(at.wrapping_add_signed(distance)));
        }
        // BLR; those that authenticate the target (BLRAA, BLRABZ and so on).
        let is_by_register =
            instruction & 0xffff_fc1f == 0xd63f_0000 || instruction & 0xfeff_f800 == 0xd63f_0800;
        is_by_register.then_some(Target::Unknown)
    }

    fn is_signal_return(instructions: [u32; 2]) -> bool {
        instructions == SIGNAL_RETURN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_from_other_branches() {
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
}
