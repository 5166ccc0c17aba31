//! Readers of segments: views of private copies of their bytes.
//!
//! All bytes come from the target and are untrusted. Views check each index before use, so corrupt
//! bytes give wrong numbers or an [`Invalid`], never a fault, a hang or a read out of bounds.
//! Strings are returned as raw bytes, which must be escaped before they are printed.

mod ages;
mod bank;
mod header;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

pub use bank::{BankSummary, CostView, CpuView, PeakView, ThreadView, Totals};
pub use header::{Header, ModuleView};
pub use table::{RecordView, StackEnd, StackSums, Table, thread_of};

use crate::tree::NodeId;

/// Reason why bytes are not a valid segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Shorter than a header.
    TooShort,
    /// No magic: not a segment, or one that the agent has not finished creating.
    NoMagic,
    /// Layout version of the segment, which differs from ours (the second number).
    Version(u32, u32),
    /// Sizes in the header contradict the file's size.
    Sizes,
    /// Node whose caller's index is not smaller.
    Cycle(NodeId),
}

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooShort => write!(f, "the file is shorter than a segment's header"),
            Self::NoMagic => write!(f, "it does not begin like a segment of mem-profiler"),
            Self::Version(theirs, ours) => {
                write!(
                    f,
                    "its agent speaks protocol version {theirs}, this program {ours}"
                )
            }
            Self::Sizes => write!(f, "the sizes in its header contradict the file's size"),
            Self::Cycle(node) => write!(f, "the tree is damaged at node {node}"),
        }
    }
}

impl core::error::Error for Invalid {}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(part) = at.checked_add(8).and_then(|end| bytes.get(at..end)) {
        word.copy_from_slice(part);
    }
    u64::from_le_bytes(word)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let mut word = [0; 2];
    if let Some(part) = at.checked_add(2).and_then(|end| bytes.get(at..end)) {
        word.copy_from_slice(part);
    }
    u16::from_le_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    if let Some(part) = at.checked_add(4).and_then(|end| bytes.get(at..end)) {
        word.copy_from_slice(part);
    }
    u32::from_le_bytes(word)
}

fn text_at(bytes: &[u8], at: usize, len: usize, max_len: usize) -> &[u8] {
    let end = at.saturating_add(len.min(max_len));
    bytes.get(at..end).unwrap_or_default()
}
