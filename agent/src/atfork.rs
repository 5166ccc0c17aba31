//! The agent's fork handler: one for all modules and for jemalloc.
//!
//! A fork must not copy jemalloc's data in the middle of a change, so jemalloc takes all of its
//! locks before it. Any code that allocates after that waits forever: the program's own fork
//! handlers if they run later, and threads that hold a lock which the fork is about to take.
//! Therefore:
//!
//! - The handler is registered before all others, so that it runs last before a fork and first
//!   after it: all others find a working allocator. It is registered at jemalloc's first
//!   allocation, or when anybody registers a handler before that: `pthread_atfork` is linked
//!   statically into each library that uses it, and calls glibc's `__register_atfork`, which the
//!   agent exports. It is never unregistered, because libraries that are finalised later than the
//!   agent may fork.
//! - glibc's `fork` takes the lock on the list of open streams after the handlers. A thread in
//!   `fflush(NULL)` holds that lock while it waits for a stream whose user may be in `malloc`
//!   (`getline`). So the handler takes the list's lock before jemalloc's; it is recursive.
//!
//! Taking all locks and reinitialising them in both processes costs some 40 page faults per fork,
//! twice the cost of forking a small process. In a process with one thread, no other thread can
//! hold a lock, so they are not taken. The `pthread_atfork` that jemalloc is linked with is ours.
//!
//! All handlers lie in one section (`mem_agent_fork`), and so do their data (`mem_agent_state`),
//! because a child takes a page fault for each page that it touches.

// Decision 67: the agent's fork handler is registered first.
use crate::arch::glibc_function;
#[cfg(not(test))]
use crate::fork_locks;
use crate::{musl, sys};
use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Fork handler.
pub type Handler = unsafe extern "C" fn();
/// glibc's `__register_atfork`. The last argument identifies the library with which the handlers
/// are unregistered.
type Register =
    unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;

#[cfg(all(not(test), target_arch = "x86_64"))]
core::arch::global_asm!(
    ".hidden pthread_atfork",
    ".globl pthread_atfork",
    ".type pthread_atfork,@function",
    "pthread_atfork: jmp {take}",
    take = sym register_for_jemalloc,
);
#[cfg(all(not(test), target_arch = "aarch64"))]
core::arch::global_asm!(
    ".hidden pthread_atfork",
    ".globl pthread_atfork",
    ".type pthread_atfork,%function",
    "pthread_atfork: b {take}",
    take = sym register_for_jemalloc,
);

/// jemalloc's handlers: before, in the parent, in the child.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static JEMALLOC: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
/// Number of forks in progress for which jemalloc's locks are held.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PREPARED: AtomicU32 = AtomicU32::new(0);
/// glibc's `__libc_single_threaded` (2.32 and later); null if there is none.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SINGLE_THREADED: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// True once the handler is registered.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
/// Next definition of `__register_atfork` (`RTLD_NEXT`); null before it is looked up.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Handlers that are called before a fork, and in the parent after it.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static AROUND: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
/// Handlers that are called in the child, in this order, once jemalloc works again.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static IN_CHILDREN: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

/// Registers the handler unless it is registered, and looks up the variable that says whether the
/// process has one thread. Called at start-up; until then, every fork takes the locks.
pub fn start() {
    register();
    let found = sys::symbol(c"__libc_single_threaded");
    SINGLE_THREADED.store(found.cast(), Ordering::Relaxed);
}

/// Adds a handler for children. Called at start-up.
pub fn add_child_handler(child: Handler) {
    let free = IN_CHILDREN
        .iter()
        .find(|slot| slot.load(Ordering::Relaxed).is_null());
    debug_assert!(free.is_some(), "more handlers than entries");
    if let Some(slot) = free {
        slot.store(child as *mut c_void, Ordering::Relaxed);
    }
}

/// Sets the handlers for before a fork and for the parent after it. Called at start-up.
pub fn set_parent_handlers(before: Handler, parent: Handler) {
    for (slot, handler) in AROUND.iter().zip([before, parent]) {
        slot.store(handler as *mut c_void, Ordering::Relaxed);
    }
}

/// Registers the handler, once. The process has one thread until then: creating another one
/// allocates.
pub fn register() {
    if IS_REGISTERED.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Some(real) = real() {
        // SAFETY: these handlers live as long as this library, which is never unloaded. Handlers
        // without a library are never unregistered.
        unsafe { real(Some(before), Some(in_parent), Some(in_child), null_mut()) };
    }
}

