//! The contract between mem-profiler's agent, which runs inside the profiled
//! process, and every reader of its counters.
//!
//! # Promises
//! - One file per process, with the layout of [`layout`], holds everything that a
//!   profile needs: identity, commands, counters, the calling-context tree,
//!   the per-stack counters, the modules. It stays readable after the process
//!   is gone, however it ended.
//! - The writer side ([`Tree`], [`Records`]) takes no lock, allocates nothing,
//!   makes no system call and never waits for another thread.
//! - The reader side ([`snapshot`]) works on a private copy of the bytes and
//!   treats each one as hostile: no index is followed unchecked, no loop is
//!   longer than the table.
//!
//! # Caller's duties
//! - write only from the process that created the segment;
//! - reserve a bank ([`segment::SegmentFile::prepare_bank`]) before publishing
//!   a session that uses it: then a full filesystem is an error there and
//!   not a `SIGBUS` in the target;
//! - write only from threads that [`owner`] allows: those that noticed a session, in a process that
//!   is not a copy of the one that made the segment;
//! - publish commands through [`segment::SegmentFile::publish`], which writes
//!   a single byte last: a reader can never see half a command.
//!
//! # Limits
//! Little-endian 64-bit machines; addresses of at most 2^64; sessions of up to
//! about 100 days (ticks of 4.19 ms in 31 bits).
//!
//! There is no policy here: the controller decides who may start a session, for
//! how long, and what a dump looks like.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod bank;
pub mod clock;
pub mod codes;
pub mod counters;
pub mod cpu;
pub mod header;
pub mod layout;
pub mod options;
pub mod owner;
pub mod pattern;
mod peak;
pub mod record;
pub mod segment;
pub mod snapshot;
mod sync;
pub mod tree;

pub use bank::{Bank, Geometry};
pub use codes::Codes;
pub use layout::{ABI_VERSION, MAGIC};
pub use record::{FreeSample, NewSample, RecordId, Records};
pub use tree::{NodeId, Tree};
