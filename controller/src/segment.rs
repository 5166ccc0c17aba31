//! Opening segments: files in a directory that everybody may write to.
//!
//! A file is opened relative to an open directory, without following a link, and is used
//! only if it is a regular file. Its content is read into private memory and checked
//! there; nothing is ever mapped.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

use shm_protocol::layout::{BANK_HEADER_BYTES, CONTROL_BYTES, HEADER_BYTES, MODULES_OFFSET};
use shm_protocol::segment::{FILE_PREFIX, SegmentFile};
use shm_protocol::snapshot::{BankSummary, Header, Invalid};

/// Most entries of a directory that are read: the names alone.
const MAX_ENTRIES: usize = 1_000_000;

/// Identity of a process image, from its segment's file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentName {
    /// Pid in the process's own namespace.
    pub pid: i32,
    /// Start time of the process.
    pub start_time: u64,
    /// Counts the images that the process executed.
    pub image: u32,
}

impl SegmentName {
    /// The inverse of [`SegmentName::to_string`]; `None` for any other name.
    pub fn parse(name: &OsStr) -> Option<Self> {
        let rest = name.to_str()?.strip_prefix(FILE_PREFIX)?;
        let mut parts = rest.split('.');
        let mut number = || {
            let part = parts.next()?;
            part.bytes().all(|b| b.is_ascii_digit()).then_some(part)
        };
        let name = Self {
            pid: number()?.parse().ok().filter(|pid| *pid > 0)?,
            start_time: number()?.parse().ok()?,
            image: number()?.parse().ok()?,
        };
        parts.next().is_none().then_some(name)
    }
}

/// A file in a directory. Names come back: a program that executes another may find the
/// name of an earlier image free again. Name and inode together do not; but directories of
/// other mount namespaces, each a filesystem of its own, may agree in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// File name.
    pub name: SegmentName,
    /// Inode, from the directory.
    pub inode: u64,
    /// The directory's device.
    pub device: u64,
}

impl std::fmt::Display for SegmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{FILE_PREFIX}{}.{}.{}",
            self.pid, self.start_time, self.image
        )
    }
}

/// An open directory of segments.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// How people reach it: `/dev/shm`, or `/proc/PID/root/dev/shm`.
    pub path: PathBuf,
    /// Device and inode, to know it again under another name.
    pub identity: (u64, u64),
    /// User who owns it.
    pub owner: u32,
}

impl Directory {
    /// Opens a directory of our own mount namespace.
    pub fn open(path: &Path) -> io::Result<Rc<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty())?;
        Self::of(fd, path.to_owned())
    }

    /// Opens the directory `path` as the process sees it. Links on the way lead where the
    /// process's root is, never into our own files. Needs Linux 5.6.
    pub fn open_in(pid: i32, path: &Path) -> io::Result<Rc<Self>> {
        let root = format!("/proc/{pid}/root");
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root_fd = nix::fcntl::open(root.as_str(), flags, Mode::empty())?;
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let fd = openat2(root_fd, path, how)?;
        let inside = path.strip_prefix("/").unwrap_or(path);
        Self::of(fd, Path::new(&root).join(inside))
    }

    fn of(fd: OwnedFd, path: PathBuf) -> io::Result<Rc<Self>> {
        let stat = fstat(&fd)?;
        Ok(Rc::new(Self {
            fd,
            path,
            identity: (stat.st_dev, stat.st_ino),
            owner: stat.st_uid,
        }))
    }

    /// The entries that are named like segments.
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

    /// The entries whose names begin so.
    pub fn entries(&self, prefix: &str) -> io::Result<Vec<OsString>> {
        let names = self.read()?.map(|e| e.file_name());
        Ok(names
            .filter(|name| name.as_bytes().starts_with(prefix.as_bytes()))
            .collect())
    }

    fn read(&self) -> io::Result<impl Iterator<Item = DirEntry> + use<>> {
        // Through /proc, so that the directory read is the one that is open.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(std::fs::read_dir(path)?.take(MAX_ENTRIES).flatten())
    }

    /// The file behind a segment's name, without opening it.
    pub fn kind(&self, name: SegmentName) -> io::Result<Kind> {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        let stat = nix::sys::stat::fstatat(&self.fd, name.to_string().as_str(), flags)?;
        Ok(Kind::of(&stat))
    }

    /// Opens a directory inside it.
    pub fn directory(&self, name: &OsStr) -> io::Result<Rc<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Self::of(fd, self.path.join(name))
    }

    /// Removes a segment, if the name still means that file.
    pub fn remove(&self, segment: &Segment) -> io::Result<()> {
        self.remove_file(segment.name, (segment.device, segment.inode))
    }

    /// Removes a file of this device and inode, if the name still means it.
    pub fn remove_file(&self, name: SegmentName, file: (u64, u64)) -> io::Result<()> {
        let name = name.to_string();
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        let now = nix::sys::stat::fstatat(&self.fd, name.as_str(), flags)?;
        if (now.st_dev, now.st_ino) != file {
            return Err(io::Error::from(Errno::ESTALE));
        }
        let how = nix::unistd::UnlinkatFlags::NoRemoveDir;
        Ok(nix::unistd::unlinkat(&self.fd, name.as_str(), how)?)
    }

    /// Bytes free for us on its filesystem.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let stat = nix::sys::statvfs::fstatvfs(&self.fd)?;
        Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
    }
}

