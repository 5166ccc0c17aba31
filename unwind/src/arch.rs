//! The two machines: what differs between them, under the same names.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

use gimli::Register;

/// DWARF numbers of the registers that are followed.
pub struct Numbers {
    pub sp: Register,
    pub fp: Register,
    pub ra: Register,
}
