use super::*;
use crate::mark::{Roots, mark};
use crate::synthetic::{Bytes, large, map, slab};

const SLAB: u64 = 0x10_0000;
const LARGE_EXTENT: u64 = 0x20_0000;
const OTHER: u64 = 0x30_0000;

#[test]
fn unreached_regions_are_lost_objects_or_unknown_memory() {
    let mut memory = Bytes(SLAB, vec![0; 4 << 20]);
    memory.put_header(SLAB, 40, 1.0);
    memory.put_header(SLAB + 64, 41, 2.5);
    memory.put_header(SLAB + 128, 42, 0.0);
    memory.put_header(SLAB + 192, 43, 1.0);
    memory.put_header(LARGE_EXTENT, 99_000, 1.0);
    let extents = vec![
        slab(SLAB, 64),
        large(LARGE_EXTENT, 100 << 10),
        slab(OTHER, 8192),
    ];
    let heap = Heap::of(&map(extents), SLAB..OTHER);
    let roots = Roots {
        words: &[(SLAB + 16, 0), (OTHER, 0)],
        ranges: &[],
        pointers: &PointerRules::default(),
        trace: false,
    };
    let marks = mark(&memory, &heap, &roots);
    let found = find(&memory, &heap, &marks, |object| object.bytes != 43);
    let lost: Vec<_> = found
        .lost
        .iter()
        .map(|lost| (lost.object.at, lost.object.bytes))
        .collect();
    assert_eq!(lost, [(SLAB + 64 + 16, 41), (LARGE_EXTENT + 16, 99_000)]);
    assert_eq!(found.lost[0].region, 1);
    assert_eq!(found.lost[0].object.weight, 2.5);
    let second = heap.find(OTHER + 8192).expect("an object").1;
    assert_eq!(found.unknown, [second]);
    assert_eq!(found.left_out, 0);
}

/// Object 1 leads to 2 and 4, 3 leads to 4, and 4 leads to an object in unknown memory.
#[test]
fn objects_that_an_excused_object_leads_to_are_not_lost() {
    let mut memory = Bytes(SLAB, vec![0; 4 << 20]);
    let address = |index: u64| SLAB + index * 64;
    (1..5).for_each(|index| memory.put_header(address(index), 40, 1.0));
    for (from, offset, to) in [(1, 16, 2), (1, 24, 4), (3, 16, 4)] {
        memory.put(address(from) + offset, address(to) + 16);
    }
    memory.put(address(4) + 32, OTHER);
    let extents = vec![slab(SLAB, 64), slab(OTHER, 8192)];
    let heap = Heap::of(&map(extents), SLAB..OTHER);
    let pointers = PointerRules::default();
    let lost_after_excusing = |indexes: &[u32]| {
        let mut marks = Marks::empty(&heap);
        let mut found = find(&memory, &heap, &marks, |_| true);
        found.excuse(&memory, &heap, &pointers, &mut marks, indexes);
        let lost = found.lost.iter().map(|lost| lost.region);
        (lost.collect::<Vec<_>>(), found.unknown.len())
    };
    assert_eq!(lost_after_excusing(&[]), (vec![1, 2, 3, 4], 2));
    assert_eq!(lost_after_excusing(&[0]), (vec![3], 1), "1 leads to 4, too");
    assert_eq!(lost_after_excusing(&[1]), (vec![1, 3, 4], 2));
    assert_eq!(lost_after_excusing(&[2]), (vec![1, 2], 1));
    assert_eq!(lost_after_excusing(&[0, 2]), (vec![], 1));
    assert_eq!(lost_after_excusing(&[99]), (vec![1, 2, 3, 4], 2));
}

/// Objects that fill their memory have their headers in the table. Smaller objects of the same size
/// class have theirs before them.
#[test]
fn headers_are_found_in_the_table_and_before_the_object() {
    let range = SLAB..SLAB + 0x40000;
    let small = SLAB + 0x10000;
    let large = SLAB + 0x20000;
    let mut memory = Bytes(SLAB, vec![0; 1 << 20]);
    let at = |index: u64| small + index * 1024;
    let full = [(at(0), 1024), (at(3), 1010), (large, 8192)];
    for (object, bytes) in full {
        memory.put_header_of(object::entry(&range, object), object, bytes, 1.0);
    }
    memory.put_header(at(1), 1000, 1.0);
    memory.put(at(1) + 16, large + 5000);
    // Freed objects: their pointers do not count.
    memory.put_header_of(object::entry(&range, at(2)), at(2), 1024, 0.0);
    memory.put(at(2), at(3));
    memory.put_header_of(object::entry(&range, large + 8192), large + 8192, 8192, 0.0);
    memory.put(large + 8192, at(0));

    let mut heap = Heap::of(&map(vec![slab(small, 1024), slab(large, 8192)]), range);
    heap.check_table(&memory);
    let table = SLAB..SLAB + 4096;
    let outside = heap.outside(table.start..table.end + 64);
    let after = table.end..table.end + 64;
    assert_eq!(
        outside,
        std::slice::from_ref(&after),
        "the table is not a root"
    );
    let lost_with_roots = |words: &[(u64, u32)]| {
        let roots = Roots {
            words,
            ranges: &[],
            pointers: &PointerRules::default(),
            trace: false,
        };
        let marks = mark(&memory, &heap, &roots);
        let lost = find(&memory, &heap, &marks, |_| true).lost.into_iter();
        lost.map(|lost| (lost.object.at, lost.object.bytes))
            .collect::<Vec<_>>()
    };
    let words = [(at(1) + 16, 0), (at(2), 0), (large + 8192, 0)];
    assert_eq!(lost_with_roots(&words), [(at(0), 1024), (at(3), 1010)]);
    let all = [
        (at(0), 1024),
        (at(1) + 16, 1000),
        (at(3), 1010),
        (large, 8192),
    ];
    assert_eq!(lost_with_roots(&[]), all);
    assert_eq!(super::starts(&memory, &heap).len(), 3);
}
