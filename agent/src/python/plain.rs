//! The minimum needed to know that a frame of the last walk is unchanged.
//!
//! It is compared first for all frames, and for most frames nothing else is; it is stored
//! contiguously for the processor's cache: everything else that is known of a frame is more than
//! four times as large.

use super::frame::{Words, code_of};
use super::layout::{Layout, MOST_OFFSET};
use super::memory::{half, word};
use super::pair::{Pair, Same};

/// What has a version that no other one has, and which: 0 is none.
#[derive(Clone, Copy)]
pub enum Version {
    /// A function, at this address.
    OfFunction(u64, u32),
    /// The frame's code object, whose name is at this address: the version is its interpreter's,
    /// and the name distinguishes interpreters.
    OfCode(u64, u32),
}

/// Of a frame.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Plain {
    /// The next frame, and the instruction.
    leads: Pair,
    frame: u64,
    /// What has the version: the function or the code object; or [`never`].
    versioned: u64,
    name: u64,
    version: u32,
}

/// Looked at in the place of a frame that is none: as long as what is read of a frame.
static NONE: [u64; MOST_OFFSET as usize / 8 + 2] = [0; MOST_OFFSET as usize / 8 + 2];

/// The address of no function and no code object. Whatever a frame holds, nothing that may not be
/// there is read behind it.
pub fn never() -> u64 {
    NONE.as_ptr() as u64
}

impl Plain {
    /// For a frame that was read, with the version of its function or that of its code object if
    /// that tells it: then it names the next one further out, which the same native frame runs. Of
    /// none if it has the address 0.
    pub fn of(frame: u64, words: Words, version: Option<Version>) -> Self {
        let (versioned, name, version) = match version {
            Some(Version::OfFunction(function, version)) => (function, 0, version),
            Some(Version::OfCode(name, version)) => (words.code, name, version),
            None => (never(), 0, 0),
        };
        Self {
            leads: Pair(words.previous, words.instruction),
            frame: match frame {
                0 => never(),
                _ => frame,
            },
            versioned,
            name,
            version,
        }
    }

    /// Where it is.
    #[inline(always)]
    pub fn frame(&self) -> u64 {
        self.frame
    }

    /// Whether it is at the same instruction and leads to the same frame.
    ///
    /// # Safety
    /// As of [`is_same`](Self::is_same).
    #[inline(always)]
    pub unsafe fn leads_as_before(&self, layout: &Layout) -> Same {
        let (previous, instruction) = (layout.frame_previous, layout.frame_instruction);
        // SAFETY: the caller's.
        unsafe {
            let (previous, instruction) = (self.frame + previous, self.frame + instruction);
            Same::so_far().and_both(previous, instruction, &self.leads)
        }
    }

    /// Whether the frame is what it was. That it is not the last one of its native frame either is
    /// left to who looks at that one: its native frame would not lead to the same one.
    ///
    /// # Safety
    /// It could be read in the last walk, and the thread's own frames lead to it.
    #[inline(always)]
    pub unsafe fn is_same(&self, layout: &Layout) -> bool {
        let frame = self.frame;
        // SAFETY: the caller's; the frame holds what has the version, which was found readable.
        unsafe {
            let by_version = match layout.function_version {
                0 => {
                    code_of(layout, frame) == self.versioned
                        && half(self.versioned + layout.version) == self.version
                        && word(self.versioned + layout.name) == self.name
                }
                version => {
                    word(frame + layout.frame_function) == self.versioned
                        && half(self.versioned + version) == self.version
                }
            };
            by_version && self.leads_as_before(layout).holds()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::layout;

    /// Nothing is followed that the frame itself does not hold.
    #[test]
    fn a_frame_without_a_version_is_never_the_same_whatever_it_holds() {
        let words = |code, previous, instruction| Words {
            code,
            previous,
            instruction,
        };
        for garbage in [0, 1, 4, 8, 4096, u64::MAX] {
            let frame = [garbage; 16];
            let at = frame.as_ptr() as u64;
            let plain = Plain::of(at, words(garbage, garbage, garbage), None);
            // SAFETY: the frame is the array above.
            assert!(!unsafe { plain.is_same(&layout::PYTHON_3_11) });
        }
        let none = Plain::of(0, words(never(), 0, 0), None);
        // SAFETY: of no frame, as much is read as there is in its place.
        assert!(!unsafe { none.is_same(&layout::PYTHON_3_11) });
    }
}
