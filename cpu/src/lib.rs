//! Samples the CPU time of other processes, and unwinds their stacks from outside.
//!
//! # Promises
//! - Nothing runs in the target, nothing is loaded into it, and no signal is sent to it.
//! - Stacks are unwound here, with the tables of the files that the target maps ([`unwind`]), and
//!   counted at once ([`stacks`]): what is kept grows with the code that ran, not with time.
//! - Each sample stands for the CPU time that its thread has used since its last one, by the
//!   thread's own clock; or, where processors are sampled, for its share of what its process has
//!   used meanwhile. The CPU time that no sample stands for is known too
//!   ([`recording::Process::unsampled_ns`]).
//! - Where threads are stopped ([`Ptrace`]), lines of Python are read as well, as they are in the
//!   process's memory: they are frames of its [`script`].
//! - A [`Refusal`] says what is missing, and leaves nothing behind.
//!
//! # Caller's duties
//! - call [`Perf::collect`] when a descriptor becomes readable, and in any case within
//!   [`Perf::due`];
//! - choose the engine, and say which one it was: there is no policy here.
//!
//! # Limits
//! x86-64 and aarch64, 64-bit programs, Linux 4.11 and later. Programs for another [`Machine`] are
//! recorded without samples. Before Linux 6.13, samples come
//! without their thread's clock, and each stands for one period.

mod clocks;
mod clone;
mod continued;
mod event;
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
pub mod perf;
mod programs;
pub mod ptrace;
mod python;
mod record;
pub mod recording;
mod refusal;
mod registers;
mod ring;
#[cfg(test)]
mod running;
pub mod script;
mod source;
pub mod space;
pub mod stacks;
mod waiting;
mod walk;

pub use machine::Machine;
pub use perf::{Perf, Sampling};
pub use ptrace::Ptrace;
pub use recording::{Counts, Process, Recording};
pub use refusal::{Refusal, get_right};
pub use registers::Live;
pub use waiting::Waiting;
