//! gperftools' CPU profiler for programs that call it (`gperftools/profiler.h`).
//!
//! Unlike with gperftools, samples are taken from outside the process, without a signal, unless
//! `filter_in_thread` is given: that function has to be called in the sampled threads.

use super::gperftools::next_definition;
use crate::cpu_profile::{self, Filter, NAME_BYTES};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::AtomicPtr;

/// `struct ProfilerState`.
#[repr(C)]
pub struct State {
    enabled: c_int,
    start_time: libc::time_t,
    profile_name: [c_char; NAME_BYTES],
    samples_gathered: c_int,
}

/// `struct ProfilerOptions`.
#[repr(C)]
pub struct Options {
    filter_in_thread: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    filter_in_thread_arg: *mut c_void,
}

/// Defines functions that call the next definition of the same name (`RTLD_NEXT`), if there is one.
macro_rules! exports {
    ($($(#[$doc:meta])* $symbol:literal
        fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// See the function of gperftools.
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $out {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            if let Some(function) = next_definition(&NEXT, $symbol) {
                // SAFETY: the symbol names a function of this type, which gets the program's
                // arguments unchanged.
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
    /// Begins a profile, which is written to this file. Returns 0 if that fails, or if a profile
    /// has begun already.
    "ProfilerStart"
    fn start(file: *const c_char) -> c_int {
        // SAFETY: null or a terminated string.
        unsafe { begin(file, null()) }
    }
    /// Like `ProfilerStart`, with a filter for samples.
    "ProfilerStartWithOptions"
    fn start_with_options(file: *const c_char, options: *const Options) -> c_int {
        // SAFETY: null or a terminated string; null or valid options.
        unsafe { begin(file, options) }
    }
    /// Ends the profile, and writes the file.
    "ProfilerStop"
    fn stop() -> () { cpu_profile::end() }
    /// Writes the profile so far. The file is written again at the end.
    "ProfilerFlush"
    fn flush() -> () { cpu_profile::flush() }
    /// Does nothing, as in gperftools.
    "ProfilerEnable"
    fn enable() -> () {}
    /// Does nothing, as in gperftools.
    "ProfilerDisable"
    fn disable() -> () {}
    /// Returns true if a profile runs. It always includes all threads.
    "ProfilingIsEnabledForAllThreads"
    fn is_enabled() -> c_int { c_int::from(cpu_profile::running().is_some()) }
    /// Does nothing: every thread is sampled.
    "ProfilerRegisterThread"
    fn register_thread() -> () {}
    /// Describes the profile that runs.
    "ProfilerGetCurrentState"
    fn current_state(state: *mut State) -> () {
        // SAFETY: the program passes null or memory for a state.
        unsafe { describe(state) }
    }
}

/// Begins a profile. Returns 0 if that fails.
///
/// # Safety
/// `file` is null or a terminated string, `options` null or valid.
unsafe fn begin(file: *const c_char, options: *const Options) -> c_int {
    if file.is_null() {
        return 0;
    }
    // SAFETY: a terminated string, and null or valid options.
    let (file, options) = unsafe { (CStr::from_ptr(file), options.as_ref()) };
    let filter = options.and_then(|options| {
        Some(Filter {
            function: options.filter_in_thread?,
            argument: options.filter_in_thread_arg,
        })
    });
    c_int::from(cpu_profile::begin(file, filter))
}

/// Describes the profile that runs.
///
/// # Safety
/// `state` is null or memory for a state.
unsafe fn describe(state: *mut State) {
    if state.is_null() {
        return;
    }
    // SAFETY: memory for a state, written as a whole before the name is copied into it.
    unsafe {
        state.write(State {
            enabled: 0,
            start_time: 0,
            profile_name: [0; NAME_BYTES],
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
