//! Reads files in `/proc`, up to a limit.
//!
//! A process counts as gone only if the kernel reports that. An error because descriptors have run
//! out says nothing about the process. [`reserve_files`] keeps descriptors for these reads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Maximum number of bytes read from `/proc/PID/maps`. Enough for a million mappings.
pub const MAX_MAPS_BYTES: u64 = 128 << 20;
/// Maximum number of bytes read from any other file.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Initial buffer size in bytes, so that most of these files are read with one call. Callers may
/// hold the process stopped meanwhile.
const USUAL_BYTES: usize = 16 << 10;

/// Number of descriptors that [`Reread`] leaves free: if fewer are left, it keeps no file open.
const SPARE_DESCRIPTORS: u64 = 32;

/// Reserved descriptors, for reads that would otherwise fail for lack of one.
static RESERVE: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Reserves descriptors for reads of `/proc`, in case other code uses up all others. A count of 0
/// releases them.
pub fn reserve_files(count: usize) {
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    reserve.clear();
    let files = (0..count).map_while(|_| File::open("/dev/null").ok());
    reserve.extend(files);
}

/// Runs a read that leaves no file open. Uses a reserved descriptor if no other is left.
pub(crate) fn with_reserve<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match read() {
        Err(error) if is_full(&error) => {
            let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(spare) = reserve.pop() else {
                return Err(error);
            };
            drop(spare);
            let result = read();
            reserve.extend(File::open("/dev/null"));
            result
        }
        result => result,
    }
}

/// Returns true if the error says that there is no such process or thread.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Returns true if the error says that no more files can be opened.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Reads a file, up to `max_bytes` bytes.
pub fn read(path: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
    with_reserve(|| {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        File::open(path)?.take(max_bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Reads a file of a process's directory. Returns `None` if there is no such process, or without
/// permission.
pub fn file(pid: i32, name: &str) -> Option<Vec<u8>> {
    bounded(pid, name, MAX_FILE_BYTES)
}

/// Reads a file of a process's directory, up to `max_bytes` bytes.
pub(crate) fn bounded(pid: i32, name: &str, max_bytes: u64) -> Option<Vec<u8>> {
    read(&format!("/proc/{pid}/{name}"), max_bytes).ok()
}

/// Small file of `/proc` that is read repeatedly. It is kept open if enough descriptors are left,
/// and otherwise opened for each read.
pub struct Reread {
    path: String,
    open_file: Option<File>,
}

impl Reread {
    /// Opens the file.
    pub fn new(path: String) -> io::Result<Self> {
        Self::open(path, |limit| limit.saturating_sub(SPARE_DESCRIPTORS))
    }

    /// Opens the file. Keeps it open only if half of the descriptors are left, for programs that
    /// need many others.
    pub fn open_sparingly(path: String) -> io::Result<Self> {
        Self::open(path, |limit| limit / 2)
    }

    /// Opens the file. Keeps it open if its descriptor is below `bound(limit)`.
    fn open(path: String, bound: fn(u64) -> u64) -> io::Result<Self> {
        let file = with_reserve(|| File::open(&path))?;
        // The kernel assigns the lowest free descriptor.
        let lowest_free = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
        let has_spare = file_limit().is_some_and(|limit| lowest_free < bound(limit.rlim_cur));
        let open_file = has_spare.then_some(file);
        Ok(Self { path, open_file })
    }

    /// Reads the beginning of the file, up to the buffer's length. Returns the number of bytes.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.open_file {
            Some(file) => file.read_at(buffer, 0),
            None => {
                // `with_reserve` may call the closure twice, so each call borrows the buffer itself.
                let buffer = std::cell::RefCell::new(buffer);
                with_reserve(|| File::open(&self.path)?.read_at(&mut buffer.borrow_mut(), 0))
            }
        }
    }
}

/// Limit on the number of open files of a process (`RLIMIT_NOFILE`).
#[derive(Clone, Copy)]
pub struct FileLimit(libc::rlimit);

impl FileLimit {
    /// Sets this limit for a child process, which inherited the raised one.
    pub fn restore(self, pid: i32) {
        // SAFETY: the kernel only reads `self.0`. On failure, the process keeps the raised limit.
        unsafe {
            libc::prlimit(
                pid,
                libc::RLIMIT_NOFILE,
                &raw const self.0,
                std::ptr::null_mut(),
            );
        }
    }
}

fn file_limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (status == 0).then_some(limit)
}

/// Raises this process's limit on open files to its hard limit. Children started later inherit the
/// raised limit. Returns the previous limit if it was changed.
pub fn allow_files() -> Option<FileLimit> {
    let before = file_limit().filter(|limit| limit.rlim_cur < limit.rlim_max)?;
    let raised = libc::rlimit {
        rlim_cur: before.rlim_max,
        ..before
    };
    // SAFETY: the kernel only reads `raised`. On failure, the limit stays as it was.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    (status == 0).then_some(FileLimit(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_classified() {
        let error = io::Error::from_raw_os_error;
        for errno in [libc::ENOENT, libc::ESRCH] {
            assert!(is_gone(&error(errno)) && !is_full(&error(errno)));
        }
        for errno in [libc::EMFILE, libc::ENFILE] {
            assert!(!is_gone(&error(errno)) && is_full(&error(errno)));
        }
        assert!(!is_gone(&error(libc::EACCES)) && !is_full(&error(libc::EACCES)));
    }

    #[test]
    fn a_read_without_free_descriptors_uses_the_reserve() {
        use std::cell::Cell;
        let attempts = Cell::new(0);
        let fails_every_other_time = || {
            attempts.set(attempts.get() + 1);
            match attempts.get() % 2 {
                1 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                _ => Ok(()),
            }
        };
        reserve_files(1);
        assert!(with_reserve(fails_every_other_time).is_ok());
        assert!(with_reserve(fails_every_other_time).is_ok());
        assert_eq!(attempts.get(), 4);
        reserve_files(0);
        assert!(with_reserve(fails_every_other_time).is_err());
    }

    #[test]
    fn a_file_is_reread_whether_or_not_it_is_kept_open() {
        let file = Reread::new("/proc/self/stat".to_owned()).expect("a file");
        let unkept = Reread {
            path: file.path.clone(),
            open_file: None,
        };
        let mut text = [0; 512];
        for file in [&file, &file, &unkept, &unkept] {
            assert!(file.read(&mut text).is_ok_and(|read| read > 0));
        }
        let error = Reread::new("/proc/self/none".to_owned()).err();
        assert!(error.is_some_and(|error| is_gone(&error)));
    }
}
