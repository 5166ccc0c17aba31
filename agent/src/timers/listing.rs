//! Lists the threads of the process from `/proc/self/task`, without allocating.

use crate::sys;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Size of the buffer: enough for over a hundred threads at once.
const BYTES: usize = 2 << 10;

/// Buffer for a part of the list. Not on the stack, which may be small.
#[repr(C, align(8))]
struct Buffer(UnsafeCell<[u8; BYTES]>);
// SAFETY: used only by the thread that has set `READING`.
unsafe impl Sync for Buffer {}
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BYTES]));
/// 1 while a thread uses the buffer.
static READING: AtomicUsize = AtomicUsize::new(0);

/// Releases the buffer in a forked child, in case another thread of the parent was using it.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn in_child() {
    READING.store(0, Ordering::Relaxed);
}

/// Offset of the name in `linux_dirent64`.
const NAME: usize = 19;
/// Offset of the entry's length in `linux_dirent64`.
const LENGTH: usize = 16;

/// Calls `each` with the id of each thread. Returns false if the list could not be read to its end.
/// Changes `errno`.
pub fn each_thread(each: impl FnMut(u32)) -> bool {
    if READING.swap(1, Ordering::Acquire) != 0 {
        return false;
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let path = c"/proc/self/task".as_ptr();
    // System calls rather than the C library's functions, which are cancellation points: the thread
    // holds the lock on timers, and may be in a signal handler.
    // SAFETY: a terminated path.
    let fd = unsafe { sys::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) } as c_int;
    let is_complete = fd >= 0 && read(fd, each);
    if fd >= 0 {
        // SAFETY: a descriptor of our own.
        unsafe { sys::syscall(libc::SYS_close, fd) };
    }
    READING.store(0, Ordering::Release);
    is_complete
}

fn read(fd: c_int, mut each: impl FnMut(u32)) -> bool {
    loop {
        // SAFETY: writes at most the size of the buffer, which only this thread uses.
        let count = unsafe { sys::syscall(libc::SYS_getdents64, fd, BUFFER.0.get(), BYTES) };
        let Ok(count) = usize::try_from(count) else {
            return false;
        };
        if count == 0 {
            return true;
        }
        // SAFETY: the call wrote this many bytes, and nobody writes to the buffer before the next
        // call.
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
        if let Some(tid) = parse_tid(name) {
            each(tid);
        }
        bytes = &bytes[length..];
    }
}

fn parse_tid(name: &[u8]) -> Option<u32> {
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
        let ready = std::sync::Barrier::new(4);
        let done = std::sync::Barrier::new(4);
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
            // SAFETY: the call has no arguments and cannot fail.
            let own = unsafe { sys::syscall(libc::SYS_gettid) } as u32;
            assert!(found.contains(&own));
            done.wait();
        });
    }

    #[test]
    fn names_that_are_not_numbers_are_left_out() {
        assert_eq!(parse_tid(b"123\0\0"), Some(123));
        for other in [&b".\0"[..], b"..", b"", b"\0", b"4294967296", b"1x"] {
            assert_eq!(parse_tid(other), None);
        }
    }
}
