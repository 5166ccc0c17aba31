use super::*;
use crate::mark::{Roots, mark};
use crate::synthetic::{Bytes, large, map, slab};

const SLAB: u64 = 0x10_0000;
const LARGE: u64 = 0x20_0000;
const OTHER: u64 = 0x30_0000;

#[test]
fn what_is_not_reached_is_lost_or_unknown() {
    let mut memory = Bytes(SLAB, vec![0; 4 << 20]);
    memory.put_header(SLAB, 40, 1.0);
    memory.put_header(SLAB + 64, 41, 2.5);
    memory.put_header(SLAB + 128, 42, 0.0);
    memory.put_header(SLAB + 192, 43, 1.0);
    memory.put_header(LARGE, 99_000, 1.0);
    let extents = vec![slab(SLAB, 64), large(LARGE, 100 << 10), slab(OTHER, 8192)];
    let heap = Heap::of(&map(extents), SLAB..OTHER);
    let roots = Roots {
        words: &[(SLAB + 16, 0), (OTHER, 0)],
        ranges: &[],
        pointers: &Pointers::default(),
        trace: false,
    };
    let marks = mark(&memory, &heap, &roots);
    let found = find(&memory, &heap, &marks, |object| object.bytes != 43);
    let lost: Vec<_> = found
        .lost
        .iter()
        .map(|l| (l.object.at, l.object.bytes))
        .collect();
    assert_eq!(lost, [(SLAB + 64 + 16, 41), (LARGE + 16, 99_000)]);
    assert_eq!(found.lost[0].region, 1);
    assert_eq!(found.lost[0].object.weight, 2.5);
    let second = heap.find(OTHER + 8192).expect("an object").1;
    assert_eq!(found.unknown, [second]);
    assert_eq!(found.left_out, 0);
}

/// 1 leads to 2 and 4, 3 leads to 4, and 4 to 5; the last is of unknown memory.
#[test]
fn what_only_an_excused_object_keeps_is_not_lost() {
    let mut memory = Bytes(SLAB, vec![0; 4 << 20]);
    let at = |index: u64| SLAB + index * 64;
    (1..5).for_each(|index| memory.put_header(at(index), 40, 1.0));
    for (from, word, to) in [(1, 16, 2), (1, 24, 4), (3, 16, 4)] {
        memory.put(at(from) + word, at(to) + 16);
    }
    memory.put(at(4) + 32, OTHER);
    let extents = vec![slab(SLAB, 64), slab(OTHER, 8192)];
    let heap = Heap::of(&map(extents), SLAB..OTHER);
    let pointers = Pointers::default();
    let excused = |indexes: &[u32]| {
        let mut marks = Marks::none(&heap);
        let mut found = find(&memory, &heap, &marks, |_| true);
        found.excuse(&memory, &heap, &pointers, &mut marks, indexes);
        let lost = found.lost.iter().map(|lost| lost.region);
        (lost.collect::<Vec<_>>(), found.unknown.len())
    };
    assert_eq!(excused(&[]), (vec![1, 2, 3, 4], 2));
    assert_eq!(excused(&[0]), (vec![3], 1), "4 is kept by 1, too");
    assert_eq!(excused(&[1]), (vec![1, 3, 4], 2));
    assert_eq!(excused(&[2]), (vec![1, 2], 1));
    assert_eq!(excused(&[0, 2]), (vec![], 1));
    assert_eq!(excused(&[99]), (vec![1, 2, 3, 4], 2));
}
