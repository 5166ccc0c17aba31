//! Reads files in `/proc`, up to a limit.
//!
//! A process counts as gone only if the kernel says so. A failure to open a file because descriptors
//! have run out says nothing about the process. [`reserve_files`] keeps descriptors for these reads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Maximum number of bytes read from `/proc/PID/maps`. Enough for a million mappings.
pub const MAX_MAPS_BYTES: u64 = 128 << 20;
/// Maximum number of bytes read from any other file.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Room, in bytes, for most of these files at once: without it, they are read in small pieces, while a
/// stopped process waits.
const USUAL_BYTES: usize = 16 << 10;

/// Descriptors that files which are kept open leave to others.
const LEFT: u64 = 32;

/// Reserved descriptors, for reads that would otherwise fail for lack of one.
static RESERVE: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Reserves this many descriptors for reads of `/proc`, while other code may use up all others; 0
/// releases them.
pub fn reserve_files(count: usize) {
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    reserve.clear();
    let files = (0..count).map_while(|_| File::open("/dev/null").ok());
    reserve.extend(files);
}

/// Runs a read that leaves no file open. Uses a reserved descriptor if there is no other.
pub(crate) fn with_room<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match read() {
        Err(error) if is_full(&error) => {
            let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(spare) = reserve.pop() else {
                return Err(error);
            };
            drop(spare);
            let again = read();
            reserve.extend(File::open("/dev/null"));
            again
        }
        done => done,
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

/// Reads a file, up to `most` bytes.
pub fn read(path: &str, most: u64) -> io::Result<Vec<u8>> {
    with_room(|| {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Reads a file of a process's directory; `None` if there is no such process, or without permission.
pub fn file(pid: i32, name: &str) -> Option<Vec<u8>> {
    bounded(pid, name, MAX_FILE_BYTES)
}

/// Reads a file of a process's directory, up to `most` bytes.
pub(crate) fn bounded(pid: i32, name: &str, most: u64) -> Option<Vec<u8>> {
    read(&format!("/proc/{pid}/{name}"), most).ok()
}

/// A small file of `/proc` that is read again and again. It is kept open as long as enough
/// descriptors are left, and opened for each read otherwise.
pub struct Reread {
    path: String,
    kept: Option<File>,
}

impl Reread {
    /// Opens the file.
    pub fn new(path: String) -> io::Result<Self> {
        let file = with_room(|| File::open(&path))?;
        // The kernel gives the lowest number that is free.
        let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
        let fits = file_limit().is_some_and(|limit| number.saturating_add(LEFT) < limit.rlim_cur);
        let kept = fits.then_some(file);
        Ok(Self { path, kept })
    }

    /// Reads the beginning of the file, up to the buffer's length. Returns the number of bytes.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.kept {
            Some(file) => file.read_at(buffer, 0),
            None => {
                // Borrowed again for each attempt, of which the last one counts.
                let buffer = std::cell::RefCell::new(buffer);
                with_room(|| File::open(&self.path)?.read_at(&mut buffer.borrow_mut(), 0))
            }
        }
    }
}

/// Limit on the number of open files of a process (`RLIMIT_NOFILE`).
#[derive(Clone, Copy)]
pub struct FileLimit(libc::rlimit);

impl FileLimit {
    /// Gives a process that this one has started the limit that it would have had.
    pub fn restore(self, pid: i32) {
        // SAFETY: a struct of ours is read; a failure leaves the process its higher limit.
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
    // SAFETY: the call takes a struct of ours.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (read == 0).then_some(limit)
}

/// Allows this process, and what it starts from then on, to open as many files as it may. The limit
/// that there was, if it was changed.
pub fn allow_files() -> Option<FileLimit> {
    let before = file_limit().filter(|limit| limit.rlim_cur < limit.rlim_max)?;
    let all = libc::rlimit {
        rlim_cur: before.rlim_max,
        ..before
    };
    // SAFETY: the call takes a struct of ours; a failure leaves the limit as it is.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const all) };
    (set == 0).then_some(FileLimit(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_calls_gone_is_gone() {
        let error = io::Error::from_raw_os_error;
        for number in [libc::ENOENT, libc::ESRCH] {
            assert!(is_gone(&error(number)) && !is_full(&error(number)));
        }
        for number in [libc::EMFILE, libc::ENFILE] {
            assert!(!is_gone(&error(number)) && is_full(&error(number)));
        }
        assert!(!is_gone(&error(libc::EACCES)) && !is_full(&error(libc::EACCES)));
    }

    #[test]
    fn the_reserve_lets_a_read_succeed_that_found_no_room() {
        use std::cell::Cell;
        let attempts = Cell::new(0);
        let second = || {
            attempts.set(attempts.get() + 1);
            match attempts.get() % 2 {
                1 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                _ => Ok(()),
            }
        };
        reserve_files(1);
        assert!(with_room(second).is_ok() && with_room(second).is_ok());
        assert_eq!(attempts.get(), 4);
        reserve_files(0);
        assert!(with_room(second).is_err());
    }

    #[test]
    fn files_are_read_again_with_and_without_being_kept() {
        let file = Reread::new("/proc/self/stat".to_owned()).expect("a file");
        let unkept = Reread {
            path: file.path.clone(),
            kept: None,
        };
        let mut text = [0; 512];
        for file in [&file, &file, &unkept, &unkept] {
            assert!(file.read(&mut text).is_ok_and(|read| read > 0));
        }
        let error = Reread::new("/proc/self/none".to_owned()).err();
        assert!(error.is_some_and(|error| is_gone(&error)));
    }
}
