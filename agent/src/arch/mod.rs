//! What Rust cannot say: thread-local words that need no call, and the caller's
//! registers.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

use crate::thread::Thread;
use core::ffi::c_int;
use core::mem::{offset_of, size_of};

/// What each thread has from its first instruction, zeroed. Initial-exec: reading its
/// address is two instructions and can neither fail nor allocate. No destructor.
#[repr(C)]
pub struct Local {
    /// Bytes that may still pass unsampled.
    pub left: i64,
    /// Epoch that `left` was drawn in; 0: none.
    pub epoch: u8,
    /// Nonzero while the thread is in the agent's cold path.
    pub busy: u8,
    /// Nonzero while it reads a module's memory, see [`crate::module`].
    pub reading: u8,
    /// What the thread keeps while it samples; null before its first sample.
    pub thread: *mut Thread,
    /// Where its `errno` is; null until that was asked.
    pub errno: *mut c_int,
}

const _: () = assert!(size_of::<Local>() == 32, "the assembly reserves 32 bytes");
const _: () = assert!(
    offset_of!(Local, left) == 0 && offset_of!(Local, epoch) == 8,
    "as the assembly reads them"
);
