//! x86-64, System V ABI.

use super::Local;
use core::arch::{asm, global_asm};
use unwind::Registers;

global_asm!(
    ".pushsection .tbss.mem_agent_local,\"awT\",@nobits",
    ".p2align 4",
    ".hidden mem_agent_local",
    ".globl mem_agent_local",
    ".type mem_agent_local,@object",
    ".size mem_agent_local,32",
    "mem_agent_local:",
    ".zero 32",
    ".popsection",
);

/// The calling thread's words.
#[inline(always)]
pub fn local() -> *mut Local {
    let at: *mut Local;
    // SAFETY: reads the thread pointer and a constant offset from it; the symbol above is
    // 32 zeroed bytes in this module's initial-exec block.
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + mem_agent_local@GOTTPOFF]",
            at = out(reg) at,
            options(pure, readonly, nostack),
        );
    }
    at
}

/// The thread pointer: glibc puts the control block above the stacks that it makes.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let at: u64;
    // SAFETY: reads the thread pointer.
    unsafe {
        asm!("mov {at}, qword ptr fs:[0]", at = out(reg) at, options(pure, readonly, nostack))
    };
    at
}

/// A cycle counter of constant rate.
#[inline(always)]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Defines a function that hands its arguments, up to three, and its caller's registers to
/// `$target(a, b, c, &Registers)`. Reached by a jump from an entry point, so "caller" is
/// who called `malloc`.
macro_rules! with_registers {
    ($name:ident, $target:path) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "sub rsp, 40",
                ".cfi_adjust_cfa_offset 40",
                "mov rax, qword ptr [rsp + 40]",
                "mov qword ptr [rsp], rax",
                "lea rax, [rsp + 48]",
                "mov qword ptr [rsp + 8], rax",
                "mov qword ptr [rsp + 16], rbp",
                "mov rcx, rsp",
                "call {target}",
                "add rsp, 40",
                ".cfi_adjust_cfa_offset -40",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}
pub(crate) use with_registers;

const _: () = assert!(
    core::mem::size_of::<Registers>() == 24,
    "as the assembly lays them"
);
