//! Saves memory that a copy of the process does not preserve: regions excluded from forks
//! (`MADV_DONTFORK`), regions that are empty after a fork (`MADV_WIPEONFORK`), and small shared
//! regions. They are read while the process is stopped, so that their contents are of the same
//! moment as the copy.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use proc::{Pages, Wanted};
use reachability::{Memory, ProcessMemory};

use super::regions::Region;

/// Maximum total size of private memory that is read, in bytes. Reading this much takes a few
/// tenths of a second.
const MAX_BYTES: u64 = 512 << 20;
/// Maximum total size of shared memory that is read, in bytes. Shared memory rarely holds pointers,
/// and reading this much takes a millisecond or two.
const MAX_SHARED_BYTES: u64 = 2 << 20;
/// Maximum total size of shared mappings that are searched for existing pages, in bytes.
const MAX_SHARED_MAPPED: u64 = 32 << 20;
/// Maximum number of mappings that are compared with those of the copy, while the process is
/// stopped. Each takes about 1 us.
const MAX_COMPARED: usize = 4096;
/// Maximum number of pages of compared mappings that are looked up on kernels that cannot skip
/// missing pages.
const MAX_COMPARED_PAGES: u64 = 1 << 16;

/// Memory that was saved.
#[derive(Debug, Default)]
pub struct SavedMemory {
    /// Contents by address, sorted.
    parts: Vec<(u64, Vec<u8>)>,
    /// Start addresses of the regions read.
    regions: HashSet<u64>,
    /// Size of the regions that exceeded the limit, in bytes.
    pub missed: u64,
}

impl SavedMemory {
    /// Reads the existing pages of the private regions that the copy will lack (`absent`), and of
    /// writable shared regions. The process must be stopped.
    pub fn of(pid: i32, regions: &[Region], absent: &[Range<u64>]) -> Self {
        let absent: HashSet<u64> = absent.iter().map(|range| range.start).collect();
        let private = regions.iter().filter(|region| {
            region.is_searched() && !region.is_shared && absent.contains(&region.range.start)
        });
        let memory = Source {
            memory: ProcessMemory::of(pid),
            file: File::open(format!("/proc/{pid}/mem")).ok(),
        };
        let mut pages = Pages::of(pid);
        let mut saved = Self::default();
        let mut bytes_left = MAX_BYTES;
        for region in private {
            if let Err(bytes) = saved.add(&memory, &mut pages, region, &mut bytes_left) {
                saved.missed = saved.missed.saturating_add(bytes);
            }
        }
        let shared = regions.iter().filter(|region| {
            region.is_readable && region.is_writable && region.is_shared && !region.is_secret()
        });
        let mut shared: Vec<&Region> = shared.collect();
        shared.sort_by_key(|region| region.size());
        let mut mapped = 0;
        let mut bytes_left = MAX_SHARED_BYTES;
        for region in shared {
            mapped += region.size();
            // Regions that are skipped here are read after the process continues.
            if mapped > MAX_SHARED_MAPPED
                || saved
                    .add(&memory, &mut pages, region, &mut bytes_left)
                    .is_err()
            {
                break;
            }
        }
        saved.parts.sort_by_key(|part| part.0);
        saved
    }

    /// Reads the existing pages of a region and subtracts their size from `bytes_left`. Returns the
    /// size as an error if it exceeds `bytes_left`.
    fn add(
        &mut self,
        memory: &Source,
        pages: &mut Pages,
        region: &Region,
        bytes_left: &mut u64,
    ) -> Result<(), u64> {
        let range = &region.range;
        let present = pages
            .present(range.clone(), region.pages_wanted())
            .ok_or(region.size())?;
        let sizes = present.iter().map(|part| part.end - part.start);
        let bytes = sizes.sum::<u64>();
        *bytes_left = bytes_left.checked_sub(bytes).ok_or(bytes)?;
        self.regions.insert(range.start);
        for part in present {
            let mut bytes = vec![0; (part.end - part.start) as usize];
            memory.read(region, part.start, &mut bytes);
            self.parts.push((part.start, bytes));
        }
        Ok(())
    }

