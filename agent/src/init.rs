//! Initialisation when the library is loaded: each module looks up what it needs, while the process
//! has one thread and the loader may be called.

use core::ffi::{c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::{
    atfork, backend, checks, cpu, cpu_profile, definitions, ends, entry, fork, image, library,
    module, musl, python, range, roomy, seccomp, session, stats, sys, thread, tid,
};

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char) = constructor;

/// The program's command line, for [`start`].
static COUNT: AtomicI32 = AtomicI32::new(0);
static ARGUMENTS: AtomicPtr<*const c_char> = AtomicPtr::new(null_mut());

/// glibc's loader passes the program's command line; musl's does not.
extern "C" fn constructor(count: c_int, arguments: *const *const c_char) {
    if cfg!(test) {
        return;
    }
    COUNT.store(count, Ordering::Relaxed);
    ARGUMENTS.store(arguments.cast_mut(), Ordering::Relaxed);
    roomy::call(start);
}

extern "C" fn start() {
    let saved = sys::errno();
    backend::settle();
    backend::look_again();
    if backend::is_left_out() && !backend::stands_aside() {
        entry::find_next();
        definitions::hide(|_| true);
        return sys::set_errno(saved);
    }
    // SAFETY: a size that is not 0, for which jemalloc starts. Its own constructor, which runs after this
    // one, would start it on the program's stack.
    unsafe { tikv_jemalloc_sys::nallocx(1, 0) };
    atfork::start();
    ends::find();
    library::find();
    module::init();
    thread::make_key();
    tid::find();
    entry::find_next();
    #[cfg(not(test))]
    crate::limits::find_next();
    seccomp::start();
    stats::start();
    let most = most();
    range::start(most.address_space, most.data);
    thread::start(most.address_space.min(most.data));
    fork::start();
    let samples_all = checks::start() | entry::start_heap_profile();
    let own = image::memory();
    session::start(most.address_space, samples_all, own);
    let line = python::CommandLine {
        count: COUNT.load(Ordering::Relaxed),
        arguments: ARGUMENTS.load(Ordering::Relaxed),
    };
    python::start((!musl::is_here()).then_some(line));
    python::publish();
    cpu::start();
    cpu_profile::start();
    sys::set_errno(saved);
}

/// Limits of the process, in bytes; `u64::MAX`: none.
struct Limits {
    address_space: u64,
    /// Private memory that may be written, mapped or not by `brk` (since Linux 4.7).
    data: u64,
}

fn most() -> Limits {
    Limits {
        address_space: sys::limit(libc::RLIMIT_AS),
        data: sys::limit(libc::RLIMIT_DATA),
    }
}
