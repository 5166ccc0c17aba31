//! Per-thread state that exists, zeroed, from a thread's first instruction. It is accessed without
//! a call, which might allocate.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};

/// State of one thread, in initial-exec thread-local storage: its address takes two instructions.
/// Has no destructor.
#[repr(C)]
pub struct Local {
    /// Countdown: bytes left until the next sample is due. Negative: due.
    pub left: i64,
    /// Epoch that `left` was drawn in; 0 before the first.
    pub epoch: u32,
    /// Reentrancy guard: nonzero while the thread is in the sampler.
    pub busy: u8,
    /// Nonzero while the thread reads a module's memory (see [`crate::module`]).
    pub reading: u8,
    /// Number of nested requests to exempt allocations from leak checks.
    pub ignoring: u16,
    /// Memory for sampling ([`crate::thread::Thread`]); null before the first sample.
    pub thread: *mut c_void,
    /// Address of the thread's `errno`; null before it is needed.
    pub errno: *mut c_int,
    /// Number of sampled objects that the thread has freed before it has counters of its own (see
    /// [`crate::sample`]).
    pub freed: u8,
    /// Number of rounds of destructors of thread-specific data so far (see [`crate::wrapped`]).
    pub rounds: u8,
    /// True while the thread frees memory that is to be replaced by a new mapping (see
    /// `renewal.rs`).
    pub renewing: bool,
    /// True once that memory has been replaced.
    pub renewed: bool,
    /// First address of the alternate signal stack; 0 if there is none.
    pub signal_stack: u64,
    /// End of the alternate signal stack; 0 if there is none.
    pub signal_stack_end: u64,
}

/// Maximum number of rounds in which a C library runs destructors of thread-specific data
/// (`PTHREAD_DESTRUCTOR_ITERATIONS`).
const ROUNDS: u8 = 4;

impl Local {
    /// Returns true in the last round of destructors of thread-specific data: destructors of data
    /// that the thread sets from now on do not run.
    pub fn is_last_round(&self) -> bool {
        self.rounds >= ROUNDS
    }
}

const _: () = assert!(size_of::<Local>() == 56, "the assembly reserves 56 bytes");
const _: () = assert!(
    offset_of!(Local, left) == 0 && offset_of!(Local, epoch) == 8,
    "offsets that the assembly uses"
);
