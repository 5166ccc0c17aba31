use super::*;
use crate::synthetic::{Bytes, OVERWRITTEN, large, map, slab};

const SLAB: u64 = 0x10_0000;
const SECOND: u64 = 0x10_4000;
const LARGE_EXTENT: u64 = 0x20_0000;
const ROOTS: u64 = 0x80_0000;

fn memory() -> Bytes {
    Bytes(SLAB, vec![0; 8 << 20])
}

/// Two slabs of objects of 64 bytes, and one object of 3 MiB.
fn heap(sampled: Range<u64>) -> Heap {
    let extents = vec![
        slab(SLAB, 64),
        slab(SECOND, 64),
        large(LARGE_EXTENT, 3 << 20),
    ];
    Heap::of(&map(extents), sampled)
}

fn marked(memory: &Bytes, heap: &Heap, words: &[u64]) -> Marks {
    let words: Vec<(u64, u32)> = words.iter().map(|word| (*word, 5)).collect();
    let roots = Roots {
        words: &words,
        ranges: &[(ROOTS..ROOTS + 64, 6)],
        pointers: &PointerRules::default(),
        trace: true,
    };
    mark(memory, heap, &roots)
}

fn number(heap: &Heap, at: u64) -> u32 {
    heap.find(at).expect("an object").1
}

fn has(heap: &Heap, marks: &Marks, at: u64) -> bool {
    marks.has(number(heap, at))
}

#[test]
fn interior_pointers_count_and_pointers_past_the_end_do_not() {
    let heap = heap(0..0);
    let marks = marked(
        &memory(),
        &heap,
        &[SLAB + 64 + 63, SLAB + 4 * 64, LARGE_EXTENT - 1],
    );
    assert!(has(&heap, &marks, SLAB + 64) && has(&heap, &marks, SLAB + 256));
    assert!(!has(&heap, &marks, SLAB) && !has(&heap, &marks, SLAB + 128));
    assert!(!has(&heap, &marks, SLAB + 192) && !has(&heap, &marks, LARGE_EXTENT));
    let inside = marked(&memory(), &heap, &[LARGE_EXTENT + (3 << 20) - 1]);
    assert!(has(&heap, &inside, LARGE_EXTENT));
    let past = marked(
        &memory(),
        &heap,
        &[LARGE_EXTENT + (3 << 20), SECOND + 0x4000],
    );
    assert!((0..heap.regions()).all(|region| !past.has(region)));
}

#[test]
fn every_region_size_is_found_by_every_byte() {
    for size in (1..64)
        .map(|step| step * 16)
        .chain([1280, 2048, 4096, 5120, 8192])
    {
        let heap = Heap::of(&map(vec![slab(SLAB, size)]), 0..0);
        let count = (0x4000 / size).min(512);
        for at in 0..0x4000 {
            let found = heap.find(SLAB + at).map(|(_, region)| u64::from(region));
            assert_eq!(
                found,
                Some(at / size).filter(|index| *index < count),
                "{at} {size}"
            );
        }
    }
}

#[test]
fn the_origin_of_an_object_is_recorded() {
    let mut memory = memory();
    let heap = heap(0..0);
    memory.put(ROOTS + 8, SECOND);
    memory.put(SECOND + 56, SECOND + 640);
    memory.put(SECOND + 640, LARGE_EXTENT + 100);
    let marks = marked(&memory, &heap, &[SLAB]);
    let origin = |at| marks.origin(number(&heap, at));
    assert_eq!(origin(SLAB), Some(Origin::Root(5)));
    assert_eq!(origin(SECOND), Some(Origin::Root(6)));
    assert_eq!(
        origin(SECOND + 640),
        Some(Origin::Region(number(&heap, SECOND)))
    );
    assert_eq!(
        origin(LARGE_EXTENT),
        Some(Origin::Region(number(&heap, SECOND + 640)))
    );
    assert_eq!(origin(SLAB + 64), None);
    let path = crate::path::chain_to(
        &memory,
        &heap,
        &PointerRules::default(),
        &marks,
        number(&heap, LARGE_EXTENT),
    )
    .expect("reached");
    let steps: Vec<_> = path
        .steps
        .iter()
        .map(|step| (step.at, step.offset))
        .collect();
    let expected = [
        (SECOND, Some(56)),
        (SECOND + 640, Some(0)),
        (LARGE_EXTENT, None),
    ];
    assert_eq!((path.root, &steps[..]), (6, &expected[..]));
}

/// Follows lists through both slabs in several orders, so that sometimes few and sometimes many
/// regions of a slab are pending.
#[test]
fn lists_are_followed_to_their_end_in_any_order() {
    for step in [1, 3, 7, 101, 255, 511] {
        let mut memory = memory();
        let heap = heap(0..0);
        let at = |index: u64| SLAB + index * step % 512 * 64;
        for index in 0..511 {
            memory.put(at(index) + 24, at(index + 1) + 8);
        }
        let marks = marked(&memory, &heap, &[at(0)]);
        assert!(
            (0..512).all(|index| has(&heap, &marks, at(index))),
            "{step}"
        );
        assert_eq!(marks.scanned, 512 * 64 + 64, "each object is read once");
        let none = marked(&memory, &heap, &[at(511)]);
        assert_eq!(
            (0..512)
                .filter(|index| has(&heap, &none, at(*index)))
                .count(),
            1
        );
    }
}

#[test]
fn large_objects_are_read_up_to_their_last_word() {
    let chunk = READ_BYTES as u64;
    for offset in [0, chunk - 8, chunk, 2 * chunk - 8, (3 << 20) - 8] {
        let mut memory = memory();
        let heap = heap(0..0);
        memory.put(LARGE_EXTENT + offset, SLAB);
        let marks = marked(&memory, &heap, &[LARGE_EXTENT + 1]);
        assert!(has(&heap, &marks, SLAB), "{offset}");
        assert_eq!(marks.scanned, (3 << 20) + 64 + 64);
    }
}

#[test]
fn pointers_in_freed_sampled_objects_do_not_count() {
    for (weight, is_alive) in [(1.0, true), (0.0, false), (OVERWRITTEN, true)] {
        let mut memory = memory();
        let heap = heap(SLAB..LARGE_EXTENT + (4 << 20));
        for (at, bytes) in [(SLAB, 40), (LARGE_EXTENT, 3_000_000)] {
            memory.put_header(at, bytes, weight);
            memory.put(at + 16, SECOND + at % 0x1000);
            memory.put(at + 24, SECOND + if at == SLAB { 64 } else { 128 });
        }
        let marks = marked(&memory, &heap, &[SLAB + 16, LARGE_EXTENT + 16]);
        assert!(has(&heap, &marks, SLAB) && has(&heap, &marks, LARGE_EXTENT));
        assert_eq!(has(&heap, &marks, SECOND + 64), is_alive, "{weight}");
        assert_eq!(has(&heap, &marks, SECOND + 128), is_alive, "{weight}");
    }
}

#[test]
fn invalid_ranges_are_harmless() {
    let heap = heap(0..0);
    for range in [u64::MAX - 3..u64::MAX, 5..5, 1..3] {
        let roots = Roots {
            words: &[],
            ranges: &[(range.clone(), 0)],
            pointers: &PointerRules::default(),
            trace: false,
        };
        mark(&memory(), &heap, &roots);
        targets(&memory(), &heap, &[range]);
    }
}
