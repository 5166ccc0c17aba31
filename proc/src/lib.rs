//! Reads facts about processes, threads and the machine from `/proc`.
//!
//! # Guarantees
//! - Each file is read up to a limit ([`MAX_FILE_BYTES`], [`MAX_MAPS_BYTES`]), and its contents are
//!   treated as hostile: a process chooses its name, its arguments and its environment.
//! - If a process's main thread has exited before the others (`pthread_exit` in `main`), the kernel
//!   shows some facts only for its other threads. They are read from one of those
//!   ([`living_thread`]).
//! - A process is reported as gone only if the kernel says so. Running out of descriptors is a
//!   different error ([`is_full`]), and [`reserve_files`] keeps some for these reads.
//! - Nothing is changed, except limits on open files, on request ([`allow_files`],
//!   [`FileLimit::restore`]).
//!
//! # Callers must
//! - expect any read to fail, since a process may end between two reads. Its pid may then be
//!   reused; compare [`Stat::start_time`] if that matters.
//!
//! # Limits
//! - Linux only. Pids are those of the pid namespace that `/proc` shows; [`is_ours`] returns
//!   whether that is this process's own.
//! - No policy: callers decide what the facts mean.

mod files;
mod machine;
mod pagemap;
mod pidfd;
mod process;
mod resident;
mod stat;
mod status;
mod threads;

pub use files::{
    FileLimit, MAX_FILE_BYTES, MAX_MAPS_BYTES, Reread, allow_files, file, is_full, is_gone, read,
    reserve_files,
};
pub use machine::{
    available_memory, boot_id, clock_shift, commit_left, is_mounted, is_ours, max_mappings,
    may_lock, memory, own_mounts, processors, setting,
};
pub use pagemap::{Pages, Run, Wanted, page_size};
pub use pidfd::{has_ended, pidfd, wait_for_end};
pub use process::{
    Program, address_space_left, all_pids, command_line, cpu_ns, directory, environment, exe,
    executable, has_exited, innermost_tid, is_ending, is_forked, is_kernel_thread, is_stopped,
    is_traced, maps, memory_counters, memory_limit, other_root, page_tables, parents,
    path_of_memory, program, root_of, seccomp, value,
};
pub use resident::Resident;
pub use stat::{Addresses, Stat, rss_bytes};
pub use status::{Status, status_field};
pub use threads::{
    first_number, living_thread, thread_name, thread_ns, threads, try_threads, wchan,
};
