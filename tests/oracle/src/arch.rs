//! The agent's own way to the caller's registers.

#[path = "../../../agent/src/arch/x86_64/entry.rs"]
#[allow(
    unused_macros,
    unused_imports,
    reason = "the agent's file, of which this uses one macro"
)]
mod native;

pub(crate) use native::with_registers;

/// Returns the word at fs:0, which glibc's control block of the thread begins with.
pub fn thread_pointer() -> u64 {
    let at: u64;
    // SAFETY: that word is the thread pointer itself, by the ABI of thread-local storage.
    unsafe {
        std::arch::asm!("mov {at}, qword ptr fs:[0]", at = out(reg) at, options(pure, readonly, nostack));
    };
    at
}
