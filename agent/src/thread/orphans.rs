//! Memory of threads that sample in their last round of destructors of thread-specific data.
//!
//! A destructor may set its own data again, and is then called again, but only
//! `PTHREAD_DESTRUCTOR_ITERATIONS` times in all. In the last round, no destructor of ours runs
//! after the thread has allocated its memory for sampling. So its memory is listed with the thread
//! id, and goes to a later thread once the kernel has no thread with this id any more.

use super::Thread;
use crate::session;
use crate::{seccomp, sys};
use core::ffi::{c_int, c_long};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Maximum number of threads that sample in their last round at the same time. Further ones are
/// not sampled, and are counted.
pub const MAX_ORPHANS: usize = 64;
/// Maximum number of orphans for which a new thread asks the kernel whether their threads exist.
/// Nearly always, the first one has exited.
const MAX_CHECKED: usize = 8;
/// Lowest bit of a pointer; set while a thread is checking the orphan.
const CHECKING: usize = 1;

/// Lists the calling thread's memory. Returns false if there is no room.
pub fn add(orphans: &[AtomicPtr<Thread>], thread: *mut Thread) -> bool {
    orphans.iter().any(|entry| {
        entry
            .compare_exchange(null_mut(), thread, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    })
}

/// Takes the memory of a thread that has exited, if there is one. Changes `errno`.
pub fn take_dead(orphans: &[AtomicPtr<Thread>]) -> Option<*mut Thread> {
    let listed = orphans
        .iter()
        .filter(|entry| !entry.load(Ordering::Relaxed).is_null());
    listed.take(MAX_CHECKED).find_map(take_if_dead)
}

fn take_if_dead(entry: &AtomicPtr<Thread>) -> Option<*mut Thread> {
    let thread = entry.load(Ordering::Relaxed);
    if thread.is_null() || thread.addr() & CHECKING != 0 {
        return None;
    }
    let checking = thread.map_addr(|at| at | CHECKING);
    entry
        .compare_exchange(thread, checking, Ordering::Acquire, Ordering::Relaxed)
        .ok()?;
    // SAFETY: the memory of a slot stays mapped while it is listed, and nobody else takes it now.
    // Its thread wrote these words before it listed the slot, and its shard before it exited.
    let (owner, shard) = unsafe { ((*thread).orphan_of, &raw const (*thread).shard) };
    if !has_exited(owner) {
        entry.store(thread, Ordering::Release);
        return None;
    }
    // SAFETY: the thread has exited.
    session::release_shard(unsafe { shard.read() });
    entry.store(null_mut(), Ordering::Release);
    Some(thread)
}

/// Returns true if the process has no thread of this id. In a program with a seccomp filter, the
/// kernel is not asked.
fn has_exited(id: u32) -> bool {
    let pid = c_long::from(sys::pid());
    let id = c_long::from(id);
    // SAFETY: signal 0 is not sent.
    !seccomp::is_installed()
        && unsafe { sys::syscall(libc::SYS_tgkill, pid, id, c_long::from(0 as c_int)) } != 0
        && sys::errno() == libc::ESRCH
}
