//! The memory of a process according to the kernel: what is mapped, and which pages exist.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use heap_format::maps::Entry;

mod pagemap_scan;

/// Size of the kernel's pages, in which `pagemap` counts.
fn page_size() -> u64 {
    // SAFETY: cannot fail.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as u64
}

/// Maximum number of pages whose entries are read of one process, where the kernel cannot skip what
/// is not there: 2 TiB of them, some seconds.
const MOST_PAGES: u64 = 1 << 29;
/// Entries read at once.
const ENTRIES: usize = 1 << 16;

/// A mapping.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether it may be read.
    pub is_readable: bool,
    /// Whether it may be written.
    pub is_writable: bool,
    /// Whether other processes see what is written.
    pub is_shared: bool,
    /// Device and inode of the file; the inode is 0 without one.
    pub file: ((u32, u32), u64),
    /// Where in the file it begins.
    pub offset: u64,
    /// The file's path, or the kernel's name in brackets.
    pub name: Vec<u8>,
    /// Whether an unreadable mapping ends where it begins, as below a thread's stack.
    pub has_guard: bool,
    /// Index of the first mapping of the file that this is a part of, or whose uninitialised
    /// variables it holds.
    pub module: Option<usize>,
}

/// The mappings of a maps text, by address.
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
        // Libraries lie in one piece, except for uninitialised variables of others.
        let earlier = before[..first].iter().rev().take(16);
        let earlier = earlier.filter_map(|region| region.module);
        let same = earlier.filter(|module| before[*module].file == file).min();
        return Some(same.unwrap_or(first));
    }
    let last = before.last().filter(|last| last.range.end == entry.start)?;
    let is_unnamed = entry.path.is_empty() && !last.is_shared;
    last.module.filter(|_| is_unnamed && last.file.1 != 0)
}

/// Which pages of a process exist.
pub struct Pages {
    pagemap: Option<File>,
    page: u64,
    left: u64,
    can_skip: bool,
}

impl Pages {
    /// Of the process `pid`.
    pub fn of(pid: i32) -> Self {
        Self {
            pagemap: File::open(proc::path_of_memory(pid, "pagemap")).ok(),
            page: page_size(),
            left: MOST_PAGES,
            can_skip: true,
        }
    }

    /// The parts of `range`, whole pages, with pages that are there, or swapped out. `private`:
    /// only those that the process has to itself, not those of a file that it has not changed. All
    /// of the range where the kernel does not say; `None` where it takes too long to ask.
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

    /// The same, page by page.
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

/// Adds a range behind all others, to the last if they touch.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => ranges.push(range),
    }
}

/// An entry of `pagemap` (Linux, `Documentation/admin-guide/mm/pagemap.rst`).
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