    /// Returns the ranges of a region that were read, or `None` if the region was not read.
    pub fn parts(&self, region: &Range<u64>) -> Option<Vec<Range<u64>>> {
        self.regions.contains(&region.start).then(|| {
            let first = self.parts.partition_point(|part| part.0 < region.start);
            let parts = self.parts[first..].iter();
            parts
                .map(|(start, bytes)| *start..*start + bytes.len() as u64)
                .take_while(|part| part.start < region.end)
                .collect()
        })
    }

    /// Reads saved memory at an address. Returns the number of bytes read.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let after = self.parts.partition_point(|part| part.0 <= at);
        let part = after.checked_sub(1).map(|index| &self.parts[index]);
        let rest = part.and_then(|(start, bytes)| bytes.get((at - start) as usize..));
        let rest = rest.unwrap_or_default();
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        len
    }
}

/// Memory of the stopped process.
struct Source {
    memory: ProcessMemory,
    /// `/proc/PID/mem`.
    file: Option<File>,
}

impl Source {
    /// Reads memory of a region. Bytes that cannot be read stay as they are.
    fn read(&self, region: &Region, at: u64, buffer: &mut [u8]) {
        match &self.file {
            // `process_vm_readv` cannot read what the process itself may not read.
            Some(file) if !region.is_readable => read_file(file, at, buffer),
            _ => self.memory.read(at, buffer),
        };
    }
}

/// Reads memory through `/proc/PID/mem`. Returns the number of bytes read.
pub fn read_file(file: &File, at: u64, buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(read) if read > 0 => filled += read,
            _ => break,
        }
    }
    filled
}

