//! A frame: what is read of it, and what of that is kept.

use super::function::Function;
use super::layout::{Layout, Style};
use super::mark::Mark;
use super::memory::word;
use super::plain::{Plain, Version};
use unwind::inserted::Inserted;

/// The words of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Words {
    pub code: u64,
    pub previous: u64,
    pub instruction: u64,
}

impl Words {
    /// # Safety
    /// A frame can be read there.
    #[inline(always)]
    pub unsafe fn of(layout: &Layout, frame: u64) -> Self {
        // SAFETY: the caller's.
        unsafe {
            Self {
                code: code_of(layout, frame),
                previous: word(frame + layout.frame_previous),
                instruction: word(frame + layout.frame_instruction),
            }
        }
    }
}

/// The code object of a frame. Interpreters of later versions keep a note in the lowest bits.
///
/// # Safety
/// A frame can be read there.
#[inline(always)]
pub unsafe fn code_of(layout: &Layout, frame: u64) -> u64 {
    // SAFETY: the caller's.
    let code = unsafe { word(frame + layout.frame_code) };
    match layout.style {
        Style::Entries => code & !3,
        _ => code,
    }
}

/// A frame as it was read.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Seen {
    pub frame: u64,
    pub words: Words,
    pub inserted: Inserted,
    pub number: u32,
    /// Not 0: the last of those that its native frame runs (3.11).
    pub is_entry: u8,
    /// To the next one further out.
    pub link: Link,
    pub function: Function,
    pub mark: Mark,
}

impl Seen {
    /// What is compared of it first.
    #[inline]
    pub fn plain(&self, layout: &Layout) -> Plain {
        let version = match layout.function_version {
            0 => {
                let (name, version) = self.mark.version();
                (version != 0).then_some(Version::OfCode(name, version))
            }
            _ => self.function.version(),
        };
        let tells = |_: &Version| self.link == Link::Direct;
        Plain::of(self.frame, self.words, version.filter(tells))
    }
}

/// How a frame leads to the next one further out.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Link {
    /// It names it, and the same native frame runs both.
    Direct,
    /// Another native frame runs the next one.
    Native,
    /// There is none.
    None,
}

/// Not 0: a frame is the last of those that its native frame runs (3.11).
///
/// # Safety
/// It can be read.
#[inline(always)]
pub unsafe fn is_entry(layout: &Layout, frame: u64) -> u8 {
    match layout.style {
        // SAFETY: the caller's.
        Style::Records => unsafe { *((frame + layout.frame_owner + 4) as *const u8) },
        _ => 0,
    }
}
