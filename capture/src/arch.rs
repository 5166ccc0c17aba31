//! Processor-specific code: registers, signal frames, instructions.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Quality with which a signal frame can restore a thread's state, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Between two instructions of the program: restored exactly.
    #[cfg(target_arch = "x86_64")]
    Running,
    /// In a system call that is restarted with the same arguments.
    Restarts,
    /// In a system call that the kernel continues from a restart block (a sleep).
    Continues,
}

/// Error numbers that make the kernel restart a system call.
pub mod restart {
    /// `ERESTARTSYS`: restarts if the handler allows it.
    pub const SYS: i64 = -512;
    /// `ERESTARTNOINTR`: always restarts.
    pub const NOINTR: i64 = -513;
    /// `ERESTARTNOHAND`: restarts unless a handler ran.
    pub const NOHAND: i64 = -514;
    /// `ERESTART_RESTARTBLOCK`: continues through `restart_syscall`.
    pub const BLOCK: i64 = -516;

    /// Returns true if a system call's result is one of these numbers.
    pub fn is_restart_error(result: i64) -> bool {
        matches!(result, SYS | NOINTR | NOHAND | BLOCK)
    }
}

/// Writes a word into a frame that is being built.
fn put(bytes: &mut [u8], offset: usize, word: u64) {
    bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
}
