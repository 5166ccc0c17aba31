//! A processor's ring buffer: the kernel writes records into it, and we read them.
//!
//! The kernel moves the head, we the tail. What lies between is copied out before the tail is
//! moved: from then on the kernel may overwrite it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets in the first page (`struct perf_event_mmap_page`).
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// A ring that is mapped.
pub(crate) struct Ring {
    base: *mut u8,
    page: usize,
    /// Bytes of data, a power of two.
    data: usize,
}

/// Bytes of a page of memory.
fn page() -> usize {
    // SAFETY: no pointer is passed.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Ring {
    /// Memory that is locked for a ring of this many bytes.
    pub(crate) fn size(data: usize) -> usize {
        page() + data
    }

    /// Bytes of data.
    pub(crate) fn bytes(&self) -> usize {
        self.data
    }

    /// Maps a ring of this many bytes, a power of two, for an event.
    pub(crate) fn map(event: &OwnedFd, data: usize) -> io::Result<Self> {
        let page = page();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (size, fd) = (page + data, event.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast();
        Ok(Self { base, page, data })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the first page, which stays mapped as long as `self`, aligned, and
        // shared with the kernel, which accesses it atomically.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Appends what the kernel has written since the last time to `bytes`. How many bytes of the
    /// ring were free before.
    pub(crate) fn take(&self, bytes: &mut Vec<u8>) -> usize {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let tail = self.word(TAIL).load(Ordering::Relaxed);
        let len = head.wrapping_sub(tail);
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= self.data) else {
            // Not by any kernel: begin again.
            self.word(TAIL).store(head, Ordering::Release);
            return 0;
        };
        let start = (tail as usize) & (self.data - 1);
        let first = len.min(self.data - start);
        // SAFETY: both parts lie inside the data that follow the first page; the kernel writes
        // nothing between tail and head.
        unsafe {
            let data = self.base.add(self.page);
            bytes.extend_from_slice(std::slice::from_raw_parts(data.add(start), first));
            bytes.extend_from_slice(std::slice::from_raw_parts(data, len - first));
        }
        self.word(TAIL).store(head, Ordering::Release);
        self.data - len
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this size, and no slice of it is left.
        unsafe { libc::munmap(self.base.cast(), self.page + self.data) };
    }
}
