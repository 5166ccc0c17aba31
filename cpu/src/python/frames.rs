//! Collects the interpreter frames of a stopped thread from its thread state.

use cpython::MAX_FRAMES;
use cpython::chain::{self, Damaged, Frame, Thread, Words, first_instruction, is_pointer};
use cpython::layout::{ENTRY_AFTER_OWNER, Layout, Style};

use super::memory::Memory;

/// Maximum number of frames that are visited.
const MAX_STEPS: usize = 1 << 14;

/// Interpreter frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// Stack address inside the native frame that runs it; 0 if the next native frame of the
    /// evaluation loop runs it.
    pub at: u64,
    /// Address of its code object; 0 if the frame stands for all omitted outer frames.
    pub code: u64,
    /// Index of its instruction in the code object.
    pub instruction: u32,
}

/// Collector of frames.
pub struct Chain<'a, 'b> {
    pub layout: &'a Layout,
    pub memory: &'a mut Memory<'b>,
    /// Frames, innermost first.
    pub frames: &'a mut Vec<RawFrame>,
    /// Number of frames at the end that have no native frame yet.
    pending: usize,
    /// Number of frames of the thread states before the current one.
    state_start: usize,
    steps: usize,
}

impl<'a, 'b> Chain<'a, 'b> {
    pub fn new(
        layout: &'a Layout,
        memory: &'a mut Memory<'b>,
        frames: &'a mut Vec<RawFrame>,
    ) -> Self {
        Self {
            layout,
            memory,
            frames,
            pending: 0,
            state_start: 0,
            steps: 0,
        }
    }

    /// Adds the frames of a thread state.
    pub fn collect(&mut self, state: u64) -> Result<(), Damaged> {
        self.state_start = self.frames.len();
        let layout = self.layout;
        let top = self.memory.word(state + layout.frames).ok_or(Damaged)?;
        chain::follow_frames(self, layout, top)?;
        // Drops frames that no native frame is known to run.
        self.frames.truncate(self.frames.len() - self.pending);
        self.pending = 0;
        Ok(())
    }

    /// Returns the code object and instruction of a frame, or `None` if it has no valid code
    /// object.
    fn read_raw_frame(&mut self, at: u64, words: Words) -> Option<RawFrame> {
        let layout = self.layout;
        let copy = match layout.copies {
            0 => 0,
            _ => self.memory.half(at + layout.frame_copy)?,
        };
        let memory = &mut *self.memory;
        let first = first_instruction(layout, words.code, copy, |at| memory.word(at))?;
        let instruction = chain::instruction_offset(layout, words, first)?;
        is_pointer(words.code).then_some(RawFrame {
            at: 0,
            code: words.code,
            instruction,
        })
    }
}

impl Thread for Chain<'_, '_> {
    fn stack_word(&mut self, at: u64) -> Result<Option<u64>, Damaged> {
        if !is_pointer(at) || !self.memory.is_on_stack(at) {
            return Ok(None);
        }
        self.memory.word(at).map(Some).ok_or(Damaged)
    }

    fn record_word(&mut self, at: u64) -> Option<u64> {
        self.memory.word(at)
    }

    fn frame(&mut self, layout: &Layout, at: u64) -> Option<Frame> {
        if !is_pointer(at) {
            return None;
        }
        let code = self.memory.word(at + layout.frame_code)?;
        let words = Words {
            // Later versions store a tag in the lowest bits.
            code: match layout.style {
                Style::Entries => code & !3,
                _ => code,
            },
            previous: self.memory.word(at + layout.frame_previous)?,
            instruction: self.memory.word(at + layout.frame_instruction)?,
        };
        let owner = at + layout.frame_owner;
        Some(Frame {
            words,
            owner: match layout.style {
                Style::Entries => self.memory.byte(owner)?,
                _ => 0,
            },
            is_entry: match layout.style {
                Style::Records => self.memory.byte(owner + ENTRY_AFTER_OWNER)?,
                _ => 0,
            },
        })
    }

    /// Returns address 0: native frames are found later, when the stack has been unwound.
    fn next_evaluation(&mut self) -> Option<u64> {
        Some(0)
    }

    fn count_step(&mut self) -> Result<bool, Damaged> {
        self.steps += 1;
        (self.steps <= MAX_STEPS).then_some(true).ok_or(Damaged)
    }

    fn is_full(&self) -> bool {
        self.frames.len() >= MAX_FRAMES
    }

    /// Returns no match: no frames are kept from one sample to the next.
    fn joins_earlier_walk(&mut self, _frame: u64, _at: u64) -> Result<bool, Damaged> {
        Ok(false)
    }

    /// Adds a frame, if there is room.
    fn add(&mut self, _layout: &Layout, at: u64, frame: &Frame) -> Result<(), Damaged> {
        if !self.is_full() {
            let found = if self.frames.len() + 1 == MAX_FRAMES {
                RawFrame {
                    at: 0,
                    code: 0,
                    instruction: 0,
                }
            } else {
                self.read_raw_frame(at, frame.words).ok_or(Damaged)?
            };
            self.frames.push(found);
            self.pending += 1;
        }
        Ok(())
    }

    fn attach_to(&mut self, at: u64) -> Result<(), Damaged> {
        let first = self.frames.len() - self.pending;
        let (inner, fresh) = self.frames.split_at_mut(first);
        // The native frame must not be below that of the inner frames.
        let is_outer =
            inner.len() == self.state_start || inner.last().is_none_or(|last| last.at <= at);
        fresh.iter_mut().for_each(|frame| frame.at = at);
        self.pending = 0;
        is_outer.then_some(()).ok_or(Damaged)
    }
}
