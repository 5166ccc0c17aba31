//! Walks over the Python frames of a thread, beginning at its thread state.
//!
//! CPython links frames in three ways (see [`Style`]): by the frame objects, by records
//! (`_PyCFrame`), or by entry frames on the native stack. Each way has its own loop here, which
//! also finds the native frame that runs each interpreter frame. How memory is read and checked,
//! and where the frames are stored, is up to the [`Thread`].

use crate::layout::{Layout, MAX_INSTRUCTION, OWNED_BY_NATIVE, Style};

/// Error: the interpreter's data are not as expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// Words of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Words {
    /// Address of the code object.
    pub code: u64,
    /// Address of the caller's frame; 0 for the outermost.
    pub previous: u64,
    /// Address of the current instruction; up to 3.10 its offset.
    pub instruction: u64,
}

/// Frame as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Words of the frame.
    pub words: Words,
    /// Owner (3.12 and later).
    pub owner: u8,
    /// Nonzero if this is the outermost frame that its native frame runs (3.11).
    pub is_entry: u8,
}

/// Thread whose frames are followed: its memory, and the list of the frames found.
pub trait Thread {
    /// Returns a word of the native stack, or `None` if the address is not on it.
    ///
    /// # Errors
    /// [`Damaged`] if the address should be on the stack but cannot be read.
    fn stack_word(&mut self, at: u64) -> Result<Option<u64>, Damaged>;

    /// Returns a word of the native stack or of the thread state, or `None` if it is in neither.
    fn record_word(&mut self, at: u64) -> Option<u64>;

    /// Reads a frame. Returns `None` if it is unreadable.
    fn frame(&mut self, layout: &Layout, at: u64) -> Option<Frame>;

    /// Returns a stack address in the next native frame of the evaluation loop, or `None` if there
    /// is none (up to 3.10).
    fn next_evaluation(&mut self) -> Option<u64>;

    /// Counts a step. Returns false if the walk should end here.
    ///
    /// # Errors
    /// [`Damaged`] if that many steps mean damaged data.
    fn count_step(&mut self) -> Result<bool, Damaged>;

    /// Returns true if no more frames can be added.
    fn is_full(&self) -> bool;

    /// Tries to end the walk at a frame of an earlier walk. Returns true if `frame` and its callers
    /// are known from it. `at` is a stack address in the native frame that runs `frame`, or 0 if
    /// that is not known yet.
    ///
    /// # Errors
    /// [`Damaged`] if the frame contradicts its callees.
    fn joins_earlier_walk(&mut self, frame: u64, at: u64) -> Result<bool, Damaged>;

    /// Adds the frame at address `at`, the caller of the last one added.
    ///
    /// # Errors
    /// [`Damaged`] if the frame has no code object.
    fn add(&mut self, layout: &Layout, at: u64, frame: &Frame) -> Result<(), Damaged>;

    /// Records that the frames added since the last call of this function are run by the native
    /// frame that contains stack address `at`.
    ///
    /// # Errors
    /// [`Damaged`] if `at` is below the native frame of their callees.
    fn attach_to(&mut self, at: u64) -> Result<(), Damaged>;
}

/// Adds the frames of a thread, innermost first. `top` is the thread state's pointer to its
/// innermost frame or record ([`Layout::frames`]).
///
/// # Errors
/// [`Damaged`] as soon as the data contradict the layout. The frames so far are of no use then.
#[inline(always)]
pub fn follow_frames(thread: &mut impl Thread, layout: &Layout, top: u64) -> Result<(), Damaged> {
    match layout.style {
        Style::Objects => follow_objects(thread, layout, top),
        Style::Records => follow_records(thread, layout, top),
        Style::Entries if layout.has_record => {
            let first = thread.record_word(top.wrapping_add(layout.current));
            follow_entries(thread, layout, first.unwrap_or(0))
        }
        Style::Entries => follow_entries(thread, layout, top),
    }
}

/// Follows frame objects: each is run by its own native frame of the evaluation loop.
#[inline(always)]
fn follow_objects(thread: &mut impl Thread, layout: &Layout, top: u64) -> Result<(), Damaged> {
    let mut at = top;
    while at != 0 && !thread.is_full() {
        let Some(native) = thread.next_evaluation() else {
            return Ok(());
        };
        at = read_and_add(thread, layout, at)?.words.previous;
        thread.attach_to(native)?;
    }
    Ok(())
}

