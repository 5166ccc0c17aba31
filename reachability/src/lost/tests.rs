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
