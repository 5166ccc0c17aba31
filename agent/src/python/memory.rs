//! Which memory may be read.
//!
//! The frames of the running thread, and what they lead to, are held by the thread: nobody unmaps
//! them while it is here. So an address that is met for the first time is probed, in case the data
//! are corrupt, and trusted when it is met again in such a chain. Most frames lie in pieces of
//! memory that only their thread unmaps, and whose state names them; a piece is probed once.
//!
//! A thread that a signal interrupted may be unmapping what its frames lead to: there, an address
//! is trusted until the end of the walk, and not in the next one.

// Decision 59: timers probe each page again.
use unwind::inserted::Trail;
use unwind::probe;

/// Pieces that are remembered.
const PIECES: usize = 32;
/// Addresses that are remembered.
const SPOTS: usize = 1024;
/// In a remembered address: what begins there is known to be readable beyond its page.
const FURTHER: u64 = 1;
/// Largest piece that is believed in.
const MOST: u64 = 64 << 20;

/// Pages that are remembered while an interrupted thread is read.
const PAGES: usize = 256;

/// What a thread remembers. Zeroed memory is nothing.
#[repr(C)]
pub struct Memory {
    /// Start and end.
    pieces: [(u64, u64); PIECES],
    next: usize,
    spots: [u64; SPOTS],
    /// The thread's state, of which [`STATE`] bytes may be read.
    state: u64,
    /// Bytes of a frame that are read.
    frame: u64,
    /// Start and end of the piece that frames are in now.
    current: (u64, u64),
    /// For an interrupted thread: pages that were found readable in this walk.
    pages: [u64; PAGES],
    is_interrupted: bool,
}

/// Bytes of a thread's state that are read at most.
pub const STATE: u64 = 344;

/// The word at an address that is known to be readable.
///
/// # Safety
/// It is.
#[inline(always)]
pub unsafe fn word(at: u64) -> u64 {
    // SAFETY: the caller's; nothing is known of alignment.
    unsafe { (at as *const u64).read_unaligned() }
}

/// Half of a word.
///
/// # Safety
/// It can be read.
#[inline(always)]
pub unsafe fn half(at: u64) -> u32 {
    // SAFETY: the caller's.
    unsafe { (at as *const u32).read_unaligned() }
}

impl Memory {
    pub fn forget(&mut self) {
        self.state = 0;
        self.current = (0, 0);
        self.pieces = [(0, 0); PIECES];
        self.spots = [0; SPOTS];
        self.is_interrupted = false;
    }

    /// Forgets what was found readable before, for a walk of a thread that was interrupted.
    pub fn interrupt(&mut self) {
        self.forget();
        self.pages = [0; PAGES];
        self.is_interrupted = true;
    }

    /// Whether that walk has not ended yet.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Whether all pages from `start` to `end` can be read: each is probed once in a walk of a thread
    /// that was interrupted, and each time in others.
    pub fn are_readable(&mut self, start: u64, end: u64) -> bool {
        if !self.is_interrupted {
            return probe::are_readable(start, end);
        }
        if end < start {
            return false;
        }
        let first = start / probe::PAGE;
        let last = end.max(start + 1).wrapping_sub(1) / probe::PAGE;
        (first..=last).all(|page| {
            // Nothing is in the first page.
            let known = &mut self.pages[page as usize % PAGES];
            let is_readable =
                page != 0 && (*known == page || probe::is_readable(page * probe::PAGE));
            if is_readable {
                *known = page;
            }
            is_readable
        })
    }

    /// Takes a thread's state, which was probed, and the size of its frames.
    pub fn take_state(&mut self, state: u64, frame: u64) {
        (self.state, self.frame) = (state, frame);
    }

    /// A word of the stack or of the thread's state.
    #[inline]
    pub fn record_word(&self, trail: &Trail<'_>, at: u64) -> Option<u64> {
        let in_state = self.state != 0 && at.wrapping_sub(self.state) < STATE - 8;
        // SAFETY: the state is readable, as was found when it was taken.
        trail
            .peek(at)
            .or_else(|| in_state.then(|| unsafe { word(at) }))
    }

    /// Begins with the piece that the thread's state names, at `piece` there. Of a thread that was
    /// interrupted, frames are examined one by one: whole pieces are not known again in the next
    /// walk.
    ///
    /// # Safety
    /// The state may be read.
    #[inline]
    pub unsafe fn begin(&mut self, piece: u64) {
        if self.is_interrupted {
            self.current = (0, 0);
            return;
        }
        // SAFETY: the caller's.
        let (start, end) = unsafe { (word(piece), word(piece + 16)) };
        if self.current != (start, end) {
            self.current = match self.knows_piece(start, end) {
                true => (start, end),
                false => (0, 0),
            };
        }
    }

    /// Whether a piece is readable: probed when it is first met.
    #[inline]
    fn knows_piece(&mut self, start: u64, end: u64) -> bool {
        self.pieces.contains(&(start, end)) || self.probe_piece(start, end)
    }

