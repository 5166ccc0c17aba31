//! Files of a group's processes: pages in the cache, and files in memory file systems.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mem_agents::text;
use profile::maps::Entry;

use crate::ledger::Row;

/// Maximum number of files whose pages in the cache are counted.
const MAX_FILES: usize = 1 << 13;
/// Maximum number of entries of memory file systems that are visited.
const MAX_ENTRIES: usize = 1 << 16;
/// Maximum depth of directories in memory file systems.
const MAX_DEPTH: usize = 16;
/// Unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// File, by device and inode.
type Identity = (u64, u64);

/// Files that processes use.
pub struct Files {
    /// Path and bytes in the page cache, of files on disks.
    cached: HashMap<Identity, Row>,
    /// Path and size, of files in memory.
    in_memory: HashMap<Identity, Row>,
    /// Mounts of memory file systems that were visited, by device.
    visited: HashSet<u64>,
    /// Number of entries that may still be visited.
    entries_left: usize,
}

impl Files {
    pub fn new() -> Self {
        Self {
            cached: HashMap::new(),
            in_memory: HashMap::new(),
            visited: HashSet::new(),
            entries_left: MAX_ENTRIES,
        }
    }

    /// Adds the files that a process has open or mapped, and those of the memory file systems that
    /// it sees.
    pub fn add_process(&mut self, pid: i32) {
        let directory = proc::directory(pid);
        for entry in fs::read_dir(directory.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = fs::read_link(entry.path()).unwrap_or_default();
            self.add(&entry.path(), &name);
        }
        let maps = proc::maps(pid).unwrap_or_default();
        let mut last: &[u8] = b"";
        for mapping in Entry::all(&maps) {
            if mapping.inode == 0 || mapping.path == last || !mapping.path.starts_with(b"/") {
                continue;
            }
            last = mapping.path;
            let link = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
            let name = Path::new(std::ffi::OsStr::from_bytes(mapping.path));
            self.add(&directory.join(link), name);
        }
        self.add_memory_file_systems(pid);
    }

    /// Adds a regular file. `link` leads to it, `name` is its path for the process.
    fn add(&mut self, link: &Path, name: &Path) {
        // Opening anything but a regular file may have an effect.
        let Ok(metadata) = fs::metadata(link) else {
            return;
        };
        if !metadata.is_file() {
            return;
        }
        let identity = (metadata.dev(), metadata.ino());
        let is_known = self.cached.contains_key(&identity);
        if is_known || self.in_memory.contains_key(&identity) || self.cached.len() >= MAX_FILES {
            return;
        }
        let path = text::escape(name.as_os_str().as_bytes());
        let flags = libc::O_NONBLOCK | libc::O_NOATIME | libc::O_CLOEXEC;
        let open = |flags| {
            fs::OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(link)
        };
        // Only a file's owner and root may leave its time of access alone.
        let Ok(file) = open(flags).or_else(|_| open(flags & !libc::O_NOATIME)) else {
            return;
        };
        if is_in_memory(&file) {
            let row = Row::new(path, allocated(&metadata), "");
            self.in_memory.insert(identity, row);
        } else if let Some(bytes) = cached_bytes(&file) {
            self.cached.insert(identity, Row::new(path, bytes, ""));
        }
    }

    /// Adds the files in memory file systems of a process's mount namespace.
    fn add_memory_file_systems(&mut self, pid: i32) {
        let mounts = proc::file(pid, "mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts).into_owned();
        for line in mounts.lines() {
            let Some((mount, file_system)) = line.split_once(" - ") else {
                continue;
            };
            let Some(mount_point) = mount.split(' ').nth(4) else {
                continue;
            };
            if !file_system.starts_with("tmpfs ") && !file_system.starts_with("ramfs ") {
                continue;
            }
            // Seen through the root directory of the process.
            let root = proc::directory(pid).join("root");
            let inside = mount_point.trim_start_matches('/');
            let Ok(metadata) = fs::metadata(root.join(inside)) else {
                continue;
            };
            if self.visited.insert(metadata.dev()) {
                self.visit(&root, PathBuf::from(inside), metadata.dev(), 0);
            }
        }
    }

    /// Adds the files below a directory of one file system.
    fn visit(&mut self, root: &Path, directory: PathBuf, device: u64, depth: usize) {
        let entries = fs::read_dir(root.join(&directory)).into_iter().flatten();
        for entry in entries.flatten() {
            let Some(left) = self.entries_left.checked_sub(1) else {
                return;
            };
            self.entries_left = left;
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.dev() != device {
                continue;
            }
            let path = directory.join(entry.file_name());
            if metadata.is_dir() && depth < MAX_DEPTH {
                self.visit(root, path, device, depth + 1);
            } else if metadata.is_file() {
                let name = text::escape(Path::new("/").join(&path).as_os_str().as_bytes());
                let row = Row::new(name, allocated(&metadata), "");
                self.in_memory.insert((device, metadata.ino()), row);
            }
        }
    }

    /// Returns the files with the most pages in the cache.
    pub fn cached(&self, count: usize) -> Vec<Row> {
        largest(self.cached.values(), count)
    }

    /// Returns the largest files in memory.
    pub fn in_memory(&self, count: usize) -> Vec<Row> {
        largest(self.in_memory.values(), count)
    }
}

fn largest<'a>(rows: impl Iterator<Item = &'a Row>, count: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = rows.filter(|row| row.bytes > 0).cloned().collect();
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    rows.truncate(count);
    rows
}

fn allocated(metadata: &Metadata) -> u64 {
    metadata.blocks().saturating_mul(BLOCK_BYTES)
}

/// Returns true if the file is in a memory file system.
fn is_in_memory(file: &File) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let mut system = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: an open file, and room for the result.
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) };
    if status != 0 {
        return false;
    }
    // SAFETY: `fstatfs` has filled it in.
    let kind = unsafe { system.assume_init() }.f_type as u64;
    kind == TMPFS || kind == RAMFS
}

/// Returns the bytes of a file that are in the page cache. Returns `None` if the kernel does not
/// tell (before Linux 6.5), or without permission.
fn cached_bytes(file: &File) -> Option<u64> {
    /// System call that is not in the C library yet; its number is the same on all architectures.
    const CACHESTAT: libc::c_long = 451;
    let whole_file = [0u64; 2];
    let mut pages = [0u64; 5];
    // SAFETY: the kernel reads `struct cachestat_range` and writes `struct cachestat`, which have
    // two and five words.
    let status = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            whole_file.as_ptr(),
            pages.as_mut_ptr(),
            0,
        )
    };
    (status == 0).then(|| pages[0].saturating_mul(proc::page_size()))
}
