//! Processor-specific code: registers, signal frames, instructions.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Quality with which a signal frame can restore a thread's state; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Between two instructions of the program.
    #[cfg(target_arch = "x86_64")]
    Running,
    /// In a system call that is restarted with the same arguments.
    Restarts,
    /// In a system call that the kernel continues from a restart block (a sleep).
    Continues,
}

/// Error numbers by which the kernel restarts system calls.
pub mod restart {
    /// Restarts if the handler allows it.
    pub const SYS: i64 = -512;
    /// Restarts always.
    pub const NOINTR: i64 = -513;
    /// Restarts unless a handler ran.
    pub const NOHAND: i64 = -514;
    /// Continues by `restart_syscall`.
    pub const BLOCK: i64 = -516;

    /// Returns true if a system call's result is one of these numbers.
    pub fn is(result: i64) -> bool {
        matches!(result, SYS | NOINTR | NOHAND | BLOCK)
    }
}

/// Writes a word into a frame that is being built.
fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}
