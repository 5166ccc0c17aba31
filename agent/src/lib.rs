//! `libmem_agent.so`: preloaded into a process, it becomes its `malloc`.
//!
//! # Promises
//! - Off, it costs one load and one predicted branch an allocation, one compare a
//!   free, and no memory but its own code and three pages.
//! - On, each thread samples on average one allocation every `interval` bytes, walks
//!   its stack and counts it in the shared segment (`shm-protocol`). Nothing leaves the
//!   process; whoever can read the segment has the profile.
//! - It never allocates from the heap it hooks, never takes a lock of its own, never
//!   calls the loader after start-up, never panics, never prints, and keeps `errno`.
//! - Failing to profile is acceptable: without a segment, without address space or
//!   without a rule for a frame it counts less, says so in the segment's counters, and
//!   the program runs on.
//!
//! # Caller's duties
//! - preload it before the program starts (`LD_PRELOAD`): its thread-local storage is
//!   initial-exec, which `dlopen` cannot serve;
//! - leave allocation to the C library's names: a program with a static allocator of
//!   its own never gets here.
//!
//! # Modules
//! Each uses those before it, none those behind it.
//!
//! | module | holds |
//! |---|---|
//! | `sys` | system calls, memory, text |
//! | `local`, `arch` | a thread's first state; assembly |
//! | `seccomp`, `counter`, `atfork`, `ends` | filters of the process; its cycle counter; fork handlers; ends of stacks |
//! | `backend`, `object` | the allocator underneath; headers of sampled objects |
//! | `session` | the segment and its life, epochs |
//! | `module`, `range`, `sampler` | loaded code and its unwind rules; sampled objects; arithmetic |
//! | `stats`, `thread` | work once a second; a thread's memory for sampling |
//! | `fork`, `sample` | leaving the parent's session; the slow path |
//! | `entry`, `init` | entry points, the fast path; initialisation |
#![cfg_attr(not(test), no_std)]

#[cfg(test)]
extern crate std;

mod arch;
mod atfork;
mod backend;
mod counter;
mod ends;
mod entry;
mod fork;
mod init;
mod local;
mod module;
mod object;
mod range;
mod sample;
mod sampler;
mod seccomp;
mod session;
mod stats;
mod sys;
mod thread;

/// There is no panic in this library by rule; should there be one, the process cannot go on.
#[cfg(not(test))]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: takes nothing and does not return.
    unsafe { libc::abort() }
}

// The precompiled core library names it in its tables of frames, for languages that unwind through
// them; nothing does here.
#[cfg(not(test))]
core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0",
);
