//! Sampling of the CPU time and the page faults of other processes, with their stacks unwound from
//! outside.
//!
//! # Guarantees
//! - Nothing runs in the target, nothing is loaded into it, and no signal is sent to it.
//! - Stacks are unwound here, with the tables of the files that the target maps ([`unwind`]), and
//!   counted immediately ([`stacks`]), so memory grows with the code that ran, not with time.
//! - Each sample is weighted by the CPU time that its thread has used since its last sample, as
//!   read from the thread's own clock. If processors are sampled instead of threads, the CPU time
//!   that the process has used is divided among its samples. The CPU time that no sample covers is
//!   known too ([`recording::Process::unsampled_ns`]).
//! - Engines that stop threads ([`Ptrace`]) also read Python lines from the process's memory;
//!   these are frames of its [`script`].
//! - A [`Refusal`] says which permission or resource is missing. After it, nothing is left open or
//!   attached.
//!
//! # Callers must
//! - call [`Perf::collect`] when a descriptor becomes readable, and at least once every
//!   [`Perf::max_wait`];
//! - choose the engine, and tell the user which: there is no policy here.
//!
//! # Limits
//! x86-64 and aarch64, 64-bit programs, Linux 4.11 and later. Programs for another [`Machine`] are
//! recorded without samples. Before Linux 6.13, samples come without their thread's clock, and each
//! stands for one period.

mod clocks;
mod clone;
mod continued;
mod copies;
mod event;
pub mod faults;
mod frame_pointer;
mod frames;
pub mod kernel;
mod leaf;
mod machine;
mod memory;
mod meter;
mod meters;
mod mixer;
mod module;
mod outermost;
pub mod perf;
mod programs;
pub mod ptrace;
mod python;
mod record;
pub mod recording;
mod refusal;
mod registers;
mod ring;
mod rings;
#[cfg(test)]
mod running;
pub mod script;
mod source;
pub mod space;
pub mod stacks;
mod waiting;
mod walk;

pub use faults::Faults;
pub use machine::Machine;
pub use perf::{Perf, Sampling};
pub use ptrace::Ptrace;
pub use recording::{Counts, Process, Recording};
pub use refusal::{Refusal, capability_advice};
pub use registers::LiveRegisters;
pub use waiting::Waiting;
