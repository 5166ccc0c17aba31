//! Finds present pages with `PAGEMAP_SCAN` (Linux 6.7, `Documentation/admin-guide/mm/pagemap.rst`),
//! which skips absent pages.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use super::{Run, Wanted, add};

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
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const OF_FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;
/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// Maximum number of regions per call. If more are returned, Linux 6.18 reports a `walk_end` before
/// the last regions, so that a scan that continues there finds them twice.
const MAX_REGIONS: usize = 512;

/// Returns the parts of `range` with pages other than the zero page, or `None` if the kernel does
/// not support the call.
pub fn present(pagemap: &File, range: Range<u64>, wanted: Wanted) -> Option<Vec<Range<u64>>> {
    let mut found = Vec::new();
    scan(pagemap, range, &Scan::of(wanted), &mut |region| {
        add(&mut found, region.start..region.end);
    })?;
    Some(found)
}

/// Returns true if `range` has no page other than the zero page, or `None` if the kernel does not
/// support the call.
pub fn has_none(pagemap: &File, range: Range<u64>, wanted: Wanted) -> Option<bool> {
    let mut first = Region::default();
    let buffer = &raw mut first;
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start: range.start,
        end: range.end,
        vec: buffer.addr() as u64,
        vec_len: 1,
        max_pages: 1,
        ..Scan::of(wanted)
    };
    // SAFETY: the kernel reads and writes `scan` and writes at most one entry to `first`. Both
    // outlive the call.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
    (count >= 0).then_some(count == 0)
}

impl Scan {
    /// Returns a query for pages other than the zero page.
    fn of(wanted: Wanted) -> Self {
        let mut excluded = ZERO;
        if wanted.is_private() {
            excluded |= OF_FILE;
        }
        let included = if wanted.may_be_swapped() {
            PRESENT | SWAPPED
        } else {
            PRESENT
        };
        Self {
            category_inverted: excluded,
            category_mask: excluded,
            category_anyof_mask: included,
            return_mask: PRESENT,
            ..Self::default()
        }
    }
}

/// Calls `visit` for each run of equal pages that are resident or swapped out. Returns `None` if
/// the kernel does not support the call.
pub fn runs(pagemap: &File, range: Range<u64>, visit: &mut dyn FnMut(Run)) -> Option<()> {
    let query = Scan {
        category_inverted: ZERO,
        category_mask: ZERO,
        category_anyof_mask: PRESENT | SWAPPED,
        return_mask: SWAPPED | HUGE | OF_FILE,
        ..Scan::default()
    };
    scan(pagemap, range, &query, &mut |region| {
        visit(Run {
            range: region.start..region.end,
            is_swapped: region.categories & SWAPPED != 0,
            is_huge: region.categories & HUGE != 0,
            is_file: region.categories & OF_FILE != 0,
        });
    })
}

/// Calls `visit` for each region that matches `query`, clipped to `range`. Returns `None` if the
/// kernel does not support the call.
fn scan(
    pagemap: &File,
    range: Range<u64>,
    query: &Scan,
    visit: &mut dyn FnMut(Region),
) -> Option<()> {
    let mut regions = vec![Region::default(); MAX_REGIONS];
    let mut start = range.start;
    while start < range.end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: range.end,
            vec: regions.as_mut_ptr().addr() as u64,
            vec_len: MAX_REGIONS as u64,
            ..*query
        };
        // SAFETY: the kernel reads and writes `scan` and writes at most `vec_len` entries to
        // `regions`, which has that length. Both outlive the call.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        let count = usize::try_from(count).ok()?;
        for region in regions.iter().take(count) {
            visit(Region {
                start: region.start.max(start),
                end: region.end.min(range.end),
                ..*region
            });
        }
        if scan.walk_end <= start {
            return None;
        }
        start = scan.walk_end;
    }
    Some(())
}
