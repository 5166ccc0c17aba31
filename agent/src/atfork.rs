//! Fork handlers: jemalloc's, which are skipped where they serve no purpose, and our own.
//!
//! Before a fork, jemalloc takes all of its locks, and afterwards it reinitialises them in both
//! processes: some 40 page faults, twice what the fork of a small process costs. In a process with
//! one thread, no other can hold a lock. So the `pthread_atfork` that jemalloc is linked with is
//! ours.
//!
//! All handlers lie together (`mem_agent_fork`), because a child takes a page fault for each page
//! of code that it touches.

use crate::musl::Handler;
use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

unsafe extern "C" {
    static __dso_handle: u8;
}

#[cfg(all(not(test), target_arch = "x86_64"))]
core::arch::global_asm!(
    ".hidden pthread_atfork",
    ".globl pthread_atfork",
    ".type pthread_atfork,@function",
    "pthread_atfork: jmp {take}",
    take = sym take_jemallocs,
);
#[cfg(all(not(test), target_arch = "aarch64"))]
core::arch::global_asm!(
    ".hidden pthread_atfork",
    ".globl pthread_atfork",
    ".type pthread_atfork,%function",
    "pthread_atfork: b {take}",
    take = sym take_jemallocs,
);

/// jemalloc's handlers: before, in the parent, in the child.
static JEMALLOC: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
/// Number of forks under way that jemalloc was prepared for.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PREPARED: AtomicU32 = AtomicU32::new(0);
/// glibc's `__libc_single_threaded` (from 2.32 on); null: not known.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SINGLE_THREADED: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// Finds out how to learn that there is one thread. At start-up; before it, every fork is
/// prepared for.
pub fn start() {
    let found = crate::sys::symbol(c"__libc_single_threaded");
    SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Asks to be called in children.
pub fn in_children(child: Handler) {
    register(None, None, Some(child));
}

/// Asks to be called before a fork, and in the parent after it.
pub fn around(before: Handler, parent: Handler) {
    register(Some(before), Some(parent), None);
}

/// Without success where the C library is not glibc: nothing is sampled there, and no object is
/// jemalloc's.
fn register(before: Option<Handler>, parent: Option<Handler>, child: Option<Handler>) -> c_int {
    let library = (&raw const __dso_handle) as *mut c_void;
    // SAFETY: handlers that live as long as this library, which is never unloaded.
    crate::musl::register_atfork()
        .map_or(0, |glibc| unsafe { glibc(before, parent, child, library) })
}

/// `pthread_atfork` as jemalloc calls it, once.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn take_jemallocs(prepare: Handler, parent: Handler, child: Handler) -> c_int {
    for (slot, handler) in JEMALLOC.iter().zip([prepare, parent, child]) {
        slot.store(handler as *mut c_void, Ordering::Relaxed);
    }
    register(Some(before), Some(in_parent), Some(in_child))
}

/// Calls one of jemalloc's handlers.
unsafe fn call(which: usize) {
    let handler = JEMALLOC[which].load(Ordering::Relaxed);
    // SAFETY: null, or what `take_jemallocs` was given.
    if let Some(handler) = unsafe { transmute::<*mut c_void, Option<Handler>>(handler) } {
        // SAFETY: called at the moment that it was registered for.
        unsafe { handler() };
    }
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn before() {
    let single = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: null, or glibc's variable, which exists as long as the process.
    if !single.is_null() && unsafe { single.read_volatile() } != 0 {
        return;
    }
    PREPARED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: before a fork.
    unsafe { call(0) };
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_parent() {
    if PREPARED.load(Ordering::Relaxed) != 0 {
        // SAFETY: after a fork that was prepared for.
        unsafe { call(1) };
        PREPARED.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_child() {
    if PREPARED.load(Ordering::Relaxed) != 0 {
        PREPARED.store(0, Ordering::Relaxed);
        // SAFETY: in the child of a fork that was prepared for.
        unsafe { call(2) };
    }
}
