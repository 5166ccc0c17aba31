//! Creation and mapping of segments.

use super::store::{check, last_error};
use super::{Descriptor, Errno, SegmentFile};
use crate::layout::CONTROL_BYTES;
use core::ffi::CStr;
use core::ptr::null_mut;

/// Tables that a segment has from the start, if the process samples on its own.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// Size of the whole segment.
    pub bytes: usize,
    /// Number of the session whose bank is prepared.
    pub session: u64,
    /// Number of units of the bank to commit.
    pub units: u32,
    /// Maximum number of units that the agent may commit; see [`SegmentFile::prepare_bank`].
    pub max_units: u32,
}

/// Creates a segment file and maps its first [`CONTROL_BYTES`] at `control`, in place of what is
/// mapped there.
///
/// The file `path` must not exist; only its owner can read it. It is all zero, so it has no session
/// and no magic. The mapped pages, and what `tables` requires, are committed. The file is closed
/// again: [`map_whole`] needs only the mapping. After a failure, the file is removed and the
/// mapping at `control` is unchanged.
///
/// Returns null if [`map_whole`] works. If it does not (under Valgrind and some emulators), maps
/// the `bytes` bytes that the segment will have with tables, and returns their address.
///
/// System calls: `open`, `pwrite`, `mmap`, `mremap`, `munmap`, `close`; with `tables` also
/// `ftruncate` and `fallocate`; `unlink` after a failure.
///
/// # Safety
/// The caller owns the [`CONTROL_BYTES`] at `control`, rounded up to pages, and may replace their
/// mapping.
///
/// # Errors
/// `EEXIST` if the name is taken, `ENOSPC` if the directory's filesystem is full, `ENOMEM` if the
/// address space is full.
pub unsafe fn create(
    path: &CStr,
    control: *mut u8,
    bytes: usize,
    tables: Option<Tables>,
) -> Result<*mut u8, Errno> {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` is NUL-terminated.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags, 0o600) })?;
    // SAFETY: the caller lets the mapping at `control` be replaced.
    let made = set_size(fd, tables).and_then(|()| unsafe { map(fd, control, bytes) });
    // SAFETY: this function has opened `fd`, and `path` is NUL-terminated.
    unsafe {
        libc::close(fd);
        if made.is_err() {
            libc::unlink(path.as_ptr());
        }
    }
    made
}

/// Sets the size of the new file and commits its pages.
fn set_size(fd: libc::c_int, tables: Option<Tables>) -> Result<(), Errno> {
    // Uses `pwrite` instead of `ftruncate`: writing commits every page on any filesystem, and any
    // seccomp filter allows it.
    let file = SegmentFile {
        file: Descriptor(fd),
        bytes: 0,
    };
    file.clear(0, CONTROL_BYTES)?;
    let Some(tables) = tables else {
        return Ok(());
    };
    file.grown(tables.bytes)?
        .prepare_bank(tables.session, tables.units, tables.max_units)
}

/// # Safety
/// The conditions of [`create`] hold.
unsafe fn map(fd: libc::c_int, control: *mut u8, bytes: usize) -> Result<*mut u8, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let view = |at: *mut u8, bytes: usize, flags| {
        let flags = flags | libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: the caller of `create` lets this replace what is at `control`; the other mapping
        // is at an address that the kernel chooses.
        match unsafe { libc::mmap(at.cast(), bytes, protection, flags, fd, 0) } {
            libc::MAP_FAILED => Err(last_error()),
            base => Ok(base.cast::<u8>()),
        }
    };
    // SAFETY: `sysconf` takes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let pages = CONTROL_BYTES.next_multiple_of(usize::try_from(page).unwrap_or(1).max(1));
    view(control, pages, libc::MAP_FIXED)?;
    // SAFETY: `control` is the mapping that was just made.
    match unsafe { map_whole(control, CONTROL_BYTES) } {
        Ok(second) => {
            // SAFETY: the mapping was just made, and nothing refers to it.
            unsafe { libc::munmap(second.cast(), CONTROL_BYTES) };
            Ok(null_mut())
        }
        Err(_) => Ok(view(null_mut(), bytes, 0).unwrap_or(null_mut())),
    }
}

/// Maps all `bytes` bytes of a segment at an address that the kernel chooses, given the mapping at
/// `control` that [`create`] made and that stays. Needs neither path nor descriptor.
///
/// System call: `mremap`, whose old size of 0 requests a second mapping of the same file.
///
/// # Safety
/// `control` is the mapping that [`create`] made.
///
/// # Errors
/// `ENOMEM` if the address space has no room, `EAGAIN` if a limit on locked memory is exceeded.
pub unsafe fn map_whole(control: *mut u8, bytes: usize) -> Result<*mut u8, Errno> {
    // SAFETY: `control` is a mapping of a shared file. The call adds a mapping and changes no
    // existing one.
    let made = unsafe { libc::mremap(control.cast(), 0, bytes, libc::MREMAP_MAYMOVE) };
    match made {
        libc::MAP_FAILED => Err(last_error()),
        base => Ok(base.cast()),
    }
}
