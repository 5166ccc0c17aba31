//! Files of a group's processes: pages in the cache, and files in memory.
//!
//! Opening a file could wait, or be noticed by another process. So open descriptors are duplicated
//! instead (`pidfd_getfd`), and only for files in memory and on local disks; directories are read
//! in memory file systems only.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use mem_agents::text;

use crate::ledger::Row;

/// Maximum number of descriptors that are examined.
const MAX_DESCRIPTORS: usize = 1 << 14;
/// Maximum number of entries of memory file systems that are visited.
const MAX_ENTRIES: usize = 1 << 16;
/// Maximum depth of directories in memory file systems.
const MAX_DEPTH: usize = 16;
/// Unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;
/// Directories in which memory file systems are usually mounted.
const MEMORY_DIRECTORIES: [&str; 3] = ["dev/shm", "tmp", "run"];

/// Memory file systems.
const MEMORY_SYSTEMS: [&str; 2] = ["tmpfs", "ramfs"];
/// File systems on local disks, which answer without a network or another process.
const DISK_SYSTEMS: [&str; 7] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay"];

/// File, by device and inode.
type Identity = (u64, u64);

/// Mounts that a process sees, from its `mountinfo`. The file systems themselves are not asked: a
/// remote one may not answer.
#[derive(Default)]
struct Mounts {
    /// Kind of file system by the mount's id.
    kinds: HashMap<u64, String>,
    /// Kind of file system that is visible at each of the [`MEMORY_DIRECTORIES`].
    visible: HashMap<String, String>,
}

impl Mounts {
    fn read(pid: i32) -> Self {
        let text = proc::file(pid, "mountinfo").unwrap_or_default();
        let mut mounts = Self::default();
        for line in String::from_utf8_lossy(&text).lines() {
            let Some((mount, file_system)) = line.split_once(" - ") else {
                continue;
            };
            let mut fields = mount.split(' ');
            let id = fields.next().and_then(|id| id.parse().ok());
            let kind = file_system.split(' ').next().unwrap_or_default();
            if let Some(id) = id {
                mounts.kinds.insert(id, kind.to_owned());
            }
            // Later mounts cover earlier ones.
            let mount_point = fields.nth(3).unwrap_or_default().trim_start_matches('/');
            if MEMORY_DIRECTORIES.contains(&mount_point) {
                mounts
                    .visible
                    .insert(mount_point.to_owned(), kind.to_owned());
            }
        }
        mounts
    }

    /// Returns the kind of file system that an open file is in.
    fn kind_of(&self, pid: i32, number: i32, name: &Path) -> Option<&str> {
        if name.as_os_str().as_bytes().starts_with(b"/memfd:") {
            return Some("tmpfs");
        }
        let info = proc::file(pid, &format!("fdinfo/{number}"))?;
        let id = proc::status_field(&info, "mnt_id:")?.parse().ok()?;
        self.kinds.get(&id).map(String::as_str)
    }
}

/// Files that processes use.
pub struct Files {
    /// Open files that have been examined.
    seen: HashSet<Identity>,
    /// Path and bytes in the page cache, of files on disks.
    cached: Vec<Row>,
    /// Path and size, of files in memory.
    in_memory: HashMap<Identity, Row>,
    /// Mount namespaces whose memory file systems were visited.
    namespaces: HashSet<PathBuf>,
    /// Number of descriptors that may still be examined.
    descriptors_left: usize,
    /// Number of entries that may still be visited.
    entries_left: usize,
}

impl Files {
    pub fn new() -> Self {
        Self {
            seen: HashSet::new(),
            cached: Vec::new(),
            in_memory: HashMap::new(),
            namespaces: HashSet::new(),
            descriptors_left: MAX_DESCRIPTORS,
            entries_left: MAX_ENTRIES,
        }
    }

    /// Returns true if a limit was reached.
    pub fn is_incomplete(&self) -> bool {
        self.descriptors_left == 0 || self.entries_left == 0
    }

    /// Adds the files that a process has open, and those in the usual memory file systems that it
    /// sees.
    pub fn add_process(&mut self, pid: i32) {
        let directory = proc::directory(pid);
        let mounts = Mounts::read(pid);
        if let Some(pidfd) = proc::pidfd(pid) {
            let entries = fs::read_dir(directory.join("fd")).into_iter().flatten();
            for entry in entries.flatten() {
                if self.descriptors_left == 0 {
                    break;
                }
                self.descriptors_left -= 1;
                let name = fs::read_link(entry.path()).unwrap_or_default();
                let number = entry.file_name();
                let number = number.to_str().and_then(|number| number.parse().ok());
                // Pipes, sockets and the like have names without a slash.
                let Some(number) = number.filter(|_| name.is_absolute()) else {
                    continue;
                };
                if let Some(kind) = mounts.kind_of(pid, number, &name) {
                    self.add_descriptor(&pidfd, number, &name, kind);
                }
            }
        }
        let namespace = fs::read_link(directory.join("ns/mnt"));
        if let Ok(namespace) = namespace
            && self.namespaces.insert(namespace)
        {
            self.add_memory_file_systems(&directory.join("root"), &mounts);
        }
    }

