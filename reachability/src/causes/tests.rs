use super::*;
use crate::jemalloc::{Content, Extent, Map};
use crate::lost::Lost;
use crate::object::Sampled;

const BASE: u64 = 0x10_0000;
const SIZE: u64 = 64;

/// A slab whose objects point to each other.
struct Slab(Vec<u8>);

impl Memory for Slab {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let Some(rest) = at
            .checked_sub(BASE)
            .and_then(|at| self.0.get(at as usize..))
        else {
            return 0;
        };
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        len
    }
}

/// Returns how each object is lost. Row `i` of `pointers` lists the objects that object `i` points
/// to. Objects in `unknown` are not sampled.
fn classify(pointers: &[&[u64]], unknown: &[u32]) -> Vec<LossKind> {
    let mut bytes = vec![0; 4096];
    for (object, targets) in pointers.iter().enumerate() {
        for (word, target) in targets.iter().enumerate() {
            let at = object * SIZE as usize + 16 + word * 8;
            let address = BASE + target * SIZE + 24;
            bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
    }
    let map = Map {
        extents: vec![Extent {
            pages: BASE..BASE + 4096,
            content: Content::Slab(SIZE, 0),
        }],
        free: vec![0],
        ..Map::default()
    };
    let heap = Heap::of(&map, BASE..BASE + 4096);
    let object = |region| Sampled {
        at: BASE + u64::from(region) * SIZE,
        bytes: 1,
        record: 1,
        session: 1,
        weight: 1.0,
        born: 0,
        ignored: false,
    };
    let regions = (0..pointers.len() as u32).filter(|region| !unknown.contains(region));
    let found = Unreached {
        lost: regions
            .map(|region| Lost {
                region,
                object: object(region),
            })
            .collect(),
        unknown: unknown.to_vec(),
        left_out: 0,
        unclear: 0,
    };
    super::classify(&Slab(bytes), &heap, &PointerRules::default(), &found).expect("few")
}

use LossKind::{Directly, InCycle, Indirectly, ThroughUnknown};

#[test]
fn a_list_is_lost_through_its_head() {
    assert_eq!(
        classify(&[&[1], &[2], &[]], &[]),
        [Directly, Indirectly(0), Indirectly(0)]
    );
    assert_eq!(
        classify(&[&[], &[0], &[1]], &[]),
        [Indirectly(2), Indirectly(2), Directly]
    );
}

#[test]
fn a_ring_is_a_cycle_unless_another_object_leads_to_it() {
    assert_eq!(
        classify(&[&[1], &[0, 2], &[]], &[]),
        [InCycle(0), InCycle(0), Indirectly(0)]
    );
    assert_eq!(
        classify(&[&[1], &[0], &[1]], &[]),
        [Indirectly(2), Indirectly(2), Directly]
    );
    assert_eq!(classify(&[&[0]], &[]), [Directly], "a ring of one");
}

#[test]
fn unknown_memory_is_a_cause_of_last_resort() {
    assert_eq!(classify(&[&[1], &[]], &[0]), [ThroughUnknown]);
    assert_eq!(
        classify(&[&[2], &[2], &[]], &[0]),
        [Directly, Indirectly(0)]
    );
    // The ring consists of a sampled object and an unsampled one.
    assert_eq!(classify(&[&[1], &[0]], &[0]), [InCycle(0)]);
}
