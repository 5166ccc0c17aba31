//! This project's dump: heap text that every viewer reads, with exact values
//! and facts in comments that they skip.
//!
//! ```text
//! heap profile: 2: 8192 [3: 9000] @ heap_v2/1024
//! # mem-profiler dump 3
//! 1: 4096 [2: 4904] @ 0x55d0 0x55e0
//! # s 3 1 3.1 9100 …
//! …
//!
//! MAPPED_LIBRARIES:
//! 55c0-55f0 r-xp 00000000 08:01 42 /usr/bin/server
//!
//! # mem-profiler facts 3
//! # pid 4711
//! …
//! # end
//! ```
//!
//! - The second line promises the last one: a dump without `# end` was cut off.
//! - A stack is one or two lines with the same addresses, followed by one
//!   `# s` line with its [`Detail`](crate::Detail): the fields in order of
//!   declaration, then the number of its thread among the facts, from 1 on, how
//!   its objects are lost and with which others; separated by blanks, zeros at
//!   the end left out.
//! - The counts in the lines before are such that the readers' formula gives
//!   the estimates back; this crate's reader uses the exact values instead.
//! - A fact is a line `# NAME VALUE`; unknown names are ignored, so that older
//!   readers read newer dumps. Backslash, control characters and bytes that
//!   are not UTF-8 are written `\xNN`.

pub(crate) mod facts;
pub(crate) mod numbers;
pub(crate) mod split;
pub(crate) mod write;

pub use write::{PART, Part, Text, write};

/// Second line of a dump.
pub(crate) const SIGNATURE: &[u8] = b"# mem-profiler dump ";

/// First line of the facts.
pub(crate) const FACTS: &[u8] = b"# mem-profiler facts ";

/// The version that this crate writes, and the newest that it reads.
pub(crate) const VERSION: u32 = 4;

/// The version from which on exact values have the variances of objects.
pub(crate) const OBJECT_VARIANCES: u32 = 2;

/// The first version that lists the objects of a stack by size class.
pub(crate) const SIZES_APART: u32 = 3;

/// The version from which on exact values say how objects are lost; that of other dumps is the one
/// before.
pub(crate) const LOSSES: u32 = 4;

/// Last line of a dump.
pub(crate) const END: &[u8] = b"# end";

/// Start of a line with the exact values of a stack.
pub(crate) const STACK: &[u8] = b"# s";

/// Exact values that a repeated stack must have at least, so that a small file makes a small
/// profile: samples, of which freed, objects.
pub(crate) const LEAST_AGAIN: usize = 3;
