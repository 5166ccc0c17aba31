//! Shared memory protocol between mem-profiler's agent, which runs inside the profiled process, and
//! the readers of its counters.
//!
//! # Guarantees
//! - One file per process, with the layout of [`layout`], holds everything that a profile needs:
//!   identity, commands, counters, the calling-context tree, the per-stack counters, the modules.
//!   It remains readable after the process has ended, however it ended.
//! - Writers ([`Tree`], [`Records`]) take no lock, allocate nothing, make no system call and never
//!   wait for another thread.
//! - Readers ([`snapshot`]) work on a private copy of the bytes and treat it as untrusted: they
//!   check every index before use, and no loop has more steps than the table has entries.
//!
//! # Callers must
//! - write only from the process that created the segment;
//! - commit a bank ([`segment::SegmentFile::prepare_bank`]) before publishing a session that uses
//!   it, so that a full filesystem causes an error there and not a `SIGBUS` in the target;
//! - write only from threads that [`owner`] allows: those that have noticed a session, and not in a
//!   forked copy of the process that created the segment;
//! - publish commands through [`segment::SegmentFile::publish`], which writes a single byte last,
//!   so that no reader can see half a command.
//!
//! # Limits
//! Little-endian 64-bit machines; sessions of up to about 100 days (ticks of 4.19 ms in 31 bits).
//!
//! There is no policy here: the controller decides who may start a session, for how long, and what
//! a dump looks like.
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
mod squares;
mod sync;
pub mod tree;

pub use bank::{Bank, Geometry};
pub use codes::Codes;
pub use layout::{ABI_VERSION, MAGIC};
pub use record::{FreeSample, NewSample, RecordId, Records};
pub use tree::{NodeId, Tree};
