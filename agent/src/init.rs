//! Initialisation: each module looks up what it needs, while the process has one thread and the
//! loader may be called.
//!
//! Usually this happens in the library's constructor, which runs after those of most other
//! libraries. If the environment requests that allocations are sampled from the start, it happens
//! at the first allocation of the process: in a library's constructor, in the program's
//! `.preinit_array`, in the resolver of an indirect function, or in the loader once it has found
//! `malloc`. By then this library is relocated and its thread-local storage exists. libc may not be
//! initialised, so the only libc functions called are those that need no state but `errno`.

// Decision 69: a requested session begins with the first allocation.
use core::ffi::{c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use crate::{
    ample_stack, atfork, backend, checks, cpu, cpu_profile, ends, entry, environment, exit, fork,
    image, library, module, musl, python, range, seccomp, session, stats, sys, thread, tid,
};

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char) = constructor;

/// True once [`begin`] has been called.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Arguments of the program; null if not known.
static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(null_mut());
/// Number of [`ARGUMENTS`].
static ARGUMENT_COUNT: AtomicI32 = AtomicI32::new(0);

/// Constructor of the library. glibc's loader passes the program's command line; musl's does not.
extern "C" fn constructor(count: c_int, arguments: *const *const c_char) {
    if cfg!(test) {
        return;
    }
    ARGUMENT_COUNT.store(count, Ordering::Relaxed);
    ARGUMENTS.store(arguments.cast_mut(), Ordering::Relaxed);
    ample_stack::call(start);
}

extern "C" fn start() {
    let saved = sys::errno();
    environment::record_libc_start();
    if HAS_BEGUN.swap(true, Ordering::Relaxed) {
        // The first allocation looked the thread id up, but the C library may not have stored it by
        // then.
        tid::find();
    } else {
        backend::ensure_chosen();
        backend::reconsider_left_out();
        if backend::is_left_out() && !backend::is_inactive() {
            entry::find_next();
            entry::hide();
            return sys::set_errno(saved);
        }
        if musl::is_here() {
            ARGUMENTS.store(null_mut(), Ordering::Relaxed);
        }
        begin();
    }
    entry::hide();
    cpu::start();
    cpu_profile::start();
    entry::start_heap_dumps();
    sys::set_errno(saved);
}

/// Initialises at the first allocation if the environment requests that it is sampled. Called on
/// the slow path, with the thread marked busy, as long as there is no segment. Returns true if
/// there may be a segment now.
#[unsafe(no_mangle)]
extern "C" fn mem_agent_begin_early() -> bool {
    if backend::is_choosing() {
        // The allocator's own allocation; the program's first one is still to come.
        return false;
    }
    // From now on, allocations do not call this function.
    session::await_start();
    if cfg!(test) || HAS_BEGUN.load(Ordering::Relaxed) {
        return false;
    }
    backend::ensure_chosen();
    if !is_requested() || backend::is_left_out() || backend::is_inactive() {
        return false;
    }
    HAS_BEGUN.store(true, Ordering::Relaxed);
    if let Some((count, arguments)) = environment::command_line() {
        ARGUMENT_COUNT.store(count, Ordering::Relaxed);
        ARGUMENTS.store(arguments.cast_mut(), Ordering::Relaxed);
    }
    ample_stack::call(begin);
    true
}
#[cfg(not(test))]
core::arch::global_asm!(".hidden mem_agent_begin_early");

/// Returns true if the environment requests that allocations are sampled from the start.
fn is_requested() -> bool {
    [c"MEM_PROFILER_START", c"HEAPCHECK", c"HEAPPROFILE"]
        .iter()
        .any(|name| environment::is_set(name))
}

/// Initialises everything that a sample needs.
extern "C" fn begin() {
    // SAFETY: the size is not 0. The call initialises jemalloc. Its own constructor, which runs
    // after this one, would do so on the program's stack.
    unsafe { backend::jemalloc::nallocx(1, 0) };
    atfork::start();
    sys::find_errno();
    ends::find();
    library::find();
    module::init(&python::WATCHER);
    thread::make_key();
    tid::find();
    entry::find_next();
    #[cfg(not(test))]
    crate::limits::find_next();
    seccomp::start();
    stats::start();
    let limits = limits();
    range::start(limits.address_space, limits.data);
    thread::start(limits.address_space.min(limits.data));
    fork::start();
    let samples_all = checks::start() | entry::start_heap_profile();
    exit::start();
    let own_memory = image::memory();
    session::start(limits.address_space, samples_all, own_memory);
    let arguments = ARGUMENTS.load(Ordering::Relaxed);
    python::start((!arguments.is_null()).then_some(python::CommandLine {
        count: ARGUMENT_COUNT.load(Ordering::Relaxed),
        arguments,
    }));
    python::publish();
}

/// Limits of the process, in bytes; `u64::MAX`: unlimited.
struct Limits {
    address_space: u64,
    /// Writable private memory, including that of `brk` (`RLIMIT_DATA` since Linux 4.7).
    data: u64,
}

fn limits() -> Limits {
    Limits {
        address_space: sys::limit(libc::RLIMIT_AS),
        data: sys::limit(libc::RLIMIT_DATA),
    }
}
