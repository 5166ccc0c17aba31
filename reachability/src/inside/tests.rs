use std::cell::Cell;
use std::collections::HashSet;
use std::slice;

use super::*;
use crate::jemalloc;
use crate::mark::{Marks, Origin, Roots, mark};
use crate::memory::Work;
use crate::object::Content;
use crate::pointers::PointerRules;
use crate::synthetic::{OVERWRITTEN, header_words, map, slab};

/// Start and length of the synthetic memory, which covers parts of two leaves.
const BASE: u64 = 0x1_1000_0000 - 0x60_0000;
const LENGTH: u64 = 0xc0_0000;

/// Memory of this process, in which the work is done too.
struct Local {
    words: Vec<u64>,
    /// Kind of each page.
    kinds: Vec<Kind>,
    /// Number of times that work was done.
    done: Cell<usize>,
    outcome: Outcome,
    is_open: bool,
}

/// Outcome of work.
enum Outcome {
    /// Work is done.
    Work,
    /// Work fails.
    Failure,
    /// Target writes to the shared words at random, seeded with this number.
    HostileWrites(Cell<u64>),
}

/// Writes random values to random words.
fn write_at_random(words: &[AtomicU64], seed: &Cell<u64>) {
    let mut numbers = Numbers(seed.get());
    let dense = 1 + numbers.below(4);
    let total = numbers.below(3);
    for word in words {
        if numbers.below(dense) == 0 {
            let value = match numbers.below(3) {
                0 => u64::MAX,
                1 => numbers.below(u64::MAX),
                _ => (numbers.below(1000) << 32) | numbers.below(1000),
            };
            word.store(value, Ordering::Relaxed);
        }
    }
    // Number of bytes searched. A number that is too large is rejected altogether.
    match total {
        0 => words[0].store(u64::MAX, Ordering::Relaxed),
        _ => words[0].store(numbers.below(LENGTH), Ordering::Relaxed),
    }
    seed.set(numbers.below(u64::MAX) | 1);
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Here,
    Elsewhere,
    Zero,
}

impl Local {
    fn new() -> Self {
        Self {
            words: vec![0; LENGTH as usize / 8],
            kinds: vec![Kind::Here; (LENGTH / PAGE) as usize],
            done: Cell::new(0),
            outcome: Outcome::Work,
            is_open: true,
        }
    }

    fn put(&mut self, at: u64, word: u64) {
        self.words[((at - BASE) / 8) as usize] = word;
    }

    fn put_header(&mut self, at: u64, bytes: u32, weight: f32) {
        let [first, second] = header_words(at + 16, bytes, weight);
        self.put(at, first);
        self.put(at + 8, second);
    }

    fn word_at(&self, at: u64) -> u64 {
        let index = at.wrapping_sub(BASE);
        match self.kinds.get((index / PAGE) as usize) {
            None | Some(Kind::Zero) => 0,
            Some(_) => self.words[(index / 8) as usize],
        }
    }

    fn ranges(&self, wanted: Kind) -> Vec<Range<u64>> {
        let pages = (0..).zip(&self.kinds);
        let pages = pages.filter(|(_, kind)| **kind == wanted);
        let mut found: Vec<Range<u64>> = Vec::new();
        for (index, _) in pages {
            let range = BASE + index * PAGE..BASE + (index + 1) * PAGE;
            match found.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => found.push(range),
            }
        }
        found
    }
}

impl Memory for Local {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let mut next = at & !7;
        let mut done = 0;
        while done < buffer.len() {
            let word = self.word_at(next).to_le_bytes();
            let skip = if done == 0 { (at % 8) as usize } else { 0 };
            let len = (8 - skip).min(buffer.len() - done);
            buffer[done..done + len].copy_from_slice(&word[skip..skip + len]);
            done += len;
            next = next.wrapping_add(8);
        }
        buffer.len()
    }

    fn in_place(&self) -> Option<InPlace> {
        self.is_open.then(|| InPlace {
            parts: self.ranges(self::Kind::Here),
            remote_only: self.ranges(self::Kind::Elsewhere),
            shift: (self.words.as_ptr().expose_provenance() as u64).wrapping_sub(BASE),
        })
    }

    fn runner(&self, work: Work, words: usize) -> Option<Box<dyn Runner + '_>> {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Some(Box::new(Own {
            memory: self,
            work,
            words,
        }))
    }
}

