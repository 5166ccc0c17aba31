//! Making a segment, and mapping it.

use super::store::{check, last_error};
use super::{Descriptor, Errno, SegmentFile};
use crate::layout::CONTROL_BYTES;
use core::ffi::CStr;
use core::ptr::null_mut;

/// Tables that a segment has from the start, for a process that samples by itself.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// Size of the whole segment.
    pub bytes: usize,
    /// The session whose bank is prepared.
    pub session: u64,
    /// Units of the bank that are reserved.
    pub units: u32,
    /// Units that may be added to, see [`SegmentFile::prepare_bank`].
    pub most: u32,
}

/// Makes the file `path`, exclusively and readable by its owner only, and maps its first
/// [`CONTROL_BYTES`] at `control`, in place of what is there. The file is closed again: the view
/// alone stays, and [`whole`] maps the rest. All zero, so no session, no magic. All of the view and
/// what `tables` requires is backed by memory. On failure no file is left, and the view at
/// `control` is what it was.
///
/// Where [`whole`] cannot work (under Valgrind and some emulators) the `bytes` that the segment
/// is to have with tables are mapped here, and their address is the result; otherwise null.
///
/// System calls: `open`, `pwrite`, `mmap`, `mremap`, `munmap`, `close`; with `tables` also
/// `ftruncate` and `fallocate`; `unlink` after a failure.
///
/// # Safety
/// The [`CONTROL_BYTES`] at `control`, rounded up to pages, are the caller's to replace.
///
/// # Errors
/// `EEXIST` if the name is taken, `ENOSPC` if the directory's filesystem is full, `ENOMEM`
/// if the address space is.
pub unsafe fn create(
    path: &CStr,
    control: *mut u8,
    bytes: usize,
    tables: Option<Tables>,
) -> Result<*mut u8, Errno> {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` is NUL-terminated.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags, 0o600) })?;
    // SAFETY: the caller's.
    let made = size(fd, tables).and_then(|()| unsafe { map(fd, control, bytes) });
    // SAFETY: `fd` is ours, and `path` NUL-terminated.
    unsafe {
        libc::close(fd);
        if made.is_err() {
            libc::unlink(path.as_ptr());
        }
    }
    made
}

/// Gives the new file its size, and memory.
fn size(fd: libc::c_int, tables: Option<Tables>) -> Result<(), Errno> {
    // Written, not truncated to size: writing puts memory behind every page, on any
    // filesystem, with the plainest system call there is.
    let file = SegmentFile {
        file: Descriptor(fd),
        bytes: 0,
    };
    file.clear(0, CONTROL_BYTES)?;
    let Some(tables) = tables else {
        return Ok(());
    };
    file.grown(tables.bytes)?
        .prepare_bank(tables.session, tables.units, tables.most)
}

/// # Safety
/// As [`create`].
unsafe fn map(fd: libc::c_int, control: *mut u8, bytes: usize) -> Result<*mut u8, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let view = |at: *mut u8, bytes: usize, flags| {
        let flags = flags | libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: in place of what is the caller's to replace, or where nothing is.
        match unsafe { libc::mmap(at.cast(), bytes, protection, flags, fd, 0) } {
            libc::MAP_FAILED => Err(last_error()),
            base => Ok(base.cast::<u8>()),
        }
    };
    // As the kernel rounds it; qemu does not, and refuses shared parts of pages.
    // SAFETY: takes a number, and reads what the C library knows.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let pages = CONTROL_BYTES.next_multiple_of(usize::try_from(page).unwrap_or(1).max(1));
    view(control, pages, libc::MAP_FIXED)?;
    // SAFETY: the view just made.
    match unsafe { whole(control, CONTROL_BYTES) } {
        Ok(twice) => {
            // SAFETY: the mapping just made, which nobody knows.
            unsafe { libc::munmap(twice.cast(), CONTROL_BYTES) };
            Ok(null_mut())
        }
        Err(_) => Ok(view(null_mut(), bytes, 0).unwrap_or(null_mut())),
    }
}

/// Maps all `bytes` of a segment whose view at `control` [`create`] made. The address is anybody's
/// choice but the caller's; the view stays. Needs neither path nor descriptor.
///
/// System call: `mremap`, whose old size of 0 requests a second mapping of the same file.
///
/// # Safety
/// `control` is still that view.
///
/// # Errors
/// `ENOMEM` if the address space has no room, `EAGAIN` if more would be locked than may be.
pub unsafe fn whole(control: *mut u8, bytes: usize) -> Result<*mut u8, Errno> {
    // SAFETY: the caller's view of a shared file. Nothing that is mapped changes.
    let made = unsafe { libc::mremap(control.cast(), 0, bytes, libc::MREMAP_MAYMOVE) };
    match made {
        libc::MAP_FAILED => Err(last_error()),
        base => Ok(base.cast()),
    }
}
