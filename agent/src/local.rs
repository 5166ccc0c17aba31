//! Per-thread state that exists, zeroed, from the thread's first instruction: it is read and
//! written without a call that may allocate.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};

/// A thread's state. In initial-exec thread-local storage: its address is two instructions
/// away. It has no destructor.
#[repr(C)]
pub struct Local {
    /// Countdown: bytes that may still be allocated before a sample is due.
    pub left: i64,
    /// Epoch that `left` was drawn in; 0: none.
    pub epoch: u32,
    /// Reentrancy guard: nonzero while the thread is in the sampler.
    pub busy: u8,
    /// Nonzero while it reads a module's memory, see [`crate::module`].
    pub reading: u8,
    /// How often it has said that what it allocates is not a leak, without taking it back.
    pub ignoring: u16,
    /// Its memory for sampling ([`crate::thread::Thread`]); null before its first sample.
    pub thread: *mut c_void,
    /// Address of its `errno`; null until that was asked.
    pub errno: *mut c_int,
    /// Sampled objects that it has freed without counters of its own, see [`crate::sample`].
    pub freed: u8,
    /// At its end, how often the destructors of its thread-specific data have been run, see
    /// [`crate::wrapped`].
    pub rounds: u8,
    /// First address of its alternate stack for signals, and the end; both 0: it has set none.
    pub signal_stack: u64,
    /// End of that stack.
    pub signal_stack_end: u64,
}

const _: () = assert!(size_of::<Local>() == 56, "the assembly reserves 56 bytes");
const _: () = assert!(
    offset_of!(Local, left) == 0 && offset_of!(Local, epoch) == 8,
    "as the assembly reads them"
);