struct Own<'a> {
    memory: &'a Local,
    work: Work,
    words: Vec<AtomicU64>,
}

impl Runner for Own<'_> {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn run(&self, bytes: u64) -> bool {
        self.memory.done.set(self.memory.done.get() + 1);
        assert!(bytes <= 2 * LENGTH);
        match &self.memory.outcome {
            Outcome::Work => {}
            Outcome::Failure => return false,
            Outcome::HostileWrites(seed) => {
                write_at_random(&self.words, seed);
                return true;
            }
        }
        // SAFETY: atomic words may be changed through a shared reference; they are as `Tables` has
        // laid them out, and what they say is here is in `memory`.
        unsafe { (self.work)(self.words.as_ptr().cast_mut().cast()) };
        true
    }
}

/// Pseudo-random numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Returns a heap of slabs of many sizes, large objects and gaps, in which words point anywhere.
fn heap_of(numbers: &mut Numbers, memory: &mut Local) -> Heap {
    let mut all = map(Vec::new());
    all.free.clear();
    let mut at = BASE + numbers.below(4) * PAGE;
    while at + 0x10_0000 < BASE + LENGTH {
        let (bytes, content) = match numbers.below(8) {
            0 => {
                let pages = 1 + numbers.below(80);
                let start = at + 64 * numbers.below(64);
                (
                    pages * PAGE,
                    jemalloc::Content::Large(start, at + pages * PAGE - start),
                )
            }
            1 => (PAGE * (1 + numbers.below(20)), jemalloc::Content::Unused),
            _ => {
                let size = crate::size::of_class(numbers.below(30) as u32 + 1).expect("a class");
                let bytes = PAGE * (1 + numbers.below(8)).max(size.div_ceil(PAGE));
                let groups = 0..(bytes / size).div_ceil(64);
                let first = all.free.len();
                match numbers.below(2) {
                    0 => all.free.extend(groups.map(|_| numbers.below(u64::MAX))),
                    _ => all.free.extend(groups.map(|_| 0)),
                }
                (bytes, jemalloc::Content::Slab(size, first))
            }
        };
        all.extents.push(jemalloc::Extent {
            pages: at..at + bytes,
            content,
        });
        at += bytes + numbers.below(3) * PAGE;
    }
    let dense = 2 + numbers.below(60);
    for index in 0..LENGTH / 8 {
        let word = match numbers.below(dense) {
            0 => BASE + numbers.below(LENGTH),
            1 => numbers.below(u64::MAX),
            _ => 0,
        };
        memory.words[index as usize] = word;
    }
    let middle = BASE + numbers.below(LENGTH) / PAGE * PAGE;
    let heap = Heap::of(&all, BASE..middle);
    for extent in heap.extents().iter().filter(|e| heap.is_sampled(e)) {
        for index in 0..u64::from(extent.count) {
            let weight = [0.0, 1.0, 2.5, OVERWRITTEN][numbers.below(4) as usize];
            if extent.size >= 32 {
                let base = extent.start + index * extent.size;
                memory.put_header(base, extent.size as u32 - 16, weight);
            }
        }
    }
    let unusual = numbers.below(3);
    for kind in &mut memory.kinds {
        *kind = match (unusual, numbers.below(50)) {
            (1, 0..5) | (2, 0..2) => Kind::Zero,
            (2, 2..4) => Kind::Elsewhere,
            _ => Kind::Here,
        };
    }
    heap
}

