//! x86-64 (System V ABI, x86-64 psABI table 3.36).

use super::Numbers;
use gimli::{Register, Vendor};

/// DWARF numbers of the registers that are followed.
pub const NUMBERS: Numbers = Numbers {
    sp: Register(7),
    fp: Register(6),
    ra: Register(16),
};

/// Whether a call leaves the return address in a register: then a frame may not have saved it.
pub const HAS_LINK_REGISTER: bool = false;

/// Whether the linker writes PLT entries whose CFA depends on the instruction.
pub const HAS_PLT_RULE: bool = true;

/// Vendor whose call frame instructions code carries: on aarch64, where return addresses are
/// signed.
pub const VENDOR: Vendor = Vendor::Default;

/// The return address that a stack word stands for.
#[inline(always)]
pub fn return_address(word: u64) -> u64 {
    word
}