/// Follows records: each lies on the native stack, in the native frame that runs its frames.
#[inline(always)]
fn follow_records(thread: &mut impl Thread, layout: &Layout, top: u64) -> Result<(), Damaged> {
    let current = layout.current;
    let previous = layout.current + 8;
    let mut record = top;
    // First frame of the next record: the caller of the last frame of this one.
    let mut expected = None;
    while let Some(mut at) = thread.stack_word(record.wrapping_add(current))? {
        if expected.is_some_and(|expected| expected != at) {
            return Err(Damaged);
        }
        while at != 0 {
            if !thread.count_step()? || thread.joins_earlier_walk(at, record)? {
                return Ok(());
            }
            let frame = read_and_add(thread, layout, at)?;
            at = frame.words.previous;
            if frame.is_entry != 0 {
                break;
            }
        }
        expected = Some(at);
        thread.attach_to(record)?;
        let previous_word = thread.stack_word(record.wrapping_add(previous))?;
        let next = previous_word.ok_or(Damaged)?;
        if next <= record || thread.is_full() {
            // Not a caller on this stack: it is the outermost record, which is in the thread state.
            break;
        }
        record = next;
    }
    Ok(())
}

/// Walks over one list of frames. After the frames that a native frame runs, the list has the
/// native frame's entry frame, which lies on the native stack and is not shown.
#[inline(always)]
fn follow_entries(thread: &mut impl Thread, layout: &Layout, top: u64) -> Result<(), Damaged> {
    let mut at = top;
    while at != 0 {
        if !thread.count_step()? || thread.joins_earlier_walk(at, 0)? {
            break;
        }
        let frame = thread.frame(layout, at).ok_or(Damaged)?;
        if frame.owner < OWNED_BY_NATIVE {
            thread.add(layout, at, &frame)?;
        } else if thread.stack_word(at)?.is_some() {
            thread.attach_to(at)?;
            if thread.is_full() {
                break;
            }
        }
        at = frame.words.previous;
    }
    Ok(())
}

/// Reads the frame at address `at` and adds it.
#[inline(always)]
fn read_and_add(thread: &mut impl Thread, layout: &Layout, at: u64) -> Result<Frame, Damaged> {
    let frame = thread.frame(layout, at).ok_or(Damaged)?;
    thread.add(layout, at, &frame)?;
    Ok(frame)
}

/// Returns true if a word may point to an object.
#[inline(always)]
#[must_use]
pub fn is_pointer(word: u64) -> bool {
    word != 0 && word.is_multiple_of(8) && word < ADDRESS_LIMIT
}

/// Upper limit of plausible addresses of a process.
pub const ADDRESS_LIMIT: u64 = 1 << 56;

/// Returns the index of a frame's current instruction in its code object, or `None` if it is
/// implausible. `first` is the address of the first instruction ([`first_instruction`]); unused up
/// to 3.10.
#[inline(always)]
#[must_use]
pub fn instruction_offset(layout: &Layout, words: Words, first: u64) -> Option<u32> {
    let offset = match layout.style {
        Style::Objects => {
            let lasti = i64::from(words.instruction as i32).max(0) as u64;
            lasti / u64::from(layout.lasti_units)
        }
        _ => words.instruction.wrapping_sub(first).cast_signed().max(0) as u64 / 2,
    };
    (offset < MAX_INSTRUCTION).then_some(offset as u32)
}

/// Returns the address of the first instruction in the copy of the bytecode that a frame runs.
/// Without the GIL, each thread may have its own copy; copy 0 is in the code object. `word` reads a
/// word, if it is readable. The table of copies may be replaced by a larger one at any time.
#[inline(always)]
#[must_use]
pub fn first_instruction(
    layout: &Layout,
    code: u64,
    copy: u32,
    mut word: impl FnMut(u64) -> Option<u64>,
) -> Option<u64> {
    if layout.copies == 0 || copy == 0 {
        return Some(code.wrapping_add(layout.instructions));
    }
    let table = word(code.checked_add(layout.copies)?).filter(|address| is_pointer(*address))?;
    let copy = u64::from(copy);
    let count = word(table)?;
    if copy >= count {
        return None;
    }
    word(table + 8 + 8 * copy).filter(|address| is_pointer(*address))
}
