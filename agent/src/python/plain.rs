//! The least that tells that a frame of the last walk is what it was.
//!
//! What is compared of most frames, side by side for the processor's cache: everything else that is
//! known of a frame is more than four times as large.

use super::layout::Layout;
use super::memo::Words;
use super::memory::{half, word};

/// What has a version that no other one has, and which: 0 is none.
#[derive(Clone, Copy)]
pub enum Version {
    /// A function, at this address.
    OfFunction(u64, u32),
    /// The frame's code object, whose name is at this address: the version is its interpreter's, and
    /// the name tells interpreters apart.
    OfCode(u64, u32),
}

/// Of a frame that names the next one further out, which the same native frame runs, and whose code
/// object is told by a version.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Plain {
    frame: u64,
    /// The next frame, and the instruction.
    leads: [u64; 2],
    /// What has the version: the function or the code object.
    versioned: u64,
    name: u64,
    version: u32,
}

/// Where a frame is told by more, this is looked at in its place, and no function or code object has
/// that address.
static NONE: [u64; 16] = [0; 16];
const NEVER: u64 = 4;

impl Plain {
    /// Of a frame that is told by more than this.
    pub fn none() -> Self {
        Self {
            frame: NONE.as_ptr() as u64,
            leads: [0; 2],
            versioned: NEVER,
            name: 0,
            version: 0,
        }
    }

    /// Of a frame that was read, with the version of its function or that of its code object.
    pub fn of(frame: u64, words: Words, version: Version) -> Self {
        let (versioned, name, version) = match version {
            Version::OfFunction(function, version) => (function, 0, version),
            Version::OfCode(name, version) => (words.code, name, version),
        };
        Self {
            frame,
            leads: [words.previous, words.instruction],
            versioned,
            name,
            version,
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
                    word(frame + layout.frame_code) & !3 == self.versioned
                        && half(self.versioned + layout.version) == self.version
                        && word(self.versioned + layout.name) == self.name
                }
                version => {
                    word(frame + layout.frame_function) == self.versioned
                        && half(self.versioned + version) == self.version
                }
            };
            let (previous, instruction) = (layout.frame_previous, layout.frame_instruction);
            by_version
                && match instruction == previous + 8 {
                    // At a time.
                    true => pair(frame + previous) == self.leads,
                    false => {
                        word(frame + previous) == self.leads[0]
                            && word(frame + instruction) == self.leads[1]
                    }
                }
        }
    }
}

/// Two words.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn pair(at: u64) -> [u64; 2] {
    // SAFETY: the caller's; nothing is known of alignment.
    unsafe { (at as *const [u64; 2]).read_unaligned() }
}
