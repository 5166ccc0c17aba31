//! Frames of an interpreter, merged into a walk of the stack: they run inside a native frame, and
//! are interned on its inner side, as if it had called them.

use crate::Registers;
use crate::stack::Known;

/// A frame of an interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Inserted {
    /// An address on the stack that lies in the native frame which runs it.
    pub at: u64,
    /// What is interned for it.
    pub address: u64,
}

/// The frames of an interpreter in one walk.
#[derive(Clone, Copy, Debug)]
pub struct Insertion<'a> {
    /// Outermost first.
    pub frames: &'a [Inserted],
    /// How many of them, from the outermost on, are what the walk before this one had.
    pub same: usize,
}

impl<'a> Insertion<'a> {
    /// No frames.
    pub const NONE: Self = Self {
        frames: &[],
        same: 0,
    };

    /// Those of them that run further out than `sp`.
    #[inline]
    pub(crate) fn frames_above(&self, sp: u64) -> &'a [Inserted] {
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

    /// Whether a native frame whose stack begins at `sp` still has the same frames further out
    /// and in itself: `count` of them.
    #[inline]
    pub(crate) fn keeps(&self, count: usize, sp: u64) -> bool {
        count <= self.same && self.frames.get(count).is_none_or(|next| next.at < sp)
    }
}

/// The native frames of a walk, and the stack that they are on.
pub struct Trail<'a> {
    pub(crate) known: Known,
    pub(crate) count: usize,
    pub(crate) frame: &'a dyn Fn(usize) -> Registers,
}

impl<'a> Trail<'a> {
    /// For `count` native frames, by their registers, on a stack of which this is known.
    #[must_use]
    pub fn new(known: Known, count: usize, frame: &'a dyn Fn(usize) -> Registers) -> Self {
        Self {
            known,
            count,
            frame,
        }
    }

    /// Of a stack whose native frames are not given.
    #[inline]
    pub(crate) fn of_stack(known: Known) -> Self {
        Self {
            known,
            count: 0,
            frame: &|_| Registers::default(),
        }
    }

    /// The word at an address of the stack, if that is known to be readable.
    #[inline]
    #[must_use]
    pub fn peek(&self, address: u64) -> Option<u64> {
        self.known.peek(address)
    }

    /// Number of native frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The registers of a native frame; the innermost is first.
    #[must_use]
    pub fn frame(&self, index: usize) -> Option<Registers> {
        (index < self.count).then(|| (self.frame)(index))
    }
}
