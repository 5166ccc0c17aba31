//! Determines through a system call whether memory is readable, without touching it.
//!
//! `futex(address, FUTEX_CMP_REQUEUE_PRIVATE, 0, 0, address, …)` reads four bytes at the address to
//! compare them, then wakes and requeues none of the waiters. It returns `EFAULT` if the bytes are
//! unreadable, `EAGAIN` or 0 otherwise, and changes nothing. Source and target address are the
//! same, so even a kernel that requeued a waiter would leave it where it is. The call needs no file
//! descriptor, holds its lock only for a compare, and sleeps only if the page has to be read in.
//!
//! The C library's `malloc` needs the same system call, so a filter that kills the process for it
//! has already done so. If a filter refuses it (EPERM, ENOSYS), or an emulator lacks it, no page is
//! known to be readable. A process that has never had a second thread needs no futex, so its filter
//! may forbid the call: see [`forbid`].
//!
//! A call takes about 0.25 µs for a readable page and 2 µs for an unreadable one.

// Decision 09: the stack's bounds are probed.
use core::sync::atomic::{AtomicBool, Ordering};

/// Granularity of probes in bytes. No machine has smaller pages.
pub const PAGE: u64 = 4096;

const FUTEX: i64 = if cfg!(target_arch = "x86_64") {
    202
} else {
    98
};
/// `FUTEX_CMP_REQUEUE | FUTEX_PRIVATE_FLAG`.
const CMP_REQUEUE_PRIVATE: u64 = 4 | 128;
/// Value that the word is compared with. Any value will do.
const VALUE: u64 = 0x5A17_C0DE;
const EAGAIN: i64 = -11;

/// True if no more calls may be made.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Forbids further calls in this process and its children. From then on, no page is known to be
/// readable.
pub fn forbid() {
    IS_FORBIDDEN.store(true, Ordering::Relaxed);
}

fn is_forbidden() -> bool {
    IS_FORBIDDEN.load(Ordering::Relaxed)
}

/// Returns true if the page that holds `address` is readable now. Does not touch errno.
#[must_use]
pub fn is_readable(address: u64) -> bool {
    // Nothing is mapped below the first page.
    if address < PAGE || is_forbidden() {
        return false;
    }
    let answer = compare_at(address & !3, VALUE);
    answer == 0 || answer == EAGAIN
}

/// Returns true if the aligned word at `address` is readable now and equals `value`. The kernel
/// compares, since the word may be unmapped at any moment.
#[must_use]
pub fn word_equals(address: u64, value: u32) -> bool {
    address >= PAGE
        && address.is_multiple_of(4)
        && !is_forbidden()
        && compare_at(address, value.into()) == 0
}

/// Returns true if all pages of `start..end` are readable now. Returns false if the range wraps
/// around the end of the address space.
#[must_use]
pub fn are_readable(start: u64, end: u64) -> bool {
    if end < start {
        return false;
    }
    let mut page = start & !(PAGE - 1);
    while page < end {
        if !is_readable(page) {
            return false;
        }
        match page.checked_add(PAGE) {
            Some(next) => page = next,
            None => return false,
        }
    }
    true
}

