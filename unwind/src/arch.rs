//! What differs between the machines.
//!
//! The code for both is compiled on both, so that a stack recorded on one can be unwound on the
//! other ([`remote::walk_on`](crate::remote::walk_on)); the running thread's machine is [`Native`].

mod aarch64;
mod x86_64;

pub use aarch64::Aarch64;
pub use x86_64::X86_64;

use gimli::{Register, Vendor};

/// The machine that this code runs on.
#[cfg(target_arch = "aarch64")]
pub type Native = Aarch64;
/// The machine that this code runs on.
#[cfg(target_arch = "x86_64")]
pub type Native = X86_64;

/// DWARF numbers of the registers that are followed.
pub struct Numbers {
    /// Stack pointer.
    pub sp: Register,
    /// Frame pointer.
    pub fp: Register,
    /// Return address.
    pub ra: Register,
}

/// Where the kernel saves registers for a signal's handler, as distances from the stack pointer
/// with which the handler returns.
#[derive(Clone, Copy)]
pub struct SignalFrame {
    /// Stack pointer.
    pub sp: i64,
    /// Frame pointer.
    pub fp: i64,
    /// Instruction that was interrupted.
    pub pc: i64,
    /// Link register.
    pub link: i64,
}

/// Where a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To this address.
    Known(u64),
    /// To the address in a register.
    Unknown,
}

/// What the end of a function does to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// Whether the CFA is computed from the frame pointer, not the stack pointer.
    pub by_fp: bool,
    /// Distance of the CFA from that register.
    pub cfa: i64,
    /// Distance of the return address from the CFA.
    pub ra: i64,
    /// Distance of the saved frame pointer from the CFA, if it is restored.
    pub fp: Option<i64>,
}

/// A machine whose stacks are unwound.
pub trait Machine {
    /// DWARF numbers of the registers that are followed.
    const NUMBERS: Numbers;
    /// Whether the linker writes PLT entries whose CFA depends on the instruction.
    const HAS_PLT_RULE: bool;
    /// Vendor whose call frame instructions code carries.
    const VENDOR: Vendor;
    /// Where a call leaves the return address in a register, so that a frame may not have saved
    /// it: what the kernel saves of a frame that a signal interrupts.
    const LINKED: Option<SignalFrame>;
    /// Whether a frame record (the caller's frame pointer, then the return address) is the
    /// outermost part of its frame, as the call and the first instruction push it. Elsewhere a
    /// frame may have any size beyond it.
    const RECORD_ENDS_FRAME: bool;

    /// The instructions of a trampoline that Python 3.12 and 3.13 make without a frame record, the
    /// first six bytes of which lie before the return address.
    const PADDED: Option<[u8; 11]>;

    /// The return address that a stack word stands for.
    fn return_address(word: u64) -> u64;

    /// Where the call goes that ends at the return address `ip`, if the bytes before that are one.
    fn call(before: [u8; 8], ip: u64) -> Option<Target>;

    /// The function's end, if the code after a call is that and nothing else: what restores
    /// registers, frees the frame and returns, and moves between registers that unwinding does not
    /// follow.
    fn epilogue(code: &[u8]) -> Option<Epilogue>;

    /// Whether a signal's handler returns to these two instructions, where that can be known.
    fn is_signal_return(instructions: [u32; 2]) -> bool;
}
