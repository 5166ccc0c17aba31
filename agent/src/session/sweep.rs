//! Files that ended processes left behind.
//!
//! A process that ends by `_exit` or by a signal cannot remove its segment. Where that
//! happens thousands of times and nobody runs a controller, the next processes of the
//! same user clean up: what holds no profile goes, and of what does only the newest few
//! hundred stay, and of these as many as a share of the folder has room for.

use super::identity::{self, Text};
use core::ffi::{CStr, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use shm_protocol::layout::{HEADER_BYTES, MODULES_OFFSET};
use shm_protocol::segment::{FILE_PREFIX, SegmentFile};
use shm_protocol::snapshot::Header;

/// Most files that one sweep looks into.
const MAX_FILES: usize = 1024;
/// Profiles of ended processes that are kept for somebody to collect; beyond, the oldest
/// go first.
const KEPT: usize = 256;
/// Bytes that they may take, all together.
const KEPT_BYTES: u64 = 1 << 30;
/// Part of the folder's size that they may take, where that is less.
const KEPT_SHARE: u64 = 4;
const LISTING_BYTES: usize = 64 << 10;
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
    let Some(mut kept) = Pages::new(MAX_FILES * size_of::<Left>()).filter(|_| namespace != 0)
    else {
        return;
    };
    let Some((listing, most)) = list(name, listing.bytes()) else {
        return;
    };
    let kept = kept.left();
    let mut count = 0;
    for (at, path) in gone(dir, listing) {
        let Some(name) = path.as_c_str() else {
            continue;
        };
        if is_left_over(name, Some(namespace)) {
            // SAFETY: terminated path of a file that is ours and holds nothing.
            unsafe { libc::unlink(name.as_ptr()) };
        } else if let Some((made_ns, bytes)) = ours(name, namespace) {
            kept[count] = Left { made_ns, bytes, at };
            count += 1;
        }
    }
    keep_newest(dir, listing, &mut kept[..count], most);
}

/// A profile of a process that is gone.
#[derive(Clone, Copy)]
#[repr(C)]
struct Left {
    made_ns: u64,
    bytes: u64,
    /// Where its name begins in the listing.
    at: usize,
}

impl Pages {
    fn left(&mut self) -> &mut [Left] {
        let count = self.1 / size_of::<Left>();
        // SAFETY: mapped, aligned to a page, ours; any bytes are valid for these.
        unsafe { core::slice::from_raw_parts_mut(self.0.cast(), count) }
    }
}

/// The names in a folder, as many as fit, and the bytes that profiles may take in it.
fn list<'a>(dir: &CStr, listing: &'a mut [u8]) -> Option<(&'a [u8], u64)> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: all zero is a valid statfs.
    let mut room: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: terminated path, a descriptor of our own, a statfs to fill, and the kernel
    // writes at most the buffer's length. One call: enough for a sweep.
    let (len, known) = unsafe {
        let fd = libc::open(dir.as_ptr(), flags);
        if fd < 0 {
            return None;
        }
        let len = libc::syscall(
            libc::SYS_getdents64,
            fd,
            listing.as_mut_ptr(),
            listing.len(),
        );
        let known = libc::fstatfs(fd, &mut room) == 0;
        libc::close(fd);
        (usize::try_from(len).unwrap_or(0), known)
    };
    // Where the size is not told, it limits nothing.
    let size = (room.f_blocks).saturating_mul(room.f_bsize as u64);
    let most = match known && size > 0 {
        true => KEPT_BYTES.min(size / KEPT_SHARE),
        false => KEPT_BYTES,
    };
    Some((&listing[..len], most))
}

/// Removes the oldest profiles until so many and so many bytes are left. A process that
/// was killed could not give back what its table had not used: that goes first.
fn keep_newest(dir: &[u8], listing: &[u8], kept: &mut [Left], most: u64) {
    kept.sort_unstable_by_key(|left| core::cmp::Reverse(left.made_ns));
    let mut bytes = 0u64;
    for (number, left) in kept.iter().enumerate() {
        let path = path_at(dir, listing, left.at);
        let Some(name) = path.as_c_str() else {
            continue;
        };
        let mut size = left.bytes;
        if number < KEPT && bytes.saturating_add(size) > most / 2 {
            trim(name);
            size = bytes_of(name).unwrap_or(size);
        }
        bytes = bytes.saturating_add(size);
        if number >= KEPT || bytes > most {
            // SAFETY: terminated path of a file that is ours, of a process that is gone.
            unsafe { libc::unlink(name.as_ptr()) };
        }
    }
}

/// The memory that a file takes.
fn bytes_of(name: &CStr) -> Option<u64> {
    // SAFETY: all zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: terminated path and a stat to fill.
    let known = unsafe { libc::lstat(name.as_ptr(), &mut status) } == 0;
    known.then_some((status.st_blocks as u64).saturating_mul(512))
}

/// Whether a folder is more than half full: by us or by others.
pub fn is_crowded(dir: &[u8]) -> bool {
    let mut path = Text::<512>::new();
    path.push(dir);
    // SAFETY: all zero is a valid statfs.
    let mut room: libc::statfs = unsafe { core::mem::zeroed() };
    path.as_c_str().is_some_and(|name| {
        // SAFETY: terminated path and a statfs to fill.
        let known = unsafe { libc::statfs(name.as_ptr(), &mut room) } == 0;
        known && room.f_bavail < room.f_blocks / 2
    })
}

/// Paths of segments whose process is gone, and where their names are in the listing.
fn gone<'a>(dir: &'a [u8], listing: &'a [u8]) -> impl Iterator<Item = (usize, Text<512>)> + 'a {
    entries(listing)
        .filter(|(_, entry)| is_gone(entry))
        .take(MAX_FILES)
        .map(move |(at, _)| (at, path_at(dir, listing, at)))
}

fn path_at(dir: &[u8], listing: &[u8], at: usize) -> Text<512> {
    let mut path = Text::new();
    path.push(dir);
    path.push(b"/");
    let name = listing.get(at..).unwrap_or_default();
    path.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
    path
}

/// When a profile of ours was last written, and the memory that it takes. `None` for one
/// of another user or namespace.
fn ours(name: &CStr, namespace: u64) -> Option<(u64, u64)> {
    // SAFETY: all zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: terminated path and a stat to fill; the user cannot be asked wrongly.
    let ours =
        unsafe { libc::lstat(name.as_ptr(), &mut status) == 0 && status.st_uid == libc::geteuid() };
    let known = ours && is_of(name, status.st_size as usize, namespace);
    let time = (status.st_mtime as u64).saturating_mul(1_000_000_000);
    known.then_some((
        time.saturating_add(status.st_mtime_nsec as u64),
        (status.st_blocks as u64).saturating_mul(512),
    ))
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

/// The names in what `getdents64` gave, and where each begins.
fn entries(listing: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let length = listing.get(at + 16..at + 18)?;
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        let entry = listing
            .get(at..at + length)
            .filter(|entry| entry.len() > NAME_AT)?;
        let name = at + NAME_AT;
        at += length;
        Some((name, entry[NAME_AT..].split(|byte| *byte == 0).next()?))
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