/// Makes the system call, and returns its result. The kernel checks the address.
#[cfg(target_arch = "x86_64")]
fn compare_at(address: u64, value: u64) -> i64 {
    let result: i64;
    // SAFETY: with these arguments, the call has no effect except that the kernel reads 4 bytes at
    // `address`, and checks whether they are readable.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") FUTEX => result,
            in("rdi") address, in("rsi") CMP_REQUEUE_PRIVATE, in("rdx") 0u64, in("r10") 0u64,
            in("r8") address, in("r9") value,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes the system call, and returns its result. The kernel checks the address.
#[cfg(target_arch = "aarch64")]
fn compare_at(address: u64, value: u64) -> i64 {
    let result: i64;
    // SAFETY: with these arguments, the call has no effect except that the kernel reads 4 bytes at
    // `address`, and checks whether they are readable.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") FUTEX,
            inlateout("x0") address => result,
            in("x1") CMP_REQUEUE_PRIVATE, in("x2") 0u64, in("x3") 0u64,
            in("x4") address, in("x5") value,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    unsafe extern "C" {
        fn mmap(at: u64, len: usize, access: i32, flags: i32, file: i32, offset: i64) -> u64;
        fn mprotect(at: u64, len: usize, access: i32) -> i32;
        fn munmap(at: u64, len: usize) -> i32;
    }

    const PRIVATE: i32 = 2;
    const ANONYMOUS: i32 = 0x20;
    const LEN: usize = 1 << 16;

    fn mapped(access: i32) -> u64 {
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        unsafe { mmap(0, LEN, access, PRIVATE | ANONYMOUS, -1, 0) }
    }

    #[test]
    fn readable_pages_are_detected_whatever_their_contents() {
        for access in [1, 3] {
            let page = mapped(access);
            assert!(is_readable(page) && is_readable(page + 8), "never touched");
            assert!(are_readable(page, page + LEN as u64));
        }
        let word = VALUE as u32;
        assert!(
            is_readable(&raw const word as u64),
            "the value that is compared"
        );
        assert!(is_readable(is_readable as *const () as u64));
    }

    #[test]
    fn readable_words_are_compared() {
        let words = [7u32, 8];
        let at = &raw const words[0] as u64;
        assert!(word_equals(at, 7) && word_equals(at + 4, 8));
        assert!(!word_equals(at, 8) && !word_equals(at + 1, 7));
        let page = mapped(0);
        assert!(!word_equals(page, 0) && !word_equals(0, 0));
    }

    #[test]
    fn unreadable_pages_are_detected() {
        let page = mapped(3);
        // SAFETY: the range is this test's own mapping.
        assert_eq!(unsafe { mprotect(page, LEN, 0) }, 0);
        assert!(!is_readable(page));
        // SAFETY: the range is this test's own mapping.
        assert_eq!(unsafe { munmap(page, LEN) }, 0);
        assert!(!is_readable(page));
        for wild in [0, 8, 0xfff, 1 << 63, !7, 0xffff_8000_0000_0000] {
            assert!(!is_readable(wild), "{wild:x}");
        }
        assert!(!are_readable(!7, u64::MAX));
        assert!(!are_readable(!15, 200), "beyond the last address");
    }

    #[test]
    fn a_single_hole_makes_a_range_unreadable() {
        let at = mapped(3);
        assert!(are_readable(at + 8, at + LEN as u64));
        // SAFETY: the range is this test's own mapping.
        assert_eq!(unsafe { mprotect(at + (LEN / 2) as u64, LEN / 2, 0) }, 0);
        assert!(are_readable(at + 8, at + LEN as u64 / 2));
        assert!(!are_readable(at + 8, at + LEN as u64 / 2 + 1));
    }

    #[test]
    fn a_mapping_past_the_end_of_its_file_is_unreadable_without_sigbus() {
        let file = File::open("/proc/self/exe").expect("this program");
        let len = file
            .metadata()
            .expect("its size")
            .len()
            .next_multiple_of(LEN as u64);
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let at = unsafe {
            let bytes = len as usize + 2 * LEN;
            mmap(0, bytes, 1, PRIVATE, file.as_raw_fd(), 0)
        };
        assert!(is_readable(at));
        assert!(!is_readable(at + len + LEN as u64));
    }

    /// Probing neither wakes nor loses threads that wait at the probed word: two threads contend
    /// for a mutex that is probed all the time.
    #[test]
    fn probing_does_not_wake_or_lose_waiters() {
        use std::sync::{Arc, Condvar, Mutex};
        let pair = Arc::new((Mutex::new(0u32), Condvar::new()));
        let other = Arc::clone(&pair);
        let thread = std::thread::spawn(move || {
            for turn in 0..500 {
                let mut turns = other.0.lock().unwrap();
                while *turns != 2 * turn + 1 {
                    turns = other.1.wait(turns).unwrap();
                }
                *turns += 1;
                other.1.notify_one();
            }
        });
        let words = Arc::as_ptr(&pair) as u64;
        for turn in 0..500 {
            let mut turns = pair.0.lock().unwrap();
            while *turns != 2 * turn {
                turns = pair.1.wait(turns).unwrap();
            }
            *turns += 1;
            pair.1.notify_one();
            drop(turns);
            for word in 0..4 {
                assert!(is_readable(words + 4 * word));
            }
        }
        thread.join().unwrap();
    }
}
