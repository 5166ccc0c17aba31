//! Finds the address ranges of the variables of a process's program and libraries.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use profile::maps::Entry;
use symbols::Elf;

/// Returns the addresses of variables: writable mappings of files with code, and the `.bss` behind
/// them. `maps` is the text of the process's maps. The ranges are sorted and disjoint.
///
/// The kernel joins `.bss` with anonymous memory that the process maps right behind it. The headers
/// of the file show where `.bss` ends; without permission to read them, the whole mapping counts as
/// variables.
pub fn find(pid: i32, maps: &[u8]) -> Vec<Range<u64>> {
    let has_code = |entry: &Entry<'_>| entry.inode != 0 && entry.permissions.contains(&b'x');
    let code = Entry::all(maps).filter(has_code);
    let mut modules: Vec<_> = code.map(|entry| (entry.device, entry.inode)).collect();
    modules.sort_unstable();
    modules.dedup();
    let mut ranges = Vec::new();
    // Address at which the start of each file was mapped last.
    let mut bases = BTreeMap::new();
    // Writable mapping of a module, if it was the last one: its `.bss` may follow.
    let mut last: Option<Entry<'_>> = None;
    for entry in Entry::all(maps) {
        let file = (entry.device, entry.inode);
        if entry.inode != 0 && entry.file_offset == 0 {
            bases.insert(file, entry.start);
        }
        let is_writable = entry.permissions.get(1) == Some(&b'w');
        let is_module = entry.inode != 0 && modules.binary_search(&file).is_ok();
        let module = last.take();
        if is_module && is_writable {
            ranges.push(entry.start..entry.end);
            last = Some(entry);
        } else if let Some(module) = module
            && entry.inode == 0
            && entry.path.is_empty()
            && entry.start == module.end
        {
            let base = bases.get(&(module.device, module.inode));
            let bss_end = base.and_then(|base| end(pid, &module, *base));
            let end = bss_end.unwrap_or(entry.end).min(entry.end);
            if entry.start < end {
                ranges.push(entry.start..end);
            }
        }
    }
    ranges
}

/// Returns the address at which a module that is mapped at `base` ends, rounded up to a page.
fn end(pid: i32, module: &Entry<'_>, base: u64) -> Option<u64> {
    let path = Path::new(OsStr::from_bytes(module.path));
    let root = proc::directory(proc::living_thread(pid)).join("root");
    let path = root.join(path.strip_prefix("/").ok()?);
    let is_same = path.metadata().is_ok_and(|m| m.ino() == module.inode);
    let elf = Elf::open(&path).ok().filter(|_| is_same)?;
    let end = base.checked_add(elf.memory_bytes()?)?;
    end.checked_next_multiple_of(proc::page_size())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use super::*;

    /// This process's id. Its maps are not used.
    fn own_pid() -> i32 {
        std::process::id().cast_signed()
    }

    #[test]
    fn bss_follows_the_writable_mapping_of_a_module() {
        let maps = b"1000-2000 r-xp 0 08:01 5 /no/x\n2000-3000 rw-p 1000 08:01 5 /no/x\n\
            3000-4000 rw-p 0 00:00 0 \n4000-5000 rw-p 0 00:00 0 \n\
            7000-8000 rw-p 0 08:01 9 /data\n8000-9000 rw-p 0 00:00 0 \n";
        assert_eq!(find(own_pid(), maps), [0x2000..0x3000, 0x3000..0x4000]);
    }

    /// Variables that fill pages of their own.
    static ZEROS: [AtomicU8; 1 << 17] = [const { AtomicU8::new(0) }; 1 << 17];

    #[test]
    fn bss_ends_where_the_file_says() {
        std::hint::black_box(&ZEROS);
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let exe = std::fs::metadata("/proc/self/exe").unwrap();
        let of_program = |entry: &Entry<'_>| entry.inode == exe.ino();
        let base = Entry::all(&maps).find(of_program).unwrap().start;
        let end = Entry::all(&maps).filter(of_program).last().unwrap().end;
        let elf = Elf::open("/proc/self/exe".as_ref()).unwrap();
        let bss_end = (base + elf.memory_bytes().unwrap()).next_multiple_of(proc::page_size());
        assert!(bss_end - end >= 1 << 16, "{end:x} {bss_end:x}");
        let mapping = Entry::all(&maps).find(|entry| entry.start == end).unwrap();
        // As if the process had mapped memory right behind it.
        let joined = mapping.end + (64 << 20);
        let text = String::from_utf8(maps.clone()).unwrap().replace(
            &format!("{end:x}-{:x}", mapping.end),
            &format!("{end:x}-{joined:x}"),
        );
        let found = find(own_pid(), text.as_bytes());
        assert!(found.contains(&(end..bss_end)), "{found:x?}");
    }
}
