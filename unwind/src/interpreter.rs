//! Interpreter frames, which walks merge into the native stack. An interpreter frame is interned as
//! the callee of the native frame that runs it.

use crate::Registers;
use crate::stack::Known;

/// Frame of an interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InterpreterFrame {
    /// Any stack address inside the native frame that runs this one.
    pub at: u64,
    /// Value to intern.
    pub address: u64,
}

/// Interpreter frames of one walk.
#[derive(Clone, Copy, Debug)]
pub struct InterpreterFrames<'a> {
    /// Frames, outermost first.
    pub frames: &'a [InterpreterFrame],
    /// Number of outermost frames that are unchanged since the previous walk.
    pub unchanged: usize,
}

impl<'a> InterpreterFrames<'a> {
    /// No frames.
    pub const NONE: Self = Self {
        frames: &[],
        unchanged: 0,
    };

    /// Returns the frames that run at or above stack pointer `sp`.
    #[inline]
    pub(crate) fn frames_above(&self, sp: u64) -> &'a [InterpreterFrame] {
        let count = self
            .frames
            .iter()
            .rev()
            .take_while(|frame| frame.at < sp)
            .count();
        self.frames
            .get(..self.frames.len() - count)
            .unwrap_or_default()
    }

    /// Returns true if the interpreter frames that run in a native frame at stack pointer `sp`, and
    /// in all frames outside it, are still the outermost `count` ones, unchanged.
    #[inline]
    pub(crate) fn keeps(&self, count: usize, sp: u64) -> bool {
        count <= self.unchanged && self.frames.get(count).is_none_or(|next| next.at < sp)
    }
}

/// Native frames of a walk, and the stack that they are on.
pub struct NativeStack<'a> {
    pub(crate) known: Known,
    pub(crate) count: usize,
    pub(crate) frame: &'a dyn Fn(usize) -> Registers,
}

impl<'a> NativeStack<'a> {
    /// Describes `count` native frames, given by `frame`, on a stack of which `known` is readable.
    #[must_use]
    pub fn new(known: Known, count: usize, frame: &'a dyn Fn(usize) -> Registers) -> Self {
        Self {
            known,
            count,
            frame,
        }
    }

    /// Describes a stack without giving its native frames.
    #[inline]
    pub(crate) fn without_frames(known: Known) -> Self {
        Self {
            known,
            count: 0,
            frame: &|_| Registers::default(),
        }
    }

    /// Reads a word of the stack. Returns `None` if its address is not known to be readable.
    #[inline]
    #[must_use]
    pub fn peek(&self, address: u64) -> Option<u64> {
        self.known.peek(address)
    }

    /// Returns the number of native frames; 0 if they are not given.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if no native frames are given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the registers of a native frame; 0 is the innermost.
    #[must_use]
    pub fn frame(&self, index: usize) -> Option<Registers> {
        (index < self.count).then(|| (self.frame)(index))
    }
}