/// Returns the C library's `__register_atfork`; `None` with musl, where the agent does nothing.
fn real() -> Option<Register> {
    let mut found = REAL.load(Ordering::Relaxed);
    if found.is_null() && !musl::is_here() {
        found = sys::next_symbol(c"__register_atfork");
        REAL.store(found, Ordering::Relaxed);
    }
    // SAFETY: null, or the C library's function of this type.
    unsafe { transmute::<*mut c_void, Option<Register>>(found) }
}

/// Called by glibc's `pthread_atfork`. Registers the agent's handler first.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    library: *mut c_void,
) -> c_int {
    register();
    // SAFETY: passes the arguments on unchanged, to a function with the same contract.
    real().map_or(libc::ENOMEM, |real| unsafe {
        real(prepare, parent, child, library)
    })
}

/// `pthread_atfork` for jemalloc, which calls it once.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn register_for_jemalloc(
    prepare: Handler,
    parent: Handler,
    child: Handler,
) -> c_int {
    for (slot, handler) in JEMALLOC.iter().zip([prepare, parent, child]) {
        slot.store(handler as *mut c_void, Ordering::Relaxed);
    }
    register();
    0
}

/// Returns true once jemalloc has registered its handlers, as it is initialised.
#[cfg(not(test))]
#[inline(always)]
fn has_jemalloc_handlers() -> bool {
    !JEMALLOC[0].load(Ordering::Relaxed).is_null()
}

/// Calls a handler, if there is one.
///
/// # Safety
/// The process is at the point of a fork that the handler was registered for.
#[inline(always)]
unsafe fn call(slot: &AtomicPtr<c_void>) {
    let handler = slot.load(Ordering::Relaxed);
    // SAFETY: null, or a handler that was passed to `register_for_jemalloc`, `set_parent_handlers`
    // or `add_child_handler`.
    if let Some(handler) = unsafe { transmute::<*mut c_void, Option<Handler>>(handler) } {
        // SAFETY: called at the point of the fork that it was registered for.
        unsafe { handler() };
    }
}

/// Calls one of glibc's functions for the list of open streams, which take no arguments and return
/// nothing.
macro_rules! streams {
    ($name:literal) => {{
        let found = glibc_function!($name);
        // SAFETY: null, or the address of the function of this name, which has the type of a fork
        // handler.
        let function = unsafe { transmute::<usize, Option<Handler>>(found) };
        if let Some(function) = function {
            // SAFETY: called at the point where glibc's `fork` itself calls it.
            unsafe { function() };
        }
    }};
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn before() {
    // SAFETY: called before a fork.
    unsafe { call(&AROUND[0]) };
    let single = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: null, or glibc's variable, which exists as long as the process.
    if !single.is_null() && unsafe { single.read_volatile() } != 0 {
        return;
    }
    PREPARED.fetch_add(1, Ordering::Relaxed);
    streams!("_IO_list_lock");
    #[cfg(not(test))]
    if has_jemalloc_handlers() {
        // SAFETY: called before a fork.
        unsafe { fork_locks::before() };
    }
    // SAFETY: called before a fork.
    unsafe { call(&JEMALLOC[0]) };
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_parent() {
    if PREPARED.load(Ordering::Relaxed) != 0 {
        #[cfg(not(test))]
        // SAFETY: called after a fork, before jemalloc's handler.
        unsafe {
            fork_locks::in_parent()
        };
        // SAFETY: called after a fork for which jemalloc's locks were taken.
        unsafe { call(&JEMALLOC[1]) };
        streams!("_IO_list_unlock");
        PREPARED.fetch_sub(1, Ordering::Relaxed);
    }
    // SAFETY: called after a fork.
    unsafe { call(&AROUND[1]) };
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_child() {
    if PREPARED.load(Ordering::Relaxed) != 0 {
        PREPARED.store(0, Ordering::Relaxed);
        #[cfg(not(test))]
        // SAFETY: called in the child of a fork, before jemalloc's handler.
        unsafe {
            fork_locks::in_child()
        };
        // SAFETY: called in the child of a fork for which jemalloc's locks were taken.
        unsafe { call(&JEMALLOC[2]) };
        streams!("_IO_list_resetlock");
    }
    for slot in &IN_CHILDREN {
        // SAFETY: called in the child of a fork.
        unsafe { call(slot) };
    }
}
