//! Entry of the frame cache.

use super::function::Function;
use super::layout::Layout;
use super::quick_check::{QuickCheck, Version};
use super::tag::CodeTag;
use cpython::chain::Words;
use unwind::interpreter::InterpreterFrame;

/// A frame in the cache.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CachedFrame {
    /// Address of the frame; 0 if this stands for the outer frames of a stack that was too deep.
    pub frame: u64,
    /// Words of the frame when it was last read.
    pub words: Words,
    /// The frame as it is merged into the stack.
    pub inserted: InterpreterFrame,
    /// Number of the code object in the segment, or `NO_CODE`.
    pub number: u32,
    /// Nonzero if this is the outermost frame that its native frame runs (3.11).
    pub is_entry: u8,
    /// Link to the caller.
    pub link: Link,
    pub function: Function,
    pub tag: CodeTag,
}

impl CachedFrame {
    /// Returns the words of this frame that are compared first.
    #[inline]
    pub fn quick_check(&self, layout: &Layout) -> QuickCheck {
        let version = match layout.function_version {
            0 => {
                let (name, version) = self.tag.version();
                (version != 0).then_some(Version::Code(name, version))
            }
            _ => self.function.version(),
        };
        let is_direct = |_: &Version| self.link == Link::Direct;
        QuickCheck::of(self.frame, self.words, version.filter(is_direct))
    }
}

/// Link from a frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Link {
    /// The frame points to its caller, and the same native frame runs both.
    Direct,
    /// Another native frame runs the caller.
    Native,
    /// The frame has no caller.
    None,
}