    #[cold]
    fn probe_piece(&mut self, start: u64, end: u64) -> bool {
        let bytes = end.saturating_sub(start);
        let sane = start != 0 && start.is_multiple_of(8) && bytes > 24 && bytes <= MOST;
        if !sane || !self.are_readable(start, end) {
            return false;
        }
        self.pieces[self.next % PIECES] = (start, end);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Whether a frame may be read.
    #[inline]
    pub fn has_frame(&mut self, trail: &Trail<'_>, frame: u64) -> bool {
        let (start, end) = self.current;
        let inside = frame.wrapping_sub(start) <= (end - start).saturating_sub(self.frame);
        if !frame.is_multiple_of(8) || frame == 0 {
            return false;
        }
        (inside && start != 0) || self.has_other_frame(trail, frame)
    }

    /// A frame on the native stack, in an older piece, or in an object of its own.
    fn has_other_frame(&mut self, trail: &Trail<'_>, frame: u64) -> bool {
        if trail.peek(frame).is_some() {
            return trail.peek(frame + self.frame - 8).is_some();
        }
        let bytes = self.frame;
        if self.has_spot(frame, bytes, false) {
            return true;
        }
        self.is_in_older(frame) || self.has_spot(frame, bytes, true)
    }

    /// Whether a frame is in a piece before the current one, which becomes the current one.
    fn is_in_older(&mut self, frame: u64) -> bool {
        let (mut start, _) = self.current;
        for _ in 0..PIECES {
            if start == 0 {
                return false;
            }
            // SAFETY: a piece that is known to be readable begins with these two words.
            let previous = unsafe { word(start) };
            if previous == 0 || !self.has_spot(previous, 24, true) {
                return false;
            }
            // SAFETY: readable, as just found.
            let bytes = unsafe { word(previous + 8) };
            let end = previous.saturating_add(bytes);
            if !self.knows_piece(previous, end) {
                return false;
            }
            if frame.wrapping_sub(previous) <= bytes.saturating_sub(self.frame) {
                self.current = (previous, end);
                return true;
            }
            start = previous;
        }
        false
    }

    /// Whether `bytes` at an address, at most a page, were found readable before, or are now if
    /// `probes`.
    pub fn has_spot(&mut self, at: u64, bytes: u64, probes: bool) -> bool {
        let slot = (at >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        let slot = slot as usize % SPOTS;
        let spot = self.spots[slot];
        // For an address that was met with fewer bytes, the next page is not known.
        let further = u64::from(at % probe::PAGE + bytes > probe::PAGE);
        if spot & !FURTHER == at && spot & FURTHER >= further {
            // An empty one has the address 0.
            return at != 0;
        }
        let found =
            probes && at.is_multiple_of(8) && self.are_readable(at, at.saturating_add(bytes));
        if found {
            self.spots[slot] = at | further;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn mmap(at: u64, len: usize, access: i32, flags: i32, file: i32, offset: i64) -> u64;
        fn mprotect(at: u64, len: usize, access: i32) -> i32;
        fn munmap(at: u64, len: usize) -> i32;
    }

    fn nothing() -> std::boxed::Box<Memory> {
        std::boxed::Box::new(Memory {
            pieces: [(0, 0); PIECES],
            next: 0,
            spots: [0; SPOTS],
            state: 0,
            frame: 88,
            current: (0, 0),
            pages: [0; PAGES],
            is_interrupted: false,
        })
    }

    #[test]
    fn no_piece_goes_beyond_the_last_address() {
        let mut memory = nothing();
        let stack = [0_u64; 64];
        let here = stack.as_ptr() as u64;
        assert!(memory.knows_piece(here, here + 512));
        for (start, end) in [(!15, 200), (!7, 64), (here, here - 8), (here, 0), (!63, !7)] {
            assert!(!memory.knows_piece(start, end), "{start:x} {end:x}");
        }
    }

    #[test]
    fn few_bytes_at_an_address_are_no_more() {
        let page = probe::PAGE as usize;
        // SAFETY: new memory, of which a page is hidden.
        let start = unsafe { mmap(0, 2 * page, 3, 0x22, -1, 0) };
        // SAFETY: ours, and nobody has it.
        unsafe { mprotect(start + probe::PAGE, page, 0) };
        let (mut memory, at) = (nothing(), start + probe::PAGE - 32);
        assert!(!memory.has_spot(at, 24, false), "not met yet");
        assert!(memory.has_spot(at, 24, true) && memory.has_spot(at, 32, false));
        assert!(!memory.has_spot(at, 40, true), "the next page is nobody's");
        assert!(memory.has_spot(at, 24, false));
        // SAFETY: ours.
        unsafe { munmap(start, 2 * page) };
    }

    #[test]
    fn an_interrupted_thread_s_memory_is_believed_in_for_one_walk() {
        let page = probe::PAGE as usize;
        // SAFETY: new memory.
        let start = unsafe { mmap(0, page, 3, 0x22, -1, 0) };
        let (mut memory, end) = (nothing(), start + probe::PAGE);
        assert!(memory.has_spot(start, 24, true));
        memory.interrupt();
        assert!(!memory.has_spot(start, 24, false), "of an earlier walk");
        assert!(memory.has_spot(start, 24, true) && memory.are_readable(start, end));
        // Not unmapped: other tests' memory may come to be there.
        // SAFETY: ours, and nobody has it.
        unsafe { mprotect(start, page, 0) };
        assert!(memory.are_readable(start + 8, end), "in this walk");
        memory.interrupt();
        assert!(!memory.are_readable(start, end) && !memory.has_spot(start, 24, true));
        for (start, end) in [(0, 8), (!7, 64), (!7, !0), (end, end - 8)] {
            assert!(!memory.are_readable(start, end), "{start:x} {end:x}");
        }
        memory.forget();
        assert!(!memory.is_interrupted() && !memory.are_readable(start, end));
        // SAFETY: ours.
        unsafe { munmap(start, page) };
    }
}
