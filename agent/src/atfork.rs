//! The agent's fork handler: one for all modules and for jemalloc.
//!
//! A fork must not copy jemalloc's data in the middle of a change, so jemalloc takes all of its locks
//! before it. Whoever allocates from then on waits for ever: the program's own fork handlers, if they
//! run later, and threads that hold a lock that the fork is about to take. Therefore:
//!
//! - The handler is registered first of all, so that it runs last before a fork and first after it,
//!   and all others find an allocator that works. It is registered with jemalloc's first allocation or
//!   with the first handler that anybody registers, if that is earlier: `pthread_atfork` is part of
//!   each library that uses it, and calls glibc's `__register_atfork`, which the agent exports.
//!   It is never taken off again: libraries that are finalised later than the agent may fork.
//! - glibc's `fork` takes the lock on the list of open streams after the handlers. A thread in
//!   `fflush(NULL)` holds that lock while it waits for a stream whose user may be in `malloc`
//!   (`getline`). So the handler takes the list's lock before jemalloc's; it is recursive.
//!
//! With all locks taken and reinitialised in both processes a fork has some 40 page faults more, twice
//! what the fork of a small process costs. In a process with one thread no other can hold a lock, so
//! they are not taken there. The `pthread_atfork` that jemalloc is linked with is ours.
//!
//! All handlers lie together (`mem_agent_fork`), and so does all that they read and write
//! (`mem_agent_state`), because a child takes a page fault for each page that it touches.

// Decision 67: the agent's fork handler is registered first.
use crate::arch::glibc_function;
use crate::{musl, sys};
use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// A fork handler.
pub type Handler = unsafe extern "C" fn();
/// glibc's `__register_atfork`; the last argument is the handle of the library with which the handlers
/// are taken off.
type Register =
    unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;

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
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static JEMALLOC: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
/// Number of forks under way that jemalloc was prepared for.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PREPARED: AtomicU32 = AtomicU32::new(0);
/// glibc's `__libc_single_threaded` (from 2.32 on); null: not known.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SINGLE_THREADED: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// Whether the handler is registered.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
/// The `__register_atfork` behind ours; null: not known.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Called before a fork, and in the parent after it.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static AROUND: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
/// Called in children, in this order, once jemalloc can be used.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static IN_CHILDREN: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

/// Registers the handler, if need be, and finds out how to learn that there is one thread. At start-up;
/// before it, locks are taken for every fork.
pub fn start() {
    register();
    let found = sys::symbol(c"__libc_single_threaded");
    SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Asks to be called in children. At start-up.
pub fn in_children(child: Handler) {
    let free = IN_CHILDREN
        .iter()
        .find(|slot| slot.load(Ordering::Relaxed).is_null());
    debug_assert!(free.is_some(), "more callbacks than places");
    if let Some(slot) = free {
        slot.store(child as *mut c_void, Ordering::Relaxed);
    }
}

/// Asks to be called before a fork, and in the parent after it. At start-up.
pub fn around(before: Handler, parent: Handler) {
    for (slot, handler) in AROUND.iter().zip([before, parent]) {
        slot.store(handler as *mut c_void, Ordering::Relaxed);
    }
}

/// Registers the handler, once. A process has one thread until then, since making another allocates.
pub fn register() {
    if IS_REGISTERED.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(real) = real() {
        // SAFETY: handlers that live as long as this library, which is never unloaded; those without a
        // library's handle stay for as long as the process runs.
        unsafe { real(Some(before), Some(in_parent), Some(in_child), null_mut()) };
    }
}

/// The C library's `__register_atfork`; `None` with musl: nothing is sampled there, and no object is
/// jemalloc's.
fn real() -> Option<Register> {
    let mut found = REAL.load(Ordering::Relaxed);
    if found.is_null() && !musl::is_here() {
        found = sys::next_symbol(c"__register_atfork");
        REAL.store(found, Ordering::Relaxed);
    }
    // SAFETY: null, or the C library's function of this type.
    unsafe { transmute::<*mut c_void, Option<Register>>(found) }
}

/// glibc's function, by which `pthread_atfork` registers handlers: the agent's are registered first.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    library: *mut c_void,
) -> c_int {
    register();
    // SAFETY: the caller's arguments.
    real().map_or(libc::ENOMEM, |real| unsafe {
        real(prepare, parent, child, library)
    })
}

/// `pthread_atfork` as jemalloc calls it, once.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn take_jemallocs(prepare: Handler, parent: Handler, child: Handler) -> c_int {
    for (slot, handler) in JEMALLOC.iter().zip([prepare, parent, child]) {
        slot.store(handler as *mut c_void, Ordering::Relaxed);
    }
    register();
    0
}

/// Calls what one of the tables of handlers has in a place.
#[inline(always)]
unsafe fn call(slot: &AtomicPtr<c_void>) {
    let handler = slot.load(Ordering::Relaxed);
    // SAFETY: null, or a handler that `take_jemallocs`, `around` or `in_children` was given.
    if let Some(handler) = unsafe { transmute::<*mut c_void, Option<Handler>>(handler) } {
        // SAFETY: called at the moment that it was registered for.
        unsafe { handler() };
    }
}

/// Calls one of glibc's functions for the list of open streams, which take and return nothing.
macro_rules! streams {
    ($name:literal) => {{
        let found = glibc_function!($name);
        // SAFETY: null, or the function of this name, which is a fork handler by its type.
        let function = unsafe { transmute::<usize, Option<Handler>>(found) };
        if let Some(function) = function {
            // SAFETY: each is called where glibc's `fork` calls it.
            unsafe { function() };
        }
    }};
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn before() {
    // SAFETY: before a fork.
    unsafe { call(&AROUND[0]) };
    let single = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: null, or glibc's variable, which exists as long as the process.
    if !single.is_null() && unsafe { single.read_volatile() } != 0 {
        return;
    }
    PREPARED.fetch_add(1, Ordering::Relaxed);
    streams!("_IO_list_lock");
    // SAFETY: before a fork.
    unsafe { call(&JEMALLOC[0]) };
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_parent() {
    if PREPARED.load(Ordering::Relaxed) != 0 {
        // SAFETY: after a fork that was prepared for.
        unsafe { call(&JEMALLOC[1]) };
        streams!("_IO_list_unlock");
        PREPARED.fetch_sub(1, Ordering::Relaxed);
    }
    // SAFETY: after a fork.
    unsafe { call(&AROUND[1]) };
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_child() {
    if PREPARED.load(Ordering::Relaxed) != 0 {
        PREPARED.store(0, Ordering::Relaxed);
        // SAFETY: in the child of a fork that was prepared for.
        unsafe { call(&JEMALLOC[2]) };
        streams!("_IO_list_resetlock");
    }
    for slot in &IN_CHILDREN {
        // SAFETY: in the child of a fork.
        unsafe { call(slot) };
    }
}
