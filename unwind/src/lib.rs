//! Stack unwinding from inside a `malloc` call.
//!
//! # Guarantees
//! - No locks, no allocation, no calls into the loader, no waiting. An unwind consists of
//!   arithmetic on the caller's registers, and reads of its stack and of the modules' `.eh_frame`.
//! - Stack words are read only if they are on the thread's own stack or were found readable in the
//!   same walk ([`stack::Stack`]). A damaged frame ends one stack, never the process.
//! - Rules are compiled when a return address is seen for the first time: the usual ones straight
//!   from the table's bytes, the others through `gimli`. They are kept in a cache shared by all
//!   threads ([`cache::RuleCache`]). A step by a cached rule takes about 5 ns.
//! - Each thread's last stack is cached; a frame that is unchanged costs one or two compares
//!   ([`walk::Walker`]). The cache does not change the result: an unwind is a pure function of (ip,
//!   sp, fp) and the words it read, and those are compared.
//! - A stack that was seen before, but not immediately before, is interned with one lookup
//!   ([`seen::SeenStacks`]) instead of one per frame. In a series of such stacks, a frame costs
//!   about 30 instructions.
//! - The same rules unwind other processes: one frame by [`rule::step`], a whole stack by
//!   [`remote::walk`], from any [`stack::Memory`] and any [`elf::Module`].
//!
//! # Callers must
//! - pass consistent registers: the return address, the stack pointer after the return, the frame
//!   pointer;
//! - keep every module mapped while tables are read ([`readers`]), not only those on the stack: a
//!   misread return address may lie in any of them;
//! - increment the generation of the cached rules when a module's address range is reused;
//! - use a [`walk::Walker`] from one thread at a time.
//!
//! # Limits
//! x86-64 and aarch64, little-endian, DWARF call-frame information as compilers emit it (System V
//! ABI, DWARF 5 §6.4, LSB `.eh_frame`). Only ip, sp and fp are followed. For the rare frame whose
//! CFA depends on another register, the value is taken from an inner frame that saved it; if none
//! did, the stack ends with [`Cause::Unsupported`]. Code without `.eh_frame` is unwound by the
//! function's epilogue, if that follows the call, or by a frame record that passes a check.
//! Otherwise the stack ends there with [`Cause::NoRule`], or with [`Cause::NoModule`] if
//! the code is outside every module (JIT). Go calls C functions on the thread's stack; from there,
//! the walk continues on the stack of the calling goroutine (`switch`). If C calls Go in turn, it
//! continues on the thread's stack (`callback`).
#![no_std]

#[cfg(test)]
extern crate std;

pub mod arch;
pub mod cache;
mod callback;
pub mod compile;
pub mod elf;
mod epilogue;
mod fast_compile;
pub mod fingerprint;
pub mod interpreter;
pub mod probe;
mod rare;
pub mod readers;
mod record;
pub mod remote;
mod row;
pub mod rule;
pub mod seen;
mod slow;
pub mod stack;
mod switch;
pub mod walk;

/// Registers that are followed.
///
/// `ip` is always a *return address*: one more than an address inside the calling instruction. For
/// a frame that a signal interrupted, it is the exact pc plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// Return address.
    pub ip: u64,
    /// Stack pointer after the return.
    pub sp: u64,
    /// Frame pointer (rbp, x29).
    pub fp: u64,
}

/// Reason why a stack is truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Code outside every module: JIT, generated.
    NoModule = 0,
    /// No unwind data for this address in its module.
    NoRule = 1,
    /// Unsupported unwind data.
    Unsupported = 2,
    /// Frame that is not above the previous one.
    BadFrame = 3,
    /// Word outside the readable stack.
    OutOfStack = 4,
    /// Too many frames.
    TooDeep = 5,
}

impl Cause {
    /// Returns the cause with this number, or [`Unsupported`](Self::Unsupported) if there is none.
    #[must_use]
    pub fn from_index(index: u8) -> Self {
        match index {
            0 => Self::NoModule,
            1 => Self::NoRule,
            3 => Self::BadFrame,
            4 => Self::OutOfStack,
            5 => Self::TooDeep,
            _ => Self::Unsupported,
        }
    }
}
