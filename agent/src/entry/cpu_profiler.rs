//! gperftools' CPU profiler for programs that call it (`gperftools/profiler.h`).
//!
//! It differs from gperftools' in that the process is sampled from outside, with no signal, unless
//! `filter_in_thread` is given: that has to be called in the threads.

use super::gperftools::next;
use crate::cpu_profile::{self, Filter, NAME};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::AtomicPtr;

/// `struct ProfilerState`.
#[repr(C)]
pub struct State {
    enabled: c_int,
    start_time: libc::time_t,
    profile_name: [c_char; NAME],
    samples_gathered: c_int,
}

/// `struct ProfilerOptions`.
#[repr(C)]
pub struct Options {
    filter_in_thread: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    filter_in_thread_arg: *mut c_void,
}

/// Defines a function, which calls the next library's of the same name if there is one.
macro_rules! exports {
    ($($(#[$doc:meta])* $symbol:literal
        fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// That of the function of gperftools.
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
        unsafe { begin(file, null()) }
    }
    /// The same; a filter may leave samples out.
    "ProfilerStartWithOptions"
    fn start_with_options(file: *const c_char, options: *const Options) -> c_int {
        // SAFETY: the caller's terminated text, or null, and its options, or null.
        unsafe { begin(file, options) }
    }
    /// Ends the profile; the file is written by then.
    "ProfilerStop"
    fn stop() -> () { cpu_profile::end() }
    /// Writes what there is so far; the file is written again at the end.
    "ProfilerFlush"
    fn flush() -> () { cpu_profile::flush() }
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
    /// What is being made.
    "ProfilerGetCurrentState"
    fn current_state(state: *mut State) -> () {
        // SAFETY: the caller's memory for a state, or null.
        unsafe { describe(state) }
    }
}

/// # Safety
/// Terminated text, or null, and options, or null.
unsafe fn begin(file: *const c_char, options: *const Options) -> c_int {
    if file.is_null() {
        return 0;
    }
    // SAFETY: the caller's.
    let (file, options) = unsafe { (CStr::from_ptr(file), options.as_ref()) };
    let filter = options.and_then(|options| {
        Some(Filter {
            function: options.filter_in_thread?,
            argument: options.filter_in_thread_arg,
        })
    });
    c_int::from(cpu_profile::begin(file, filter))
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
            (*state).samples_gathered = cpu_profile::samples();
        }
    }
}
