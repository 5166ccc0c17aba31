//! Stack unwinding from inside a `malloc` call.
//!
//! # Promises
//! - No lock, no allocation, no call into the loader, no wait: an unwind consists of
//!   arithmetic on the caller's registers, reads of its stack and reads of the
//!   modules' `.eh_frame`.
//! - Stack words are read only from memory that was found readable in the same walk, or
//!   that is the thread's own stack ([`stack::Stack`]); a damaged frame ends one stack,
//!   never the process.
//! - Rules are compiled when a return address is first met, the usual ones straight from the
//!   table's bytes and the others by `gimli`, and kept in a table
//!   shared by all threads ([`cache::RuleCache`]), about 5 ns a step.
//! - A stack whose outer part is unchanged since the thread's last one costs
//!   one or two compares for each unchanged frame ([`walk::Walker`]), and the
//!   result is the same as without the memo: an unwind is a pure function of
//!   (ip, sp, fp) and the words it read, and those are compared.
//! - A stack that was seen before, with another one in between, is interned with one lookup
//!   ([`seen::Seen`]) instead of one per frame; where such stacks follow one another, a frame costs
//!   about 30 instructions.
//! - The same rules unwind another process: one frame by [`rule::step`], a whole stack by
//!   [`remote::walk`], from any [`stack::Memory`] and any [`elf::Module`].
//!
//! # Caller's duties
//! - pass registers that belong together: the return address, the stack pointer
//!   after the return, the frame pointer;
//! - keep a module mapped while its tables are read ([`readers`]); because of misread return
//!   addresses this may be any module; and bump the generation when a module's address
//!   range is reused;
//! - use a [`walk::Walker`] from one thread at a time.
//!
//! # Limits
//! x86-64 and aarch64, little-endian, DWARF call-frame information as compilers emit it (System V
//! ABI, DWARF 5 §6.4, LSB `.eh_frame`). Only ip, sp and fp are followed; for the rare frame whose
//! CFA depends on another register, the value is taken from a frame further in that saved it, and
//! if none did, the stack ends with [`Cause::Unsupported`]. Code without `.eh_frame` is unwound
//! with the function's epilogue, if that follows the call, or with its frame record, if it has made
//! one that passes a check; otherwise it ends the stack with [`Cause::NoRule`], or with
//! [`Cause::NoModule`] if it lies outside every module (JIT).
#![no_std]

#[cfg(test)]
extern crate std;

pub mod arch;
mod brief;
pub mod cache;
pub mod compile;
pub mod elf;
mod epilogue;
pub mod fingerprint;
pub mod inserted;
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
pub mod walk;

/// The registers that are followed.
///
/// `ip` is always a *return address*: one more than an address inside the calling
/// instruction. For a frame that a signal interrupted, it is the exact pc plus one.
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

/// Why a stack could not be followed to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Code outside every module: JIT, generated.
    NoModule = 0,
    /// A module without unwind data for this address.
    NoRule = 1,
    /// Unwind data that is not supported.
    Unsupported = 2,
    /// A frame that does not lie above the previous one.
    BadFrame = 3,
    /// A word outside the readable stack.
    OutOfStack = 4,
    /// More frames than are kept.
    TooDeep = 5,
}

impl Cause {
    /// The cause with this number.
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
