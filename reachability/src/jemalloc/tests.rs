//! Compares the objects found from outside with what jemalloc itself reports.

use super::*;
use crate::Heap;
use std::collections::HashSet;
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::thread;
use tikv_jemalloc_sys as jemalloc;

unsafe extern "C" {
    #[link_name = "_rjem_je_arena_emap_global"]
    static EMAP: u8;
    #[link_name = "_rjem_je_arenas"]
    static ARENA_TABLE: u8;
}

/// Runs a test alone, in a thread that exits: when an arena's last thread exits, jemalloc returns
/// the arena's free pages.
pub fn run_alone(test: impl FnOnce() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let ended = thread::scope(|scope| scope.spawn(test).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

const NO_CACHE: i32 = 1 << 8;

fn globals() -> Globals {
    Globals {
        emap: (&raw const EMAP).addr() as u64,
        arenas: (&raw const ARENA_TABLE).addr() as u64,
        page: page(),
    }
}

/// Returns jemalloc's page size, as jemalloc reports it.
fn page() -> u64 {
    let mut page = 0_usize;
    let mut bytes = size_of::<usize>();
    // SAFETY: a NUL-terminated name, and a `usize` of the given size to write to.
    let failed = unsafe {
        jemalloc::mallctl(
            c"arenas.page".as_ptr(),
            (&raw mut page).cast(),
            &raw mut bytes,
            std::ptr::null_mut(),
            0,
        )
    };
    assert_eq!(failed, 0);
    page as u64
}

/// Memory of this process, read through `/proc/self/mem`, which emulators (qemu-user) support,
/// unlike some system calls that read other processes.
struct OwnMemory(File);

impl Memory for OwnMemory {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        self.0.read_at(buffer, at).unwrap_or(0)
    }
}

fn memory() -> OwnMemory {
    OwnMemory(File::open("/proc/self/mem").expect("this process's memory"))
}

fn alloc(size: usize, align: usize) -> *mut c_void {
    // SAFETY: the size is not 0, and the alignment is a power of two.
    unsafe { jemalloc::mallocx(size, align.trailing_zeros() as i32 | NO_CACHE) }
}

fn free(at: *mut c_void) {
    // SAFETY: `at` is an object of `alloc` that is freed only here.
    unsafe { jemalloc::dallocx(at, NO_CACHE) }
}

mod hostile;

#[test]
fn object_bounds_match_jemallocs() {
    run_alone(|| {
        let sizes = [
            1,
            8,
            9,
            48,
            100,
            512,
            3000,
            14336,
            14337,
            20_000,
            70_000,
            5 << 20,
        ];
        let mut objects = Vec::new();
        for round in 0..200 {
            for size in sizes {
                if size < 100_000 || round < 3 {
                    objects.push(alloc(size + round, 1 << (round % 9)));
                }
            }
        }
        let gone: Vec<_> = objects.iter().copied().step_by(3).collect();
        gone.iter().for_each(|at| free(*at));
        let map = read(&memory(), &globals()).expect("jemalloc's map");
        assert_eq!(map.damaged, 0);
        let heap = Heap::of(&map, 0..0);
        for (index, at) in objects.iter().enumerate() {
            let address = at.addr() as u64;
            if index % 3 == 0 {
                let found = heap
                    .find(address)
                    .and_then(|(_, region)| heap.region(region));
                assert!(found.is_none(), "{address:#x} is free: {found:x?}");
                continue;
            }
            // SAFETY: allocated.
            let usable = unsafe { jemalloc::sallocx(*at, 0) } as u64;
            for inside in [0, 1, usable / 2, usable - 1] {
                let (_, region) = heap.find(address + inside).expect("allocated");
                let (at, size) = heap.region(region).expect("a region");
                // Large objects start at a random offset in their first page.
                let is_large = usable >= 4 * globals().page;
                let spare = if is_large { globals().page } else { 0 };
                assert_eq!(at, address, "{inside}");
                assert!((usable..=usable + spare).contains(&size), "{size} {usable}");
                assert!(heap.is_allocated(region));
            }
            let beyond = address + usable + globals().page;
            let beyond = heap.find(beyond).and_then(|(_, r)| heap.region(r));
            assert_ne!(beyond.map(|(at, _)| at), Some(address));
        }
        let rest = objects
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 3 != 0);
        rest.for_each(|(_, at)| free(*at));
    });
}

#[test]
fn jemalloc_metadata_is_not_an_object() {
    run_alone(|| {
        let objects: Vec<_> = (0..20_000).map(|_| alloc(4096, 1)).collect();
        let map = read(&memory(), &globals()).expect("jemalloc's map");
        let heap = Heap::of(&map, 0..0);
        let layout = Layout::of_pages(page()).expect("a layout");
        let shape = shape(&memory(), &globals(), &layout);
        let mut descriptors = HashSet::new();
        for (_, leaf) in leaves(&memory(), &globals(), &shape).expect("leaves") {
            let count = shape.words << shape.lower;
            let buffer = &mut vec![0; READ_BYTES];
            each_word(&memory(), leaf, count, buffer, |number, word| {
                if number % shape.words == 0 {
                    let address = word & ((1 << ADDRESS_BITS) - 1);
                    descriptors.insert(address & !(EDATA_ALIGNMENT - 1));
                }
            });
        }
        descriptors.remove(&0);
        assert!(descriptors.len() > 100);
        for descriptor in descriptors {
            let range = descriptor..descriptor + layout.edata_bytes as u64;
            assert_eq!(heap.outside(range.clone()), [], "{range:x?}");
            assert_eq!(heap.find(descriptor), None);
        }
        objects.into_iter().for_each(free);
    });
}

