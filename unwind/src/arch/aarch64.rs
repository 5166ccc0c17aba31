//! aarch64 (DWARF for the Arm 64-bit Architecture, table 4.1).

use super::Numbers;
use gimli::{Register, Vendor};

/// DWARF numbers of the registers that are followed.
pub const NUMBERS: Numbers = Numbers {
    sp: Register(31),
    fp: Register(29),
    ra: Register(30),
};

/// Whether a call leaves the return address in a register: then a frame may not have saved it.
pub const HAS_LINK_REGISTER: bool = true;

/// Whether the linker writes PLT entries whose CFA depends on the instruction.
pub const HAS_PLT_RULE: bool = false;

/// Vendor whose call frame instructions code carries: on aarch64, where return addresses are
/// signed.
pub const VENDOR: Vendor = Vendor::AArch64;

/// The return address that a stack word stands for: without its pointer-authentication code,
/// whose bits depend on the kernel's address space (from 39 bits on).
#[inline(always)]
pub fn return_address(word: u64) -> u64 {
    let address: u64;
    // SAFETY: XPACLRI, spelled as the hint that it is to cores that sign nothing. It changes the
    // one register that is named.
    unsafe {
        core::arch::asm!(
            "hint #7",
            inout("x30") word => address,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    address & 0xffff_ffff_ffff
}
