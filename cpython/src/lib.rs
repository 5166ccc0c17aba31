//! Data structures of CPython 3.8 to 3.15, free-threaded builds included: where to find the frames
//! of a thread, how code objects encode line numbers, and what the allocator of small objects
//! writes about its memory. The agent uses it inside the process, the CPU profiler and `why` from
//! outside.
//!
//! # Guarantees
//! - Nothing is read here: there are byte offsets ([`layout`]), a walk over frames that reads
//!   through the caller's [`chain::Thread`], and functions on bytes that the caller has read
//!   ([`lines`], [`pools`], [`text`]). These accept any bytes, do not panic, and take linear time.
//! - No allocation and no lock, since the agent calls it during an allocation.
//!
//! # Callers must
//! - check what an interpreter publishes about itself before using it: [`layout::published`] only
//!   bounds the offsets. The objects that they lead to must have the expected types;
//! - read each word only once if another thread may change it.
//!
//! # Limits
//! 64-bit little-endian builds of CPython. Later versions are recognised by what they publish, and
//! have no layout until one is added here.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod chain;
pub mod layout;
pub mod lines;
pub mod pools;
pub mod text;
mod version;

pub use version::{Description, State};

/// Supported versions, for display.
pub const VERSIONS: &str = "3.8 to 3.15";

/// Name of frames whose code objects did not fit into the table.
pub const TABLE_FULL: &str = "[python: table full]";
/// Name of the frame that stands for the omitted outer frames of a stack that is too deep.
pub const FRAMES_OMITTED: &str = "[python: outer frames left out]";

/// Maximum number of frames of a stack. Of deeper stacks, the innermost are kept.
pub const MAX_FRAMES: usize = 2048;
/// Maximum length of a function's name in characters.
pub const MAX_NAME: u64 = 512;
/// Maximum length of a file name in characters.
pub const MAX_FILE: u64 = 1024;
/// Maximum size of a line table in bytes.
pub const MAX_LINES: u64 = 32 << 10;
/// Maximum number of interpreters of a process that are visited.
pub const MAX_INTERPRETERS: usize = 256;
/// Maximum number of threads of an interpreter that are visited.
pub const MAX_THREADS: usize = 4096;
/// Maximum number of unreadable stacks before the first readable one: a starting interpreter has
/// incomplete frames. If there are more, the interpreter's frames are not read any more.
pub const MAX_INITIAL_FAILURES: u32 = 1000;
