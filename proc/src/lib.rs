//! Reads facts about processes, threads and the machine from `/proc`.
//!
//! # Promises
//! - Each file is read up to a limit ([`MAX_FILE_BYTES`], [`MAX_MAPS_BYTES`]), and each text is treated
//!   as hostile: a process chooses its name, its arguments and its environment.
//! - A process whose first thread has ended before the others (`pthread_exit` in `main`) is described
//!   by another of its threads, where the kernel shows nothing of it ([`living_thread`]).
//! - A process is gone only if the kernel says so. If no descriptors are left, that is another error
//!   ([`is_full`]), and [`reserve_files`] keeps some for these reads.
//! - Nothing is changed, except this process's own limit on open files, on request ([`allow_files`]).
//!
//! # Caller's duties
//! - Expect no answer: a process may end between two reads, and its number may be another one's
//!   then. Compare [`Stat::start_time`] where that matters.
//!
//! # Limits
//! - Linux. Numbers are those of the pid namespace that `/proc` shows; [`is_ours`] says whether that is
//!   this process's own.
//! - There is no policy here: what the facts mean is the callers' affair.

mod files;
mod machine;
mod pagemap;
mod pidfd;
mod process;
mod stat;
mod status;
mod threads;

pub use files::{
    FileLimit, MAX_FILE_BYTES, MAX_MAPS_BYTES, Reread, allow_files, file, is_full, is_gone, read,
    reserve_files,
};
pub use machine::{
    available_memory, boot_id, clock_shift, is_mounted, is_ours, max_mappings, may_lock, memory,
    own_mounts, processors, setting,
};
pub use pagemap::{Pages, Wanted};
pub use pidfd::{has_ended, pidfd, wait_for_end};
pub use process::{
    Program, address_space_left, all, command_line, cpu_ns, directory, environment, exe,
    executable, innermost_tid, is_ending, is_of_kernel, is_over, is_stopped, is_traced, maps,
    memory_counters, memory_limit, other_root, page_tables, parents, path_of_memory, program,
    root_of, seccomp, value,
};
pub use stat::{Stat, rss_bytes};
pub use status::{Status, status_field};
pub use threads::{
    first_number, living_thread, thread_name, thread_ns, threads, try_threads, wchan,
};
