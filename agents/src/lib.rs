//! The processes with the agent, from outside: what `mem_profiler` and `mem_server` both do.
//!
//! [`discovery`] lists their segments, [`select`] chooses among them, [`target`] starts, extends and
//! stops a session of one, [`snapshot`] copies its table, [`collect`] makes a profile of the copy,
//! and [`dump`] writes that to a file; [`live`] makes the profile without a file. [`process`] and
//! [`cgroup`] read `/proc`; [`text`] formats what people read.
//!
//! # Promises
//! - Only processes whose segments this user may use are found.
//! - Each byte of a segment and of `/proc` is treated as hostile: counts, sizes and links are
//!   bounded and checked, and a segment is never mapped.
//! - A session is exclusive: another controller that tries to start one gets an error that says so.
//! - Nothing here stops or signals a process.
//! - Errors are returned, not printed. Only [`stdout`] prints.
//!
//! # Caller's duties
//! - Look at its own targets ([`target::Target::look`]) several times a second, so that their
//!   tables grow in time, and extend their sessions.
//!
//! # Limits
//! - Linux.
//! - One directory of segments at a time ([`segment::default_directory`]), and those of processes
//!   in other mount namespaces that this user may enter.

pub mod agent_file;
pub mod beside;
pub mod cgroup;
pub mod claims;
pub mod cleaning;
pub mod clock;
pub mod collect;
pub mod discovery;
pub mod dump;
pub mod ended;
pub mod governor;
mod helper;
pub mod interpreted;
pub mod lineage;
pub mod listing;
pub mod live;
mod mappings;
pub mod names;
pub mod offspring;
pub mod options;
pub mod output;
pub mod parallel_writer;
pub mod preload;
pub mod process;
pub mod process_end;
pub mod program;
mod resolved_tree;
pub mod room;
pub mod segment;
pub mod select;
pub mod snapshot;
mod stack_groups;
pub mod stdout;
pub mod target;
pub mod text;
mod threads;
pub mod timeline;
pub mod unreadable;
pub mod values;
pub mod waiting;
