//! gperftools' `HEAPPROFILE`, the prefix of dumps that are written at intervals and at the exit, and
//! `HEAPPROFILESIGNAL`, a signal that requests a dump.
//!
//! With a prefix, every allocation is sampled from the start, as with gperftools, unless
//! `MEM_PROFILER_INTERVAL` says otherwise. A forked child that does not continue its parent's
//! session begins one at the signal.

use super::heap_profiler;
use crate::arch::on_own_stack;
use crate::definitions::{self, Name};
use crate::environment::variable;
use crate::sys;
use crate::{cpu_profile, heap_watch, on_signal};
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

/// Pid of the process that uses the prefix for its dumps.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Reads the environment and installs the handler, at start-up. Returns true if every allocation is
/// to be sampled. Changes `errno`.
pub fn start() -> bool {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let (prefix, signal) = (set(c"HEAPPROFILE"), set(c"HEAPPROFILESIGNAL"));
    if prefix.is_none() && signal.is_none() {
        return false;
    }
    // If the program contains gperftools' own profiler, that reads the same variables.
    let own = Name::new(c"HeapProfilerStart");
    if !definitions::can_examine() || definitions::is_defined_by_others(own) {
        return false;
    }
    if let Some(number) = signal
        && let Err(why) = on_signal::install(number, handler)
    {
        complain(why);
    }
    if prefix.is_none() {
        return false;
    }
    OWNER.store(sys::pid(), Ordering::Relaxed);
    let prefix = cpu_profile::unique_name(c"HEAPPROFILE");
    prefix.as_c_str().is_some_and(heap_profiler::set_prefix)
}

/// Returns true if the environment names this process's dumps.
pub(super) fn names_dumps() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // A filter may forbid `getpid`, so it is called only if there is an owner.
    owner != 0 && owner == sys::pid()
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
    } else if heap_profiler::is_sampling() {
        if !heap_watch::is_watching() {
            distinguish_child();
        }
        heap_profiler::write(c"signal");
    } else {
        heap_profiler::begin_session();
        complain(b"came while nothing was sampled: sampling has begun, the next one writes a dump");
    }
    sys::set_errno(saved);
    on_signal::leave();
}