    /// Adds a file that a process has open, in a file system of this kind. `name` is its path for
    /// the process.
    fn add_descriptor(&mut self, pidfd: &OwnedFd, number: i32, name: &Path, kind: &str) {
        let is_in_memory = MEMORY_SYSTEMS.contains(&kind);
        if !is_in_memory && !DISK_SYSTEMS.contains(&kind) {
            return;
        }
        let Some(file) = duplicate(pidfd, number) else {
            return;
        };
        let Some(status) = status(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH) else {
            return;
        };
        if !status.is_file() || !self.seen.insert(status.identity()) {
            return;
        }
        let path = text::escape(name.as_os_str().as_bytes());
        if is_in_memory {
            let row = Row::new(path, status.allocated(), "");
            self.in_memory.insert(status.identity(), row);
        } else if let Some(bytes) = cached_bytes(&file) {
            self.cached.push(Row::new(path, bytes, ""));
        }
    }

    /// Adds the files in the usual memory file systems below a process's root directory.
    fn add_memory_file_systems(&mut self, root: &Path, mounts: &Mounts) {
        for path in MEMORY_DIRECTORIES {
            let kind = mounts.visible.get(path).map_or("", String::as_str);
            if !MEMORY_SYSTEMS.contains(&kind) {
                continue;
            }
            let Some(directory) = open_inside(root, path) else {
                continue;
            };
            if let Some(status) = status(directory.as_raw_fd(), c"", libc::AT_EMPTY_PATH) {
                let name = Path::new("/").join(path);
                self.visit(&directory, &name, status.device(), 0);
            }
        }
    }

    /// Adds the files below a directory of one file system. `name` is its path for the process.
    fn visit(&mut self, directory: &File, name: &Path, device: u64, depth: usize) {
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if self.entries_left == 0 {
                return;
            }
            self.entries_left -= 1;
            let Some(entry_name) = c_string(entry.file_name()) else {
                continue;
            };
            let flags = libc::AT_SYMLINK_NOFOLLOW;
            let Some(status) = status(directory.as_raw_fd(), &entry_name, flags) else {
                continue;
            };
            // Another file system may be mounted here.
            if status.device() != device {
                continue;
            }
            let path = name.join(entry.file_name());
            if status.is_directory() && depth < MAX_DEPTH {
                if let Some(inner) = open_directory(directory, &entry_name) {
                    self.visit(&inner, &path, device, depth + 1);
                }
            } else if status.is_file() {
                let row = Row::new(
                    text::escape(path.as_os_str().as_bytes()),
                    status.allocated(),
                    "",
                );
                self.in_memory.insert(status.identity(), row);
            }
        }
    }

    /// Returns the files with the most pages in the cache.
    pub fn cached(&self, count: usize) -> Vec<Row> {
        largest(self.cached.iter(), count)
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

fn c_string(name: OsString) -> Option<CString> {
    CString::new(name.into_vec()).ok()
}

/// Duplicates a descriptor of another process, without opening the file again. Returns `None` before
/// Linux 5.6, or without permission.
fn duplicate(pidfd: &OwnedFd, number: i32) -> Option<File> {
    // SAFETY: takes numbers, and returns a new descriptor.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
    let copy = i32::try_from(copy).ok().filter(|copy| *copy >= 0)?;
    // SAFETY: nobody else has the new descriptor.
    Some(unsafe { File::from_raw_fd(copy) })
}

/// Opens a directory below another process's root, without following links out of it. Returns `None`
/// before Linux 5.6.
fn open_inside(root: &Path, path: &str) -> Option<File> {
    let root = c_string(root.as_os_str().to_owned())?;
    let path = CString::new(path).ok()?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a path that ends with a zero.
    let root = unsafe { libc::open(root.as_ptr(), flags) };
    if root < 0 {
        return None;
    }
    // SAFETY: nobody else has the new descriptor.
    let root = unsafe { File::from_raw_fd(root) };
    // SAFETY: zeros are a valid `open_how`.
    let mut how: libc::open_how = unsafe { MaybeUninit::zeroed().assume_init() };
    how.flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: a path that ends with a zero, and a structure of the stated size.
    let directory = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    let directory = i32::try_from(directory).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: nobody else has the new descriptor.
    Some(unsafe { File::from_raw_fd(directory) })
}

/// Opens a directory in a directory, unless it is a link.
fn open_directory(directory: &File, name: &CString) -> Option<File> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: a name that ends with a zero.
    let inner = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags) };
    // SAFETY: nobody else has the new descriptor.
    (inner >= 0).then(|| unsafe { File::from_raw_fd(inner) })
}

/// Status of a file (`statx`).
struct Status(libc::statx);

impl Status {
    fn kind(&self) -> u32 {
        u32::from(self.0.stx_mode) & libc::S_IFMT
    }

    fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    fn device(&self) -> u64 {
        u64::from(self.0.stx_dev_major) << 32 | u64::from(self.0.stx_dev_minor)
    }

    fn identity(&self) -> Identity {
        (self.device(), self.0.stx_ino)
    }

    /// Returns the bytes that the file occupies.
    fn allocated(&self) -> u64 {
        self.0.stx_blocks.saturating_mul(BLOCK_BYTES)
    }
}

/// Returns the status of a file in a directory, without asking a network or mounting anything.
fn status(directory: i32, name: &std::ffi::CStr, flags: i32) -> Option<Status> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a name that ends with a zero, and room for the result.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            directory,
            name.as_ptr(),
            flags,
            libc::STATX_BASIC_STATS,
            status.as_mut_ptr(),
        )
    };
    // SAFETY: zeros are valid, and the kernel fills in the rest.
    (result == 0).then(|| Status(unsafe { status.assume_init() }))
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
