//! A process whose allocator's data a hostile program wrote: the objects that they describe, what
//! leads to them, and what is lost.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use reachability::jemalloc::{self, Globals};
use reachability::mark::{self, Roots};
use reachability::{Heap, Memory, PointerRules, causes, lost, path};

const PAGE: usize = 4096;
const BASE: u64 = 0x40_0000_0000;
/// Pages at [`BASE`].
const PAGES: u64 = 1 << 12;
/// Offsets of the input's parts, which are pages except for the last one: `arena_emap_global`,
/// `arenas`, an arena's first block, the radix tree's leaf, descriptors of extents, and objects.
const PLACES: [u64; 6] = [0x40_0000, 0x60_0000, 0x80_0000, 0xa0_0000, 0xc0_0000, 0];

/// The input, at [`PLACES`]. All other bytes of the [`PAGES`] are zero. No other address can be
/// read.
struct Input<'a>(&'a [u8]);

impl Memory for Input<'_> {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let end = BASE + PAGES * PAGE as u64;
        if !(BASE..end).contains(&at) {
            return 0;
        }
        let len = buffer.len().min((end - at) as usize);
        buffer[..len].fill(0);
        for (index, place) in PLACES.iter().enumerate() {
            let is_last = index + 1 == PLACES.len();
            let rest = self.0.get(index * PAGE..).unwrap_or_default();
            let bytes = &rest[..if is_last {
                rest.len()
            } else {
                rest.len().min(PAGE)
            }];
            copy(bytes, BASE + place, at, &mut buffer[..len]);
        }
        len
    }

    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = BASE + PAGES * PAGE as u64;
        let found = range.start.max(BASE)..range.end.min(end);
        (found.start < found.end).then_some(found)
    }
}

/// Copies the common part of `bytes`, at address `place`, and `buffer`, at address `at`.
fn copy(bytes: &[u8], place: u64, at: u64, buffer: &mut [u8]) {
    let start = place.max(at);
    let end = (place + bytes.len() as u64).min(at + buffer.len() as u64);
    if start < end {
        let len = (end - start) as usize;
        let (from, to) = ((start - place) as usize, (start - at) as usize);
        buffer[to..to + len].copy_from_slice(&bytes[from..from + len]);
    }
}

fuzz_target!(|data: &[u8]| {
    let memory = Input(data);
    let globals = Globals {
        emap: BASE + PLACES[0],
        arenas: BASE + PLACES[1],
        page: PAGE as u64,
    };
    let Ok(map) = jemalloc::read(&memory, &globals) else {
        return;
    };
    let ends: Vec<u64> = map.extents.iter().map(|extent| extent.pages.end).collect();
    assert!(
        map.extents
            .iter()
            .skip(1)
            .zip(ends)
            .all(|(next, end)| next.pages.start >= end)
    );
    let middle = BASE + 0x4000;
    let mut heap = Heap::of(&map, BASE..middle);
    heap.check_table(&memory);
    let range = BASE..BASE + data.len() as u64;
    let ranges: Vec<(Range<u64>, u32)> = heap.outside(range).into_iter().map(|r| (r, 0)).collect();
    search(&memory, &heap, &ranges, &PointerRules::default());
    let special = PointerRules::default().aligned(1).tagged(16);
    search(
        &memory,
        &heap,
        &ranges,
        &special.within(64, lost::starts(&memory, &heap)),
    );
});

/// Searches for what leads to the objects, what is lost, and how.
fn search(memory: &Input<'_>, heap: &Heap, ranges: &[(Range<u64>, u32)], pointers: &PointerRules) {
    let roots = Roots {
        words: &[(BASE + 24, 1), (BASE + 0x4000, 1)],
        ranges,
        pointers,
        trace: true,
    };
    let mut marks = mark::mark(memory, heap, &roots);
    let mut found = lost::find(memory, heap, &marks, |_| true);
    assert!(found.lost.iter().all(|lost| !marks.has(lost.region)));
    let how = causes::classify(memory, heap, pointers, &found);
    assert!(how.is_none_or(|how| how.len() == found.lost.len()));
    for region in (0..heap.regions())
        .filter(|region| marks.has(*region))
        .take(64)
    {
        let (at, size) = heap.region(region).expect("a region that was reached");
        assert!(heap.find(at).is_some_and(|(_, found)| found == region) && size > 0);
        let _ = path::chain_to(memory, heap, pointers, &marks, region);
    }
    let before = found.lost.len();
    found.excuse(memory, heap, pointers, &mut marks, &[0, 2, 99]);
    assert!(found.lost.len() < before || before == 0);
    assert!(found.lost.iter().all(|lost| !marks.has(lost.region)));
}
