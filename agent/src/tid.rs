//! The calling thread's ID, without a system call: from its thread descriptor, where the C library
//! keeps it.

use crate::{arch, sys};
use core::sync::atomic::{AtomicI64, Ordering};

/// Where it is, from the thread pointer on; 0: not known, and no thread has a number.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// What glibc publishes for debuggers about a field of its thread descriptor (`nptl_db/db_info.c`).
#[repr(C)]
struct Field {
    bits: u32,
    count: u32,
    offset: u32,
}

/// Looks up where it is, in what glibc publishes for debuggers. At start-up.
pub fn find() {
    let Some(offset) = descriptor().zip(field()).map(|(from, field)| from + field) else {
        return;
    };
    OFFSET.store(offset, Ordering::Relaxed);
    // SAFETY: the call takes nothing and cannot fail.
    if own() != unsafe { libc::syscall(libc::SYS_gettid) } as u32 {
        OFFSET.store(0, Ordering::Relaxed);
    }
}

/// Offset of the number in a descriptor.
fn field() -> Option<i64> {
    let field = sys::symbol(c"_thread_db_pthread_tid").cast::<Field>();
    // SAFETY: null, or three words that glibc exports for `libthread_db`.
    let field = unsafe { field.as_ref() }?;
    let sane = field.bits == 32 && field.count == 1 && (1..4096).contains(&field.offset);
    sane.then_some(i64::from(field.offset))
}

/// A thread's descriptor, from its thread pointer on: right at it.
#[cfg(target_arch = "x86_64")]
fn descriptor() -> Option<i64> {
    Some(0)
}

/// It ends at the thread pointer.
#[cfg(target_arch = "aarch64")]
fn descriptor() -> Option<i64> {
    let size = sys::symbol(c"_thread_db_sizeof_pthread").cast::<u32>();
    // SAFETY: null, or a word that glibc exports for `libthread_db`.
    let size = i64::from(*unsafe { size.as_ref() }?);
    (1024..16384).contains(&size).then_some(-size)
}

/// The number of the calling thread as the process sees it; 0 if it is not known.
///
/// For threads of the C library: [`crate::thread::make`] has set a value of the caller's by
/// `pthread_setspecific`, which stores to the descriptor too.
pub fn own() -> u32 {
    match OFFSET.load(Ordering::Relaxed) {
        0 => 0,
        // SAFETY: a field of the thread's descriptor, which has one layout for all threads.
        offset => unsafe {
            ((arch::thread_pointer() as i64 + offset) as *const u32).read_volatile()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_know_their_numbers() {
        find();
        let numbers = || {
            // SAFETY: as above.
            (own(), unsafe { libc::syscall(libc::SYS_gettid) } as u32)
        };
        let (found, real) = numbers();
        assert_eq!(found, real);
        let (others, real) = std::thread::spawn(numbers).join().unwrap();
        assert_eq!(others, real);
        assert_ne!(others, found);
    }
}
