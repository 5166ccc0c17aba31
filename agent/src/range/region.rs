//! Finds the allocation that contains an address of the range, from jemalloc's own data: for
//! objects whose headers a program has overwritten. Rarely used, and far slower than a header.
//!
//! Source: jemalloc 5.3.1, `edata.h`; `reachability/src/jemalloc.rs` reads the same data from
//! outside the process. A test compares the result with what jemalloc has allocated.

use super::allocated_bytes;
use crate::backend::extent_map::descriptor;
use crate::backend::jemalloc::FIRST_BIN;

/// Allocation in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub base: *mut u8,
    /// Size in bytes.
    pub bytes: usize,
}

/// Bit of the first word of an `edata_t` that is set for slabs (`EDATA_BITS_SLAB_SHIFT`).
const SLAB_BIT: u32 = 12;
/// First of the three bits with the state of an extent (`EDATA_BITS_STATE_SHIFT`); 0: allocated.
const STATE_BIT: u32 = 17;
/// Index of the word with the address.
const ADDRESS: usize = 1;
/// Index of the word with the size, whose lower bits hold another field.
const SIZE: usize = 2;
/// Index of the first word of a slab's bitmap. Bits of allocated objects are 0.
const BITMAP: usize = 8;

/// Returns the allocation that contains `at`. Returns `None` if that memory is not allocated, or
/// lies in a page of a large object that is neither the first nor the last.
///
/// # Safety
/// `at` is in the range, in memory of the arena.
#[cold]
pub unsafe fn find(at: *const u8) -> Option<Region> {
    // SAFETY: `at` is in memory of the arena. jemalloc never frees the memory of its tree and
    // descriptors, and changes them by single words.
    unsafe {
        let edata = descriptor(at)?;
        let word = |index: usize| edata.add(index).read_volatile();
        let bits = word(0);
        let start = word(ADDRESS) as usize;
        let is_active = (bits >> STATE_BIT) & 7 == 0;
        let offset = at.addr().checked_sub(start)?;
        if !is_active || word(SIZE) as usize <= offset {
            return None;
        }
        if (bits >> SLAB_BIT) & 1 == 0 {
            let base = at.cast_mut().with_addr(start);
            return Some(Region {
                base,
                bytes: allocated_bytes(base),
            });
        }
        // jemalloc reports the class's size for any address in a slab.
        let bytes = allocated_bytes(at);
        let index = offset.checked_div(bytes)?;
        // A slab of one page has the most objects, of 8 bytes each: this bounds the bitmap.
        let last_group = (&raw const FIRST_BIN.slab).read_volatile() / (8 * 64) - 1;
        let group = word(BITMAP + (index / 64).min(last_group));
        let is_allocated = (group >> (index % 64)) & 1 == 0;
        let base = at.cast_mut().with_addr(start + index * bytes);
        is_allocated.then_some(Region { base, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::jemalloc;

    #[test]
    fn regions_are_those_that_jemalloc_has_allocated() {
        for bytes in [16, 48, 160, 1024, 5120, 14 << 10, 20 << 10, 1 << 20] {
            // SAFETY: plain allocation calls, without a cache.
            unsafe {
                let objects: std::vec::Vec<*mut u8> = (0..50)
                    .map(|_| jemalloc::mallocx(bytes, 1 << 8).cast())
                    .collect();
                for object in &objects {
                    let expected = Region {
                        base: *object,
                        bytes: allocated_bytes(*object),
                    };
                    let page = (&raw const FIRST_BIN.slab).read_volatile();
                    let to_next_page = page - object.addr() % page;
                    let last = if bytes < 4 * page {
                        bytes
                    } else {
                        to_next_page.min(bytes)
                    } - 1;
                    for inside in [0, 1, 15, last] {
                        assert_eq!(find(object.add(inside)), Some(expected), "{bytes} {inside}");
                    }
                }
                for object in &objects[1..] {
                    jemalloc::dallocx(object.cast(), 1 << 8);
                    assert_eq!(find(*object), None, "{bytes}");
                }
                jemalloc::dallocx(objects[0].cast(), 1 << 8);
            }
        }
    }
}
