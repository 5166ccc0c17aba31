//! x86-64 (System V ABI, x86-64 psABI table 3.36).

use super::{Machine, Numbers, SignalFrame, Target};
use gimli::{Register, Vendor};

/// x86-64.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

impl Machine for X86_64 {
    const NUMBERS: Numbers = Numbers {
        sp: Register(7),
        fp: Register(6),
        ra: Register(16),
    };
    const HAS_PLT_RULE: bool = true;
    const VENDOR: Vendor = Vendor::Default;
    const LINKED: Option<SignalFrame> = None;
    const RECORD_ENDS_FRAME: bool = true;
    /// `sub $8, %rsp`, `call *%rcx`, `add $8, %rsp`, `ret`.
    const PADDED: Option<[u8; 11]> = Some([
        0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ]);

    #[inline(always)]
    fn return_address(word: u64) -> u64 {
        word
    }

    fn call(before: [u8; 8], ip: u64) -> Option<Target> {
        // Bytes of a call through a register or memory: opcode FF, the operand's kind, then what that
        // kind takes.
        let by_operand = (2..=7).any(|bytes| {
            let [opcode, operand, rest @ ..] = &before[8 - bytes..] else {
                return false;
            };
            *opcode == 0xff && operand >> 3 & 7 == 2 && operand_bytes(*operand, rest) == bytes - 1
        });
        if by_operand {
            return Some(Target::Unknown);
        }
        let [_, _, _, 0xe8, a, b, c, d] = before else {
            return None;
        };
        let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
        Some(Target::Known(ip.wrapping_add_signed(distance)))
    }

    fn is_signal_return(_: [u32; 2]) -> bool {
        false
    }
}

/// How many bytes an operand takes that begins with this byte (ModRM): itself, a scaled index, and a
/// distance of one or four bytes.
fn operand_bytes(operand: u8, rest: &[u8]) -> usize {
    let (mode, base) = (operand >> 6, operand & 7);
    let has_index = mode != 3 && base == 4;
    let is_based_on_nothing = match has_index {
        true => rest.first().is_some_and(|index| index & 7 == 5),
        false => base == 5,
    };
    let distance = match mode {
        0 if is_based_on_nothing => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    1 + usize::from(has_index) + distance
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(instruction: &[u8]) -> Option<Target> {
        let mut before = [0x90; 8];
        before[8 - instruction.len()..].copy_from_slice(instruction);
        X86_64::call(before, 0x1000)
    }

    #[test]
    fn calls_are_told_from_other_instructions() {
        // call rax; call r12; [rbx]; [rdi+0x18]; [rsp+8]; [rax*8+0x1234]; [rip+0x2000];
        // [rbp-0x400]; [rsp+0x400]; [r13+rcx*8].
        let calls: [&[u8]; 10] = [
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd4],
            &[0xff, 0x13],
            &[0xff, 0x57, 0x18],
            &[0xff, 0x54, 0x24, 0x08],
            &[0xff, 0x14, 0xc5, 0x34, 0x12, 0, 0],
            &[0xff, 0x15, 0, 0x20, 0, 0],
            &[0xff, 0x95, 0, 0xfc, 0xff, 0xff],
            &[0xff, 0x94, 0x24, 0, 4, 0, 0],
            &[0x41, 0xff, 0x54, 0xcd, 0],
        ];
        for instruction in calls {
            assert_eq!(call(instruction), Some(Target::Unknown), "{instruction:x?}");
        }
        // jmp rax; push [rbx]; jmp rel32; ret; syscall; zero; a call's beginning; nothing.
        let others: [&[u8]; 8] = [
            &[0xff, 0xe0],
            &[0xff, 0x33],
            &[0xe9, 0x10, 0, 0, 0],
            &[0xc3],
            &[0x0f, 0x05],
            &[0; 8],
            &[0xff, 0x15, 0, 0x20],
            &[],
        ];
        for other in others {
            assert_eq!(call(other), None, "{other:x?}");
        }
        assert_eq!(call(&[0xe8, 0x10, 0, 0, 0]), Some(Target::Known(0x1010)));
        let back = [0xe8, 0xf0, 0xff, 0xff, 0xff];
        assert_eq!(call(&back), Some(Target::Known(0xff0)));
    }
}
