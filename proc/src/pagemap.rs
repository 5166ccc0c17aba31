//! Reads which pages of a process are present, from `/proc/PID/pagemap`.

mod frames;
mod scan;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::path_of_memory;
use frames::Frames;

/// Returns the kernel's page size in bytes, the unit of `pagemap`.
pub fn page_size() -> u64 {
    // SAFETY: `sysconf` takes a number, and this one is always supported.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64
}

/// Maximum number of pages whose `pagemap` entries are read, on kernels that cannot skip missing
/// pages: 2 TiB, which takes some seconds.
const MAX_PAGES: u64 = 1 << 29;
/// Number of entries per read.
const ENTRIES: usize = 1 << 16;

/// Pages that are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Pages that are resident or swapped out.
    Any,
    /// Like `Any`, without pages that are swapped out.
    Resident,
    /// Like `Any`, without pages of a file that the process has not modified.
    Private,
    /// Like `Private`, without pages that are swapped out.
    ResidentPrivate,
}

impl Wanted {
    fn is_private(self) -> bool {
        matches!(self, Self::Private | Self::ResidentPrivate)
    }

    fn may_be_swapped(self) -> bool {
        matches!(self, Self::Any | Self::Private)
    }
}

/// Run of adjacent pages in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Addresses of the pages.
    pub range: Range<u64>,
    /// True if the pages are swapped out, false if they are resident.
    pub is_swapped: bool,
    /// True if the pages are mapped as huge pages. On kernels without `PAGEMAP_SCAN`, only root
    /// learns that, and only of anonymous memory.
    pub is_huge: bool,
    /// True if the pages belong to a file or to shared memory.
    pub is_file: bool,
}

/// Looks up which pages of a process are present.
pub struct Pages {
    pagemap: Option<File>,
    /// Page size in bytes.
    page: u64,
    /// Number of entries of `pagemap` that may still be read one by one.
    entries_left: u64,
    /// True until the kernel is known not to have `PAGEMAP_SCAN`, which skips missing pages.
    can_skip: bool,
    /// Physical pages; `None` until they are needed.
    frames: Option<Frames>,
}

impl Pages {
    /// Prepares lookups for the process `pid`.
    pub fn of(pid: i32) -> Self {
        Self::with_limit(pid, MAX_PAGES)
    }

    /// Like [`of`](Self::of), for at most `pages` pages on kernels that cannot skip missing ones.
    pub fn with_limit(pid: i32, pages: u64) -> Self {
        Self {
            pagemap: File::open(path_of_memory(pid, "pagemap")).ok(),
            page: page_size(),
            entries_left: pages,
            can_skip: true,
            frames: None,
        }
    }

    /// Returns true if the kernel lets us look at this process.
    pub fn is_known(&self) -> bool {
        self.pagemap.is_some()
    }

    /// Returns the ranges of those pages that are `wanted`, of all pages that `range` touches.
    /// Returns the whole range if the kernel does not provide the information, and `None` if the
    /// lookup would take too long.
    pub fn present(&mut self, range: Range<u64>, wanted: Wanted) -> Option<Vec<Range<u64>>> {
        let range = self.whole_pages(&range);
        if self.can_skip
            && let Some(pagemap) = &self.pagemap
        {
            match scan::present(pagemap, range.clone(), wanted) {
                Some(found) => return Some(found),
                None => self.can_skip = false,
            }
        }
        let count = (range.end - range.start) / self.page;
        self.entries_left = self.entries_left.checked_sub(count)?;
        Some(self.look_up(range, wanted))
    }

    /// Returns true if no page that `range` touches is `wanted`. Returns `None` if the kernel does
    /// not provide the information, or if the lookup would take too long.
    pub fn has_none(&mut self, range: Range<u64>, wanted: Wanted) -> Option<bool> {
        let whole = self.whole_pages(&range);
        let pagemap = self.pagemap.as_ref()?;
        if self.can_skip {
            match scan::has_none(pagemap, whole, wanted) {
                Some(has_none) => return Some(has_none),
                None => self.can_skip = false,
            }
        }
        self.present(range, wanted).map(|found| found.is_empty())
    }

    /// Calls `visit` for each run of pages that are resident or swapped out, of all pages that
    /// `range` touches. Returns false if the kernel does not provide the information, or if the
    /// lookup would take too long. A process may be scanned while it runs; then the result is not
    /// that of one moment.
    pub fn runs(&mut self, range: Range<u64>, visit: &mut dyn FnMut(Run)) -> bool {
        let range = self.whole_pages(&range);
        let Some(pagemap) = &self.pagemap else {
            return false;
        };
        if self.can_skip {
            match scan::runs(pagemap, range.clone(), visit) {
                Some(()) => return true,
                None => self.can_skip = false,
            }
        }
        let count = (range.end - range.start) / self.page;
        let Some(left) = self.entries_left.checked_sub(count) else {
            return false;
        };
        self.entries_left = left;
        self.look_up_runs(range, visit)
    }

