//! Finds, controls and reads processes with the agent, for both `mem_profiler` and `mem_server`.
//!
//! [`discovery`] finds segments, [`select`] chooses among them, [`target`] starts, extends and
//! stops a session, [`snapshot`] copies its tables, [`collect`] builds a profile from the copy, and
//! [`dump`] writes the profile to a file; [`live`] builds it in memory. [`process`] and [`cgroup`]
//! read `/proc`; [`text`] formats text for people.
//!
//! # Guarantees
//! - Only processes whose segments this user may use are found.
//! - Segments and `/proc` are untrusted: counts, sizes and links are bounded and validated, and a
//!   segment is never mapped.
//! - A session is exclusive: a second controller gets an error that names the first.
//! - No process is stopped or signalled.
//! - Errors are returned, not printed. Only [`stdout`] prints.
//!
//! # Duties of the caller
//! - Poll targets ([`target::Target::poll`]) several times a second, so that tables grow in time,
//!   and extend their sessions.
//!
//! # Limits
//! - Linux only.
//! - One directory of segments at a time ([`segment::default_directory`]), and the same path in
//!   other mount namespaces that this user may enter.

pub mod agent_file;
pub mod cgroup;
pub mod claims;
pub mod cleaning;
pub mod clock;
pub mod collect;
pub mod descriptors;
pub mod discovery;
pub mod dump;
pub mod ended;
pub mod governor;
mod helper;
pub mod hotspot;
pub mod interpreted;
pub mod lineage;
pub mod listing;
pub mod live;
mod mappings;
mod missing_segment;
pub mod names;
pub mod offspring;
pub mod options;
pub mod output;
pub mod parallel_writer;
pub mod preload;
pub mod process;
pub mod process_end;
pub mod program;
pub mod pymalloc;
pub mod resident;
mod resolved_tree;
pub mod room;
pub mod segment;
pub mod select;
pub mod siblings;
pub mod snapshot;
mod stack_groups;
pub mod stdout;
pub mod target;
pub mod text;
pub mod thread_stacks;
mod threads;
pub mod timeline;
pub mod unreadable;
pub mod values;
pub mod variables;
pub mod waiting;
