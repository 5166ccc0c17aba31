//! Resident memory of CPython's allocator of small objects (pymalloc), by the headers of its pools.
//!
//! The arenas are found by their contents, without symbols: at the start of each page that is a
//! pool, there is a header whose fields depend on each other and on the address.

// Decision 93: pools are found by their headers.
use std::ops::Range;

use cpython::pools::{HEADER_BYTES, MIN_POOL_BYTES, Pool};
use proc::Pages;
use reachability::Memory;

use crate::resident::{ExistingMemory, MAX_PAGES, resident_bytes};

/// Maximum number of addresses that are examined: those of 16 GiB.
const MAX_PROBED: u64 = 1 << 22;
/// Number of addresses that are examined at a time.
const PROBED_PER_READ: u64 = 512;

/// Explanation of [`PythonHeap::in_use`], for users.
pub const IN_USE_REMARK: &str = "small ones, by Python's own allocator";
/// Explanation of [`PythonHeap::holes`].
pub const HOLES_REMARK: &str = "free places between them";
/// Explanation of [`PythonHeap::free`].
pub const FREE_REMARK: &str = "without objects, kept";

/// Resident memory of pools, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PythonHeap {
    /// Blocks in use.
    pub in_use: u64,
    /// Free blocks of pools with blocks in use, and headers.
    pub holes: u64,
    /// Pools without blocks in use.
    pub free: u64,
}

impl PythonHeap {
    /// Returns the sum of all parts.
    pub fn total(&self) -> u64 {
        self.in_use
            .saturating_add(self.holes)
            .saturating_add(self.free)
    }

    /// Limits all parts together to `bytes`, which was read at another moment.
    #[must_use]
    pub fn limited(self, bytes: u64) -> Self {
        let in_use = self.in_use.min(bytes);
        let holes = self.holes.min(bytes - in_use);
        let free = self.free.min(bytes - in_use - holes);
        Self {
            in_use,
            holes,
            free,
        }
    }
}

/// Reads the pools in these ranges of a process's private memory, which are sorted and disjoint.
/// The process continues to run, so the counts are of slightly different moments. Returns `None` if
/// the memory may not be read, or is too large.
pub fn read(pid: i32, ranges: &[Range<u64>]) -> Option<PythonHeap> {
    let mut pages = Pages::with_limit(pid, MAX_PAGES);
    if !pages.is_known() {
        return None;
    }
    let pools = find(&ExistingMemory::resident(pid), ranges)?;
    let resident = resident_bytes(&mut pages, &pools.used)?;
    let in_use = pools.used_bytes.min(resident);
    Some(PythonHeap {
        in_use,
        holes: resident - in_use,
        free: resident_bytes(&mut pages, &pools.free)?,
    })
}

/// Pools of a process, sorted by address.
#[derive(Debug, Default)]
struct Pools {
    /// Pools with blocks in use.
    used: Vec<Range<u64>>,
    /// Size of these blocks, in bytes.
    used_bytes: u64,
    /// Pools without blocks in use.
    free: Vec<Range<u64>>,
}

impl Pools {
    fn add(&mut self, address: u64, pool: Pool) {
        self.used_bytes += pool.used_bytes();
        let list = if pool.used_blocks == 0 {
            &mut self.free
        } else {
            &mut self.used
        };
        let range = address..address + pool.bytes;
        match list.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => list.push(range),
        }
    }
}

/// Finds the pools in these ranges. Returns `None` if there are too many addresses to examine.
fn find(memory: &dyn Memory, ranges: &[Range<u64>]) -> Option<Pools> {
    let mut pools = Pools::default();
    let mut left = MAX_PROBED;
    for range in ranges {
        let mut at = range.start.next_multiple_of(MIN_POOL_BYTES);
        while at < range.end
            && let Some(part) = memory.next(at..range.end)
        {
            let start = part.start.next_multiple_of(MIN_POOL_BYTES);
            let count = (part.end.saturating_sub(start) / MIN_POOL_BYTES).min(PROBED_PER_READ);
            if count == 0 {
                break;
            }
            left = left.checked_sub(count)?;
            let addresses = (0..count).map(|number| start + number * MIN_POOL_BYTES);
            let pieces: Vec<_> = addresses.map(|address| (address, HEADER_BYTES)).collect();
            let mut headers = vec![0; pieces.len() * HEADER_BYTES];
            memory.gather(&pieces, &mut headers);
            let (headers, _) = headers.as_chunks::<HEADER_BYTES>();
            at = start + count * MIN_POOL_BYTES;
            for ((address, _), header) in pieces.iter().zip(headers) {
                let pool = Pool::decode(*address, header);
                if let Some(pool) = pool.filter(|pool| pool.bytes <= range.end - address) {
                    pools.add(*address, pool);
                }
            }
        }
    }
    Some(pools)
}
