//! Ring buffer of a processor, into which the kernel writes records. The kernel advances the head,
//! and the reader the tail. The bytes between them are copied before the tail is advanced, because
//! afterwards the kernel may overwrite them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets in the first page (`struct perf_event_mmap_page`).
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// Mapped ring buffer.
pub(crate) struct Ring {
    base: *mut u8,
    page: usize,
    /// Size of the data in bytes, a power of two.
    data: usize,
}

/// Returns the page size in bytes.
fn page() -> usize {
    // SAFETY: `sysconf` takes no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Ring {
    /// Returns the size in bytes of the memory that a ring with this much data locks.
    pub(crate) fn size(data: usize) -> usize {
        page() + data
    }

    /// Returns the size of the data in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.data
    }

    /// Maps the ring of an event. `data` is its size in bytes, a power of two.
    pub(crate) fn map(event: &OwnedFd, data: usize) -> io::Result<Self> {
        let page = page();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let size = page + data;
        let fd = event.as_raw_fd();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast();
        Ok(Self { base, page, data })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the word is aligned and inside the first page, which stays mapped as long as
        // `self`. It is shared with the kernel, which accesses it atomically.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Appends the records that the kernel has written since the last call. Returns how many bytes
    /// of the ring were free before.
    pub(crate) fn take(&self, bytes: &mut Vec<u8>) -> usize {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let tail = self.word(TAIL).load(Ordering::Relaxed);
        let len = head.wrapping_sub(tail);
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= self.data) else {
            // No kernel does this. Drops everything and starts again.
            self.word(TAIL).store(head, Ordering::Release);
            return 0;
        };
        let start = (tail as usize) & (self.data - 1);
        let first = len.min(self.data - start);
        // SAFETY: both parts are inside the data, which follow the first page. The kernel writes
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
        // SAFETY: `map` mapped this range, and no reference to it is left.
        unsafe { libc::munmap(self.base.cast(), self.page + self.data) };
    }
}
