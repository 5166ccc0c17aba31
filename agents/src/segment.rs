//! Opens and reads segments: files in a directory to which everybody may write.
//!
//! A file is opened relative to an open directory, without following symbolic links, and is used
//! only if it is a regular file. Its content is copied to private memory and validated there. The
//! file is never mapped.

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

pub use directory::{Directory, FileInfo, default_directory, is_young};
pub use name::{Entry, RUN_PREFIX, SegmentName};
pub use refusal::Refusal;

use directory::{is_regular, modified_unix_ns};

/// Private copy of the beginning of a segment: identity, commands, status and modules.
pub struct Head {
    bytes: Vec<u8>,
}

impl Default for Head {
    fn default() -> Self {
        Self::new()
    }
}

impl Head {
    /// Creates an empty copy.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; HEADER_BYTES],
        }
    }
}

/// Open segment.
#[derive(Debug)]
pub struct Segment {
    file: File,
    /// Layout. Changes once, when the first session adds the tables.
    view: Cell<SegmentFile>,
    /// File name.
    pub name: SegmentName,
    /// Directory that contains the file.
    pub directory: Arc<Directory>,
    /// Owner of the file.
    pub owner: u32,
    /// Device of the file.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Time of the last write by a system call, in Unix ns.
    pub modified_unix_ns: u64,
}

impl Segment {
    /// Opens a segment for reading and commanding. Does not validate the content.
    pub fn open(directory: &Arc<Directory>, name: SegmentName) -> Result<Self, Refusal> {
        let text = name.to_string();
        // Opening a device can have effects, so the type is checked through an `O_PATH` descriptor
        // first.
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let path = openat(&directory.fd, text.as_str(), flags, Mode::empty())?;
        let stat = fstat(&path)?;
        if !is_regular(&stat) {
            return Err(Refusal::NotAFile);
        }
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let reopen_path = format!("/proc/self/fd/{}", path.as_raw_fd());
        let fd = match nix::fcntl::open(reopen_path.as_str(), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::EACCES | Errno::EPERM) => return Err(Refusal::Foreign(stat.st_uid)),
            Err(error) => return Err(error.into()),
        };
        // The file may have grown since.
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

    /// Returns the path, for display.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(self.name.to_string())
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Removes the file. Returns false if it was removed or replaced before.
    pub fn remove(&self) -> io::Result<bool> {
        self.directory
            .remove_file(self.name, self.device, self.inode)
    }

    /// Returns the memory that the segment occupies, in bytes.
    pub fn memory_bytes(&self) -> io::Result<u64> {
        Ok((fstat(&self.file)?.st_blocks.max(0) as u64).saturating_mul(512))
    }

    /// Returns access to commands and bulk reads.
    pub fn view(&self) -> SegmentFile {
        self.view.get()
    }

    /// Enlarges the file to the size that it has with tables.
    pub fn grow(&self, bytes: u64) -> Result<(), shm_protocol::segment::Errno> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.view.set(self.view().grown(bytes)?);
        Ok(())
    }

    /// Updates the layout if tables were added since the file was opened.
    fn refresh(&self) -> Result<(), Refusal> {
        if !self.view().has_tables() {
            let bytes = fstat(&self.file)?.st_size.max(0) as u64;
            let view = SegmentFile::new(self.file.as_raw_fd(), bytes);
            self.view.set(view.ok_or(Refusal::Size(bytes))?);
        }
        Ok(())
    }

    /// Reads identity, commands and status. The list of modules is left empty.
    pub fn head<'a>(&self, head: &'a mut Head) -> Result<Header<'a>, Refusal> {
        self.read_head(head, MODULES_OFFSET)
    }

    /// Reads the whole head, including the modules.
    pub fn full_head<'a>(&self, head: &'a mut Head) -> Result<Header<'a>, Refusal> {
        self.read_head(head, HEADER_BYTES)
    }

    fn read_head<'a>(&self, head: &'a mut Head, len: usize) -> Result<Header<'a>, Refusal> {
        self.refresh()?;
        let view = self.view();
        let len = len.min(view.bytes());
        let bytes_read = view.read_at(0, &mut head.bytes[..len]).map_err(io_error)?;
        if bytes_read < len {
            return Err(Invalid::TooShort.into());
        }
        if len < HEADER_BYTES {
            // Clears the module count that an earlier use of `head` may have left.
            head.bytes[len..len + 64].fill(0);
        }
        Ok(Header::new(&head.bytes, view.bytes())?)
    }

    /// Reads the header of a session's bank into `buffer`.
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
        let offset = geometry.bank_offset(session);
        if view.read_at(offset, buffer).map_err(io_error)? < buffer.len() {
            return Err(Invalid::TooShort.into());
        }
        Ok(BankSummary::new(buffer, geometry)?)
    }

    /// Locks the segment for one session. Returns false if another controller holds the lock. The
    /// kernel releases it when this process ends.
    pub fn lock(&self) -> io::Result<bool> {
        // SAFETY: flock takes no pointers, and the descriptor is open as long as `self`.
        match Errno::result(unsafe {
            libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB)
        }) {
            Ok(_) => Ok(true),
            Err(Errno::EWOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if a controller has locked the segment. Must not be called by that controller,
    /// whose lock it would downgrade.
    pub fn is_locked(&self) -> bool {
        is_locked(&self.file)
    }
}

/// Returns true if somebody else has an exclusive lock on a file or directory.
fn is_locked(file: &impl AsRawFd) -> bool {
    let flock = |how| {
        // SAFETY: flock takes no pointers, and `file` keeps its descriptor open.
        Errno::result(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) })
    };
    // Requests a shared lock, so that several programs that only check do not disturb each other.
    match flock(libc::LOCK_SH) {
        Ok(_) => {
            // If this fails, the lock is released when the descriptor is closed.
            let _ = flock(libc::LOCK_UN);
            false
        }
        // An unknown state counts as locked.
        Err(_) => true,
    }
}

/// Converts an error of the segment interface.
pub fn io_error(error: shm_protocol::segment::Errno) -> io::Error {
    io::Error::from_raw_os_error(error.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_segment_size_can_be_opened() {
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

    /// Opens a directory with one file that has the name and the size of a segment.
    fn with_segment(path: &std::path::Path) -> (Arc<Directory>, SegmentName) {
        let name = SegmentName {
            pid: 5,
            start_time: 1,
            image: 0,
        };
        let file = File::create(path.join(name.to_string())).unwrap();
        file.set_len(1 << 20).unwrap();
        (Directory::open(path).unwrap(), name)
    }

    #[test]
    fn a_lock_excludes_other_controllers() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, name) = with_segment(dir.path());
        let a = Segment::open(&directory, name).unwrap();
        let b = Segment::open(&directory, name).unwrap();
        assert!(!a.is_locked() && !b.is_locked());
        assert!(a.lock().unwrap());
        assert!(!b.lock().unwrap());
        assert!(b.is_locked());
        assert!(!b.lock().unwrap(), "a check does not release the lock");
        drop(a);
        assert!(!b.is_locked());
        assert!(b.lock().unwrap());
        assert!(b.remove().unwrap());
        assert!(directory.segments().unwrap().is_empty());
    }

    #[test]
    fn a_new_file_with_a_removed_segments_name_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, name) = with_segment(dir.path());
        let path = dir.path().join(name.to_string());
        let segment = Segment::open(&directory, name).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!segment.remove().unwrap());
        File::create(&path).unwrap();
        assert!(!segment.remove().unwrap());
        assert!(path.exists());
    }
}
