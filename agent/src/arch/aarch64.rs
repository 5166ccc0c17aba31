//! aarch64, AAPCS64.

use super::Local;
use core::arch::{asm, global_asm};
use unwind::Registers;

global_asm!(
    ".pushsection .tbss.mem_agent_local,\"awT\",@nobits",
    ".p2align 4",
    ".hidden mem_agent_local",
    ".globl mem_agent_local",
    ".type mem_agent_local,%object",
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
            "mrs {at}, tpidr_el0",
            "adrp {offset}, :gottprel:mem_agent_local",
            "ldr {offset}, [{offset}, #:gottprel_lo12:mem_agent_local]",
            "add {at}, {at}, {offset}",
            at = out(reg) at,
            offset = out(reg) _,
            options(pure, readonly, nostack),
        );
    }
    at
}

/// Whether the calling thread has met `epoch` and `bytes` more may pass unsampled; then they
/// are counted.
#[inline(always)]
pub fn counts_down(epoch: u8, bytes: usize) -> bool {
    let local = local();
    // SAFETY: the thread's own words.
    unsafe {
        if (*local).epoch != epoch {
            return false;
        }
        (*local).left = (*local).left.wrapping_sub(bytes as i64);
        (*local).left >= 0
    }
}

/// The thread pointer: glibc puts the control block above the stacks that it makes.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let at: u64;
    // SAFETY: reads the thread pointer.
    unsafe { asm!("mrs {at}, tpidr_el0", at = out(reg) at, options(pure, readonly, nostack)) };
    at
}

/// A counter of constant rate.
#[inline(always)]
pub fn cycles() -> u64 {
    let at: u64;
    // SAFETY: readable from user space on Linux.
    unsafe { asm!("mrs {at}, cntvct_el0", at = out(reg) at, options(nomem, nostack)) };
    at
}

/// Defines the entry point `$name` of one size: the allocator's `malloc` while sampling is
/// off or the gap to the next sample is longer, else `$due`.
macro_rules! counting_entry {
    ($(#[$doc:meta])* $name:ident, else $due:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(size: usize) -> *mut c_void {
            // SAFETY: the C contract, passed on.
            unsafe { if passes(size) { NEXT.malloc(size) } else { $due(size, 0, 0) } }
        }
    };
}
pub(crate) use counting_entry;

/// Defines the entry point `$name` of one address: the allocator's `free`, or `$low` where
/// `range::may_contain` says so.
macro_rules! freeing_entry {
    ($(#[$doc:meta])* $name:ident, else $low:path) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut c_void) {
            // SAFETY: the C contract, passed on.
            unsafe { if range::may_contain(p) { $low(p) } else { NEXT.free(p) } }
        }
    };
}
pub(crate) use freeing_entry;

/// Defines a function that hands its arguments, up to three, and its caller's registers to
/// `$target(a, b, c, &Registers)`. Reached by a jump from an entry point, so "caller" is
/// who called `malloc`.
macro_rules! with_registers {
    ($name:ident, $target:path) => {
        with_registers!($name, $target, *mut c_void);
    };
    ($name:ident, $target:path, $out:ty) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize) -> $out {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "str x30, [sp, #16]",
                "add x9, sp, #48",
                "str x9, [sp, #24]",
                "str x29, [sp, #32]",
                "mov x29, sp",
                "add x3, sp, #16",
                "bl {target}",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}
pub(crate) use with_registers;

/// As [`with_registers`], for functions that may not return null: then their first two
/// arguments go on to `$failed` by a jump, so that what that throws meets no frame of ours.
macro_rules! with_registers_or_fail {
    ($name:ident, $target:path, $failed:path) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-64]!",
                ".cfi_def_cfa_offset 64",
                ".cfi_offset x29, -64",
                ".cfi_offset x30, -56",
                "str x30, [sp, #16]",
                "add x9, sp, #64",
                "str x9, [sp, #24]",
                "str x29, [sp, #32]",
                "stp x0, x1, [sp, #40]",
                "mov x29, sp",
                "add x3, sp, #16",
                "bl {target}",
                "mov x9, x0",
                "ldp x0, x1, [sp, #40]",
                "ldp x29, x30, [sp], #64",
                ".cfi_def_cfa_offset 0",
                "cbz x9, 2f",
                "mov x0, x9",
                "ret",
                "2:",
                "b {failed}",
                ".cfi_endproc",
                target = sym $target,
                failed = sym $failed,
            )
        }
    };
}
pub(crate) use with_registers_or_fail;

/// Defines a function that jumps to where the word `$to` points, arguments untouched;
/// returns null if it points nowhere.
macro_rules! jump_through {
    ($name:ident, $to:path) => {
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(a: usize, b: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "adrp x9, {to}",
                "ldr x9, [x9, :lo12:{to}]",
                "cbz x9, 2f",
                "br x9",
                "2:",
                "mov x0, xzr",
                "ret",
                ".cfi_endproc",
                to = sym $to,
            )
        }
    };
}
pub(crate) use jump_through;

const _: () = assert!(
    core::mem::size_of::<Registers>() == 24,
    "as the assembly lays them"
);
