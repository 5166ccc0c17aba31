//! Interpreter frames of a stopped thread, found from its state.

use cpython::MAX_FRAMES;
use cpython::layout::{Layout, MAX_PLACE, OWNED_BY_NATIVE, Style};

use super::memory::{Memory, is_pointer};

/// Maximum number of frames that are visited.
const MAX_STEPS: usize = 1 << 14;

/// Interpreter frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Stack address inside the native frame that runs it. 0: the next native frame of the
    /// evaluation loop runs it.
    pub at: u64,
    /// Address of its code object. 0: the frame stands for all outer ones.
    pub code: u64,
    /// Offset of its instruction in the code object.
    pub place: u32,
}

/// Error: the data are inconsistent.
pub struct Damaged;

/// Collector of frames.
pub struct Chain<'a, 'b> {
    pub layout: &'a Layout,
    pub memory: &'a mut Memory<'b>,
    /// Frames, innermost first.
    pub frames: &'a mut Vec<Found>,
    /// Number of last frames that have no native frame yet.
    pending: usize,
    /// Number of frames before those of the current state.
    begun: usize,
    steps: usize,
}

impl<'a, 'b> Chain<'a, 'b> {
    pub fn new(layout: &'a Layout, memory: &'a mut Memory<'b>, frames: &'a mut Vec<Found>) -> Self {
        Self {
            layout,
            memory,
            frames,
            pending: 0,
            begun: 0,
            steps: 0,
        }
    }

    /// Adds the frames of a thread's state.
    pub fn collect(&mut self, state: u64) -> Result<(), Damaged> {
        self.begun = self.frames.len();
        let top = self
            .memory
            .word(state + self.layout.frames)
            .ok_or(Damaged)?;
        match self.layout.style {
            Style::Objects => self.objects(top)?,
            Style::Records => self.records(top)?,
            Style::Entries if self.layout.has_record => {
                let first = top.checked_add(self.layout.current);
                let first = first.and_then(|at| self.memory.word(at)).unwrap_or(0);
                self.entries(first)?;
            }
            Style::Entries => self.entries(top)?,
        }
        // Drops frames that no native frame is known to run.
        self.frames.truncate(self.frames.len() - self.pending);
        self.pending = 0;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.frames.len() >= MAX_FRAMES
    }

    /// Collects frame objects, each of which has a native frame of its own.
    fn objects(&mut self, top: u64) -> Result<(), Damaged> {
        let mut frame = top;
        while frame != 0 && !self.is_full() {
            frame = self.step(frame)?;
        }
        self.pending = 0;
        Ok(())
    }

    /// Collects frames by the records on the native stack, each inside the native frame that runs
    /// its frames.
    fn records(&mut self, top: u64) -> Result<(), Damaged> {
        let (current, previous) = (self.layout.current, self.layout.current + 8);
        let mut record = top;
        let mut expected = None;
        while is_pointer(record) && self.memory.is_on_stack(record) && !self.is_full() {
            let mut frame = self.memory.word(record + current).ok_or(Damaged)?;
            if expected.is_some_and(|expected| expected != frame) {
                return Err(Damaged);
            }
            while frame != 0 {
                let inner = frame;
                frame = self.step(frame)?;
                let is_last = self.memory.byte(inner + self.layout.frame_owner + 4);
                if is_last.ok_or(Damaged)? != 0 {
                    break;
                }
            }
            expected = Some(frame);
            self.settle(record)?;
            let next = self.memory.word(record + previous).ok_or(Damaged)?;
            if next <= record {
                // Not further out on this stack: the thread's first record, which is in its state.
                break;
            }
            record = next;
        }
        Ok(())
    }

    /// Collects frames by the entry frames on the native stack. Each is followed by the frames that
    /// its native frame runs, and is itself not shown.
    fn entries(&mut self, top: u64) -> Result<(), Damaged> {
        let mut frame = top;
        while frame != 0 {
            if !is_pointer(frame) {
                return Err(Damaged);
            }
            let owner = self.memory.byte(frame + self.layout.frame_owner);
            if owner.ok_or(Damaged)? < OWNED_BY_NATIVE {
                frame = self.step(frame)?;
                continue;
            }
            if self.memory.is_on_stack(frame) {
                self.settle(frame)?;
                if self.is_full() {
                    break;
                }
            }
            self.count()?;
            frame = self.previous(frame)?;
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Damaged> {
        self.steps += 1;
        (self.steps <= MAX_STEPS).then_some(()).ok_or(Damaged)
    }

    fn previous(&mut self, frame: u64) -> Result<u64, Damaged> {
        self.memory
            .word(frame + self.layout.frame_previous)
            .ok_or(Damaged)
    }

    /// Adds a frame, if there is room, and returns its caller.
    fn step(&mut self, frame: u64) -> Result<u64, Damaged> {
        self.count()?;
        if !is_pointer(frame) {
            return Err(Damaged);
        }
        if !self.is_full() {
            let found = if self.frames.len() + 1 == MAX_FRAMES {
                Found {
                    at: 0,
                    code: 0,
                    place: 0,
                }
            } else {
                self.frame(frame).ok_or(Damaged)?
            };
            self.frames.push(found);
            self.pending += 1;
        }
        self.previous(frame)
    }

    fn frame(&mut self, frame: u64) -> Option<Found> {
        let layout = self.layout;
        let code = self.memory.word(frame + layout.frame_code)?;
        // Later versions store a tag in the lowest bits.
        let code = match layout.style {
            Style::Entries => code & !3,
            _ => code,
        };
        let instruction = self.memory.word(frame + layout.frame_instruction)?;
        let place = match layout.style {
            Style::Objects => {
                let place = i64::from(instruction as i32).max(0) as u64;
                place / u64::from(layout.place_unit)
            }
            _ => {
                let first = match layout.copies {
                    0 => code.checked_add(layout.instructions)?,
                    _ => self.own_copy(frame, code)?,
                };
                (instruction.wrapping_sub(first).cast_signed()).max(0) as u64 / 2
            }
        };
        let is_whole = is_pointer(code) && place < MAX_PLACE;
        is_whole.then_some(Found {
            at: 0,
            code,
            place: place as u32,
        })
    }

    /// Returns the start of the instructions that a frame runs, in builds where each thread may
    /// have a copy of its own. The first thread's copy is in the code object.
    fn own_copy(&mut self, frame: u64, code: u64) -> Option<u64> {
        let copy = u64::from(self.memory.half(frame + self.layout.frame_copy)?);
        if copy == 0 {
            return code.checked_add(self.layout.instructions);
        }
        let copies = self.memory.follow(code.checked_add(self.layout.copies)?)?;
        let is_there = self.memory.word(copies).is_some_and(|count| copy < count);
        is_there.then(|| self.memory.follow(copies + 8 + 8 * copy))?
    }

    /// Assigns the pending frames to the native frame that contains the stack address `at`.
    fn settle(&mut self, at: u64) -> Result<(), Damaged> {
        let first = self.frames.len() - self.pending;
        let (inner, fresh) = self.frames.split_at_mut(first);
        // Otherwise it is on another stack than the inner frames.
        let is_further = inner.len() == self.begun || inner.last().is_none_or(|last| last.at <= at);
        fresh.iter_mut().for_each(|frame| frame.at = at);
        self.pending = 0;
        is_further.then_some(()).ok_or(Damaged)
    }
}