#[test]
fn all_mapped_memory_is_told_from_memory_of_others() {
    run_alone(|| {
        let sizes = [16, 3000, 20_000, 1 << 20, 5 << 20];
        let mut objects = Vec::new();
        for round in 0..100 {
            let of_round = sizes.iter().filter(|size| **size < 100_000 || round < 3);
            objects.extend(of_round.map(|&size| (alloc(size, 1), size as u64)));
        }
        // The memory is as large as jemalloc's mappings and next to one, so `maps` shows both as
        // one.
        let other = vec![1_u8; 1 << 20];
        let freed = objects.split_off(objects.len() / 2);
        freed.iter().for_each(|(at, _)| free(*at));
        let mapped = mapped(&memory(), &globals()).expect("jemalloc's memory");
        let is_in = |ranges: &[Range<u64>], at: u64| ranges.iter().any(|r| r.contains(&at));
        for (at, size) in &objects {
            for inside in [0, size - 1] {
                let at = at.addr() as u64 + inside;
                assert!(is_in(&mapped.in_use, at) && !is_in(&mapped.unused, at));
            }
        }
        let other = other.as_ptr().addr() as u64;
        for ranges in [&mapped.in_use, &mapped.unused, &mapped.metadata] {
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            assert!(!is_in(ranges, other) && !is_in(ranges, other + (1 << 20) - 1));
        }
        let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
        // SAFETY: the controls write numbers of this size.
        let stat = |name: &std::ffi::CStr| unsafe {
            let (mut epoch, mut value, mut size) = (1_u64, 0_u64, size_of::<u64>());
            let at = (&raw mut epoch).cast();
            jemalloc::mallctl(
                c"epoch".as_ptr(),
                std::ptr::null_mut(),
                &raw mut size,
                at,
                8,
            );
            let at = (&raw mut value).cast();
            let name = name.as_ptr();
            jemalloc::mallctl(name, at, &raw mut size, std::ptr::null_mut(), 0);
            value
        };
        assert_eq!(bytes(&mapped.in_use), stat(c"stats.active"));
        let all = bytes(&mapped.in_use) + bytes(&mapped.unused) + bytes(&mapped.metadata);
        assert_eq!(all, stat(c"stats.mapped") + stat(c"stats.retained"));
        objects.iter().for_each(|(at, _)| free(*at));
    });
}

#[test]
fn thread_caches_are_not_objects() {
    run_alone(|| {
        let mut index: u32 = 0;
        let mut len = size_of::<u32>();
        // SAFETY: a NUL-terminated name, and a `u32` of the given size to write to.
        let made = unsafe {
            let name = c"tcache.create".as_ptr();
            let index = (&raw mut index).cast();
            jemalloc::mallctl(name, index, &raw mut len, std::ptr::null_mut(), 0)
        };
        assert_eq!(made, 0);
        // One object is allocated through that cache, one through the thread's own.
        let flags = (index as i32 + 2) << 8;
        for flags in [flags, 0] {
            // SAFETY: a size that is not 0.
            let object = unsafe { jemalloc::mallocx(1000, flags) };
            let memory = memory();
            let map = read(&memory, &globals()).expect("jemalloc's map");
            let heap = Heap::of(&map, 0..0);
            assert!(heap.find(object.addr() as u64).is_some());
            let holds = |at: &&u64| {
                let mut bytes = vec![0; 64 << 10];
                let got = memory.read(**at, &mut bytes);
                let mut words = bytes[..got].chunks_exact(8).map(word_of);
                words.any(|word| word == object.addr() as u64)
            };
            let cache = *map.caches.iter().find(holds).expect("a cache that had it");
            for inside in [0, 8, 4096] {
                assert_eq!(heap.find(cache + inside), None);
            }
            // SAFETY: allocated with the same flags.
            unsafe { jemalloc::dallocx(object, flags) };
        }
    });
}

#[test]
fn data_that_is_not_jemallocs_is_rejected() {
    let mut wrong = globals();
    wrong.emap = 0x1000;
    assert_eq!(read(&memory(), &wrong).err(), Some(Unreadable::Globals));
    let noise: Vec<u64> = (0..1 << 19)
        .map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let mut wrong = globals();
    wrong.emap = noise.as_ptr().addr() as u64;
    assert!(read(&memory(), &wrong).is_err());
    wrong = globals();
    wrong.page = 3;
    assert_eq!(read(&memory(), &wrong).err(), Some(Unreadable::Layout));
}
