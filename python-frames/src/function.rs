//! The function of a frame, whose version is cheaper to check than the [tag](super::tag) of the
//! code object.
//!
//! Code objects have no versions before 3.12, but functions do once the interpreter has specialised
//! a call to them. The version of a function is unique or 0, and becomes 0 when the function gets
//! another code object.

use super::layout::Layout;
use super::memory::{Memory, read_u32, read_word};
use super::quick_check::Version;

/// Function object of a frame. All zeros is no function.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Function {
    /// Address; 0 if there is none or it is not known to be readable.
    at: u64,
    /// Version; 0 if it has none yet, or if its code object is not the frame's.
    version: u32,
}

impl Function {
    /// Returns the function of a readable frame that runs `code`, if its memory is known to be
    /// readable. Makes no system call.
    ///
    /// # Safety
    /// `frame` is the address of a readable frame.
    #[inline(always)]
    pub unsafe fn find_known(layout: &Layout, memory: &mut Memory, frame: u64, code: u64) -> Self {
        // SAFETY: the frame is readable.
        unsafe { Self::find(layout, memory, frame, code, false) }
    }

    /// Like [`find_known`](Self::find_known), but probes memory that is not known yet.
    ///
    /// # Safety
    /// `frame` is the address of a readable frame.
    pub unsafe fn find_probing(
        layout: &Layout,
        memory: &mut Memory,
        frame: u64,
        code: u64,
    ) -> Self {
        // SAFETY: the frame is readable.
        unsafe { Self::find(layout, memory, frame, code, true) }
    }

    /// # Safety
    /// `frame` is the address of a readable frame.
    #[inline(always)]
    unsafe fn find(
        layout: &Layout,
        memory: &mut Memory,
        frame: u64,
        code: u64,
        may_probe: bool,
    ) -> Self {
        let mut function = Self::default();
        if layout.function_version == 0 {
            return function;
        }
        // SAFETY: the frame is readable.
        let at = unsafe { read_word(frame + layout.frame_function) };
        if memory.is_readable(at, layout.function_bytes(), may_probe) {
            function.at = at;
            function.read_version(layout, code);
        }
        function
    }

    /// Reads the current version if the function's code object is `code`.
    #[inline(always)]
    fn read_version(&mut self, layout: &Layout, code: u64) {
        // SAFETY: `find` found it readable, and a frame of the running thread keeps it alive.
        let (own_code, version) = unsafe {
            (
                read_word(self.at + layout.function_code),
                read_word(self.at + layout.function_version) as u32,
            )
        };
        self.version = if own_code == code { version } else { 0 };
    }

    /// Returns true if a frame has this function with an unchanged version. If its code object also
    /// is at the same address, it is the same code object.
    ///
    /// # Safety
    /// `frame` is the address of a readable frame.
    #[inline(always)]
    pub unsafe fn matches(&self, layout: &Layout, frame: u64) -> bool {
        // SAFETY: the frame is readable, and this function has a version.
        self.has_version(layout) && unsafe { self.is_unchanged_in(layout, frame) }
    }

    #[inline(always)]
    fn has_version(&self, layout: &Layout) -> bool {
        layout.function_version != 0 && self.version != 0
    }

    /// Compares a frame's function and its version.
    ///
    /// # Safety
    /// `frame` is the address of a readable frame, and this function has a version.
    #[inline(always)]
    unsafe fn is_unchanged_in(&self, layout: &Layout, frame: u64) -> bool {
        // SAFETY: the frame is readable. A function with a version was found readable, and is read
        // only while the frame keeps it alive.
        unsafe {
            read_word(frame + layout.frame_function) == self.at
                && read_u32(self.at + layout.function_version) == self.version
        }
    }

    /// Returns the version, or `None` if there is none.
    #[inline]
    pub fn version(&self) -> Option<Version> {
        (self.version != 0).then_some(Version::Function(self.at, self.version))
    }
}
