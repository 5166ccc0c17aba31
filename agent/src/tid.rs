//! Thread id of the calling thread, without a system call: read from glibc's thread descriptor.

use crate::{arch, sys};
use core::sync::atomic::{AtomicI64, Ordering};

/// Offset of the thread id from the thread pointer; 0 if not known.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// glibc's description of a field of its thread descriptor, for debuggers (`nptl_db/db_info.c`).
#[repr(C)]
struct Field {
    bits: u32,
    count: u32,
    offset: u32,
}

/// Determines the offset from glibc's descriptions for debuggers, at start-up.
pub fn find() {
    let Some(offset) = descriptor().zip(field()).map(|(from, field)| from + field) else {
        return;
    };
    OFFSET.store(offset, Ordering::Relaxed);
    // SAFETY: the call has no arguments and cannot fail.
    if current() != unsafe { sys::syscall(libc::SYS_gettid) } as u32 {
        OFFSET.store(0, Ordering::Relaxed);
    }
}

/// Returns the offset of the thread id in a descriptor.
fn field() -> Option<i64> {
    let field = sys::symbol(c"_thread_db_pthread_tid").cast::<Field>();
    // SAFETY: null, or three words that glibc exports for `libthread_db`.
    let field = unsafe { field.as_ref() }?;
    let is_plausible = field.bits == 32 && field.count == 1 && (1..4096).contains(&field.offset);
    is_plausible.then_some(i64::from(field.offset))
}

/// Returns the offset of the thread descriptor from the thread pointer, at which it begins.
#[cfg(target_arch = "x86_64")]
fn descriptor() -> Option<i64> {
    Some(0)
}

/// Returns the offset of the thread descriptor from the thread pointer, at which it ends.
#[cfg(target_arch = "aarch64")]
fn descriptor() -> Option<i64> {
    let size = sys::symbol(c"_thread_db_sizeof_pthread").cast::<u32>();
    // SAFETY: null, or a word that glibc exports for `libthread_db`.
    let size = i64::from(*unsafe { size.as_ref() }?);
    (1024..16384).contains(&size).then_some(-size)
}

/// Returns the thread id of the calling thread in the process's pid namespace; 0 if not known.
///
/// Only for threads of the C library. [`crate::thread::make`] relies on that as well: its
/// `pthread_setspecific` also writes to the descriptor.
pub fn current() -> u32 {
    match OFFSET.load(Ordering::Relaxed) {
        0 => 0,
        // SAFETY: a field of the thread descriptor, which has the same layout in all threads.
        offset => unsafe {
            ((arch::thread_pointer() as i64 + offset) as *const u32).read_volatile()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_finds_its_own_id() {
        find();
        let numbers = || {
            // SAFETY: the call has no arguments and cannot fail.
            (current(), unsafe { sys::syscall(libc::SYS_gettid) } as u32)
        };
        let (found, real) = numbers();
        assert_eq!(found, real);
        let (others, real) = std::thread::spawn(numbers).join().unwrap();
        assert_eq!(others, real);
        assert_ne!(others, found);
    }
}
