//! Tells which pages belong to a huge page, from `/proc/kpageflags`
//! (`Documentation/admin-guide/mm/pagemap.rst`), for kernels without `PAGEMAP_SCAN`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::page_size;

/// Mask of the physical page's number in an entry of `pagemap`. The number is 0 unless the reader
/// is root.
const FRAME_NUMBER: u64 = (1 << 55) - 1;
/// Flag of a page that belongs to a transparent huge page.
const HUGE: u64 = 1 << 22;

/// Flags of physical pages, which only root may read.
pub struct Frames {
    flags: Option<File>,
    /// Number of the last page.
    last: u64,
    /// True if the last page belongs to a huge page.
    is_huge: bool,
}

impl Frames {
    /// Opens the kernel's table of physical pages.
    pub fn open() -> Self {
        Self {
            flags: File::open("/proc/kpageflags").ok(),
            last: 0,
            is_huge: false,
        }
    }

    /// Returns true if the kernel lets us look.
    #[cfg(test)]
    pub fn are_known(&self) -> bool {
        self.flags.is_some()
    }

    /// Returns true if a resident page, given by its number and its entry in `pagemap`, belongs to
    /// a huge page.
    pub fn is_huge(&mut self, page: u64, entry: u64) -> bool {
        let number = entry & FRAME_NUMBER;
        let Some(flags) = self.flags.as_ref().filter(|_| number != 0) else {
            return false;
        };
        // A huge page has as many pages as a page table has entries.
        let pages = page_size() / 8;
        // A huge page is aligned in virtual and in physical memory, so both numbers have the same
        // remainder, which few other pages have.
        if page % pages != number % pages {
            return false;
        }
        if number / pages != self.last / pages || !self.is_huge {
            let mut word = [0; 8];
            let is_read = flags.read_exact_at(&mut word, number * 8).is_ok();
            self.is_huge = is_read && u64::from_ne_bytes(word) & HUGE != 0;
        }
        self.last = number;
        self.is_huge
    }
}
