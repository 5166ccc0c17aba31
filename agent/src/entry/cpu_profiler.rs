//! gperftools' CPU profiler for programs that call it (`gperftools/profiler.h`).
//!
//! It differs from gperftools' in that the process is sampled from outside: all threads are, so
//! `filter_in_thread` has no effect, and a flush writes nothing before the end. A profile without a
//! sample is not written.

use super::gperftools::next;
use crate::cpu_profile;
use crate::cpu_profile::NAME;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;

/// `struct ProfilerState`.
#[repr(C)]
pub struct State {
    enabled: c_int,
    start_time: libc::time_t,
    profile_name: [c_char; NAME],
    samples_gathered: c_int,
}

/// Exports a function, which calls the next library's of the same name if there is one.
macro_rules! exports {
    ($($(#[$doc:meta])* $symbol:literal
        fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// That of the function of gperftools.
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $out {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            if let Some(function) = next(&NEXT, $symbol) {
                // SAFETY: the symbol names a function of this type, and the arguments are the
                // caller's.
                return unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $out =
                        core::mem::transmute(function);
                    function($($arg),*)
                };
            }
            $body
        }
    )*};
}

exports! {
    /// Begins a profile that is written to this file. 0: it could not, or one has begun.
    "ProfilerStart"
    fn start(file: *const c_char) -> c_int {
        // SAFETY: the caller's terminated text, or null.
        unsafe { begin(file) }
    }
    /// The same.
    "ProfilerStartWithOptions"
    fn start_with_options(file: *const c_char, _options: *const c_void) -> c_int {
        // SAFETY: the caller's terminated text, or null.
        unsafe { begin(file) }
    }
    /// Ends the profile; the file is written by then.
    "ProfilerStop"
    fn stop() -> () { cpu_profile::end() }
    /// Nothing: the file is written at the end.
    "ProfilerFlush"
    fn flush() -> () {}
    /// Nothing, as in gperftools.
    "ProfilerEnable"
    fn enable() -> () {}
    /// Nothing, as in gperftools.
    "ProfilerDisable"
    fn disable() -> () {}
    /// Whether a profile is made, of all threads.
    "ProfilingIsEnabledForAllThreads"
    fn is_enabled() -> c_int { c_int::from(cpu_profile::running().is_some()) }
    /// Nothing: every thread is sampled.
    "ProfilerRegisterThread"
    fn register_thread() -> () {}
    /// What is being made. Samples are counted outside: they are 0 here.
    "ProfilerGetCurrentState"
    fn current_state(state: *mut State) -> () {
        // SAFETY: the caller's memory for a state, or null.
        unsafe { describe(state) }
    }
}

/// # Safety
/// Terminated text, or null.
unsafe fn begin(file: *const c_char) -> c_int {
    if file.is_null() {
        return 0;
    }
    // SAFETY: the caller's.
    c_int::from(cpu_profile::begin(unsafe { CStr::from_ptr(file) }))
}

/// # Safety
/// Memory for a state, or null.
unsafe fn describe(state: *mut State) {
    if state.is_null() {
        return;
    }
    // SAFETY: the caller's memory, written as a whole before the name is copied into it.
    unsafe {
        state.write(State {
            enabled: 0,
            start_time: 0,
            profile_name: [0; NAME],
            samples_gathered: 0,
        });
        if let Some(running) = cpu_profile::running() {
            (*state).enabled = 1;
            (*state).start_time = running.started;
            cpu_profile::copy_file((&raw mut (*state).profile_name).cast());
        }
    }
}
