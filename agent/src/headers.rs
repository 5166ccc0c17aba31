//! Header table for sampled objects that fill their size class.
//!
//! Usually the header lies before its object ([`crate::object`]). An object that fills its size
//! class would then take the next class, a fifth or a quarter larger, and programs often allocate
//! whole kilobytes. In size classes of whole kilobytes, objects begin at multiples of 1 KiB. So the
//! header of such an object is an entry of this table, indexed by address, and the object takes its
//! own class.
//!
//! The table is the beginning of the range: 16 bytes for each KiB, of which only used pages become
//! resident. An entry without an object is zero, or has the weight 0.

// Decision 61: objects that fill their class have their header in a table.
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use shm_protocol::header::{HEADER, TABLE_UNIT, entry_offset};

/// Number of bytes of the range for each byte of the table.
const RANGE_BYTES_PER_TABLE_BYTE: usize = TABLE_UNIT / HEADER;
/// Largest page size of any supported machine, in bytes. The accessible part of the table is
/// aligned to it.
const MAX_PAGE_BYTES: usize = 64 << 10;

/// First address of the table; 0 before there is a range.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Returns the size of the table in a range of `range` bytes.
pub const fn bytes(range: usize) -> usize {
    (range / RANGE_BYTES_PER_TABLE_BYTE).next_multiple_of(MAX_PAGE_BYTES)
}

/// Returns the part of a table of `table` bytes that has entries for objects, if the objects lie
/// after the table and within the first `used` bytes of the range. Consists of whole pages.
#[cfg_attr(test, allow(dead_code))]
pub fn in_use(table: usize, used: usize) -> Range<usize> {
    let start = table / RANGE_BYTES_PER_TABLE_BYTE / MAX_PAGE_BYTES * MAX_PAGE_BYTES;
    start..bytes(used).clamp(start, table)
}

/// Sets the start of the range.
pub fn begin(base: usize) {
    BASE.store(base, Ordering::Relaxed);
}

/// Makes the entries for `bytes` bytes of objects at `at` accessible. Returns false if that fails.
///
/// # Safety
/// The objects' memory lies in the range, after a table of the size that [`bytes`](fn@bytes)
/// returns.
pub unsafe fn open(at: *const u8, bytes: usize) -> bool {
    let first = entry(at);
    let last = entry(at.wrapping_add(bytes));
    let skew = (first.addr() - BASE.load(Ordering::Relaxed)) % MAX_PAGE_BYTES;
    let start = first.wrapping_sub(skew);
    let len = (last.addr() - start.addr()).next_multiple_of(MAX_PAGE_BYTES);
    // SAFETY: pages of the table, which belongs to the range.
    unsafe {
        libc::madvise(start.cast(), len, libc::MADV_DODUMP);
        libc::mprotect(start.cast(), len, libc::PROT_READ | libc::PROT_WRITE) == 0
    }
}

/// Returns the entry for an address in the range.
#[inline(always)]
pub fn entry(at: *const u8) -> *mut u8 {
    let base = BASE.load(Ordering::Relaxed);
    let offset = entry_offset(at.addr().wrapping_sub(base));
    // The table is in the same mapping as the objects.
    at.cast_mut().with_addr(base.wrapping_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_range_has_an_entry_in_the_table() {
        for size in [16 << 20, 1 << 30, 256 << 30] {
            let last = size / TABLE_UNIT - 1;
            let table = bytes(size);
            assert!((last + 1) * HEADER <= table && table <= size / 32, "{size}");
            for used in [table, table + TABLE_UNIT, size / 3, size] {
                let entries = in_use(table, used);
                assert!(
                    entries.start <= entry_offset(table) && entries.end <= table,
                    "{size}"
                );
                assert!(
                    used == table || entry_offset(used - TABLE_UNIT) + HEADER <= entries.end,
                    "{size}"
                );
            }
        }
    }
}