    /// Returns the addresses of all pages that a range touches. `PAGEMAP_SCAN` refuses others.
    fn whole_pages(&self, range: &Range<u64>) -> Range<u64> {
        let last_page = u64::MAX - self.page + 1;
        let start = range.start / self.page * self.page;
        let end = range.end.min(last_page).next_multiple_of(self.page);
        start..end.max(start)
    }

    /// Like [`runs`](Self::runs), but reads one entry for each page.
    fn look_up_runs(&mut self, range: Range<u64>, visit: &mut dyn FnMut(Run)) -> bool {
        let Some(pagemap) = &self.pagemap else {
            return false;
        };
        let frames = self.frames.get_or_insert_with(Frames::open);
        let mut current: Option<Run> = None;
        let mut page = range.start / self.page;
        let end = range.end / self.page;
        // Many ranges are of one page.
        let mut buffer = vec![0; ENTRIES.min(end.saturating_sub(page) as usize) * 8];
        while page < end {
            let wanted = ENTRIES.min((end - page) as usize) * 8;
            let read = pagemap.read_at(&mut buffer[..wanted], page * 8);
            let Some(read) = read.ok().filter(|read| *read >= 8) else {
                return false;
            };
            for entry in buffer[..read].as_chunks().0 {
                let entry = u64::from_le_bytes(*entry);
                let start = page * self.page;
                page += 1;
                if !is_wanted(entry, Wanted::Any) {
                    continue;
                }
                let is_swapped = !is_wanted(entry, Wanted::Resident);
                let is_file = !is_wanted(entry, Wanted::Private);
                let is_huge = !is_swapped && !is_file && frames.is_huge(page - 1, entry);
                match &mut current {
                    Some(run)
                        if run.range.end == start
                            && run.is_swapped == is_swapped
                            && run.is_huge == is_huge
                            && run.is_file == is_file =>
                    {
                        run.range.end = start + self.page;
                    }
                    _ => {
                        let run = Run {
                            range: start..start + self.page,
                            is_swapped,
                            is_huge,
                            is_file,
                        };
                        current.replace(run).into_iter().for_each(&mut *visit);
                    }
                }
            }
        }
        current.into_iter().for_each(visit);
        true
    }

    /// Like [`present`](Self::present), but reads one entry for each page.
    fn look_up(&self, range: Range<u64>, wanted: Wanted) -> Vec<Range<u64>> {
        let Some(pagemap) = &self.pagemap else {
            return vec![range];
        };
        let count = (range.end - range.start) / self.page;
        let first = range.start / self.page;
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut buffer = vec![0; ENTRIES.min(count as usize) * 8];
        let mut done = 0;
        while done < count {
            let part = &mut buffer[..ENTRIES.min((count - done) as usize) * 8];
            let read = pagemap.read_at(part, (first + done) * 8).unwrap_or(0);
            if read < 8 {
                add(&mut found, (first + done) * self.page..range.end);
                break;
            }
            for entry in part[..read].chunks_exact(8) {
                let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                if is_wanted(entry, wanted) {
                    let start = (first + done) * self.page;
                    add(&mut found, start..start + self.page);
                }
                done += 1;
            }
        }
        found
    }
}

/// Appends a range, which must not begin before the last one ends. Merges them if they touch.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => ranges.push(range),
    }
}

