//! Files that ended processes left behind.
//!
//! A process that ends by `_exit` or by a signal cannot remove its segment. Where that
//! happens thousands of times and nobody runs a controller, the next processes of the
//! same user clean up: what holds no profile goes, and of what does only the newest few
//! hundred stay.

use super::identity::{self, Text};
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use shm_protocol::layout::{HEADER_BYTES, MODULES_OFFSET};
use shm_protocol::segment::{FILE_PREFIX, SegmentFile};
use shm_protocol::snapshot::Header;

/// Most files that one sweep looks into.
const MAX_FILES: usize = 512;
/// Profiles of ended processes that are kept for somebody to collect; beyond, the oldest
/// go first.
const KEPT: usize = 256;
const LISTING_BYTES: usize = 32 << 10;
/// Where the name is in `struct linux_dirent64`.
const NAME_AT: usize = 19;

/// Anonymous, zeroed memory for a moment.
pub struct Pages(*mut c_void, usize);

impl Pages {
    /// So many bytes, if they are to be had.
    pub fn new(bytes: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where nothing is.
        let at = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
        (at != libc::MAP_FAILED).then_some(Self(at, bytes))
    }

    /// Where they are.
    pub fn start(&self) -> *mut c_void {
        self.0
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, initialised and ours.
        unsafe { core::slice::from_raw_parts_mut(self.0.cast(), self.1) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Whether a segment file is ours and holds no profile that nobody has collected; with
/// `namespace`, only if its pid is of that namespace.
pub fn is_left_over(name: &CStr, namespace: Option<u64>) -> bool {
    // SAFETY: all zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: terminated path and a stat to fill.
    let known = unsafe { libc::lstat(name.as_ptr(), &mut status) } == 0;
    // SAFETY: cannot fail.
    let ours = known && status.st_uid == unsafe { libc::geteuid() };
    if !ours || status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return false;
    }
    // Too large for a small stack.
    let Some(mut buffer) = Pages::new(HEADER_BYTES) else {
        return false;
    };
    let header = buffer.bytes();
    identity::read_file(name, &mut header[..MODULES_OFFSET]);
    match Header::new(header, status.st_size as usize) {
        Ok(header) => {
            let unused = header
                .session()
                .is_none_or(|s| header.collected_session() >= s.number);
            unused && namespace.is_none_or(|namespace| header.pid_namespace() == namespace)
        }
        // Half made, or of another version: only its own process may tell.
        Err(_) => namespace.is_none(),
    }
}

/// Gives back what no reader needs of a segment that nobody writes any more.
pub fn trim(name: &CStr) {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: all zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: terminated path, a descriptor of our own, a stat to fill.
    unsafe {
        let fd = libc::open(name.as_ptr(), flags);
        if fd < 0 {
            return;
        }
        let regular = libc::fstat(fd, &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && status.st_uid == libc::geteuid();
        if let Some(file) = SegmentFile::new(fd, status.st_size as u64).filter(|_| regular) {
            // What cannot be given back stays: nothing is lost.
            let _ = file.trim();
        }
        libc::close(fd);
    }
}

/// Removes the left-over files of processes that are gone.
pub fn sweep(dir: &[u8]) {
    let namespace = identity::pid_namespace();
    let mut path = Text::<512>::new();
    path.push(dir);
    let (Some(name), Some(mut listing)) = (path.as_c_str(), Pages::new(LISTING_BYTES)) else {
        return;
    };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: terminated path.
    let fd = unsafe { libc::open(name.as_ptr(), flags) };
    if fd < 0 || namespace == 0 {
        return;
    }
    let listing = listing.bytes();
    // SAFETY: the kernel writes at most the buffer's length. One call: enough for a sweep.
    let len = unsafe {
        let len = libc::syscall(
            libc::SYS_getdents64,
            fd,
            listing.as_mut_ptr(),
            listing.len(),
        );
        libc::close(fd);
        usize::try_from(len).unwrap_or(0)
    };
    let listing = &listing[..len];
    let mut kept = 0;
    for path in gone(dir, listing) {
        let Some(name) = path.as_c_str() else {
            continue;
        };
        if is_left_over(name, Some(namespace)) {
            // SAFETY: terminated path of a file that is ours and holds nothing.
            unsafe { libc::unlink(name.as_ptr()) };
        } else {
            kept += 1;
        }
    }
    for _ in KEPT..kept.min(KEPT + 16) {
        remove_oldest(dir, listing, namespace);
    }
}

/// Paths of segments whose process is gone.
fn gone<'a>(dir: &'a [u8], listing: &'a [u8]) -> impl Iterator<Item = Text<512>> + 'a {
    entries(listing)
        .filter(|entry| is_gone(entry))
        .take(MAX_FILES)
        .map(move |entry| {
            let mut path = Text::new();
            path.push(dir);
            path.push(b"/");
            path.push(entry);
            path
        })
}

/// Removes the oldest of our profiles that nobody collected.
fn remove_oldest(dir: &[u8], listing: &[u8], namespace: u64) {
    let ours = |path: &Text<512>| {
        // SAFETY: all zero is a valid stat.
        let mut status: libc::stat = unsafe { core::mem::zeroed() };
        let name = path.as_c_str()?;
        // SAFETY: terminated path and a stat to fill; the user cannot be asked wrongly.
        let ours = unsafe {
            libc::lstat(name.as_ptr(), &mut status) == 0 && status.st_uid == libc::geteuid()
        };
        let known = ours && is_of(name, status.st_size as usize, namespace);
        known.then_some((status.st_mtime, status.st_mtime_nsec))
    };
    let dated = gone(dir, listing).filter_map(|path| ours(&path).map(|time| (time, path)));
    if let Some((_, path)) = dated.min_by_key(|(time, _)| *time)
        && let Some(name) = path.as_c_str()
    {
        // SAFETY: terminated path of a file that is ours, of a process that is gone.
        unsafe { libc::unlink(name.as_ptr()) };
    }
}

/// Whether a segment's pid is of a namespace.
fn is_of(name: &CStr, bytes: usize, namespace: u64) -> bool {
    let Some(mut buffer) = Pages::new(HEADER_BYTES) else {
        return false;
    };
    let header = buffer.bytes();
    identity::read_file(name, &mut header[..MODULES_OFFSET]);
    Header::new(header, bytes).is_ok_and(|header| header.pid_namespace() == namespace)
}

/// The names in what `getdents64` gave.
fn entries(mut listing: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let length = listing.get(16..18)?;
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        let entry = listing
            .get(..length)
            .filter(|entry| entry.len() > NAME_AT)?;
        listing = &listing[length..];
        entry[NAME_AT..].split(|byte| *byte == 0).next()
    })
}

/// Whether the name is a segment's and no process has its pid.
fn is_gone(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(FILE_PREFIX.as_bytes()) else {
        return false;
    };
    let digits = rest.split(|byte| *byte == b'.').next().unwrap_or_default();
    let number = core::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse::<i32>().ok());
    // SAFETY: signal 0 only asks.
    number.is_some_and(|pid| unsafe {
        pid > 0 && libc::kill(pid, 0) != 0 && crate::sample::errno() == libc::ESRCH
    })
}