/// Why a file is not used as a segment.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Not ours to open; its owner.
    #[error("it belongs to user {}", crate::process::user_name(*.0))]
    Foreign(u32),
    /// It is a link, a pipe, a device, …
    #[error("it is not a regular file")]
    NotAFile,
    /// No segment has this size.
    #[error("its size of {0} bytes is no segment's")]
    Size(u64),
    /// The content is not ours.
    #[error("{0}")]
    Content(#[from] Invalid),
    /// The content is of another process than the name.
    #[error("its name and its content tell of different processes")]
    Misnamed,
    /// It belongs to somebody who is neither root nor the process's user.
    #[error("it is owned by user {}, not by the process's user", crate::process::user_name(*.0))]
    Planted(u32),
    /// The system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A file as far as it is known without opening it.
pub struct Kind {
    /// Owner of the file.
    pub owner: u32,
    /// Device and inode.
    pub file: (u64, u64),
    regular: bool,
    bytes: u64,
    modified_unix_ns: u64,
}

impl Kind {
    fn of(stat: &FileStat) -> Self {
        Self {
            owner: stat.st_uid,
            file: (stat.st_dev, stat.st_ino),
            regular: is_regular(stat),
            bytes: stat.st_size.max(0) as u64,
            modified_unix_ns: modified_unix_ns(stat),
        }
    }

    /// Why it is no segment, or none of ours.
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

    /// Whether its agent may not have filled it in yet.
    pub fn is_young(&self) -> bool {
        is_young(self.modified_unix_ns)
    }

    /// Whether it may be what an agent leaves that is killed while it makes its segment: a
    /// file of ours, or root asks, that is too short.
    pub fn is_stub(&self) -> bool {
        let us = nix::unistd::geteuid();
        self.regular
            && (us.is_root() || us.as_raw() == self.owner)
            && self.bytes < CONTROL_BYTES as u64
    }
}

/// Whether a segment is so young that its agent may not have filled it in yet.
pub fn is_young(modified_unix_ns: u64) -> bool {
    shm_protocol::clock::unix_ns().abs_diff(modified_unix_ns) < 2_000_000_000
}

fn is_regular(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
}

fn modified_unix_ns(stat: &FileStat) -> u64 {
    let seconds = (stat.st_mtime.max(0) as u64).saturating_mul(1_000_000_000);
    seconds.saturating_add(stat.st_mtime_nsec.max(0) as u64)
}

/// The head of a segment, in private memory.
pub struct Head {
    bytes: Vec<u8>,
}

impl Head {
    /// Room for one.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; HEADER_BYTES],
        }
    }
}

