//! This project's heap dump: heap text that every viewer can read, with exact values and facts in
//! comments, which viewers skip.
//!
//! ```text
//! heap profile: 2: 8192 [3: 9000] @ heap_v2/1024
//! # mem-profiler dump 5
//! 1: 4096 [2: 4904] @ 0x55d0 0x55e0
//! # s 3 1 3.1 9100 …
//! …
//!
//! MAPPED_LIBRARIES:
//! 55c0-55f0 r-xp 00000000 08:01 42 /usr/bin/server
//!
//! # mem-profiler facts 5
//! # pid 4711
//! …
//! # end
//! ```
//!
//! - The second line promises the last one: a dump without `# end` was cut off.
//! - A stack is one or two lines with the same addresses, followed by one line `# s` with its
//!   [`Detail`](crate::Detail): the sums in order of declaration, then the thread (a 1-based index
//!   into the facts), the kind of loss, the leak group and the spread of the ages. They are
//!   separated by spaces; trailing zeros are omitted.
//! - The counts in a stack's lines are chosen so that the formula that other readers apply to them
//!   yields the estimates. This crate reads the exact values instead.
//! - A fact is a line `# NAME VALUE`. Unknown names are ignored, so that older readers read newer
//!   dumps. Backslashes, control characters and bytes that are not UTF-8 are written as `\xNN`.

pub(crate) mod facts;
pub(crate) mod numbers;
pub(crate) mod split;
mod write;

use crate::detail::FIELDS;
pub use write::{PART_STACKS, Part, Text, write};

/// Second line of a dump.
pub(crate) const SIGNATURE: &[u8] = b"# mem-profiler dump ";

/// First line of the facts.
pub(crate) const FACTS: &[u8] = b"# mem-profiler facts ";

/// The version that this crate writes, and the newest that it reads.
pub(crate) const VERSION: u32 = 5;

/// First version whose exact values include the variances of objects.
pub(crate) const FIRST_WITH_OBJECT_VARIANCES: u32 = 2;

/// First version that has a separate stack for each size class.
pub(crate) const FIRST_WITH_SEPARATE_SIZES: u32 = 3;

/// First version whose exact values include losses. Dumps without losses, and without spreads of
/// ages, are written in the version before.
pub(crate) const FIRST_WITH_LOSSES: u32 = 4;

/// First version whose exact values include the spread of ages.
pub(crate) const FIRST_WITH_AGE_SPREADS: u32 = 5;

/// Value in place of a spread of ages that is not known.
pub(crate) const NO_SPREAD: f64 = -1.0;

/// Maximum number of exact values of a stack: sums, thread, kind of loss, leak group, and the
/// spread of ages in two values.
pub(crate) const MAX_FIELDS: usize = FIELDS + 5;

/// Last line of a dump.
pub(crate) const END: &[u8] = b"# end";

/// Start of a line with the exact values of a stack.
pub(crate) const STACK: &[u8] = b"# s";

/// Minimum number of values (samples, freed samples, objects) in a `# s` line that repeats the stack
/// before it, for another size class or thread. Keeps a small file from expanding to a large profile.
pub(crate) const MIN_REPEATED_FIELDS: usize = 3;
