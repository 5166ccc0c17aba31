//! Takes the locks that jemalloc 5.3.1 does not take before a fork, or takes too late.
//!
//! - A thread holds the mutex of the tree of addresses while it adds a leaf for new addresses. It
//!   does not always hold another lock that the fork would wait for: not for memory of sampled
//!   objects, and not if jemalloc does not retain addresses. jemalloc does not lock this mutex
//!   before a fork, so a child could wait forever for a thread that it does not have. In the order
//!   of locks, the mutex follows those of extents, and precedes those of jemalloc's own data
//!   (`base_t`), which are allocated under it.
//! - jemalloc reads the number of arenas before it takes the lock under which arenas are created.
//!   So that lock is taken here, before jemalloc's handler runs.
//!
//! The build script makes the linker redirect jemalloc's calls to these functions.

use crate::backend::jemalloc::{
    EMAP, TREE_MUTEX_OFFSET, lock_for_fork, unlock_in_child, unlock_in_parent,
};
use core::arch::global_asm;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

// Not exported.
global_asm!(
    ".hidden __wrap__rjem_je_base_prefork",
    ".hidden __wrap__rjem_je_ctl_prefork",
);

unsafe extern "C" {
    fn __real__rjem_je_base_prefork(thread: *mut c_void, base: *mut c_void);
    fn __real__rjem_je_ctl_prefork(thread: *mut c_void);
}

/// True if the tree's mutex is locked for a fork. Accessed with jemalloc's lock on the arenas held.
#[unsafe(link_section = "mem_agent_state")]
static IS_TREE_LOCKED: AtomicBool = AtomicBool::new(false);

fn tree_mutex() -> *mut c_void {
    (&raw const EMAP)
        .wrapping_add(TREE_MUTEX_OFFSET)
        .cast_mut()
        .cast()
}

/// Locks what must be locked before jemalloc's handler runs.
///
/// # Safety
/// Called before a fork. jemalloc is initialised, and its handler runs next.
#[unsafe(link_section = "mem_agent_fork")]
pub unsafe fn before() {
    // SAFETY: this function's contract. The argument is not used.
    unsafe { __real__rjem_je_ctl_prefork(null_mut()) };
}

/// Does nothing: [`before`] has taken the lock.
#[unsafe(no_mangle)]
#[unsafe(link_section = "mem_agent_fork")]
unsafe extern "C" fn __wrap__rjem_je_ctl_prefork(_: *mut c_void) {}

/// Locks the mutex of one of jemalloc's own heaps (`base_t`). The first call also locks the tree's
/// mutex, before that of the heap.
#[unsafe(no_mangle)]
#[unsafe(link_section = "mem_agent_fork")]
unsafe extern "C" fn __wrap__rjem_je_base_prefork(thread: *mut c_void, base: *mut c_void) {
    // SAFETY: jemalloc's mutex, in its place in the order of locks; the caller's arguments.
    unsafe {
        if !IS_TREE_LOCKED.swap(true, Ordering::Relaxed) {
            lock_for_fork(thread, tree_mutex());
        }
        __real__rjem_je_base_prefork(thread, base);
    }
}

/// Unlocks the tree in the parent.
///
/// # Safety
/// Called after a fork, before jemalloc's handler.
#[unsafe(link_section = "mem_agent_fork")]
pub unsafe fn in_parent() {
    if IS_TREE_LOCKED.swap(false, Ordering::Relaxed) {
        // SAFETY: locked by this thread.
        unsafe { unlock_in_parent(null_mut(), tree_mutex()) };
    }
}

/// Reinitialises the tree's mutex in the child.
///
/// # Safety
/// Called after a fork, before jemalloc's handler.
#[unsafe(link_section = "mem_agent_fork")]
pub unsafe fn in_child() {
    if IS_TREE_LOCKED.swap(false, Ordering::Relaxed) {
        // SAFETY: locked by the parent's thread of which this one is a copy.
        unsafe { unlock_in_child(null_mut(), tree_mutex()) };
    }
}