/// Returns the mappings that have pages in the process but none in its copy: the kernel has emptied
/// them there (`MADV_WIPEONFORK`). The process must have been stopped since it was copied.
pub fn wiped_mappings(pid: i32, copy: i32, regions: &[Region]) -> Vec<Range<u64>> {
    let mut of_copy = Pages::with_limit(copy, MAX_COMPARED_PAGES);
    let mut of_process = Pages::with_limit(pid, MAX_COMPARED_PAGES);
    let mut is_wiped = |range: &Range<u64>| {
        let has_none = |pages: &mut Pages| pages.has_none(range.clone(), Wanted::Private);
        has_none(&mut of_copy) == Some(true) && has_none(&mut of_process) == Some(false)
    };
    let anonymous = regions
        .iter()
        .filter(|r| r.is_searched() && r.is_anonymous());
    let mut anonymous: Vec<&Region> = anonymous.collect();
    anonymous.sort_by_key(|region| region.size());
    let compared = anonymous.into_iter().take(MAX_COMPARED);
    let wiped = compared.filter(|region| is_wiped(&region.range));
    wiped.map(|region| region.range.clone()).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Small shared regions are read, too.
    #[test]
    fn small_shared_memory_is_saved() {
        let page = 4096;
        let sizes = [2 * page, MAX_SHARED_MAPPED as usize, 3 * page];
        let pid = std::process::id() as i32;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let map = |bytes: usize| {
            // SAFETY: the mapping is new and writable. It is removed below.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                at.cast::<u8>().write(7);
                at
            }
        };
        let maps = sizes.map(map);
        let line = |(at, size): (&*mut libc::c_void, &usize)| {
            let start = at.addr();
            format!("{start:x}-{:x} rw-s 0 00:01 {start}\n", start + size)
        };
        let text: String = maps.iter().zip(&sizes).map(line).collect();
        let regions = super::super::regions::parse(text.as_bytes());
        let saved = SavedMemory::of(pid, &regions, &[]);
        for (index, is_saved) in [(0, true), (1, false), (2, true)] {
            let range = &regions[index].range;
            // SAFETY: the mapping at this index exists and is writable.
            unsafe { maps[index].cast::<u8>().write(8) };
            let mut read = [0; 2];
            assert_eq!(saved.parts(range).is_some(), is_saved, "{index}");
            assert_eq!(saved.read(range.start, &mut read) == 2, is_saved, "{index}");
            assert_eq!(read, if is_saved { [7, 0] } else { [0, 0] }, "{index}");
            // SAFETY: the mapping was made above, and nothing refers to it.
            unsafe { libc::munmap(maps[index], sizes[index]) };
        }
    }

    /// Maps private memory of 16 KiB, and writes 7 to its first byte.
    pub fn written() -> (*mut libc::c_void, Region) {
        const BYTES: usize = 4 << 12;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new and writable.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), BYTES, access, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<u8>().write(7);
            at
        };
        let start = at.addr();
        let line = format!("{start:x}-{:x} rw-p 0 00:00 0\n", start + BYTES);
        let region = super::super::regions::parse(line.as_bytes()).remove(0);
        (at, region)
    }

    #[test]
    fn memory_that_a_copy_gets_empty_is_noticed_and_read() {
        let (plain_at, plain) = written();
        let (wiped_at, mut emptied) = written();
        let size = emptied.size() as usize;
        // SAFETY: the test's own mapping. The child calls only functions that are safe after a
        // fork, until it is killed.
        let copy = unsafe {
            assert_eq!(libc::madvise(wiped_at, size, libc::MADV_WIPEONFORK), 0);
            libc::fork()
        };
        if copy == 0 {
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        let pid = std::process::id() as i32;
        let regions = [plain, emptied.clone()];
        let found = wiped_mappings(pid, copy, &regions);
        // SAFETY: the child made above, which nobody else waits for.
        unsafe {
            libc::kill(copy, libc::SIGKILL);
            libc::waitpid(copy, std::ptr::null_mut(), 0);
        }
        assert_eq!(found, vec![emptied.range.clone(); 1]);
        // The process has no access to it, but a tracer does.
        // SAFETY: the test's own mapping, which it does not access any more.
        unsafe { assert_eq!(libc::mprotect(wiped_at, size, libc::PROT_NONE), 0) };
        emptied.is_readable = false;
        let saved = SavedMemory::of(pid, std::slice::from_ref(&emptied), &found);
        let mut read = [0; 2];
        assert_eq!(saved.read(emptied.range.start, &mut read), 2);
        assert_eq!(read, [7, 0]);
        // SAFETY: both mappings were made above, and nothing refers to them.
        unsafe {
            libc::munmap(plain_at, size);
            libc::munmap(wiped_at, size);
        }
    }

    #[test]
    fn saved_contents_do_not_change() {
        let mut bytes = vec![7_u8; 3 << 12];
        let start = (bytes.as_ptr().addr() as u64).next_multiple_of(4096);
        let line = format!("{start:x}-{:x} rw-p 0 00:00 0\n", start + (2 << 12));
        let regions = super::super::regions::parse(line.as_bytes());
        let pid = std::process::id() as i32;
        let region = regions[0].range.clone();
        let saved = SavedMemory::of(pid, &regions, std::slice::from_ref(&region));
        bytes.fill(8);
        let mut read = [0; 100];
        assert_eq!(saved.read(start + 4050, &mut read), 100);
        assert_eq!(read, [7; 100]);
        assert_eq!(saved.read(start + (2 << 12) - 40, &mut read), 40);
        assert_eq!(saved.read(start - 1, &mut read), 0);
        assert_eq!(saved.parts(&region), Some(vec![region.clone(); 1]));
        assert_eq!(saved.parts(&(0..4096)), None);
        assert_eq!(SavedMemory::of(pid, &regions, &[]).parts(&region), None);
    }
}