/// Returns the reached regions, found by the simplest algorithm.
fn reference(memory: &Local, heap: &Heap, words: &[u64], ranges: &[Range<u64>]) -> HashSet<u32> {
    let mut reached = HashSet::new();
    let mut next: Vec<u64> = words.to_vec();
    for range in ranges {
        next.extend(range.clone().step_by(8).map(|at| memory.word_at(at)));
    }
    while let Some(word) = next.pop() {
        let Some((extent, region)) = heap.find(word) else {
            continue;
        };
        if !reached.insert(region) {
            continue;
        }
        let (base, size) = heap.region(region).expect("a region");
        let has_headers = heap.has_headers(&heap.extents()[extent as usize]);
        if !has_headers || heap.content_at(memory, region) != Content::Nothing {
            next.extend((base..base + size).step_by(8).map(|at| memory.word_at(at)));
        }
    }
    reached
}

fn reached(heap: &Heap, marks: &Marks) -> HashSet<u32> {
    (0..heap.regions())
        .filter(|region| marks.has(*region))
        .collect()
}

/// Every origin leads, step by step, to a root, and each step has a pointer to the next.
fn check_origins(memory: &Local, heap: &Heap, marks: &Marks) {
    for region in reached(heap, marks).into_iter().take(200) {
        let path = crate::path::chain_to(memory, heap, &PointerRules::default(), marks, region);
        let path = path.expect("a path");
        let (last, rest) = path.steps.split_last().expect("steps");
        assert_eq!(last.region, region);
        assert!(rest.iter().all(|step| step.offset.is_some()), "{path:?}");
        assert!(matches!(
            marks.origin(path.steps[0].region),
            Some(Origin::Root(1 | 2))
        ));
    }
}

#[test]
fn both_searches_agree_with_a_naive_one() {
    for seed in 1..16 {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 ^ (seed << 20));
        let mut memory = Local::new();
        let heap = heap_of(&mut numbers, &mut memory);
        let words: Vec<u64> = (0..4).map(|_| BASE + numbers.below(LENGTH)).collect();
        let start = BASE + numbers.below(LENGTH) / 8 * 8;
        let end = (start + numbers.below(0x30_0000)).min(BASE + LENGTH) & !7;
        let long = start..end.max(start);
        let expected = reference(&memory, &heap, &words, std::slice::from_ref(&long));
        let words: Vec<(u64, u32)> = words.into_iter().map(|word| (word, 1)).collect();
        for trace in [false, true] {
            let roots = Roots {
                words: &words,
                ranges: &[(long.clone(), 2)],
                pointers: &PointerRules::default(),
                trace,
            };
            memory.done.set(0);
            memory.is_open = true;
            let there = mark(&memory, &heap, &roots);
            assert_eq!(
                memory.done.get(),
                1 + usize::from(trace),
                "done in place: {seed}"
            );
            assert!(reached(&heap, &there) == expected, "{seed}");
            memory.is_open = false;
            let outside = mark(&memory, &heap, &roots);
            assert!(reached(&heap, &outside) == expected, "{seed}");
            if trace {
                check_origins(&memory, &heap, &there);
                check_origins(&memory, &heap, &outside);
            }
        }
    }
}

#[test]
fn work_that_fails_is_done_from_outside() {
    let mut numbers = Numbers(77);
    let mut memory = Local::new();
    let heap = heap_of(&mut numbers, &mut memory);
    let word = heap.region(0).expect("a region").0;
    memory.outcome = Outcome::Failure;
    let roots = Roots {
        words: &[(word, 1)],
        ranges: &[(BASE..BASE + LENGTH, 2)],
        pointers: &PointerRules::default(),
        trace: false,
    };
    let marks = mark(&memory, &heap, &roots);
    assert_eq!(memory.done.get(), 1);
    let all = BASE..BASE + LENGTH;
    let expected = reference(&memory, &heap, &[word], slice::from_ref(&all));
    assert!(reached(&heap, &marks) == expected);
}

