//! What depends on the processor: registers, signal frames, instructions.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// How well a thread's state can be put back by a signal frame; the smaller, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Between two instructions of its own.
    #[cfg(target_arch = "x86_64")]
    Running,
    /// In a system call that starts again with the same arguments.
    Restarts,
    /// In a system call that the kernel continues from notes of its own (a sleep).
    Continues,
}

/// The kernel's error numbers that say how a system call starts again.
pub mod restart {
    /// Starts again.
    pub const SYS: i64 = -512;
    /// Starts again, always.
    pub const NOINTR: i64 = -513;
    /// Starts again unless a handler ran.
    pub const NOHAND: i64 = -514;
    /// Continues by `restart_syscall`.
    pub const BLOCK: i64 = -516;

    /// Whether a system call's result is one of these.
    pub fn is(result: i64) -> bool {
        matches!(result, SYS | NOINTR | NOHAND | BLOCK)
    }
}

/// Writes a word into a frame that is being built.
fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}