/// Returns true if the page of a `pagemap` entry is `wanted` (for the bits, see
/// `Documentation/admin-guide/mm/pagemap.rst` of Linux).
fn is_wanted(entry: u64, wanted: Wanted) -> bool {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    let existing = if wanted.may_be_swapped() {
        PRESENT | SWAPPED
    } else {
        PRESENT
    };
    entry & existing != 0 && !(wanted.is_private() && entry & OF_FILE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_were_written_exist() {
        let page = page_size() as usize;
        let length = 64 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping; its pages 3 to 5 and 9 are written, and it is removed at the end.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, length, libc::MADV_NOHUGEPAGE);
            for index in [3, 4, 5, 9] {
                at.cast::<u8>().add(index * page).write(1);
            }
            at
        };
        let start = at.addr() as u64;
        let own = std::process::id() as i32;
        let range = start..start + length as u64;
        let page = page as u64;
        let expected = [3..6, 9..10].map(|p| start + p.start * page..start + p.end * page);
        let pages = &mut Pages::of(own);
        assert_eq!(
            pages.present(range.clone(), Wanted::Private).as_deref(),
            Some(&expected[..])
        );
        assert_eq!(pages.look_up(range.clone(), Wanted::Private), expected);
        // Reading an absent page maps the zero page.
        // SAFETY: page 20 lies in the mapping.
        let zero = unsafe { at.cast::<u8>().add(20 * page as usize).read_volatile() };
        assert_eq!(zero, 0);
        if pages.can_skip {
            assert_eq!(
                pages.present(range, Wanted::Private).as_deref(),
                Some(&expected[..])
            );
        }
        // An unaligned range stands for every page that it touches, on every kernel.
        let scans = pages.can_skip;
        for can_skip in [true, false] {
            pages.can_skip &= can_skip;
            let unaligned = start + 2 * page + 8..start + 9 * page + 8;
            let found = pages.present(unaligned.clone(), Wanted::Private);
            assert_eq!(found.as_deref(), Some(&expected[..]), "{can_skip}");
            for (pages_of, has_none) in [(6..9, true), (6..10, false), (0..3, true), (2..4, false)]
            {
                let range = start + pages_of.start * page..start + pages_of.end * page;
                assert_eq!(pages.has_none(range, Wanted::Private), Some(has_none));
            }
            let mut runs = Vec::new();
            assert!(pages.runs(unaligned, &mut |run| runs.push(run.range)));
            assert_eq!(runs, expected, "{can_skip}");
            assert_eq!(pages.can_skip, can_skip && scans);
        }
        // SAFETY: the test's own mapping; the pointers to it are not used any more.
        unsafe { libc::munmap(at, length) };
    }

    /// With more regions than fit into one call, Linux 6.18 returns the last ones twice.
    #[test]
    fn each_page_is_found_once() {
        const PAGES: usize = 4 * ENTRIES / 3;
        let page = page_size() as usize;
        let length = PAGES * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, of which every other page is written. It is removed at the end.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, length, libc::MADV_NOHUGEPAGE);
            for index in (0..PAGES).step_by(2) {
                at.cast::<u8>().add(index * page).write(1);
            }
            at
        };
        let start = at.addr() as u64;
        let range = start..start + length as u64;
        let pages = &mut Pages::of(std::process::id() as i32);
        let found = pages.present(range.clone(), Wanted::Any).expect("pages");
        let own_page = |index: usize| {
            let first = start + (index * page) as u64;
            first..first + page as u64
        };
        let expected: Vec<_> = (0..PAGES).step_by(2).map(own_page).collect();
        assert_eq!(found.len(), expected.len());
        assert_eq!(found, expected);
        for can_skip in [true, false] {
            pages.can_skip &= can_skip;
            let mut runs = Vec::new();
            assert!(pages.runs(range.clone(), &mut |run| runs.push(run)));
            assert!(runs.iter().all(|run| !run.is_swapped && !run.is_huge));
            let ranges: Vec<_> = runs.into_iter().map(|run| run.range).collect();
            assert_eq!(ranges, expected, "{can_skip}");
        }
        // SAFETY: the test's own mapping; the pointers to it are not used any more.
        unsafe { libc::munmap(at, length) };
        assert!(!Pages::of(i32::MAX).runs(range, &mut |_| ()));
    }

    /// Without `PAGEMAP_SCAN`, only root can find huge pages.
    #[test]
    fn huge_pages_are_known_to_older_kernels() {
        let size = (page_size() * page_size() / 8) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, in which one huge page may be, which is written.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 2 * size, access, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, 2 * size, libc::MADV_HUGEPAGE);
            at.cast::<u8>().add(size).write(1);
            at.cast::<u8>().write(1);
            at
        };
        let range = at.addr() as u64..(at.addr() + 2 * size) as u64;
        let of_each_page = |pages: &mut Pages| {
            let mut found = Vec::new();
            assert!(pages.runs(range.clone(), &mut |run| {
                let size = page_size() as usize;
                found.extend(run.range.step_by(size).map(|page| (page, run.is_huge)));
            }));
            found
        };
        let mut pages = Pages::of(std::process::id() as i32);
        let scanned = of_each_page(&mut pages);
        let is_old = !pages.can_skip;
        pages.can_skip = false;
        let found = of_each_page(&mut pages);
        if is_old || !Frames::open().are_known() {
            assert!(found.len() >= 2, "{found:?}");
        } else {
            assert_eq!(found, scanned);
        }
        // SAFETY: made above.
        unsafe { libc::munmap(at, 2 * size) };
    }

    #[test]
    fn huge_empty_mappings_take_no_time() {
        const LENGTH: usize = 10 << 40;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which is not in use.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let range = at.addr() as u64..at.addr() as u64 + LENGTH as u64;
        let own = std::process::id() as i32;
        let begin = std::time::Instant::now();
        let mut pages = Pages::of(own);
        let found = pages.present(range.clone(), Wanted::Private);
        assert_eq!(found, pages.can_skip.then(Vec::new));
        // An older kernel would report each page.
        pages.can_skip = false;
        assert_eq!(pages.present(range, Wanted::Private), None);
        assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
        // SAFETY: the test's own mapping, to which there are no pointers.
        unsafe { libc::munmap(at, LENGTH) };
    }
}
