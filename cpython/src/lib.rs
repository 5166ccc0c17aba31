//! The data structures of CPython 3.8 to 3.15, free-threaded builds included: where those lie that
//! lead to the frames of a thread, and how code objects encode line numbers. The
//! agent uses it in the process itself, the CPU profiler from outside.
//!
//! # Promises
//! - Nothing is read here: these are offsets in bytes ([`layout`]), and functions of bytes that the
//!   caller has read ([`lines`], [`text`]). Any bytes have an answer, without panics, in time that
//!   is proportional to their length.
//! - No allocation, no lock: the agent calls it in the middle of an allocation.
//!
//! # Caller's duties
//! - check what an interpreter says about itself before it is believed ([`layout::told`] bounds the
//!   offsets, and nothing more): the objects that they lead to must have the types that they
//!   should;
//! - read each word once, where another thread may change it.
//!
//! # Limits
//! 64-bit little-endian builds of CPython. Later versions are recognised by what they say of
//! themselves, and have no layout until one is added here.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod layout;
pub mod lines;
pub mod text;
mod version;

pub use version::{Description, State};

/// The versions that are known, for display.
pub const VERSIONS: &str = "3.8 to 3.15";

/// Name of the frame for those whose code objects found no room.
pub const TABLE_FULL: &str = "[python: table full]";
/// Name of the frame for the outer ones of a stack that is too deep.
pub const LEFT_OUT: &str = "[python: outer frames left out]";

/// Maximum number of frames that are kept of a stack; of deeper ones, the innermost.
pub const MOST_FRAMES: usize = 2048;
/// Longest parts of a code object that are kept: of a name and of a file in characters, of the
/// table of lines in bytes.
pub const MOST_NAME: u64 = 512;
/// See [`MOST_NAME`].
pub const MOST_FILE: u64 = 1024;
/// See [`MOST_NAME`].
pub const MOST_LINES: u64 = 32 << 10;
/// Maximum number of interpreters of a process that are examined.
pub const MOST_INTERPRETERS: usize = 256;
/// Maximum number of threads of an interpreter that are examined.
pub const MOST_THREADS: usize = 4096;
/// Stacks that could not be read before one could: this many are forgiven, since an interpreter
/// that starts has frames which are not whole. After more of them, it is left alone.
pub const FORGIVEN: u32 = 1000;