/// One object leads to far more regions than the queue can hold.
#[test]
fn regions_that_do_not_fit_in_the_queue_are_searched_later() {
    let mut memory = Local::new();
    let count = 1 << 17;
    assert!(count > 4 * QUEUE_CAPACITY[0]);
    let table = BASE;
    let slabs = BASE + 0x20_0000;
    assert!(8 * count <= 0x20_0000 && 32 * (count + 1) < LENGTH - 0x20_0000);
    let mut extents = vec![crate::synthetic::large(table, 8 * count)];
    let pages = (0..=32 * count / 0x4000).map(|index| slab(slabs + index * 0x4000, 32));
    extents.extend(pages);
    let heap = Heap::of(&map(extents), 0..0);
    for index in 0..count {
        memory.put(table + 8 * index, slabs + 32 * index);
    }
    // The last object leads to one more.
    memory.put(slabs + 32 * (count - 1), slabs + 32 * count);
    let roots = Roots {
        words: &[(table, 1)],
        ranges: &[],
        pointers: &PointerRules::default(),
        trace: false,
    };
    let marks = mark(&memory, &heap, &roots);
    assert_eq!(reached(&heap, &marks).len() as u64, 1 + count + 1);
    assert_eq!(memory.done.get(), 1);
    assert_eq!(marks.scanned, 8 * count + 32 * (count + 1));
}

/// The target may be able to write to the shared words, so they may contain anything.
#[test]
fn hostile_results_never_mark_regions_that_do_not_exist() {
    let mut accepted = 0;
    for seed in 1..40_u64 {
        let mut numbers = Numbers(0x2545_f491_4f6c_dd1d ^ (seed << 24));
        let mut memory = Local::new();
        let heap = heap_of(&mut numbers, &mut memory);
        memory.outcome = Outcome::HostileWrites(Cell::new((seed << 7) | 1));
        let word = heap.region(0).expect("a region").0;
        let roots = Roots {
            words: &[(word, 1)],
            ranges: &[(BASE..BASE + LENGTH / 2, 2)],
            pointers: &PointerRules::default(),
            trace: seed % 2 == 0,
        };
        let marks = mark(&memory, &heap, &roots);
        assert!(memory.done.get() > 0);
        accepted += usize::from(memory.done.get() == 1 + usize::from(roots.trace));
        assert!(marks.scanned <= 8 * LENGTH, "{}", marks.scanned);
        for region in 0..heap.regions() {
            assert!(!marks.has(region) || heap.is_allocated(region), "{region}");
        }
        // Origins may lead anywhere, even in circles. Every query ends, and returns only existing
        // regions.
        for region in (0..heap.regions()).step_by(97) {
            let path = crate::path::chain_to(&memory, &heap, roots.pointers, &marks, region);
            for step in path.iter().flat_map(|path| &path.steps) {
                assert_eq!(heap.region(step.region), Some((step.at, step.size)));
            }
        }
        let found = crate::lost::find(&memory, &heap, &marks, |_| true);
        let how = crate::causes::classify(&memory, &heap, roots.pointers, &found);
        assert_eq!(how.map(|how| how.len()), Some(found.lost.len()));
    }
    assert!(accepted > 5, "{accepted}");
}

/// A heap of few pages that lie far apart would take a table for each.
#[test]
fn extents_far_apart_are_searched_from_outside() {
    struct Sparse(Cell<bool>);
    impl Memory for Sparse {
        fn read(&self, _at: u64, buffer: &mut [u8]) -> usize {
            buffer.fill(0);
            buffer.len()
        }
        fn in_place(&self) -> Option<InPlace> {
            let page = 1 << 40..(1 << 40) + PAGE;
            Some(InPlace {
                parts: vec![page],
                ..InPlace::default()
            })
        }
        fn runner(&self, _work: Work, _words: usize) -> Option<Box<dyn Runner + '_>> {
            self.0.set(true);
            None
        }
    }
    for (count, is_few) in [(10_u64, true), (1000, false)] {
        let apart =
            (0..count).map(|index| crate::synthetic::large((1 << 40) + (index << 30), PAGE));
        let heap = Heap::of(&map(apart.collect()), 0..0);
        let memory = Sparse(Cell::new(false));
        let roots = Roots {
            words: &[(1 << 40, 1)],
            ranges: &[],
            pointers: &PointerRules::default(),
            trace: false,
        };
        assert!(mark(&memory, &heap, &roots).has(0));
        assert_eq!(memory.0.get(), is_few, "{count}");
    }
}
