//! Tracks which memory may be read while the frames of a thread are followed.
//!
//! A sample must never fault, and probing each address with a system call would be too slow. If a
//! thread samples itself in an allocation, the objects that its frames refer to stay mapped. So an
//! address is probed when it is first encountered, in case the data are corrupt, and trusted from
//! then on. Most frames lie in chunks (`_PyStackChunk`), which only their own thread unmaps; a
//! chunk is probed once as a whole.
//!
//! A thread that a signal interrupted may be unmapping what its frames lead to. There, an address
//! is trusted only until the end of the walk.

// Decision 59: a walk in a timer's signal handler probes each page again.
use super::layout::Layout;
use unwind::interpreter::NativeStack;
use unwind::probe;

/// Maximum number of chunks that are remembered.
const MAX_CHUNKS: usize = 32;
/// Entries of the direct-mapped cache of readable addresses.
const ADDRESS_ENTRIES: usize = 1024;
/// Flag in a cached address: the next page is known to be readable, too.
const NEXT_PAGE: u64 = 1;
/// Largest plausible size of a chunk, in bytes.
const MAX_CHUNK_BYTES: u64 = 64 << 20;
/// Entries of the direct-mapped cache of readable pages, for an interrupted thread.
const PAGE_ENTRIES: usize = 256;

/// Chunk of a thread's Python stack. An empty one means that the chunk is not known.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Chunk {
    start: u64,
    end: u64,
}

impl Chunk {
    /// Returns true if all of `bytes` bytes at an address lie in the chunk.
    #[inline(always)]
    fn contains(&self, at: u64, bytes: u64) -> bool {
        at >= self.start && self.end.checked_sub(at).is_some_and(|room| room >= bytes)
    }
}

/// Memory that is known to be readable for one thread. All zeros: none.
#[repr(C)]
pub struct Memory {
    /// Ring of the chunks that were probed last.
    chunks: [Chunk; MAX_CHUNKS],
    /// Number of chunks written to the ring so far.
    chunks_written: usize,
    /// Cached addresses, with [`NEXT_PAGE`] in the lowest bit; 0 is empty.
    addresses: [u64; ADDRESS_ENTRIES],
    /// Address of the thread's state; 0 before the first.
    state: u64,
    /// Number of bytes of the thread's state that are readable.
    state_bytes: u64,
    /// Number of bytes of a frame that are read.
    frame_bytes: u64,
    /// Chunk of the last frame.
    current_chunk: Chunk,
    /// Numbers of pages that were found readable in the current walk of an interrupted thread.
    pages: [u64; PAGE_ENTRIES],
    is_interrupted: bool,
}

/// Reads eight bytes.
///
/// # Safety
/// The bytes at `at` are readable.
#[inline(always)]
pub unsafe fn read_word(at: u64) -> u64 {
    // SAFETY: eight bytes are readable; any alignment will do.
    unsafe { (at as *const u64).read_unaligned() }
}

/// Reads four bytes.
///
/// # Safety
/// The bytes at `at` are readable.
#[inline(always)]
pub unsafe fn read_u32(at: u64) -> u32 {
    // SAFETY: four bytes are readable; any alignment will do.
    unsafe { (at as *const u32).read_unaligned() }
}

impl Memory {
    /// Forgets everything.
    pub fn forget(&mut self) {
        self.state = 0;
        self.current_chunk = Chunk::default();
        self.chunks = [Chunk::default(); MAX_CHUNKS];
        self.addresses = [0; ADDRESS_ENTRIES];
        self.is_interrupted = false;
    }

    /// Forgets everything and begins a walk of an interrupted thread.
    pub fn interrupt(&mut self) {
        self.forget();
        self.pages = [0; PAGE_ENTRIES];
        self.is_interrupted = true;
    }

