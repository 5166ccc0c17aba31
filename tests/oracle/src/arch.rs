//! The agent's own way to the caller's registers.

/// The thread's words that the agent keeps; none are needed here.
pub struct Local;

#[path = "../../../agent/src/arch/x86_64.rs"]
#[allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "the agent's file, of which this uses the entry only"
)]
mod native;

pub use native::thread_pointer;
pub(crate) use native::with_registers;