/// An open segment.
#[derive(Debug)]
pub struct Segment {
    file: File,
    /// Changes its size once: when the first session adds the tables.
    view: Cell<SegmentFile>,
    /// File name.
    pub name: SegmentName,
    /// Where it is.
    pub directory: Rc<Directory>,
    /// Owner of the file.
    pub owner: u32,
    /// Device of the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// When it was last written to by a system call, Unix ns.
    pub modified_unix_ns: u64,
}

impl Segment {
    /// Opens a segment for reading and commanding. The content is not checked yet.
    pub fn open(directory: &Rc<Directory>, name: SegmentName) -> Result<Self, Refusal> {
        let text = name.to_string();
        // Opening a device may act on it: first it is looked at.
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let path = openat(&directory.fd, text.as_str(), flags, Mode::empty())?;
        let stat = fstat(&path)?;
        if !is_regular(&stat) {
            return Err(Refusal::NotAFile);
        }
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let again = format!("/proc/self/fd/{}", path.as_raw_fd());
        let fd = match nix::fcntl::open(again.as_str(), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::EACCES | Errno::EPERM) => return Err(Refusal::Foreign(stat.st_uid)),
            Err(error) => return Err(error.into()),
        };
        // It may have grown since.
        let stat = fstat(&fd)?;
        let bytes = stat.st_size.max(0) as u64;
        let view = SegmentFile::new(fd.as_raw_fd(), bytes).ok_or(Refusal::Size(bytes))?;
        Ok(Self {
            file: File::from(fd),
            view: Cell::new(view),
            name,
            directory: directory.clone(),
            owner: stat.st_uid,
            device: stat.st_dev,
            inode: stat.st_ino,
            modified_unix_ns: modified_unix_ns(&stat),
        })
    }

    /// Where it is, for people.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(self.name.to_string())
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> io::Result<u64> {
        Ok((fstat(&self.file)?.st_blocks.max(0) as u64).saturating_mul(512))
    }

    /// Commands and bulk reads.
    pub fn view(&self) -> SegmentFile {
        self.view.get()
    }

    /// Gives it the size that it has with tables.
    pub fn grow(&self, bytes: u64) -> Result<(), shm_protocol::segment::Errno> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.view.set(self.view().grown(bytes)?);
        Ok(())
    }

    /// Takes notice of tables that were added since it was opened.
    fn refresh(&self) -> Result<(), Refusal> {
        if !self.view().has_tables() {
            let bytes = fstat(&self.file)?.st_size.max(0) as u64;
            let view = SegmentFile::new(self.file.as_raw_fd(), bytes);
            self.view.set(view.ok_or(Refusal::Size(bytes))?);
        }
        Ok(())
    }

    /// Reads identity, commands and status; the modules come out empty.
    pub fn head<'a>(&self, head: &'a mut Head) -> Result<Header<'a>, Refusal> {
        self.read_head(head, MODULES_OFFSET)
    }

    /// Reads all of the head.
    pub fn full_head<'a>(&self, head: &'a mut Head) -> Result<Header<'a>, Refusal> {
        self.read_head(head, HEADER_BYTES)
    }

    fn read_head<'a>(&self, head: &'a mut Head, len: usize) -> Result<Header<'a>, Refusal> {
        self.refresh()?;
        let view = self.view();
        let len = len.min(view.bytes());
        let got = view.read_at(0, &mut head.bytes[..len]).map_err(io_error)?;
        if got < len {
            return Err(Invalid::TooShort.into());
        }
        if len < HEADER_BYTES {
            // No module count, no modules: whatever an earlier segment left there.
            head.bytes[len..len + 64].fill(0);
        }
        Ok(Header::new(&head.bytes, view.bytes())?)
    }

    /// Reads the head of a session's bank into `buffer`.
    pub fn bank<'a>(
        &self,
        session: u64,
        buffer: &'a mut [u8; BANK_HEADER_BYTES],
    ) -> Result<BankSummary<'a>, Refusal> {
        self.refresh()?;
        let view = self.view();
        if !view.has_tables() {
            return Err(Invalid::TooShort.into());
        }
        let geometry = view.geometry();
        let at = geometry.bank_offset(session);
        if view.read_at(at, buffer).map_err(io_error)? < buffer.len() {
            return Err(Invalid::TooShort.into());
        }
        Ok(BankSummary::new(buffer, geometry)?)
    }

    /// Takes the segment for one session; false if another controller has it. Released
    /// by the kernel, however we end.
    pub fn lock(&self) -> io::Result<bool> {
        // SAFETY: a plain call on a descriptor that we own.
        match Errno::result(unsafe {
            libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB)
        }) {
            Ok(_) => Ok(true),
            Err(Errno::EWOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The segment contract's error as everybody's.
pub fn io_error(error: shm_protocol::segment::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

/// The directory that sessions use: `MEM_PROFILER_DIR`, or `/dev/shm`. A relative one is
/// meant from the working directory, as the agent takes it when its program starts.
pub fn default_directory() -> PathBuf {
    use shm_protocol::segment::DIR_VARIABLE;
    directory_named(std::env::var_os(DIR_VARIABLE))
}

fn directory_named(value: Option<OsString>) -> PathBuf {
    use shm_protocol::segment::DEFAULT_DIR;
    let Some(chosen) = value.filter(|value| !value.is_empty()) else {
        return PathBuf::from(DEFAULT_DIR);
    };
    // Fails where the working directory is gone: then the name alone must do.
    std::path::absolute(&chosen).unwrap_or_else(|_| PathBuf::from(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_directory_is_meant_from_the_working_directory() {
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

    #[test]
    fn names_are_read_strictly() {
        let parse = |text: &str| SegmentName::parse(OsStr::new(text));
        let name = parse("mem_profiler.42.9999.1").unwrap();
        assert_eq!((name.pid, name.start_time, name.image), (42, 9999, 1));
        assert_eq!(name.to_string(), "mem_profiler.42.9999.1");
        for bad in [
            "mem_profiler.42.9999",
            "mem_profiler.42.9999.1.2",
            "mem_profiler.-1.2.3",
            "mem_profiler.+1.2.3",
            "mem_profiler.0.2.3",
            "mem_profiler.1.2.",
            "other.1.2.3",
            "mem_profiler.99999999999.2.3",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_regular_files_of_a_segments_size_open() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let name = |pid| SegmentName {
            pid,
            start_time: 1,
            image: 0,
        };
        let path = |pid| dir.path().join(name(pid).to_string());
        std::fs::write(path(1), b"short").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path(2)).unwrap();
        nix::unistd::mkfifo(&path(3), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        std::fs::create_dir(path(4)).unwrap();
        File::create(path(5)).unwrap().set_len(1 << 20).unwrap();
        let open = |pid| Segment::open(&directory, name(pid));
        assert!(matches!(open(1), Err(Refusal::Size(5))));
        for pid in [2, 3, 4] {
            assert!(open(pid).is_err(), "{pid}");
        }
        assert!(matches!(open(2), Err(Refusal::NotAFile)));
        let segment = open(5).unwrap();
        let mut head = Head::new();
        assert!(matches!(
            segment.head(&mut head),
            Err(Refusal::Content(Invalid::NoMagic))
        ));
        assert_eq!(directory.segments().unwrap().len(), 5);
    }

    #[test]
    fn a_lock_is_one_controllers() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let name = SegmentName {
            pid: 5,
            start_time: 1,
            image: 0,
        };
        File::create(dir.path().join(name.to_string()))
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        let (a, b) = (
            Segment::open(&directory, name).unwrap(),
            Segment::open(&directory, name).unwrap(),
        );
        assert!(a.lock().unwrap());
        assert!(!b.lock().unwrap());
        drop(a);
        assert!(b.lock().unwrap());
        directory.remove(&b).unwrap();
        assert!(directory.segments().unwrap().is_empty());
    }
}