    /// Returns true during a walk of an interrupted thread.
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Returns true if all pages from `start` to `end` are readable. For an interrupted thread,
    /// each page is probed once in a walk; otherwise each time.
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
            // Page 0 is never mapped, and stands for an empty entry.
            let entry = &mut self.pages[page as usize % PAGE_ENTRIES];
            let is_readable =
                page != 0 && (*entry == page || probe::is_readable(page * probe::PAGE));
            if is_readable {
                *entry = page;
            }
            is_readable
        })
    }

    /// Sets the thread's state, of which [`Layout::state_bytes`] must have been found readable.
    pub fn set_state(&mut self, layout: &Layout, state: u64) {
        self.state = state;
        self.state_bytes = layout.state_bytes();
        self.frame_bytes = layout.frame_bytes();
    }

    /// Reads a word of the native stack or of the thread's state. Returns `None` if the address is
    /// in neither.
    #[inline]
    pub fn record_word(&self, native_stack: &NativeStack<'_>, at: u64) -> Option<u64> {
        let in_state = self.state != 0 && at.wrapping_sub(self.state) <= self.state_bytes - 8;
        // SAFETY: `state_bytes` of the state were found readable before `set_state`.
        native_stack
            .peek(at)
            .or_else(|| in_state.then(|| unsafe { read_word(at) }))
    }

    /// Enters the chunk whose start and end the thread's state holds at address `bounds`. For
    /// an interrupted thread, chunks are not used: frames are probed one by one.
    ///
    /// # Safety
    /// `bounds` lies in the readable part of the thread's state.
    #[inline]
    pub unsafe fn enter_chunk(&mut self, bounds: u64) {
        if self.is_interrupted {
            self.current_chunk = Chunk::default();
            return;
        }
        // SAFETY: the state has three words about the chunk at `bounds`.
        let (start, end) = unsafe { (read_word(bounds), read_word(bounds + 16)) };
        let chunk = Chunk { start, end };
        if self.current_chunk != chunk {
            self.current_chunk = if self.is_chunk_readable(chunk) {
                chunk
            } else {
                Chunk::default()
            };
        }
    }

    /// Returns true if a chunk is readable. Probes it when it is first encountered.
    #[inline]
    fn is_chunk_readable(&mut self, chunk: Chunk) -> bool {
        self.chunks.contains(&chunk) || self.probe_chunk(chunk)
    }

    #[cold]
    fn probe_chunk(&mut self, chunk: Chunk) -> bool {
        let Chunk { start, end } = chunk;
        let bytes = end.saturating_sub(start);
        let is_plausible =
            start != 0 && start.is_multiple_of(8) && bytes > 24 && bytes <= MAX_CHUNK_BYTES;
        if !is_plausible || !self.are_readable(start, end) {
            return false;
        }
        self.chunks[self.chunks_written % MAX_CHUNKS] = chunk;
        self.chunks_written = self.chunks_written.wrapping_add(1);
        true
    }

    /// Returns true if the bytes of a frame are readable.
    #[inline]
    pub fn is_frame_readable(&mut self, native_stack: &NativeStack<'_>, frame: u64) -> bool {
        if !frame.is_multiple_of(8) || frame == 0 {
            return false;
        }
        self.current_chunk.contains(frame, self.frame_bytes)
            || self.is_other_frame_readable(native_stack, frame)
    }

    /// Checks a frame that is not in the current chunk: on the native stack, in an older chunk, or
    /// in an object that holds just this frame.
    fn is_other_frame_readable(&mut self, native_stack: &NativeStack<'_>, frame: u64) -> bool {
        if native_stack.peek(frame).is_some() {
            return native_stack.peek(frame + self.frame_bytes - 8).is_some();
        }
        let bytes = self.frame_bytes;
        if self.is_readable(frame, bytes, false) {
            return true;
        }
        self.is_in_older_chunk(frame) || self.is_readable(frame, bytes, true)
    }

    /// Returns true if a frame lies in a chunk before the current one, and makes that the current
    /// one.
    fn is_in_older_chunk(&mut self, frame: u64) -> bool {
        let mut start = self.current_chunk.start;
        for _ in 0..MAX_CHUNKS {
            if start == 0 {
                return false;
            }
            // SAFETY: a readable chunk begins with the previous chunk's address, then its own size.
            let previous = unsafe { read_word(start) };
            if previous == 0 || !self.is_readable(previous, 24, true) {
                return false;
            }
            // SAFETY: 24 bytes were just found readable.
            let bytes = unsafe { read_word(previous + 8) };
            let chunk = Chunk {
                start: previous,
                end: previous.saturating_add(bytes),
            };
            if !self.is_chunk_readable(chunk) {
                return false;
            }
            if chunk.contains(frame, self.frame_bytes) {
                self.current_chunk = chunk;
                return true;
            }
            start = previous;
        }
        false
    }

    /// Returns true if `bytes` (at most a page) at an address are known to be readable. With
    /// `may_probe`, an address that is not known is probed.
    pub fn is_readable(&mut self, at: u64, bytes: u64, may_probe: bool) -> bool {
        let slot = (at >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
        let slot = slot as usize % ADDRESS_ENTRIES;
        let entry = self.addresses[slot];
        // An address that was probed with fewer bytes says nothing about the next page.
        let next_page = u64::from(at % probe::PAGE + bytes > probe::PAGE);
        if entry & !NEXT_PAGE == at && entry & NEXT_PAGE >= next_page {
            // An empty entry has address 0.
            return at != 0;
        }
        let is_readable =
            may_probe && at.is_multiple_of(8) && self.are_readable(at, at.saturating_add(bytes));
        if is_readable {
            self.addresses[slot] = at | next_page;
        }
        is_readable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpython::layout::{MAX_FRAME_BYTES, PYTHON_3_11};

    unsafe extern "C" {
        fn mmap(at: u64, len: usize, access: i32, flags: i32, file: i32, offset: i64) -> u64;
        fn mprotect(at: u64, len: usize, access: i32) -> i32;
        fn munmap(at: u64, len: usize) -> i32;
    }

    fn empty_memory() -> std::boxed::Box<Memory> {
        std::boxed::Box::new(Memory {
            chunks: [Chunk::default(); MAX_CHUNKS],
            chunks_written: 0,
            addresses: [0; ADDRESS_ENTRIES],
            state: 0,
            state_bytes: 0,
            frame_bytes: 0,
            current_chunk: Chunk::default(),
            pages: [0; PAGE_ENTRIES],
            is_interrupted: false,
        })
    }

    #[test]
    fn frames_and_states_are_readable_up_to_their_last_fields() {
        let page = probe::PAGE as usize;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(0, 2 * page, 3, 0x22, -1, 0) };
        let end = start + probe::PAGE;
        // SAFETY: mapped above, and used by nobody.
        unsafe { mprotect(end, page, 0) };
        let layout = Layout {
            frame_instruction: MAX_FRAME_BYTES - 8,
            thread_id: 1000,
            ..PYTHON_3_11
        };
        let registers = |_: usize| unwind::Registers::default();
        let native_stack = NativeStack::new(unwind::stack::Stack::at(0).known(), 0, &registers);
        let mut memory = empty_memory();
        memory.set_state(&layout, end - 1008);
        assert!(memory.record_word(&native_stack, end - 8).is_some());
        assert!(memory.record_word(&native_stack, end - 7).is_none());
        let chunk = Chunk { start, end };
        for current_chunk in [Chunk::default(), chunk] {
            memory.current_chunk = current_chunk;
            assert!(memory.is_frame_readable(&native_stack, end - MAX_FRAME_BYTES));
            assert!(!memory.is_frame_readable(&native_stack, end - MAX_FRAME_BYTES + 8));
        }
        let small = Chunk {
            start,
            end: start + MAX_FRAME_BYTES - 8,
        };
        assert!(!small.contains(start, MAX_FRAME_BYTES) && chunk.contains(start, MAX_FRAME_BYTES));
        assert!(!Chunk::default().contains(start, MAX_FRAME_BYTES));
        // SAFETY: mapped above.
        unsafe { munmap(start, 2 * page) };
    }

    #[test]
    fn chunks_beyond_the_last_address_are_unreadable() {
        let mut memory = empty_memory();
        let stack = [0_u64; 64];
        let here = stack.as_ptr() as u64;
        assert!(memory.is_chunk_readable(Chunk {
            start: here,
            end: here + 512
        }));
        for (start, end) in [(!15, 200), (!7, 64), (here, here - 8), (here, 0), (!63, !7)] {
            assert!(
                !memory.is_chunk_readable(Chunk { start, end }),
                "{start:x} {end:x}"
            );
        }
    }

    #[test]
    fn an_address_is_readable_for_as_many_bytes_as_were_probed() {
        let page = probe::PAGE as usize;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(0, 2 * page, 3, 0x22, -1, 0) };
        // SAFETY: mapped above, and used by nobody.
        unsafe { mprotect(start + probe::PAGE, page, 0) };
        let mut memory = empty_memory();
        let at = start + probe::PAGE - 32;
        assert!(!memory.is_readable(at, 24, false), "not probed yet");
        assert!(memory.is_readable(at, 24, true) && memory.is_readable(at, 32, false));
        assert!(
            !memory.is_readable(at, 40, true),
            "the next page is not readable"
        );
        assert!(memory.is_readable(at, 24, false));
        // SAFETY: mapped above.
        unsafe { munmap(start, 2 * page) };
    }

    #[test]
    fn memory_of_an_interrupted_thread_is_trusted_for_one_walk() {
        let page = probe::PAGE as usize;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(0, page, 3, 0x22, -1, 0) };
        let mut memory = empty_memory();
        let end = start + probe::PAGE;
        assert!(memory.is_readable(start, 24, true));
        memory.interrupt();
        assert!(!memory.is_readable(start, 24, false), "of an earlier walk");
        assert!(memory.is_readable(start, 24, true) && memory.are_readable(start, end));
        // Not unmapped: another test might then map memory there.
        // SAFETY: mapped above, and used by nobody.
        unsafe { mprotect(start, page, 0) };
        assert!(memory.are_readable(start + 8, end), "in this walk");
        memory.interrupt();
        assert!(!memory.are_readable(start, end) && !memory.is_readable(start, 24, true));
        for (start, end) in [(0, 8), (!7, 64), (!7, !0), (end, end - 8)] {
            assert!(!memory.are_readable(start, end), "{start:x} {end:x}");
        }
        memory.forget();
        assert!(!memory.is_interrupted() && !memory.are_readable(start, end));
        // SAFETY: mapped above.
        unsafe { munmap(start, page) };
    }
}
