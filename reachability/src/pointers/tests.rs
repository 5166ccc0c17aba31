use shm_protocol::header::{self, FirstWord, SecondWord};

use super::*;
use crate::lost;
use crate::mark::{Roots, mark};
use crate::synthetic::{Bytes, large, map, slab};

const SLAB: u64 = 0x10_0000;
const LARGE_EXTENT: u64 = 0x20_0000;
const ROOTS: u64 = 0x80_0000;

/// Returns the addresses of the objects that the words at [`ROOTS`] lead to.
fn reached(memory: &Bytes, heap: &Heap, pointers: &PointerRules) -> Vec<u64> {
    let roots = Roots {
        words: &[],
        ranges: &[(ROOTS..ROOTS + (3 << 20), 0)],
        pointers,
        trace: false,
    };
    let marks = mark(memory, heap, &roots);
    let regions = (0..heap.regions()).filter(|region| marks.has(*region));
    regions
        .filter_map(|region| Some(heap.region(region)?.0))
        .collect()
}

/// Returns a heap of small objects and one object of 3 MiB.
fn heap(sampled: std::ops::Range<u64>) -> Heap {
    Heap::of(
        &map(vec![slab(SLAB, 64), large(LARGE_EXTENT, 3 << 20)]),
        sampled,
    )
}

fn memory() -> Bytes {
    Bytes(SLAB, vec![0; 11 << 20])
}

#[test]
fn unaligned_pointers_count_if_the_alignment_allows_them() {
    // The scan reads memory in parts: tests pointers inside a part, and across the end of one.
    for at in [ROOTS, ROOTS + 100, ROOTS + (1 << 20) - 8, ROOTS + (2 << 20)] {
        for shift in 0..8 {
            let mut memory = memory();
            let heap = heap(0..0);
            memory.put(at + shift, SLAB + 64);
            for alignment in [1, 2, 4, 8] {
                let pointers = PointerRules::default().aligned(alignment);
                let is_aligned = (at + shift) % alignment as u64 == 0;
                let expected: &[u64] = if is_aligned { &[SLAB + 64] } else { &[] };
                let found = reached(&memory, &heap, &pointers);
                assert_eq!(found, expected, "{at:#x} + {shift} by {alignment}");
            }
        }
    }
}

#[test]
fn tag_bits_are_masked() {
    for (word, bits) in [
        (SLAB, 0),
        (SLAB | (0x7e << 56), 7),
        (SLAB | (0xff << 56), 8),
        (SLAB | (0xfffc << 48), 16),
        (SLAB | (0x1_ffff << 47), 17),
    ] {
        let mut memory = memory();
        let heap = heap(0..0);
        memory.put(ROOTS, word);
        for tag in [0, 7, 8, 16, 17] {
            let found = reached(&memory, &heap, &PointerRules::default().tagged(tag));
            let expected: &[u64] = if tag >= bits { &[SLAB] } else { &[] };
            assert_eq!(found, expected, "{word:#x} by {tag}");
        }
    }
    let all = PointerRules::default().tagged(64);
    assert_eq!(reached(&memory(), &heap(0..0), &all), [0; 0]);
}

#[test]
fn interior_pointers_count_up_to_the_allowed_offset() {
    let reaches = |offset: u64, max_offset: u64| {
        let mut memory = memory();
        let heap = heap(0..0);
        memory.put(ROOTS, LARGE_EXTENT + offset);
        let pointers = PointerRules::default().within(max_offset, lost::starts(&memory, &heap));
        !reached(&memory, &heap, &pointers).is_empty()
    };
    assert!(reaches(0, 0) && !reaches(1, 0));
    assert!(reaches(1024, 1024) && !reaches(1025, 1024));
    assert!(reaches((3 << 20) - 1, u64::MAX));
}

/// The start of the object is after its header and padding.
#[test]
fn offsets_in_a_sampled_object_count_from_its_start() {
    let reaches = |offset: u64, max_offset: u64, aligned: bool| {
        let mut memory = memory();
        let heap = heap(SLAB..ROOTS);
        if aligned {
            // The 16-byte header is preceded by a 16-byte extension with the size and the
            // alignment.
            let header = LARGE_EXTENT + 4096 - 16;
            let at = LARGE_EXTENT + 4096;
            let [bytes, check] = header::extension(9000, 4096, at);
            memory.put(header - 16, bytes);
            memory.put(header - 8, check);
            let counted = FirstWord {
                record: 7,
                session: 1,
                bytes: 0,
                ignored: false,
                exact: false,
                extended: true,
            };
            let drawn = SecondWord {
                weight: 1.0,
                born: 99,
            };
            memory.put(header, header::first_word(&counted, at));
            memory.put(header + 8, header::second_word(drawn, at));
        } else {
            memory.put_header(LARGE_EXTENT, 99_000, 1.0);
        }
        memory.put(ROOTS, LARGE_EXTENT + offset);
        let pointers = PointerRules::default().within(max_offset, lost::starts(&memory, &heap));
        !reached(&memory, &heap, &pointers).is_empty()
    };
    assert!(reaches(16, 0, false) && !reaches(17, 0, false));
    assert!(reaches(16 + 8, 8, false) && !reaches(16 + 9, 8, false));
    assert!(reaches(4096, 0, true) && !reaches(4097, 0, true));
    assert!(reaches(4100, 4, true) && !reaches(4101, 4, true));
}
