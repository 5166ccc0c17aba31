//! Memory map of a process: its mappings, and which of their pages exist.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use heap_format::maps::Entry;

mod pagemap_scan;

/// Returns the kernel's page size, the unit of `pagemap`.
fn page_size() -> u64 {
    // SAFETY: `sysconf` takes a number, and this one is always supported.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64
}

/// Maximum number of pages whose `pagemap` entries are read, on kernels that cannot skip missing
/// pages: 2 TiB, which takes some seconds.
const MAX_PAGES: u64 = 1 << 29;
/// Number of entries per read.
const ENTRIES: usize = 1 << 16;

/// Mapping of a process.
#[derive(Clone, Debug)]
pub struct Region {
    /// Address range.
    pub range: Range<u64>,
    /// True if it may be read.
    pub is_readable: bool,
    /// True if it may be written.
    pub is_writable: bool,
    /// True if writes are visible to other processes.
    pub is_shared: bool,
    /// Device and inode of the mapped file; the inode is 0 without a file.
    pub file: ((u32, u32), u64),
    /// File offset of the mapping's start.
    pub offset: u64,
    /// Path of the file, or the kernel's name in brackets.
    pub name: Vec<u8>,
    /// True if an inaccessible mapping lies directly below, as for a thread's stack.
    pub has_guard: bool,
    /// Index of the first mapping of the same ELF file; also set for its `.bss`.
    pub module: Option<usize>,
}

/// Parses the text of `/proc/PID/maps`.
pub fn parse(maps: &[u8]) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    for entry in Entry::all(maps) {
        let module = module_of(&regions, &entry);
        let last = regions.last();
        let guard = last.is_some_and(|last| !last.is_readable && last.range.end == entry.start);
        regions.push(Region {
            range: entry.start..entry.end,
            is_readable: entry.permissions.first() == Some(&b'r'),
            is_writable: entry.permissions.get(1) == Some(&b'w'),
            is_shared: entry.permissions.last() == Some(&b's'),
            file: (entry.device, entry.inode),
            offset: entry.file_offset,
            name: entry.path.to_vec(),
            has_guard: guard,
            module,
        });
    }
    regions
}

fn module_of(before: &[Region], entry: &Entry<'_>) -> Option<usize> {
    let file = (entry.device, entry.inode);
    if entry.inode != 0 {
        let first = before.iter().rposition(|region| region.file != file);
        let first = first.map_or(0, |last| last + 1);
        // A library's mappings are adjacent, except for the `.bss` of others.
        let earlier = before[..first].iter().rev().take(16);
        let earlier = earlier.filter_map(|region| region.module);
        let same = earlier.filter(|module| before[*module].file == file).min();
        return Some(same.unwrap_or(first));
    }
    let last = before.last().filter(|last| last.range.end == entry.start)?;
    let is_unnamed = entry.path.is_empty() && !last.is_shared;
    last.module.filter(|_| is_unnamed && last.file.1 != 0)
}

/// Looks up which pages of a process exist.
pub struct Pages {
    pagemap: Option<File>,
    page: u64,
    left: u64,
    can_skip: bool,
}

impl Pages {
    /// Prepares lookups for the process `pid`.
    pub fn of(pid: i32) -> Self {
        Self {
            pagemap: File::open(proc::path_of_memory(pid, "pagemap")).ok(),
            page: page_size(),
            left: MAX_PAGES,
            can_skip: true,
        }
    }

    /// Returns the parts of `range` whose pages are resident or swapped out. With `private`, omits
    /// pages of a file that the process has not modified. Returns the whole range if the kernel
    /// does not provide the information, and `None` if the lookup would take too long.
    pub fn present(&mut self, range: Range<u64>, private: bool) -> Option<Vec<Range<u64>>> {
        if self.can_skip
            && let Some(pagemap) = &self.pagemap
        {
            match pagemap_scan::present(pagemap, range.clone(), private) {
                Some(found) => return Some(found),
                None => self.can_skip = false,
            }
        }
        let count = range.end.saturating_sub(range.start).div_ceil(self.page);
        self.left = self.left.checked_sub(count)?;
        Some(self.look_up(range, private))
    }

    /// Like [`present`](Self::present), but reads one entry for each page.
    fn look_up(&self, range: Range<u64>, private: bool) -> Vec<Range<u64>> {
        let Some(pagemap) = &self.pagemap else {
            return vec![range];
        };
        let count = (range.end - range.start).div_ceil(self.page);
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
                if is_there(entry, private) {
                    let start = (first + done) * self.page;
                    add(&mut found, start..(start + self.page).min(range.end));
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

/// Evaluates an entry of `pagemap` (Linux, `Documentation/admin-guide/mm/pagemap.rst`).
fn is_there(entry: u64, private: bool) -> bool {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    entry & (PRESENT | SWAPPED) != 0 && !(private && entry & OF_FILE != 0)
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
            pages.present(range.clone(), true).as_deref(),
            Some(&expected[..])
        );
        assert_eq!(pages.look_up(range.clone(), true), expected);
        // Reading a page that is not there maps the page of zeros.
        // SAFETY: in the mapping.
        let zero = unsafe { at.cast::<u8>().add(20 * page as usize).read_volatile() };
        assert_eq!(zero, 0);
        if pages.can_skip {
            assert_eq!(pages.present(range, true).as_deref(), Some(&expected[..]));
        }
        // SAFETY: made above.
        unsafe { libc::munmap(at, length) };
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
        let found = pages.present(range.clone(), true);
        assert_eq!(found, pages.can_skip.then(Vec::new));
        // An older kernel would report each page.
        pages.can_skip = false;
        assert_eq!(pages.present(range, true), None);
        assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
        // SAFETY: made above.
        unsafe { libc::munmap(at, LENGTH) };
    }

    #[test]
    fn a_mapping_above_an_unreadable_one_has_a_guard() {
        let text = b"1000-2000 ---p 0 00:00 0\n2000-9000 rw-p 0 00:00 0\n\
            9000-a000 rw-p 0 00:00 0 \nb000-c000 r--s 0 00:10 7 /x y\n";
        let regions = parse(text);
        let guards: Vec<bool> = regions.iter().map(|region| region.has_guard).collect();
        assert_eq!(guards, [false, true, false, false]);
        assert!(regions[3].is_shared && regions[3].name == b"/x y");
    }
}
