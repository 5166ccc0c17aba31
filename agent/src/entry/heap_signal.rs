//! gperftools' `HEAPPROFILESIGNAL`: a signal that writes a dump with the prefix `HEAPPROFILE`.
//!
//! If both are set, every allocation is sampled from the start, as with gperftools, unless
//! `MEM_PROFILER_INTERVAL` says otherwise. A forked child that does not continue its parent's
//! session begins one at the signal.

use super::heap_profiler;
use crate::arch::on_own_stack;
use crate::environment::variable;
use crate::sys;
use crate::{cpu_profile, definitions, on_signal};
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

/// Pid of the process that uses the prefix for its dumps.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Reads the environment and installs the handler, at start-up. Returns true if every allocation is
/// to be sampled. Changes `errno`.
pub fn start() -> bool {
    let nonempty = |name| variable(name).filter(|value| !value.is_empty());
    let Some(number) = nonempty(c"HEAPPROFILESIGNAL") else {
        return false;
    };
    // gperftools' own profiler, if there, reads the same variables.
    if !definitions::can_examine() || definitions::is_defined_by_others(c"HeapProfilerStart") {
        return false;
    }
    if let Err(why) = on_signal::install(number, handler) {
        complain(why);
        return false;
    }
    if nonempty(c"HEAPPROFILE").is_none() {
        return false;
    }
    OWNER.store(sys::pid(), Ordering::Relaxed);
    let prefix = cpu_profile::unique(c"HEAPPROFILE");
    prefix.as_c_str().is_some_and(heap_profiler::set_prefix)
}

/// Gives the dumps of a forked child names of their own.
fn distinguish_child() {
    let pid = sys::pid();
    if OWNER.swap(pid, Ordering::Relaxed) == pid {
        return;
    }
    let mut prefix = heap_profiler::prefix();
    prefix.push(b"_");
    prefix.push_number(u64::from(pid));
    prefix.as_c_str().map(heap_profiler::set_prefix);
}

fn complain(why: &[u8]) {
    on_signal::complain(b"no heap profile", b"HEAPPROFILESIGNAL", why);
}

on_own_stack! {
    /// Signal handler.
    handler, on_signal::enter, work
}

/// Writes a dump. Keeps `errno`.
///
/// # Safety
/// [`on_signal::enter`] has claimed the stack.
unsafe extern "C" fn work(_: *const libc::siginfo_t, _: *const libc::ucontext_t) {
    let saved = sys::errno();
    if !heap_profiler::has_prefix() {
        complain(b"names no file: set HEAPPROFILE as well");
    } else if heap_profiler::runs() {
        distinguish_child();
        heap_profiler::write(c"signal");
    } else {
        heap_profiler::sample();
        complain(b"came while nothing was sampled: sampling has begun, the next one writes a dump");
    }
    sys::set_errno(saved);
    on_signal::leave();
}
