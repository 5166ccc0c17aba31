//! The threads of the process, as the kernel lists them.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that the kernel is asked for at once: over a hundred threads.
const BYTES: usize = 4096;

/// What the kernel writes a part of the list to: not on the stack, which may be a small one.
#[repr(C, align(8))]
struct Buffer(UnsafeCell<[u8; BYTES]>);
// SAFETY: used only by the thread that has the turn.
unsafe impl Sync for Buffer {}
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BYTES]));
/// Its user.
static READING: AtomicUsize = AtomicUsize::new(0);

/// In a forked child: the thread that reads may be its parent's.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn in_child() {
    READING.store(0, Ordering::Relaxed);
}

/// Where a name begins in a `linux_dirent64`, and where its length is.
const NAME: usize = 19;
const LENGTH: usize = 16;

/// Calls `each` with the number of each thread. Whether the whole list was read. Changes `errno`.
pub fn each_thread(each: impl FnMut(u32)) -> bool {
    if READING.swap(1, Ordering::Acquire) != 0 {
        return false;
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let path = c"/proc/self/task".as_ptr();
    // Not by the C library's functions, at which a thread may be cancelled: it has the turn, and
    // may be in a signal handler.
    // SAFETY: a terminated path.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) } as c_int;
    let complete = fd >= 0 && read(fd, each);
    if fd >= 0 {
        // SAFETY: our own descriptor.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
    READING.store(0, Ordering::Release);
    complete
}

fn read(fd: c_int, mut each: impl FnMut(u32)) -> bool {
    loop {
        // SAFETY: at most its size is written to the buffer, which this thread alone uses.
        let count = unsafe { libc::syscall(libc::SYS_getdents64, fd, BUFFER.0.get(), BYTES) };
        let Ok(count) = usize::try_from(count) else {
            return false;
        };
        if count == 0 {
            return true;
        }
        // SAFETY: this many bytes were written, and nobody writes them before the next call.
        let bytes = unsafe { core::slice::from_raw_parts(BUFFER.0.get().cast::<u8>(), count) };
        entries(bytes, &mut each);
    }
}

fn entries(mut bytes: &[u8], each: &mut impl FnMut(u32)) {
    while let Some(&[low, high]) = bytes.get(LENGTH..LENGTH + 2) {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(name) = bytes.get(NAME..length) else {
            return;
        };
        if let Some(tid) = number(name) {
            each(tid);
        }
        bytes = &bytes[length..];
    }
}

fn number(name: &[u8]) -> Option<u32> {
    let digits = name.split(|byte| *byte == 0).next()?;
    let mut value = 0u32;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value = value.checked_mul(10)?.checked_add(u32::from(digit))?;
    }
    (!digits.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_lists_each_thread_once() {
        let (ready, done) = (std::sync::Barrier::new(4), std::sync::Barrier::new(4));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    ready.wait();
                    done.wait();
                });
            }
            ready.wait();
            let mut found = std::vec::Vec::new();
            assert!(each_thread(|tid| found.push(tid)));
            let count = found.len();
            found.sort_unstable();
            found.dedup();
            assert!(count >= 4 && count == found.len(), "{found:?}");
            // SAFETY: takes nothing.
            let own = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
            assert!(found.contains(&own));
            done.wait();
        });
    }

    #[test]
    fn names_that_are_no_numbers_are_left_out() {
        assert_eq!(number(b"123\0\0"), Some(123));
        for other in [&b".\0"[..], b"..", b"", b"\0", b"4294967296", b"1x"] {
            assert_eq!(number(other), None);
        }
    }
}
