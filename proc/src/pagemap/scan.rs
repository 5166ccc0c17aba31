//! Finds existing pages by `PAGEMAP_SCAN` (Linux 6.7, `Documentation/admin-guide/mm/pagemap.rst`),
//! which skips missing pages.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use super::{Wanted, add};

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

const OF_FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// Maximum number of runs of pages per call.
const RUNS: usize = 4096;

/// Returns the parts of `range` with pages other than the zero page, or `None` if the kernel does
/// not support the call.
pub fn present(pagemap: &File, range: Range<u64>, wanted: Wanted) -> Option<Vec<Range<u64>>> {
    let mut runs = vec![Run::default(); RUNS];
    let mut found = Vec::new();
    let mut without = ZERO;
    if wanted.is_private() {
        without |= OF_FILE;
    }
    let there = if wanted.may_be_swapped() {
        PRESENT | SWAPPED
    } else {
        PRESENT
    };
    let mut start = range.start;
    while start < range.end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: range.end,
            vec: runs.as_mut_ptr().addr() as u64,
            vec_len: RUNS as u64,
            category_inverted: without,
            category_mask: without,
            category_anyof_mask: there,
            return_mask: PRESENT,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and writes `scan` and writes at most `vec_len` entries to
        // `runs`, which has that length. Both outlive the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        let count = usize::try_from(count).ok()?;
        for run in runs.iter().take(count) {
            add(&mut found, run.start.max(start)..run.end.min(range.end));
        }
        if scan.walk_end <= start {
            return None;
        }
        start = scan.walk_end;
    }
    Some(found)
}
