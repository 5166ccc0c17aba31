//! What the fuzz targets share: a counting allocator, and what must hold for every profile that a
//! reader accepts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use profile::merge::{self, Base};
use profile::{Format, NO_MAPPING, Profile, cpu, dump, pprof};

/// The system's allocator. Counts the allocated bytes in [`HELD`], and their maximum in [`MOST`].
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all is passed on to the system's allocator; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(held, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that a reader may hold whatever its input is, such as the buffers of a stream.
const FIXED_BYTES: usize = 8 << 20;

/// Bytes that it may hold in addition for each byte of the input.
const BYTES_PER_BYTE: usize = 128;

/// Runs `work` on an input of this length and fails if it held too much memory.
pub fn bounded<T>(length: usize, work: impl FnOnce() -> T) -> T {
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    let result = work();
    let most = MOST.load(Relaxed).saturating_sub(before);
    assert!(
        most <= FIXED_BYTES + BYTES_PER_BYTE * length,
        "{most} bytes held for an input of {length}"
    );
    result
}

/// Reads a profile, and checks it and what is made of it. Returns false if the input is not a
/// profile.
pub fn read(bytes: &[u8]) -> bool {
    let Ok(profile) = bounded(bytes.len(), || profile::read(bytes, "input")) else {
        return false;
    };
    check_references(&profile);
    check_conversions(&profile);
    true
}

/// Checks that everything to which one part of a profile refers exists in the others.
fn check_references(profile: &Profile) {
    let columns = profile.sample_types.len();
    assert!(columns > 0 && profile.default_type < columns);
    assert_eq!(profile.values.len(), profile.stacks.len() * columns);
    for number in 0..profile.stacks.len() {
        for &frame in profile.stacks.get(number) {
            assert!((frame as usize) < profile.locations.len());
        }
    }
    for location in &profile.locations {
        let mapping = location.mapping;
        assert!(mapping == NO_MAPPING || (mapping as usize) < profile.mappings.len());
        for line in profile.lines_of(location) {
            assert!((line.function as usize) < profile.functions.len());
        }
    }
    let counts = [profile.details.len(), profile.block_sizes.len()];
    assert!(counts.iter().all(|n| [0, profile.stacks.len()].contains(n)));
    for label in &profile.labels {
        assert!((label.stack as usize) < profile.stacks.len());
    }
    for column in 0..columns {
        profile.total(column);
    }
}

/// Checks that the profile is the same after it was written and read again, and that it can be
/// merged and subtracted.
fn check_conversions(profile: &Profile) {
    let mut bytes = Vec::new();
    pprof::write(profile, &mut bytes).expect("memory takes all");
    let read = profile::read(&bytes, "own proto").expect("what we wrote");
    assert_eq!(read.values, profile.values);
    assert_eq!(read.stacks.len(), profile.stacks.len());
    if profile.format == Format::Dump {
        let mut bytes = Vec::new();
        dump::write(profile, &mut bytes).expect("memory takes all");
        let read = profile::read(&bytes, "own dump").expect("what we wrote");
        assert_eq!(read.stacks.len(), profile.stacks.len());
    }
    if profile.format == Format::Cpu {
        let mut bytes = Vec::new();
        cpu::write(profile, &mut bytes).expect("what was read has what a file holds");
        let read = profile::read(&bytes, "own CPU profile").expect("what we wrote");
        assert_eq!(read.stacks, profile.stacks);
        assert_eq!(read.values, profile.values);
        assert_eq!(read.facts, profile.facts);
    }
    let both = [profile.clone(), profile.clone()];
    let sum = merge::merge(&both).expect("a profile has its own columns");
    check_references(&sum);
    let (now, before) = both.split_at(1);
    for base in [Base::Difference, Base::Comparison] {
        let rest = merge::subtract(now, before, base).expect("a profile has its own columns");
        check_references(&rest);
    }
}
