//! Fingerprints: words of a module's headers by which it is recognised.
//!
//! A fingerprint tells whether its module is still mapped. The module may be unmapped at any
//! moment, so its memory must not be read for this: the kernel compares the words
//! ([`probe::word_equals`]).

use crate::elf::{Image, PT_LOAD, PT_NOTE, find_build_id, program_headers, segments};
use crate::probe;

/// Maximum number of words: two of the program headers, two of the build id.
const MAX_WORDS: usize = 4;
/// Offset of the segment's file size in a program header.
const FILE_SIZE_OFFSET: usize = 32;

/// Addresses and the words there. Unused entries have address 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint([(u64, u32); MAX_WORDS]);

/// Bytes of a module, and the address where they are mapped.
struct MappedBytes<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl MappedBytes<'_> {
    /// Returns the address of the word at `offset`, and the word. Returns `None` if it is not
    /// aligned or out of bounds.
    fn word(&self, offset: usize) -> Option<(u64, u32)> {
        let word = self.bytes.get(offset..offset + 4)?.try_into().ok()?;
        let address = self.at + offset as u64;
        address
            .is_multiple_of(4)
            .then_some((address, u32::from_le_bytes(word)))
    }
}

impl Fingerprint {
    /// Returns the fingerprint of a module whose file's first page is `page` and is mapped at `at`.
    /// Empty if the page is not an ELF file's.
    #[must_use]
    pub fn of(page: &[u8], at: u64) -> Self {
        let Some(headers) = program_headers(page) else {
            return Self::default();
        };
        let offset = headers.as_ptr() as usize - page.as_ptr() as usize;
        let headers = MappedBytes {
            bytes: headers,
            at: at + offset as u64,
        };
        Self::of_parts(&MappedBytes { bytes: page, at }, &headers)
    }

    /// Returns the fingerprint from a first page and program headers, with the addresses where
    /// these are mapped.
    fn of_parts(page: &MappedBytes<'_>, headers: &MappedBytes<'_>) -> Self {
        let mut fingerprint = Self::default();
        let header_size = headers.bytes.len() / segments(headers.bytes).count().max(1);
        let mut loaded = segments(headers.bytes)
            .enumerate()
            .filter(|(_, segment)| segment.kind == PT_LOAD);
        let first_and_last = [loaded.next(), loaded.last()].into_iter().flatten();
        let file_sizes =
            first_and_last.map(|(index, _)| headers.word(index * header_size + FILE_SIZE_OFFSET));
        let build_id = build_id_offset(page.bytes, headers.bytes)
            .into_iter()
            .flat_map(|offset| [offset, offset + 4])
            .map(|offset| page.word(offset));
        let words = file_sizes.chain(build_id).flatten();
        for (slot, word) in fingerprint.0.iter_mut().zip(words) {
            *slot = word;
        }
        fingerprint
    }

    /// Returns the fingerprint of a mapped module.
    #[must_use]
    pub fn of_image(image: &Image) -> Self {
        let headers = image.headers();
        let page = MappedBytes {
            bytes: image.first_page(),
            at: image.start(),
        };
        let headers = MappedBytes {
            bytes: headers,
            at: headers.as_ptr() as u64,
        };
        Self::of_parts(&page, &headers)
    }

    /// Returns true if there are no words to compare.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0].0 == 0
    }

    /// Returns true if all words are still mapped and unchanged. Takes about 0.25 µs for each word.
    #[must_use]
    pub fn is_still_mapped(&self) -> bool {
        let mut used = self.0.iter().take_while(|(at, _)| *at != 0);
        used.all(|(at, word)| probe::word_equals(*at, *word))
    }
}

/// Returns the offset of the build id in the first page.
fn build_id_offset(page: &[u8], headers: &[u8]) -> Option<usize> {
    let mut notes = segments(headers).filter(|segment| segment.kind == PT_NOTE);
    notes.find_map(|segment| {
        let start = usize::try_from(segment.offset).ok()?;
        let end = start.checked_add(usize::try_from(segment.file_size).ok()?)?;
        let id = find_build_id(page.get(start..end)?)?;
        Some(id.as_ptr() as usize - page.as_ptr() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Returns the first page of this program, where it is mapped.
    fn own() -> (Vec<u8>, u64) {
        let exe = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| line.ends_with(exe.to_str().unwrap()));
        let at = u64::from_str_radix(line.unwrap().split('-').next().unwrap(), 16).unwrap();
        (std::fs::read(exe).unwrap()[..4096].to_vec(), at)
    }

    #[test]
    fn a_program_is_recognised_and_another_is_not() {
        let (page, at) = own();
        let fingerprint = Fingerprint::of(&page, at);
        assert!(!fingerprint.is_empty() && fingerprint.is_still_mapped());
        assert!(
            fingerprint.0.iter().all(|(at, _)| *at != 0),
            "{fingerprint:?}"
        );
        let other = Fingerprint::of(&page, at + 4096);
        assert!(!other.is_empty() && !other.is_still_mapped());
        for index in 0..MAX_WORDS {
            let mut changed = fingerprint;
            changed.0[index].1 ^= 1;
            assert!(!changed.is_still_mapped());
        }
    }

    #[test]
    fn pages_without_an_elf_header_have_no_fingerprint() {
        let (page, at) = own();
        for bytes in [&page[..40], &[0; 4096], &page[4..]] {
            assert!(Fingerprint::of(bytes, at).is_empty());
        }
    }
}
