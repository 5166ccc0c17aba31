//! The interpreter, the session that its code objects are recorded in, and the process that both
//! belong to.

use super::layout::{Layout, Style};
use core::ffi::c_void;
use shm_protocol::codes::Codes;

/// Addresses where the machine code of a function begins and ends.
#[derive(Clone, Copy)]
pub struct Code {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

/// Interpreter whose frames can be read.
#[derive(Clone, Copy)]
pub struct Runtime {
    /// Address of `_PyRuntime`.
    pub at: u64,
    /// Offsets of its data.
    pub layout: Layout,
    /// Evaluation loop. Only used for versions whose frames do not show which native frame runs
    /// them.
    pub evaluation: Code,
    /// True if it is in a library that may be unloaded.
    pub may_unload: bool,
    /// True if memory that the interpreter frees may be unmapped, as by the C library's allocator.
    pub unmaps_freed: bool,
}

impl Runtime {
    /// Returns true if frames can be read without walking the native frames that run them.
    #[inline]
    pub fn is_found_by_stack(&self) -> bool {
        self.layout.style != Style::Objects
    }
}

/// Session that a walk records code objects in.
pub struct Session<'a> {
    /// Number of the session.
    pub number: u64,
    /// Code objects of the session.
    pub codes: &'a Codes<'a>,
    /// The process.
    pub host: &'a dyn Host,
}

/// Process in which frames are read. None of the functions may allocate, lock or panic. All are
/// called rarely, except [`record_success`](Self::record_success): it is called for each walk whose
/// frames differ from the last one's.
pub trait Host {
    /// Maps zeroed private memory of `bytes` bytes. Returns null if there is none.
    fn map(&self, bytes: usize) -> *mut c_void;

    /// Unmaps what [`map`](Self::map) returned.
    ///
    /// # Safety
    /// `at` and `bytes` describe one mapping, which is no longer in use.
    unsafe fn unmap(&self, at: *mut c_void, bytes: usize);

    /// Backs `bytes` of the session's code objects with memory. Returns false if that fails.
    fn reserve_codes(&self, bytes: usize) -> bool;

    /// Records that a stack was read, so the interpreter's data are as expected.
    fn record_success(&self);

    /// Records that a stack could not be read.
    fn record_failure(&self);
}
