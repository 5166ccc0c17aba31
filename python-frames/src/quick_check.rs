//! Compares the few words that show that a cached frame is unchanged.
//!
//! For most frames of most samples, nothing else is read. So these words are stored contiguously
//! and separate from the rest of the cache entry, which is more than four times as large.

use super::compare::{Comparison, Pair};
use super::frame::code_of;
use super::layout::{self, Layout, MAX_CODE_BYTES, MAX_FRAME_BYTES};
use super::memory::{read_u32, read_word};
use cpython::chain::Words;

/// Version that identifies the code of a frame. 0 is not a version.
#[derive(Clone, Copy)]
pub enum Version {
    /// Version of the function at this address.
    Function(u64, u32),
    /// Version of the frame's code object, whose name is at this address. Versions are unique in
    /// one interpreter; the name tells interpreters apart.
    Code(u64, u32),
}

/// Words of one cached frame.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QuickCheck {
    /// Caller's frame and current instruction.
    links: Pair,
    /// Address of the frame.
    frame: u64,
    /// Address of the function or code object that has the version, or
    /// [`never_matching_address()`].
    versioned: u64,
    /// Address of the code object's name; 0 if the version is a function's.
    name: u64,
    version: u32,
}

/// Zeros that are read instead of a frame, a function or a code object; as large as the largest of
/// these.
static ZEROS: [u64; MAX_CODE_BYTES as usize / 8] = [0; MAX_CODE_BYTES as usize / 8];
const _: () = assert!(MAX_FRAME_BYTES <= MAX_CODE_BYTES);
const _: () = assert!(layout::PYTHON_3_11.function_bytes() <= MAX_CODE_BYTES);

/// Returns an address that no function or code object has, but that is readable like one. A check
/// with this address always fails, and never reads memory that may be unmapped.
pub fn never_matching_address() -> u64 {
    ZEROS.as_ptr() as u64
}

impl QuickCheck {
    /// Creates the check of a frame that was read. `version` is `None` unless the frame points to
    /// its caller and the same native frame runs both; without a version, the check always fails.
    /// `frame` 0 stands for no frame.
    pub fn of(frame: u64, words: Words, version: Option<Version>) -> Self {
        let (versioned, name, version) = match version {
            Some(Version::Function(function, version)) => (function, 0, version),
            Some(Version::Code(name, version)) => (words.code, name, version),
            None => (never_matching_address(), 0, 0),
        };
        Self {
            links: Pair(words.previous, words.instruction),
            frame: match frame {
                0 => never_matching_address(),
                _ => frame,
            },
            versioned,
            name,
            version,
        }
    }

    /// Returns the address of the frame.
    #[inline(always)]
    pub fn frame(&self) -> u64 {
        self.frame
    }

    /// Compares the frame's instruction and its caller.
    ///
    /// # Safety
    /// See [`is_same`](Self::is_same).
    #[inline(always)]
    pub unsafe fn compare_links(&self, layout: &Layout) -> Comparison {
        // SAFETY: the frame is readable, and both words lie in it.
        unsafe {
            let previous = self.frame + layout.frame_previous;
            let instruction = self.frame + layout.frame_instruction;
            Comparison::new().and_both(previous, instruction, &self.links)
        }
    }

    /// Returns true if the frame is unchanged. Does not check that its caller still is run by the
    /// same native frame: the check of the caller fails if it is not.
    ///
    /// # Safety
    /// The frame was readable in the last walk, and this walk came to it through unchanged callees.
    #[inline(always)]
    pub unsafe fn is_same(&self, layout: &Layout) -> bool {
        let frame = self.frame;
        // SAFETY: the frame is readable. The versioned object was found readable, and is read only
        // while the frame keeps it alive.
        unsafe {
            let by_version = match layout.function_version {
                0 => {
                    code_of(layout, frame) == self.versioned
                        && read_u32(self.versioned + layout.version) == self.version
                        && read_word(self.versioned + layout.name) == self.name
                }
                version => {
                    read_word(frame + layout.frame_function) == self.versioned
                        && read_u32(self.versioned + version) == self.version
                }
            };
            by_version && self.compare_links(layout).is_equal()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;

    /// The check must not follow any of the pointers in the frame.
    #[test]
    fn the_check_of_a_frame_without_a_version_always_fails() {
        let words = |code, previous, instruction| Words {
            code,
            previous,
            instruction,
        };
        for garbage in [0, 1, 4, 8, 4096, u64::MAX] {
            let frame = [garbage; 16];
            let at = frame.as_ptr() as u64;
            let plain = QuickCheck::of(at, words(garbage, garbage, garbage), None);
            // SAFETY: the frame is the array above.
            assert!(!unsafe { plain.is_same(&layout::PYTHON_3_11) });
        }
        let none = QuickCheck::of(0, words(never_matching_address(), 0, 0), None);
        // SAFETY: `never` is readable like a frame.
        assert!(!unsafe { none.is_same(&layout::PYTHON_3_11) });
    }
}
