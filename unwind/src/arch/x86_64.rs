//! x86-64 (System V ABI, x86-64 psABI table 3.36).

use super::{Epilogue, Machine, Numbers, SignalFrame, Switch, Target};
use gimli::{Register, Vendor};

/// x86-64.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

/// Number of callee-saved registers, other than the stack pointer (psABI 3.2.3).
const CALLEE_SAVED: usize = 6;

impl Machine for X86_64 {
    const NUMBERS: Numbers = Numbers {
        sp: Register(7),
        fp: Register(6),
        ra: Register(16),
    };
    const HAS_PLT_RULE: bool = true;
    const VENDOR: Vendor = Vendor::Default;
    const SIGNAL_FRAME: Option<SignalFrame> = None;
    const FRAME_RECORD_IS_OUTERMOST: bool = true;
    /// `sub $8, %rsp`, `call *%rcx`, `add $8, %rsp`, `ret`.
    const PYTHON_TRAMPOLINE: Option<[u8; 11]> = Some([
        0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ]);

    #[inline(always)]
    fn return_address(word: u64) -> u64 {
        word
    }

    fn call(before: [u8; 8], ip: u64) -> Option<Target> {
        // A call through a register or memory: opcode FF, ModRM byte, then what that requires.
        let by_operand = (2..=7).any(|bytes| {
            let [opcode, operand, rest @ ..] = &before[8 - bytes..] else {
                return false;
            };
            *opcode == 0xff && (operand >> 3) & 7 == 2 && operand_bytes(*operand, rest) == bytes - 1
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

    fn epilogue(mut code: &[u8]) -> Option<Epilogue> {
        // Bytes popped so far, and the position of the saved frame pointer among them. Number of
        // registers that are restored without popping them.
        let mut popped = 0;
        let mut fp = None;
        let mut loaded = 0;
        loop {
            let length = match *code {
                // ret; rep ret.
                [0xc3, ..] | [0xf3, 0xc3, ..] => {
                    let cfa = popped + 8;
                    // The stack is aligned to 16 bytes at a call (psABI 3.2.2), so a function that
                    // makes a call has moved the stack pointer by 8 plus a multiple of 16.
                    // Go's functions need not keep to that. `crosscall2`, which C calls, loads all
                    // callee-saved registers.
                    let is_whole = popped > 0 && (cfa % 16 == 0 || loaded == CALLEE_SAVED);
                    return is_whole.then_some(Epilogue {
                        by_fp: false,
                        cfa,
                        ra: -8,
                        fp: fp.map(|at: i64| at - cfa),
                    });
                }
                // leave, ret.
                [0xc9, 0xc3, ..] if popped == 0 => {
                    return Some(Epilogue {
                        by_fp: true,
                        cfa: 16,
                        ra: -8,
                        fp: Some(-16),
                    });
                }
                // mov n(%rsp) to %rbx, %rbp or %r12 to %r15, which are callee-saved.
                [0x48, 0x8b, 0x1c, 0x24, ..] => {
                    loaded += 1;
                    4
                }
                [0x48, 0x8b, 0x5c, 0x24, 8..=0x7f, ..]
                | [0x4c, 0x8b, 0x64 | 0x6c | 0x74 | 0x7c, 0x24, 8..=0x7f, ..] => {
                    loaded += 1;
                    5
                }
                [0x48, 0x8b, 0x6c, 0x24, n @ 8..=0x7f, ..] => {
                    fp = Some(popped + i64::from(n));
                    loaded += 1;
                    5
                }
                // add $n, %rsp.
                [0x48, 0x83, 0xc4, n @ 8..=0x7f, ..] => {
                    popped += i64::from(n);
                    4
                }
                [0x48, 0x81, 0xc4, a, b, c, d, ..] if d < 0x80 => {
                    popped += i64::from(u32::from_le_bytes([a, b, c, d]));
                    7
                }
                // pop %r8 to %r15.
                [0x41, 0x58..=0x5f, ..] => {
                    popped += 8;
                    2
                }
                // pop of another register, except for the stack pointer.
                [register @ (0x58..=0x5b | 0x5d..=0x5f), ..] => {
                    if register == 0x5d {
                        fp = Some(popped);
                    }
                    popped += 8;
                    1
                }
                // Setting the return value: xor or mov between registers; mov of a constant.
                [0x31 | 0x33 | 0x89 | 0x8b, operand, ..] if is_between_unfollowed(operand) => 2,
                [0x40..=0x4f, 0x31 | 0x33 | 0x89 | 0x8b, operand, ..]
                    if is_between_unfollowed(operand) =>
                {
                    3
                }
                [0xb8, ..] => 5,
                _ => return None,
            };
            code = code.get(length..)?;
        }
    }

    fn switch(code: &[u8]) -> Option<Switch> {
        // Position-independent code loads the offset of the thread's goroutine first: mov
        // offset(%rip), %rcx or mov $n, %rcx.
        let code = match code {
            [0x48, 0x8b, 0x0d, rest @ ..] | [0x48, 0xc7, 0xc1, rest @ ..] => rest.get(4..)?,
            _ => code,
        };
        let (goroutine, depth, code) = match code {
            // mov n(%rsp), %rdi; mov 8(%rdi), %rsi; sub m(%rsp), %rsi or sub (%rsp), %rsi.
            [
                0x48,
                0x8b,
                0x7c,
                0x24,
                at,
                0x48,
                0x8b,
                0x77,
                8,
                0x48,
                0x2b,
                rest @ ..,
            ] => {
                let (depth, rest) = word_at_sp(rest)?;
                // mov %rdi, %fs:-8; mov %rdi, %fs:(%rcx).
                let rest = match rest {
                    [0x64, 0x48, 0x89, 0x3c, 0x25, rest @ ..] => rest.get(4..)?,
                    [0x64, 0x48, 0x89, 0x39, rest @ ..] => rest,
                    _ => return None,
                };
                (Some(i64::from(*at)), depth, rest)
            }
            // mov m(%rsp), %rsi or mov (%rsp), %rsi.
            [0x48, 0x8b, rest @ ..] => {
                let (depth, rest) = word_at_sp(rest)?;
                (None, depth, rest)
            }
            _ => return None,
        };
        // mov %rsi, %rsp; mov %eax, n(%rsp), which stores the result 16 bytes above the end of the
        // return address. Then ret; since Go 1.21, pop %rbp and ret.
        match code {
            [0x48, 0x89, 0xf4, 0x89, 0x44, 0x24, 0x18, 0xc3, ..] => Some(Switch {
                goroutine,
                depth,
                ra: 0,
                fp: None,
                caller: 8,
            }),
            [0x48, 0x89, 0xf4, 0x89, 0x44, 0x24, 0x20, 0x5d, 0xc3, ..] => Some(Switch {
                goroutine,
                depth,
                ra: 8,
                fp: Some(0),
                caller: 16,
            }),
            _ => None,
        }
    }

    fn callback(code: &[u8]) -> Option<u64> {
        // lea n(%rsp), %rax; sub %rsp, %rax.
        let [0x48, 0x8d, 0x44, 0x24, _, 0x48, 0x29, 0xe0, code @ ..] = code else {
            return None;
        };
        // mov %fs:-8, %rsi; position-independent code loads that offset first: mov offset(%rip),
        // %rcx or mov $n, %rcx; mov %fs:(%rcx), %rsi.
        let code = match code {
            [0x64, 0x48, 0x8b, 0x34, 0x25, rest @ ..] => rest.get(4..)?,
            [0x48, 0x8b, 0x0d, rest @ ..] | [0x48, 0xc7, 0xc1, rest @ ..] => rest.get(4..)?,
            _ => return None,
        };
        let code = code.strip_prefix(&[0x64, 0x48, 0x8b, 0x31]).unwrap_or(code);
        // mov %rsp, %rdi; add %rax, %rdi; mov -8(%rdi), %rbx; mov %rbx, 0x40(%rsi); mov %rdi,
        // 0x38(%rsi). %rdi is the end of the frame on the goroutine's stack, whose last word is the
        // return address. The frame on the thread's stack has the same layout.
        let rest = code.strip_prefix(&[
            0x48, 0x89, 0xe7, 0x48, 0x01, 0xc7, 0x48, 0x8b, 0x5f, 0xf8, 0x48, 0x89, 0x5e, 0x40,
            0x48, 0x89, 0x7e, 0x38,
        ]);
        rest.map(|_| 16)
    }

    fn is_signal_return(_: [u32; 2]) -> bool {
        false
    }
}

/// Decodes the operands `n(%rsp), %rsi`, without the opcode. Returns `n` and the code after the
/// instruction.
fn word_at_sp(code: &[u8]) -> Option<(i64, &[u8])> {
    match code {
        [0x34, 0x24, rest @ ..] => Some((0, rest)),
        [0x74, 0x24, at @ 0..=0x7f, rest @ ..] => Some((i64::from(*at), rest)),
        _ => None,
    }
}

/// Returns true if a ModRM byte names two registers, neither of which is rsp or rbp (or, with a REX
/// prefix, r12 or r13).
fn is_between_unfollowed(operand: u8) -> bool {
    let is_other = |register: u8| !matches!(register & 7, 4 | 5);
    operand >= 0xc0 && is_other(operand) && is_other(operand >> 3)
}

/// Returns the size of an operand that starts with ModRM byte `operand`: that byte, a SIB byte if
/// there is one, and a displacement of none, one or four bytes.
fn operand_bytes(operand: u8, rest: &[u8]) -> usize {
    let mode = operand >> 6;
    let base = operand & 7;
    let has_index = mode != 3 && base == 4;
    let has_no_base = if has_index {
        rest.first().is_some_and(|index| index & 7 == 5)
    } else {
        base == 5
    };
    let displacement = match mode {
        0 if has_no_base => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    1 + usize::from(has_index) + displacement
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
    fn calls_are_distinguished_from_other_instructions() {
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
        // jmp rax; push [rbx]; jmp rel32; ret; syscall; zeros; the first bytes of a call; no bytes.
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

    #[test]
    fn a_switch_of_stacks_is_recognised_in_all_versions_of_go() {
        // mov 0x30(%rsp), %rdi; mov 8(%rdi), %rsi; sub 0x28(%rsp), %rsi; mov %rdi, %fs:-8;
        // mov %rsi, %rsp; mov %eax, 0x18(%rsp); ret.
        let mut older = std::vec![
            0x48, 0x8b, 0x7c, 0x24, 0x30, 0x48, 0x8b, 0x77, 8, 0x48, 0x2b, 0x74, 0x24, 0x28, 0x64,
            0x48, 0x89, 0x3c, 0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x89, 0xf4, 0x89, 0x44, 0x24,
            0x18, 0xc3,
        ];
        let mut expected = Switch {
            goroutine: Some(0x30),
            depth: 0x28,
            ra: 0,
            fp: None,
            caller: 8,
        };
        assert_eq!(X86_64::switch(&older), Some(expected));
        for end in 0..older.len() {
            assert_eq!(X86_64::switch(&older[..end]), None, "{end}");
        }
        for changed in (0..older.len()).filter(|at| ![4, 13, 19, 20, 21, 22].contains(at)) {
            older[changed] ^= 0x40;
            assert_eq!(X86_64::switch(&older), None, "{changed}");
            older[changed] ^= 0x40;
        }
        // mov n(%rip), %rcx, and the store through it.
        let by_register = [
            &[0x48, 0x8b, 0x0d, 1, 2, 3, 4][..],
            &older[..14],
            &[0x64, 0x48, 0x89, 0x39],
            &older[23..],
        ];
        assert_eq!(X86_64::switch(&by_register.concat()), Some(expected));
        // Since Go 1.22: the depth is at (%rsp), and the frame pointer is saved.
        let newer = [
            &[
                0x48, 0x8b, 0x7c, 0x24, 8, 0x48, 0x8b, 0x77, 8, 0x48, 0x2b, 0x34, 0x24,
            ][..],
            &older[14..29],
            &[0x20, 0x5d, 0xc3],
        ];
        expected = Switch {
            goroutine: Some(8),
            depth: 0,
            ra: 8,
            fp: Some(0),
            caller: 16,
        };
        assert_eq!(X86_64::switch(&newer.concat()), Some(expected));
        // On the thread's stack already: mov (%rsp), %rsi.
        let same = [
            0x48, 0x8b, 0x34, 0x24, 0x48, 0x89, 0xf4, 0x89, 0x44, 0x24, 0x20, 0x5d, 0xc3,
        ];
        expected.goroutine = None;
        assert_eq!(X86_64::switch(&same), Some(expected));
    }

    #[test]
    fn a_functions_epilogue_reveals_its_frame() {
        let by_sp = |cfa, fp| {
            Some(Epilogue {
                by_fp: false,
                cfa,
                ra: -8,
                fp,
            })
        };
        // pop rcx; ret.
        assert_eq!(X86_64::epilogue(&[0x59, 0xc3]), by_sp(16, None));
        // xor eax, eax; add rsp, 8; pop rbx; pop rbp; rep ret.
        let code = [0x31, 0xc0, 0x48, 0x83, 0xc4, 8, 0x5b, 0x5d, 0xf3, 0xc3];
        assert_eq!(X86_64::epilogue(&code), by_sp(32, Some(-16)));
        // mov rax, rbx; add rsp, 0x1008; pop r12; pop r15; ret, and something else.
        let code = [
            0x48, 0x89, 0xd8, 0x48, 0x81, 0xc4, 8, 0x10, 0, 0, 0x41, 0x5c, 0x41, 0x5f, 0xc3, 0xff,
        ];
        assert_eq!(X86_64::epilogue(&code), by_sp(0x1020, None));
        assert_eq!(X86_64::epilogue(&code[..14]), None, "cut");
        let fewer = [&code[..12], &code[14..]].concat();
        assert_eq!(X86_64::epilogue(&fewer), None, "not aligned");
        let code = [0xb8, 1, 0, 0, 0, 0x48, 0x83, 0xc4, 0x10, 0x41, 0x5c, 0xc3];
        assert_eq!(X86_64::epilogue(&code), by_sp(32, None));
        // leave; ret.
        let by_fp = Epilogue {
            by_fp: true,
            cfa: 16,
            ra: -8,
            fp: Some(-16),
        };
        assert_eq!(X86_64::epilogue(&[0xc9, 0xc3]), Some(by_fp));
        // ret; pop rsp; mov rsp, rbp; mov ebp, eax; sub rsp, 8; add rsp, -8; jmp; nothing.
        let others: [&[u8]; 8] = [
            &[0xc3],
            &[0x5c, 0x59, 0xc3],
            &[0x48, 0x89, 0xec, 0x5d, 0xc3],
            &[0x89, 0xc5, 0x59, 0xc3],
            &[0x48, 0x83, 0xec, 8, 0xc3],
            &[0x48, 0x83, 0xc4, 0xf8, 0xc3],
            &[0xeb, 0x10],
            &[],
        ];
        for other in others {
            assert_eq!(X86_64::epilogue(other), None, "{other:x?}");
        }
    }
}
