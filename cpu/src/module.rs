//! Unwind tables of a module, read from its file or from memory.
//!
//! Files are untrusted: each size is bounded, and a file that cannot be parsed has no tables.

use std::cell::RefCell;

use unwind::elf::{self, Module, PF_X, PT_LOAD, PT_NOTE, Section, Segment};
use unwind::rule::Rule;

use crate::frames::{self, Frames};
use crate::mixer::IntMap;
use crate::source::{Source, bytes};

/// Number of bytes at the start of a file that hold its ELF header.
const SEARCHED_BYTES: usize = 4096;
/// Maximum size of notes in bytes.
const MAX_NOTES_BYTES: u64 = 1 << 16;
/// Maximum size of program headers in bytes.
const MAX_PROGRAM_HEADERS_BYTES: u64 = 1 << 16;
/// Maximum page size in bytes, to which mappings of files are aligned.
const MAX_PAGE_BYTES: u64 = 64 << 10;
/// Maximum number of cached rules of a module.
const MAX_RULES: usize = 1 << 20;

/// Data read from a module's file.
#[derive(Default)]
pub struct Tables {
    loaded: Vec<Segment>,
    entry: u64,
    frames: Frames,
    build_id: Vec<u8>,
    /// Rules by address before relocation, which are the same wherever the module is loaded.
    rules: RefCell<IntMap<u64, Rule>>,
}

impl Tables {
    /// Returns the rule of an address before relocation. Calls `compile` only once for each.
    pub fn rule(&self, address: u64, compile: impl FnOnce() -> Rule) -> Rule {
        if let Some(rule) = self.rules.borrow().get(&address) {
            return *rule;
        }
        let rule = compile();
        let mut rules = self.rules.borrow_mut();
        if rules.len() >= MAX_RULES {
            rules.clear();
        }
        rules.insert(address, rule);
        rule
    }

    /// Reads the tables of a file; empty if there are none.
    pub fn read(source: &(impl Source + ?Sized)) -> Self {
        Self::try_read(source).unwrap_or_default()
    }

    fn try_read(source: &(impl Source + ?Sized)) -> Option<Self> {
        let page = bytes(source, 0, SEARCHED_BYTES as u64, SEARCHED_BYTES as u64)?;
        let (offset, len) = elf::program_headers_range(&page)?;
        let headers = bytes(source, offset, len as u64, MAX_PROGRAM_HEADERS_BYTES)?;
        if headers.len() < len {
            return None;
        }
        let headers = &headers[..];
        let segments = |kind| elf::segments(headers).filter(move |s: &Segment| s.kind == kind);
        let mut tables = Self {
            loaded: segments(PT_LOAD).collect(),
            entry: u64::from_le_bytes(page.get(24..32)?.try_into().ok()?),
            ..Self::default()
        };
        tables.build_id = segments(PT_NOTE)
            .find_map(|s| {
                let notes = bytes(source, s.offset, s.file_size, MAX_NOTES_BYTES)?;
                elf::find_build_id(&notes).map(<[u8]>::to_vec)
            })
            .unwrap_or_default();
        // A module whose tables cannot be read is still a module.
        tables.frames = frames::read(source, &page, headers).unwrap_or_default();
        Some(tables)
    }

    /// Returns true if the tables describe a function that starts in `first..=last` (addresses
    /// before relocation).
    pub fn has_function(&self, first: u64, last: u64) -> bool {
        self.frames.has_function(first, last)
    }

    /// Drops the unwind tables.
    pub fn without_frames(self) -> Self {
        Self {
            frames: Frames::default(),
            ..self
        }
    }

    /// Returns the load bias if `offset` of the file is mapped at `start`.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| {
            s.flags & PF_X != 0
                && s.offset & !(MAX_PAGE_BYTES - 1) <= offset
                && offset < s.offset.saturating_add(s.file_size.max(1))
        };
        let code = self.loaded.iter().find(holds)?;
        let address = code.address.wrapping_add(offset.wrapping_sub(code.offset));
        Some(start.wrapping_sub(address))
    }

    /// Returns the build id; empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.frames.size()
    }
}

/// Tables of a loaded module.
#[derive(Clone, Copy)]
pub struct Loaded<'a> {
    /// Tables.
    pub tables: &'a Tables,
    /// Load bias; see [`Tables::bias`].
    pub bias: u64,
    /// Process that has it loaded.
    pub pid: i32,
}

impl<'a> Module<'a> for Loaded<'a> {
    fn eh_frame_hdr(&self) -> Option<Section<'a>> {
        let index = &self.tables.frames.index;
        Some(Section {
            bytes: Some(&index.bytes[..]).filter(|bytes| !bytes.is_empty())?,
            address: self.bias.wrapping_add(index.address),
        })
    }

    fn bytes_from(&self, address: u64) -> Option<Section<'a>> {
        let parts = self.tables.frames.entries.iter();
        let bytes = parts.filter_map(|part| {
            let offset = address.wrapping_sub(self.bias.wrapping_add(part.address));
            part.bytes.get(usize::try_from(offset).ok()?..)
        });
        let bytes = bytes.into_iter().next()?;
        Some(Section { bytes, address })
    }

    fn entry_point(&self) -> Option<u64> {
        let entry = self.tables.entry;
        (entry != 0).then(|| self.bias.wrapping_add(entry))
    }

    fn code_around(&self, address: u64) -> Option<[[u8; 8]; 4]> {
        let mut bytes = [[0; 8]; 4];
        let read_bytes =
            capture::read_memory(self.pid, address.checked_sub(8)?, bytes.as_flattened_mut());
        (read_bytes >= 16).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF file's headers with one segment of code: 4 KiB at `offset` of the file, at
    /// address `offset` + 64 KiB.
    fn file(offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; 128];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        let flags = u64::from(PT_LOAD) | (u64::from(PF_X) << 32);
        let words = [
            flags,
            offset,
            offset + 0x1_0000,
            0,
            0x1000,
            0x1000,
            0x1_0000,
        ];
        for (index, word) in words.into_iter().enumerate() {
            let at = 64 + 8 * index;
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn the_bias_of_unaligned_code_is_right_for_every_page_size() {
        let tables = Tables::read(&file(0x1_2340)[..]);
        for page in [0x1000u64, 0x4000, 0x1_0000] {
            let mapped = 0x1_2340 & !(page - 1);
            let start = 0x7000_0000 + mapped + 0x1_0000;
            assert_eq!(tables.bias(start, mapped), Some(0x7000_0000), "{page:x}");
        }
        assert_eq!(tables.bias(0x7000_0000, 0x2_0000), None);
    }

    #[test]
    fn headers_may_be_far_beyond_the_first_page() {
        let near = file(0x1_2340);
        let mut far = near.clone();
        far.resize(0x5000, 0);
        far.extend_from_slice(&near[64..]);
        far[32..40].copy_from_slice(&0x5000u64.to_le_bytes());
        far[64..128].fill(0);
        let tables = Tables::read(&far[..]);
        assert_eq!(tables.bias(0x7002_2340, 0x1_2340), Some(0x7000_0000));
        // Headers that end beyond the end of the file are not read.
        far.truncate(0x5000 + 55);
        assert_eq!(Tables::read(&far[..]).bias(0x7002_2340, 0x1_2340), None);
    }
}
