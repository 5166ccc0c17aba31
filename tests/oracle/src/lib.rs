//! Compares the unwinder with two others, inside any program that it is preloaded into.
//!
//! It stands in front of `malloc`, `calloc` and `realloc` as the agent does, and at
//! randomly chosen calls unwinds the caller's stack four times: by a walker that
//! remembers the thread's last stack, with cached rules, as the agent does; by one that
//! remembers nothing and recompiles every rule; by `framehop`, over sections that it
//! finds by its own reading of files; and by libgcc, which follows all registers. At the
//! end of the process it writes what it counted, and stacks that differed.
//!
//! # Promises
//! - The program computes what it computes without: allocations go to the next
//!   allocator in line.
//! - An allocation made by a comparison, or by a signal handler that interrupts one, is
//!   not compared.
//!
//! # Caller's duties
//! - set `UNWIND_ORACLE_OUT`: the report goes to that path with `.` and the process's id
//!   behind; without it nothing is compared;
//! - have handlers allocate only where `malloc` itself was not interrupted.
//!
//! `UNWIND_ORACLE_EVERY` is the mean number of allocations between comparisons, 1 unless
//! set. Forked children that execute nothing else are not compared. x86-64 and glibc.
#![cfg(target_arch = "x86_64")]

mod arch;
mod entry;
mod judge;
mod libgcc;
mod maps;
mod module;
mod peer;
mod report;
mod session;
mod thread;
