//! Properties of the supported machines.
//!
//! The code for both is compiled on both, so that a stack recorded on one can be unwound on the
//! other ([`remote::walk_on`](crate::remote::walk_on)). [`Native`] is the running thread's machine.

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

/// Positions of the registers that the kernel saves in a signal frame, as byte offsets from the
/// stack pointer with which the handler returns.
#[derive(Clone, Copy)]
pub struct SignalFrame {
    /// Stack pointer.
    pub sp: i64,
    /// Frame pointer.
    pub fp: i64,
    /// Interrupted pc.
    pub pc: i64,
    /// Link register.
    pub link: i64,
}

/// Target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Address that the instruction contains.
    Known(u64),
    /// Address in a register or in memory.
    Unknown,
}

/// Frame layout that a function's epilogue reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// True if the CFA is computed from the frame pointer, not the stack pointer.
    pub by_fp: bool,
    /// Offset of the CFA from that register, in bytes.
    pub cfa: i64,
    /// Offset of the return address from the CFA, in bytes.
    pub ra: i64,
    /// Offset of the saved frame pointer from the CFA, in bytes; `None` if it is not restored.
    pub fp: Option<i64>,
}

/// Frame of a function that has switched stacks, as the code after its call reveals it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Offset from the stack pointer of a pointer to the goroutine whose stack was left. A
    /// goroutine begins with the bounds of its stack. `None` if the function stayed on the thread's
    /// stack.
    pub goroutine: Option<i64>,
    /// Offset from the stack pointer of the word that gives the stack pointer before the switch. It
    /// is stored as a distance from the end of the goroutine's stack, or, if the function stayed on
    /// the thread's stack, as an address.
    pub depth: i64,
    /// Offset of the return address from the stack pointer before the switch.
    pub ra: i64,
    /// Offset of the saved frame pointer from the stack pointer before the switch; `None` if the
    /// frame pointer is unchanged.
    pub fp: Option<i64>,
    /// Offset of the caller's stack pointer from the stack pointer before the switch.
    pub caller: i64,
}

/// Machine whose stacks can be unwound.
pub trait Machine {
    /// DWARF numbers of the registers that are followed.
    const NUMBERS: Numbers;
    /// True if linkers write PLT entries whose CFA depends on the instruction.
    const HAS_PLT_RULE: bool;
    /// Vendor of the machine's additional call frame instructions.
    const VENDOR: Vendor;
    /// Layout of signal frames on a machine with a link register, which may still hold the return
    /// address of an interrupted function. `None` if calls push the return address.
    const SIGNAL_FRAME: Option<SignalFrame>;
    /// True if calls put the return address into a register instead of pushing it.
    const HAS_LINK_REGISTER: bool = Self::SIGNAL_FRAME.is_some();
    /// True if a frame record (the caller's frame pointer, then the return address) is the
    /// outermost part of its frame, as pushed by the call and the function's first instruction.
    /// Otherwise the frame may continue beyond it.
    const FRAME_RECORD_IS_OUTERMOST: bool;

    /// Instructions of the trampoline that Python 3.12 and 3.13 generate. It only aligns the stack
    /// and creates no frame record. Its call instruction ends after the sixth byte.
    const PYTHON_TRAMPOLINE: Option<[u8; 11]>;

    /// Returns the return address in a stack word, without its signature.
    fn return_address(word: u64) -> u64;

    /// Returns the target of the call that ends at return address `ip`, or `None` if the bytes
    /// before it are not a call.
    fn call(before: [u8; 8], ip: u64) -> Option<Target>;

    /// Decodes the code after a call, if it is an epilogue and nothing else: it restores registers,
    /// frees the frame and returns. Moves between registers that are not followed are allowed.
    fn epilogue(code: &[u8]) -> Option<Epilogue>;

    /// Decodes the code after a call, if it returns to the stack of a goroutine. Only Go's
    /// `runtime.asmcgocall`, which calls C on the thread's stack, has such code.
    fn switch(code: &[u8]) -> Option<Switch>;

    /// Decodes the code after a call, if it prepares the way from the stack of a goroutine back to
    /// the thread's. Only Go's `runtime.cgocallback`, through which C calls Go, has such code.
    /// Returns the distance in bytes from its frame record to the caller's stack pointer.
    fn callback(code: &[u8]) -> Option<u64>;

    /// Returns true if the two instructions are a signal trampoline. Always false on machines whose
    /// trampolines have a usable unwind table.
    fn is_signal_return(instructions: [u32; 2]) -> bool;
}
