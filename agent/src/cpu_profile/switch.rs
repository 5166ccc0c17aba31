//! gperftools' `CPUPROFILESIGNAL`: a signal that starts a profile and, the next time, ends it.
//!
//! The handler waits until the controller is sampling, or has written the file.

use super::NAME_BYTES;
use crate::arch::on_own_stack;
use crate::on_signal;
use crate::sys::{self, Text};
use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Pid of the process that installed the handler.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Number of the next profile.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Base of the names of profiles, with its terminating zero.
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static BASE: [AtomicU8; NAME_BYTES] = [const { AtomicU8::new(0) }; NAME_BYTES];

/// Makes a signal, by its number in the variable, start and end profiles named `BASE.0`, `BASE.1`
/// and so on. Without a base, the signal only writes a message. Complains if that fails. Called at
/// start-up. Changes `errno`.
pub fn install(base: &CStr, number: &[u8]) {
    OWNER.store(sys::pid(), Ordering::Relaxed);
    for (stored, byte) in BASE.iter().zip(base.to_bytes_with_nul()) {
        stored.store(*byte, Ordering::Relaxed);
    }
    if let Err(why) = on_signal::install(number, handler) {
        complain(why);
    }
}

/// Writes to standard error why there will be no profile.
fn complain(why: &[u8]) {
    on_signal::complain(b"no CPU profile", b"CPUPROFILESIGNAL", why);
}

on_own_stack! {
    /// Signal handler.
    handler, on_signal::enter, work
}

/// Starts or ends a profile. Keeps `errno`.
///
/// # Safety
/// [`on_signal::enter`] has claimed the stack.
unsafe extern "C" fn work(_: *const libc::siginfo_t, _: *const libc::ucontext_t) {
    if super::running().is_some() {
        super::end();
    } else if BASE[0].load(Ordering::Relaxed) == 0 {
        complain(b"names no file: set CPUPROFILE as well");
    } else if let Some(name) = next_name().as_c_str() {
        super::begin(name, None);
    }
    on_signal::leave();
}

/// Returns the name of the next profile. In a forked child it includes the pid, because the parent
/// uses the same numbers.
fn next_name() -> Text<NAME_BYTES> {
    let mut name = Text::new();
    for byte in &BASE {
        match byte.load(Ordering::Relaxed) {
            0 => break,
            byte => name.push(&[byte]),
        }
    }
    let pid = sys::pid();
    if pid != OWNER.load(Ordering::Relaxed) {
        name.push(b"_");
        name.push_number(u64::from(pid));
    }
    name.push(b".");
    name.push_number(u64::from(COUNT.fetch_add(1, Ordering::Relaxed)));
    name
}
