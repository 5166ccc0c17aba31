//! Mappings of a process.

use std::ops::Range;

use proc::Wanted;
use profile::maps::Entry;

/// Mapping of a process.
#[derive(Clone, Debug)]
pub struct Region {
    /// Address range.
    pub range: Range<u64>,
    /// True if the process itself may read it.
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

impl Region {
    /// Returns true if the memory is to be searched. Includes memory that the program has made
    /// inaccessible for a while (`PROT_NONE`, as garbage collectors do): it still holds pointers,
    /// and the kernel lets a tracer read it.
    pub fn is_searched(&self) -> bool {
        (self.is_readable || self.is_anonymous()) && !self.is_of_kernel()
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Returns true for private memory without a file.
    pub fn is_anonymous(&self) -> bool {
        !self.is_shared && self.file.1 == 0
    }

    /// Returns true for a mapping that the kernel adds to every process.
    fn is_of_kernel(&self) -> bool {
        [
            &b"[vvar"[..],
            b"[vdso",
            b"[vsyscall",
            b"[vectors",
            b"[sigpage",
            b"[uprobes",
        ]
        .iter()
        .any(|prefix| self.name.starts_with(prefix))
    }

    /// Returns true for memory that nobody but the process can read: of a `memfd_secret`.
    pub fn is_secret(&self) -> bool {
        self.name.starts_with(b"/secretmem")
    }

    /// Returns which pages of the region are to be searched: those that the process has written to,
    /// or all pages of shared memory.
    pub fn pages_wanted(&self) -> Wanted {
        if self.is_shared {
            Wanted::Any
        } else {
            Wanted::Private
        }
    }
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
        let last_other = before.iter().rposition(|region| region.file != file);
        let first = last_other.map_or(0, |index| index + 1);
        // A library's mappings are adjacent, except that the `.bss` of another one may lie between
        // them.
        let earlier = before[..first].iter().rev().take(16);
        let earlier = earlier.filter_map(|region| region.module);
        let same = earlier.filter(|module| before[*module].file == file).min();
        return Some(same.unwrap_or(first));
    }
    let last = before.last().filter(|last| last.range.end == entry.start)?;
    let is_unnamed = entry.path.is_empty() && !last.is_shared;
    last.module.filter(|_| is_unnamed && last.file.1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_above_an_unreadable_one_has_a_guard() {
        let text = b"1000-2000 ---p 0 00:00 0\n2000-9000 rw-p 0 00:00 0\n\
            9000-a000 rw-p 0 00:00 0 \nb000-c000 r--s 0 00:10 7 /x y\n";
        let regions = parse(text);
        let guards: Vec<bool> = regions.iter().map(|region| region.has_guard).collect();
        assert_eq!(guards, [false, true, false, false]);
        assert!(regions[3].is_shared && regions[3].name == b"/x y");
    }

    #[test]
    fn private_memory_without_access_is_searched() {
        let text =
            b"1000-2000 ---p 0 00:00 0\n2000-3000 -w-p 0 00:00 0\n3000-4000 ---s 0 00:01 5\n\
            4000-5000 ---p 0 00:10 7 /x\n5000-6000 r--s 0 00:10 7 /x\n\
            ffffffffff600000-ffffffffff601000 --xp 0 00:00 0 [vsyscall]\n";
        let regions = parse(text);
        let searched: Vec<bool> = regions.iter().map(Region::is_searched).collect();
        assert_eq!(searched, [true, true, false, false, true, false]);
    }
}
