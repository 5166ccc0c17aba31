//! A cheaper check than its [mark](super::mark) that a frame still runs the same code object.
//!
//! Before 3.12, code objects have no versions, but functions that the interpreter has specialised a
//! call of have: a version is 0 or no other function's, and it becomes 0 when the function gets
//! another code object.

use super::layout::Layout;
use super::memory::{Memory, half, word};
use super::plain::Version;

/// The function of a frame. Zeroed memory is none.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Function {
    /// 0: none, or it is not known whether it can be read.
    at: u64,
    /// 0: it has none yet, or its code object is not the frame's.
    version: u32,
}

impl Function {
    /// That of a frame that can be read, which runs this code object; if it was met before.
    #[inline(always)]
    pub fn met(layout: &Layout, memory: &mut Memory, (frame, code): (u64, u64)) -> Self {
        Self::find(layout, memory, (frame, code), false)
    }

    /// The same, also if it was not met before.
    pub fn looked_for(layout: &Layout, memory: &mut Memory, frame: (u64, u64)) -> Self {
        Self::find(layout, memory, frame, true)
    }

    #[inline(always)]
    fn find(layout: &Layout, memory: &mut Memory, (frame, code): (u64, u64), probes: bool) -> Self {
        let mut function = Self::default();
        if layout.function_version == 0 {
            return function;
        }
        // SAFETY: callers have read the frame.
        let at = unsafe { word(frame + layout.frame_function) };
        if memory.has_spot(at, layout.function_version + 8, probes) {
            function.at = at;
            function.look(layout, code);
        }
        function
    }

    /// Takes the version that it has now, if its code object is the frame's.
    #[inline(always)]
    fn look(&mut self, layout: &Layout, code: u64) {
        // SAFETY: found readable, and a frame of the running thread holds it.
        let (own, version) = unsafe {
            (
                word(self.at + layout.function_code),
                word(self.at + layout.function_version) as u32,
            )
        };
        self.version = if own == code { version } else { 0 };
    }

    /// Whether a frame's function is this one, with the same version: where its code object is at
    /// the same address, it is the same.
    ///
    /// # Safety
    /// The frame can be read.
    #[inline(always)]
    pub unsafe fn holds(&self, layout: &Layout, frame: u64) -> bool {
        // SAFETY: the caller's.
        self.has_version(layout) && unsafe { self.is_of(layout, frame) }
    }

    #[inline(always)]
    fn has_version(&self, layout: &Layout) -> bool {
        layout.function_version != 0 && self.version != 0
    }

    /// Whether a frame's function is this one, with the same version.
    ///
    /// # Safety
    /// The frame can be read, and this has a version.
    #[inline(always)]
    unsafe fn is_of(&self, layout: &Layout, frame: u64) -> bool {
        // SAFETY: the caller's; the frame holds what is at this address, which was found readable.
        unsafe {
            word(frame + layout.frame_function) == self.at
                && half(self.at + layout.function_version) == self.version
        }
    }

    /// Its version, if it has one.
    #[inline]
    pub fn version(&self) -> Option<Version> {
        (self.version != 0).then_some(Version::OfFunction(self.at, self.version))
    }
}
