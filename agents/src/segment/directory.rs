//! Opens directories of segments, and examines the files in them without opening those.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use shm_protocol::layout::CONTROL_BYTES;
use shm_protocol::segment::SegmentFile;

use super::name::{Entry, RUN_PREFIX, SegmentName};
use super::refusal::Refusal;
use super::resolution::open_below;

/// Maximum number of directory entries that are read.
const MAX_ENTRIES: usize = 1_000_000;

/// Open directory of segments.
#[derive(Debug)]
pub struct Directory {
    pub(super) fd: OwnedFd,
    /// Path for display: `/dev/shm`, or `/proc/PID/root/dev/shm`.
    pub path: PathBuf,
    /// Device and inode. Identifies the directory whatever its path.
    pub identity: (u64, u64),
    /// Owner of the directory.
    pub owner: u32,
}

impl Directory {
    /// Opens a directory in our own mount namespace.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty())?;
        Self::of(fd, path.to_owned())
    }

    /// Opens the directory `path` as a process sees it. Symbolic links on the way are resolved
    /// within the process's root.
    pub fn open_in(pid: i32, path: &Path) -> io::Result<Arc<Self>> {
        let root = proc::directory(pid).join("root");
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root_fd = nix::fcntl::open(&root, flags, Mode::empty())?;
        let fd = open_below(root_fd, path)?;
        let inside = path.strip_prefix("/").unwrap_or(path);
        Self::of(fd, root.join(inside))
    }

    fn of(fd: OwnedFd, path: PathBuf) -> io::Result<Arc<Self>> {
        let stat = fstat(&fd)?;
        Ok(Arc::new(Self {
            fd,
            path,
            identity: (stat.st_dev, stat.st_ino),
            owner: stat.st_uid,
        }))
    }

    /// Returns whether the `run` or `cpu run` that created this directory is still alive. `None`:
    /// neither created it.
    pub fn is_run_alive(&self) -> Option<bool> {
        let has_prefix = |part: &OsStr| part.as_bytes().starts_with(RUN_PREFIX.as_bytes());
        let is_run_directory = self.path.iter().any(has_prefix);
        is_run_directory.then(|| super::is_locked(&self.fd))
    }

    /// Locks a directory of `run` for as long as this process lives, which
    /// [`is_run_alive`](Self::is_run_alive) checks.
    pub fn attend(path: &Path) -> io::Result<()> {
        let directory = File::open(path)?;
        // SAFETY: flock takes no pointers, and the descriptor is open.
        Errno::result(unsafe { libc::flock(directory.as_raw_fd(), libc::LOCK_EX) })?;
        // The lock belongs to the descriptor, which is deliberately leaked.
        let _ = directory.into_raw_fd();
        Ok(())
    }

    /// Returns the entries with names of segments.
    pub fn segments(&self) -> io::Result<Vec<Entry>> {
        let entry = |e: DirEntry| {
            let name = SegmentName::parse(&e.file_name())?;
            Some(Entry {
                name,
                inode: e.ino(),
                device: self.identity.0,
            })
        };
        Ok(self.read()?.filter_map(entry).collect())
    }

    /// Returns the names of the entries that begin with `prefix`.
    pub fn entries(&self, prefix: &str) -> io::Result<Vec<OsString>> {
        let names = self.read()?.map(|e| e.file_name());
        Ok(names
            .filter(|name| name.as_bytes().starts_with(prefix.as_bytes()))
            .collect())
    }

    fn read(&self) -> io::Result<impl Iterator<Item = DirEntry> + use<>> {
        // Reads by descriptor, so that a replaced path has no effect.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(std::fs::read_dir(path)?.take(MAX_ENTRIES).flatten())
    }

    /// Examines the file with a segment's name without opening it.
    pub fn file_info(&self, name: SegmentName) -> io::Result<FileInfo> {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        let stat = nix::sys::stat::fstatat(&self.fd, name.to_string().as_str(), flags)?;
        Ok(FileInfo::of(&stat))
    }

    /// Opens a subdirectory.
    pub fn directory(&self, name: &OsStr) -> io::Result<Arc<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Self::of(fd, self.path.join(name))
    }

    /// Removes a file if it still has this device and inode. Returns false if it was removed or
    /// replaced before, by its process or another controller.
    pub fn remove_file(&self, name: SegmentName, device: u64, inode: u64) -> io::Result<bool> {
        let name = name.to_string();
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        let how = nix::unistd::UnlinkatFlags::NoRemoveDir;
        let removed = nix::sys::stat::fstatat(&self.fd, name.as_str(), flags).and_then(|stat| {
            let is_same = stat.st_dev == device && stat.st_ino == inode;
            if is_same {
                nix::unistd::unlinkat(&self.fd, name.as_str(), how)?;
            }
            Ok(is_same)
        });
        match removed {
            Err(Errno::ENOENT) => Ok(false),
            removed => Ok(removed?),
        }
    }

    /// Returns the free space on the file system, in bytes. Fails if the file system has no size
    /// (ramfs).
    pub fn free_bytes(&self) -> io::Result<u64> {
        let stat = nix::sys::statvfs::fstatvfs(&self.fd)?;
        if stat.blocks() == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
    }
}

