//! Bounds the resident pages of a mapped file, for machines with little memory.
//!
//! Debug information is read once, in order, but its pages stay resident until the kernel needs the
//! memory. So the resident size is checked from time to time, and above a limit the pages are
//! released. A page that is needed again usually comes from the page cache.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use memmap2::{Mmap, UncheckedAdvice};

/// Maximum resident size of mapped files, in bytes, including this program's own.
const MAX_RESIDENT: u64 = 24 << 20;
/// Minimum number of items (entries, rows or symbols) between checks: less than 1 MiB.
const CHECK_EVERY: u32 = 8192;
/// Number of items that a jump counts for: the kernel maps up to 64 KiB around the target.
const JUMP_ITEMS: u32 = CHECK_EVERY / 16;

/// Monitor of the resident pages of a file.
pub struct Residency<'a> {
    /// Mapping of the file; `None` if there is nothing to release.
    map: Option<&'a Mmap>,
    /// `/proc/self/statm`; `None` if the resident size is unknown, so that nothing is released.
    source: Option<File>,
    /// Items read since the last check.
    passed: Cell<u32>,
    /// Value of `passed` at which the next check is due.
    until: Cell<u32>,
}

impl<'a> Residency<'a> {
    /// Monitors a mapping.
    pub fn of(map: Option<&'a Mmap>) -> Self {
        Self {
            map,
            source: File::open("/proc/self/statm").ok(),
            passed: Cell::new(0),
            until: Cell::new(CHECK_EVERY),
        }
    }

    /// Counts one entry, row or symbol.
    #[inline]
    pub fn count_item(&self) {
        self.count(1);
    }

    /// Counts an access that is not near the previous one.
    pub fn count_jump(&self) {
        self.count(JUMP_ITEMS);
    }

    /// Counts 1 MiB of entries.
    pub fn count_mebibyte(&self) {
        self.count(CHECK_EVERY);
    }

    #[inline]
    fn count(&self, passed: u32) {
        self.passed.set(self.passed.get() + passed);
        if self.passed.get() >= self.until.get() {
            self.check();
        }
    }

    /// Releases the mapping's pages if the limit is exceeded.
    #[cold]
    fn check(&self) {
        self.passed.set(0);
        self.until.set(CHECK_EVERY);
        let (Some(map), Some(resident)) = (self.map, self.resident()) else {
            return;
        };
        // A check takes time, so the next one is due only when the limit may have been reached.
        if let Some(room) = MAX_RESIDENT.checked_sub(resident) {
            let pieces = u32::try_from(room >> 20).unwrap_or(0);
            self.until.set(CHECK_EVERY * pieces.max(1));
        } else {
            // SAFETY: the mapping is of a file and never written to, so a released page
            // is read from the file again. Its contents may change with the file, as the
            // creator of the mapping had to accept anyway.
            let _ = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }

    /// Returns the resident size of file mappings, in bytes.
    fn resident(&self) -> Option<u64> {
        let mut line = [0; 128];
        let bytes_read = self.source.as_ref()?.read_at(&mut line, 0).ok()?;
        let line = std::str::from_utf8(&line[..bytes_read]).ok()?;
        let pages: u64 = line.split(' ').nth(2)?.parse().ok()?;
        // SAFETY: sysconf takes an integer and returns one.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        pages.checked_mul(u64::try_from(size).ok()?)
    }
}
