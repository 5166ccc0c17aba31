//! Finds files in the text of `/proc/PID/maps`, by device, inode and name.

use std::fs::File;
use std::os::fd::AsRawFd;

use profile::maps::Entry;

/// Splits a device number into its major and minor number, as the kernel prints it in maps.
pub fn device(number: u64) -> (u32, u32) {
    (libc::major(number), libc::minor(number))
}

/// Returns true if the maps contain the file with this device, inode and name. Inodes alone are not
/// unique, and users can choose them on file systems of their own.
pub fn has_file(maps: &[u8], major: u32, minor: u32, inode: u64, name: &[u8]) -> bool {
    let mut lines = maps
        .split(|b| *b == b'\n')
        .filter(|line| line_ends_with(line, name));
    let is_file = |m: Entry| m.device == (major, minor) && m.inode == inode;
    lines.any(|line| Entry::parse(line).is_some_and(is_file))
}

/// Like [`has_file`], but on any device.
pub fn has_name(maps: &[u8], inode: u64, name: &[u8]) -> bool {
    let mut lines = maps
        .split(|b| *b == b'\n')
        .filter(|line| line_ends_with(line, name));
    lines.any(|line| Entry::parse(line).is_some_and(|m| m.inode == inode))
}

/// Returns the size of the largest mapping of a file with this inode and name, in bytes.
pub fn largest(maps: &[u8], inode: u64, name: &[u8]) -> u64 {
    let lines = maps
        .split(|b| *b == b'\n')
        .filter(|line| line_ends_with(line, name));
    let entries = lines.filter_map(Entry::parse).filter(|m| m.inode == inode);
    let bytes = entries.map(|m| m.end.saturating_sub(m.start));
    bytes.max().unwrap_or(0)
}

/// Returns true if the line's path has `name` as its last component.
fn line_ends_with(line: &[u8], name: &[u8]) -> bool {
    let path = line.strip_suffix(b" (deleted)").unwrap_or(line);
    path.strip_suffix(name)
        .is_some_and(|rest| rest.ends_with(b"/"))
}

/// Returns the shared writable file mappings. A forked child maps its parent's segment read-only
/// until it has its own, so that segment is not among them.
pub fn written_files(maps: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    Entry::all(maps)
        .filter(|m| m.permissions.ends_with(b"s") && m.permissions.contains(&b'w') && m.inode != 0)
}

/// Returns the device that maps show for an open file; on some file systems `stat` reports another
/// one. Uses a temporary `PROT_NONE` mapping, so the file's contents cannot be accessed.
pub fn shown_device(file: &File) -> Option<(u32, u32)> {
    let length = 4096;
    let flags = libc::MAP_SHARED;
    // SAFETY: the kernel chooses a free range; the new mapping can be neither read nor written.
    let address = unsafe {
        let fd = file.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, fd, 0)
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    let text = proc::maps(std::process::id() as i32);
    // SAFETY: the mapping was created above, and no reference to its memory exists.
    unsafe { libc::munmap(address, length) };
    let text = text?;
    let mut entries = Entry::all(&text);
    entries
        .find(|entry| entry.start == address as u64)
        .map(|entry| entry.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_found_by_device_inode_and_name() {
        let maps = b"7f0-7f1 rw-s 00000000 00:1b 4711 /dev/shm/mem_profiler.1.2.0\n";
        let name = b"mem_profiler.1.2.0";
        assert!(has_file(maps, 0, 0x1b, 4711, name));
        assert!(!has_file(maps, 0, 0x1b, 471, name));
        assert!(!has_file(maps, 0, 0x1c, 4711, name));
        assert!(!has_file(maps, 0, 0x1b, 4711, b"mem_profiler.1.2.1"));
        assert!(!has_file(maps, 0, 0x1b, 4711, b"profiler.1.2.0"));
        assert!(has_name(maps, 4711, name));
        assert_eq!(largest(maps, 4711, name), 0x1);
        assert_eq!(largest(maps, 471, name), 0);
        let deleted = b"7f0-7f1 rw-s 00000000 08:1b 4711    /dev/shm/mem_profiler.1.2.0 (deleted)";
        assert!(has_file(deleted, 8, 0x1b, 4711, name));
        let all = b"1-2 rw-p 00000000 08:1b 9 /x\n3-4 rw-s 00000000 00:01 8 /y z\n\
            5-6 r--s 00000000 00:01 7 /z\n";
        let shared = written_files(all).map(|m| (m.device, m.inode, m.path));
        assert!(shared.eq([((0, 1), 8, &b"/y z"[..])]));
    }

    #[test]
    fn the_device_shown_in_maps_is_found() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = File::create_new(dir.path().join("x")).unwrap();
        file.set_len(4096).unwrap();
        use std::os::unix::fs::MetadataExt;
        let expected = device(file.metadata().unwrap().dev());
        let file = File::options()
            .read(true)
            .write(true)
            .open(dir.path().join("x"));
        assert_eq!(shown_device(&file.unwrap()), Some(expected));
    }
}
