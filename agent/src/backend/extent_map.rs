//! Finds jemalloc's descriptor of a page in jemalloc's radix tree of all pages.
//!
//! Source: jemalloc 5.3.1, `rtree.h`, `edata.h`, `emap.h`.

use super::jemalloc::{EMAP, FIRST_BIN};
use core::ptr;

/// Offset of the root in `rtree_t`, in bytes: after a pointer and a mutex.
const ROOT_OFFSET: usize = if cfg!(target_arch = "aarch64") {
    128
} else {
    120
};
/// Alignment of an `edata_t`, in bytes.
const EDATA_ALIGNMENT: u64 = 128;
/// Number of bits of an entry that are the descriptor's address.
const ADDRESS_BITS: u32 = 48;
/// Number of entries at the start of the root that are empty in a tree of two levels, because no
/// memory has such addresses. In a tree of three levels, programs use only these.
const LOWEST_ENTRIES: usize = 32;

/// Returns the descriptor (`edata_t`) of the page that contains `at`.
///
/// # Safety
/// `at` is in memory that jemalloc has allocated.
pub unsafe fn descriptor(at: *const u8) -> Option<*const u64> {
    // SAFETY: jemalloc has filled these statics. A table has an entry for each value of its index,
    // and an entry that is not 0 is the address of a table or a descriptor.
    unsafe {
        let page_bits = (&raw const FIRST_BIN.slab).read_volatile().trailing_zeros();
        let root: *const u64 = (&raw const EMAP).byte_add(ROOT_OFFSET).cast();
        let page_number = at.addr() >> page_bits;
        let index_at = |shift: u32, bits: u32| (page_number >> shift) & ((1 << bits) - 1);
        let is_deep = page_bits == 12
            && (0..LOWEST_ENTRIES).any(|index| root.add(index).read_volatile() != 0);
        // Index bits of the upper levels, index bits of the lowest level, and words in each entry
        // of the lowest level.
        let (upper, lower, words): (&[u32], _, _) = match (page_bits, is_deep) {
            (12, true) => (&[15, 15], 15, 2),
            (12, false) => (&[18], 18, 1),
            (14, _) => (&[17], 17, 1),
            (16, _) => (&[16], 16, 1),
            _ => return None,
        };
        let mut table = root;
        let mut shift = lower + upper.iter().sum::<u32>();
        for bits in upper {
            shift -= bits;
            let next = table.add(index_at(shift, *bits)).read_volatile();
            if next == 0 {
                return None;
            }
            table = ptr::with_exposed_provenance(next as usize);
        }
        let entry = table.add(index_at(0, lower) * words).read_volatile();
        let address = entry & ((1 << ADDRESS_BITS) - 1) & !(EDATA_ALIGNMENT - 1);
        (address != 0).then(|| ptr::with_exposed_provenance(address as usize))
    }
}

/// Returns the address of an extent.
///
/// # Safety
/// `descriptor` belongs to an extent that only the calling thread uses.
#[cfg_attr(test, allow(dead_code))]
pub unsafe fn base(descriptor: *const u64) -> usize {
    /// Index of the address in the descriptor. A large object may begin within the first page.
    const ADDRESS: usize = 1;
    // SAFETY: the descriptor's second word; a static that jemalloc has filled.
    unsafe {
        let page = (&raw const FIRST_BIN.slab).read_volatile();
        descriptor.add(ADDRESS).read() as usize & !(page - 1)
    }
}

/// Returns the size of an extent in bytes.
///
/// # Safety
/// `descriptor` belongs to an extent that only the calling thread uses.
pub unsafe fn bytes(descriptor: *const u64) -> usize {
    /// Index of the size in the descriptor. The lower bits, below a page's size, hold another
    /// field.
    const SIZE: usize = 2;
    // SAFETY: the descriptor has at least three words, and jemalloc has filled the static.
    unsafe {
        let page = (&raw const FIRST_BIN.slab).read_volatile();
        descriptor.add(SIZE).read() as usize & !(page - 1)
    }
}

/// Returns true if an extent is a slab of objects of at most 128 bytes.
///
/// # Safety
/// `descriptor` belongs to an extent that only the calling thread uses.
#[cfg_attr(test, allow(dead_code))]
pub unsafe fn is_slab_of_tiny(descriptor: *const u64) -> bool {
    /// Bit of the first word that is set for slabs (`EDATA_BITS_SLAB_SHIFT`).
    const SLAB_BIT: u32 = 12;
    /// First bit of the size class (`EDATA_BITS_SZIND_SHIFT`), which has 8 bits.
    const CLASS_BIT: u32 = 20;
    /// Index of the class of 128 bytes, after 8, 16, 32, 48, 64, 80, 96 and 112.
    const MAX_CLASS: u64 = 8;
    // SAFETY: the descriptor's first word.
    let word = unsafe { descriptor.read() };
    (word >> SLAB_BIT) & 1 != 0 && (word >> CLASS_BIT) & 0xff <= MAX_CLASS
}

/// Origin of an extent's memory.
#[cfg_attr(test, allow(dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of its arena.
    pub arena: u32,
    /// True if its pages are new, false if it has been free before and was kept.
    pub is_new: bool,
}

/// Returns the origin of an extent's memory.
///
/// # Safety
/// `descriptor` belongs to an extent that the calling thread has just allocated, and that only it
/// uses.
#[cfg_attr(test, allow(dead_code))]
pub unsafe fn origin(descriptor: *const u64) -> Origin {
    /// Bits of the first word that are the arena's index.
    const ARENA_BITS: u32 = 12;
    /// Bit of the first word that is set if all pages are zeros (`EDATA_BITS_ZEROED_SHIFT`).
    const ZEROED_BIT: u32 = ARENA_BITS + 3;
    // SAFETY: the descriptor's first word.
    let word = unsafe { descriptor.read() };
    Origin {
        arena: (word & ((1 << ARENA_BITS) - 1)) as u32,
        is_new: word >> ZEROED_BIT & 1 != 0,
    }
}
