//! Segments: files in a directory that everybody may write to.
//!
//! A file is opened relative to an open directory, without following a link, and is used
//! only if it is a regular file. Its content is read into private memory and checked
//! there; nothing is ever mapped.

// Decision 05: the controller never maps a segment.
mod directory;
mod name;
mod refusal;
mod resolution;

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use shm_protocol::layout::{BANK_HEADER_BYTES, HEADER_BYTES, MODULES_OFFSET};
use shm_protocol::segment::SegmentFile;
use shm_protocol::snapshot::{BankSummary, Header, Invalid};

pub use directory::{Directory, Kind, default_directory, is_young};
pub use name::{Entry, SegmentName};
pub use refusal::Refusal;

use directory::{is_regular, modified_unix_ns};

/// The head of a segment, in private memory.
pub struct Head {
    bytes: Vec<u8>,
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
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
    pub directory: Arc<Directory>,
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
    pub fn open(directory: &Arc<Directory>, name: SegmentName) -> Result<Self, Refusal> {
        let text = name.to_string();
        // Opening a device may act on it: first it is examined.
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

    /// Where it is, for display.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(self.name.to_string())
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Removes the file, if its name still means it. Tells whether it did.
    pub fn remove(&self) -> io::Result<bool> {
        self.directory
            .remove_file(self.name, (self.device, self.inode))
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

    /// Whether a controller has the segment for a session. Not to be asked by that itself, whose
    /// lock this would weaken.
    pub fn is_locked(&self) -> bool {
        is_locked(&self.file)
    }
}

/// Whether somebody else has an exclusive lock on a file or directory.
fn is_locked(file: &impl AsRawFd) -> bool {
    let flock = |how| {
        // SAFETY: a plain call on a descriptor that the caller has.
        Errno::result(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) })
    };
    // Others that only ask do not disturb each other.
    match flock(libc::LOCK_SH) {
        Ok(_) => {
            // At the latest it is released with the descriptor.
            let _ = flock(libc::LOCK_UN);
            false
        }
        // Or it cannot be known.
        Err(_) => true,
    }
}

/// The segment contract's error as everybody's.
pub fn io_error(error: shm_protocol::segment::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!a.is_locked() && !b.is_locked());
        assert!(a.lock().unwrap());
        assert!(!b.lock().unwrap());
        assert!(b.is_locked());
        assert!(!b.lock().unwrap(), "nobody who asks takes it away");
        drop(a);
        assert!(!b.is_locked());
        assert!(b.lock().unwrap());
        assert!(b.remove().unwrap());
        assert!(directory.segments().unwrap().is_empty());
    }

    #[test]
    fn what_has_taken_a_removed_segments_name_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let name = SegmentName {
            pid: 5,
            start_time: 1,
            image: 0,
        };
        let path = dir.path().join(name.to_string());
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let segment = Segment::open(&directory, name).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!segment.remove().unwrap());
        File::create(&path).unwrap();
        assert!(!segment.remove().unwrap());
        assert!(path.exists());
    }
}