/// Properties of a file that are known without opening it.
pub struct FileInfo {
    /// Owner of the file.
    pub owner: u32,
    /// Device and inode of the file.
    pub file: (u64, u64),
    /// Memory or disk space that the file occupies, in bytes.
    pub memory_bytes: u64,
    regular: bool,
    bytes: u64,
    modified_unix_ns: u64,
}

impl FileInfo {
    fn of(stat: &FileStat) -> Self {
        Self {
            owner: stat.st_uid,
            file: (stat.st_dev, stat.st_ino),
            memory_bytes: (stat.st_blocks.max(0) as u64).saturating_mul(512),
            regular: is_regular(stat),
            bytes: stat.st_size.max(0) as u64,
            modified_unix_ns: modified_unix_ns(stat),
        }
    }

    /// Returns the reason why the file is not one of our segments, if there is one.
    pub fn refusal(&self) -> Option<Refusal> {
        let us = nix::unistd::geteuid();
        if !self.regular {
            Some(Refusal::NotAFile)
        } else if !us.is_root() && us.as_raw() != self.owner {
            Some(Refusal::Foreign(self.owner))
        } else if SegmentFile::new(-1, self.bytes).is_none() {
            Some(Refusal::Size(self.bytes))
        } else {
            None
        }
    }

    /// Returns true if the file is so new that it may be incomplete.
    pub fn is_young(&self) -> bool {
        is_young(self.modified_unix_ns)
    }

    /// Returns true if the file may be an incomplete segment: it is too short, and ours unless we
    /// are root.
    pub fn is_stub(&self) -> bool {
        let us = nix::unistd::geteuid();
        self.regular
            && (us.is_root() || us.as_raw() == self.owner)
            && self.bytes < CONTROL_BYTES as u64
    }
}

/// Returns true if a file is so new that its agent may not have filled it in yet.
pub fn is_young(modified_unix_ns: u64) -> bool {
    shm_protocol::clock::unix_ns().abs_diff(modified_unix_ns) < 2_000_000_000
}

pub(super) fn is_regular(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

pub(super) fn modified_unix_ns(stat: &FileStat) -> u64 {
    let seconds = (stat.st_mtime.max(0) as u64).saturating_mul(1_000_000_000);
    seconds.saturating_add(stat.st_mtime_nsec.max(0) as u64)
}

/// Returns the directory for segments: `MEM_PROFILER_DIR`, or `/dev/shm`. A relative path is made
/// absolute, since the agent resolves it in its program's initial working directory.
pub fn default_directory() -> PathBuf {
    use shm_protocol::segment::DIR_VARIABLE;
    directory_named(std::env::var_os(DIR_VARIABLE))
}

fn directory_named(value: Option<OsString>) -> PathBuf {
    use shm_protocol::segment::DEFAULT_DIR;
    let Some(chosen) = value.filter(|value| !value.is_empty()) else {
        return PathBuf::from(DEFAULT_DIR);
    };
    // If the working directory was removed, the path remains relative.
    std::path::absolute(&chosen).unwrap_or_else(|_| PathBuf::from(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_directory_is_below_the_working_directory() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            directory_named(Some("run/prof".into())),
            here.join("run/prof")
        );
        assert_eq!(
            directory_named(Some("/run/prof".into())),
            Path::new("/run/prof")
        );
        for unset in [None, Some("".into())] {
            assert_eq!(directory_named(unset), Path::new("/dev/shm"));
        }
    }
}
