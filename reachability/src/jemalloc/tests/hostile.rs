//! Maps that jemalloc never creates: damaged or forged ones.

use super::super::layout::BLOCK;
use super::super::*;
use std::collections::BTreeMap;
use std::time::Instant;

/// Words by address; all other memory is zero.
#[derive(Default)]
struct Words(BTreeMap<u64, u64>);

impl Memory for Words {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        buffer.fill(0);
        let end = at.saturating_add(buffer.len() as u64);
        for (&address, &word) in self.0.range(at..end) {
            let start = (address - at) as usize;
            let len = (buffer.len() - start).min(8);
            buffer[start..start + len].copy_from_slice(&word.to_le_bytes()[..len]);
        }
        buffer.len()
    }
}

const GLOBALS: Globals = Globals {
    emap: 0x1000_0000,
    arenas: 0x2000_0000,
    page: 4096,
};
/// Number of the GiB that the leaf covers.
const GIB: u64 = 64;
/// Number of the first page in that GiB.
const FIRST_PAGE: u64 = GIB << 18;
/// Address of the root's entry for that GiB.
const ROOT: u64 = GLOBALS.emap + ROOT_OFFSET + GIB * 8;
/// Address of the leaf.
const LEAF: u64 = 0x4000_0000;
const LEAF_BYTES: u64 = 2 << 20;
const DESCRIPTOR: u64 = 0x8000_0000;
const ARENA: u64 = 0x3000_0000;

fn layout() -> Layout {
    Layout::of_pages(GLOBALS.page).expect("a layout")
}

/// Returns valid data: one arena with one block, and one leaf.
fn valid() -> Words {
    let mut words = Words::default();
    words.0.insert(GLOBALS.arenas, ARENA + 4096);
    let base = layout().base_of(ARENA);
    words.0.insert(base + BLOCKS_OFFSET, ARENA);
    words.0.insert(ARENA, BLOCK);
    words.0.insert(ROOT, LEAF);
    words
}

/// Adds the descriptor of a large object with these pages, and enters it in the leaf at `page`.
fn describe(words: &mut Words, number: u64, page: u64, pages: Range<u64>) {
    let descriptor = DESCRIPTOR + number * EDATA_ALIGNMENT;
    words.0.insert(LEAF + page * 8, descriptor);
    words
        .0
        .insert(descriptor + 8, (FIRST_PAGE + pages.start) * 4096);
    words
        .0
        .insert(descriptor + 16, (pages.end - pages.start) * 4096);
}

/// Returns the first page of each extent, counted from [`FIRST_PAGE`].
fn first_pages(map: &Map) -> Vec<u64> {
    map.extents
        .iter()
        .map(|extent| extent.pages.start / 4096 - FIRST_PAGE)
        .collect()
}

#[test]
fn misplaced_and_overlapping_extents_count_as_damaged() {
    let mut words = valid();
    describe(&mut words, 1, 5, 5..8);
    // The entry of the first extent's last page, which is not another extent.
    words.0.insert(LEAF + 7 * 8, DESCRIPTOR + 128);
    describe(&mut words, 2, 20, 21..22);
    describe(&mut words, 3, 30, 30..40);
    describe(&mut words, 4, 35, 35..36);
    describe(&mut words, 5, 40, 40..41);
    let map = read(&words, &GLOBALS).expect("a map");
    assert_eq!(first_pages(&map), [5, 30, 40]);
    assert_eq!(map.damaged, 2);
}

#[test]
fn a_leaf_that_is_entered_repeatedly_is_rejected() {
    let mut words = valid();
    describe(&mut words, 1, 5, 5..6);
    for index in 1..1 << 18 {
        words.0.insert(ROOT + index * 8, LEAF);
    }
    let start = Instant::now();
    assert_eq!(read(&words, &GLOBALS).err(), Some(Unreadable::Layout));
    for index in 1..1 << 18 {
        words.0.insert(ROOT + index * 8, LEAF + index * 8);
    }
    assert_eq!(read(&words, &GLOBALS).err(), Some(Unreadable::Layout));
    for index in 1..1 << 18 {
        words.0.insert(ROOT + index * 8, LEAF + index * LEAF_BYTES);
    }
    assert_eq!(read(&words, &GLOBALS).err(), Some(Unreadable::Size));
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn too_many_damaged_extents_end_the_reading() {
    let mut words = valid();
    for page in 0..1 << 18 {
        let descriptor = DESCRIPTOR + (page % 2) * 128;
        words.0.insert(LEAF + page * 8, descriptor);
    }
    assert_eq!(read(&words, &GLOBALS).err(), Some(Unreadable::Layout));
}

#[test]
fn following_looping_lists_of_blocks_terminates() {
    let mut words = valid();
    for arena in 0..ARENAS as u64 {
        let at = ARENA + arena * BLOCK;
        words.0.insert(GLOBALS.arenas + arena * 8, at);
        let base = layout().base_of(at);
        words.0.insert(base, arena);
        words.0.insert(base + BLOCKS_OFFSET, at);
        words.0.insert(at, BLOCK);
        words.0.insert(at + 8, at);
    }
    let blocks = metadata(&words, &arenas(&words, &GLOBALS, &layout()), &layout());
    assert_eq!(blocks.len(), MAX_BLOCKS_OF_ALL);
}

#[test]
fn addresses_at_the_end_of_the_address_space_are_rejected() {
    for at in [u64::MAX, u64::MAX - 7, u64::MAX - (2 << 20), 1 << 63] {
        for globals in [
            Globals {
                emap: at,
                ..GLOBALS
            },
            Globals {
                arenas: at,
                ..GLOBALS
            },
        ] {
            assert!(read(&valid(), &globals).is_err());
        }
        let mut words = valid();
        words.0.insert(GLOBALS.arenas, at);
        assert!(read(&words, &GLOBALS).is_err());
    }
}
