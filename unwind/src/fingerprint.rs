//! Words by which a mapped module is recognised again.
//!
//! The kernel is asked whether the module that was at an address is still there: it compares some
//! words of the module's headers. None of the module's memory is read here, and it may be unmapped
//! at any moment.

use crate::elf::{Image, PT_LOAD, PT_NOTE, find_build_id, program_headers, segments};
use crate::probe;

/// Maximum number of words: two of the build id, two of the program headers.
const MOST: usize = 4;
/// Offset of a loaded segment's size in its program header.
const FILE_SIZE_OFFSET: usize = 32;

/// Addresses, and what is there. An address of 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint([(u64, u32); MOST]);

impl Fingerprint {
    /// For the module whose file's first page, `page`, is mapped at `at`. None where it is not a
    /// module's.
    #[must_use]
    pub fn of(page: &[u8], at: u64) -> Self {
        let Some(headers) = program_headers(page) else {
            return Self::default();
        };
        let first = headers.as_ptr() as usize - page.as_ptr() as usize;
        Self::of_parts((page, at), (headers, at + first as u64))
    }

    /// For a page and program headers, which are mapped at these addresses.
    fn of_parts((page, at): (&[u8], u64), (headers, headers_at): (&[u8], u64)) -> Self {
        let mut fingerprint = Self::default();
        let size = headers.len() / segments(headers).count().max(1);
        let sizes = segments(headers).enumerate();
        let mut sizes = sizes.filter(|(_, segment)| segment.kind == PT_LOAD);
        let sizes = [sizes.next(), sizes.last()].into_iter().flatten();
        let sizes = sizes.map(|(index, _)| (headers, headers_at, index * size + FILE_SIZE_OFFSET));
        let id = build_id_offset(page, headers);
        let id = id.into_iter().flat_map(|id| [id, id + 4]);
        let places = sizes.chain(id.map(|offset| (page, at, offset)));
        let words = places.filter_map(|(bytes, at, offset)| {
            let word = bytes.get(offset..offset + 4)?.try_into().ok()?;
            let address = at + offset as u64;
            let aligned = address.is_multiple_of(4);
            aligned.then_some((address, u32::from_le_bytes(word)))
        });
        let slots = fingerprint.0.iter_mut();
        slots.zip(words).for_each(|(slot, word)| *slot = word);
        fingerprint
    }

    /// Of a module that is mapped.
    #[must_use]
    pub fn of_image(image: &Image) -> Self {
        let headers = image.headers();
        let page = (image.first_page(), image.start());
        Self::of_parts(page, (headers, headers.as_ptr() as u64))
    }

    /// Whether there are none: nothing is known of the module.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0].0 == 0
    }

    /// Whether all are where they were. About 0.25 µs each.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let mut used = self.0.iter().take_while(|(at, _)| *at != 0);
        used.all(|(at, word)| probe::holds(*at, *word))
    }
}

/// Where the page has the build id.
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

    /// The first page of this program, where it is mapped.
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
    fn this_program_is_known_again_and_another_is_not() {
        let (page, at) = own();
        let fingerprint = Fingerprint::of(&page, at);
        assert!(!fingerprint.is_empty() && fingerprint.is_there());
        assert!(
            fingerprint.0.iter().all(|(at, _)| *at != 0),
            "{fingerprint:?}"
        );
        let other = Fingerprint::of(&page, at + 4096);
        assert!(!other.is_empty() && !other.is_there());
        for index in 0..MOST {
            let mut changed = fingerprint;
            changed.0[index].1 ^= 1;
            assert!(!changed.is_there());
        }
    }

    #[test]
    fn pages_that_are_no_header_have_none() {
        let (page, at) = own();
        for bytes in [&page[..40], &[0; 4096], &page[4..]] {
            assert!(Fingerprint::of(bytes, at).is_empty());
        }
    }
}
