//! The frames of the running thread, for the walker.

// Decision 57: asyncio tasks by coroutines, not by names.
use super::frame::{Words, is_entry};
use super::layout::{Layout, OWNED_BY_NATIVE, Style};
use super::memo::Memo;
use super::memory::{Memory, word};
use super::runtime::{self, Runtime};
use super::state::States;
use crate::module;
use crate::session::Epoch;
use unwind::inserted::{Insertion, Trail};

/// Maximum number of frames that are examined.
const MAX_STEPS: usize = 1 << 17;
/// Bytes of a frame object that are read, and of other frames.
const FRAME_BYTES: (u64, u64) = (112, 80);

/// What a thread needs for its frames. Start with zeroed memory, or call [`forget`](Self::forget).
#[repr(C)]
pub struct Frames {
    states: States,
    memory: Memory,
    memo: Memo,
}

/// The data are not what they should be.
pub struct Damaged;

impl Frames {
    /// Forgets everything: the memory was another thread's.
    pub fn forget(&mut self) {
        // Only where there is something: others do not pay for the memory.
        if !self.states.are_unknown() {
            self.states.forget();
            self.memo.forget();
            self.memory.forget();
        }
    }

    /// Forgets the last walk, whose frames have other numbers.
    pub fn forget_last(&mut self) {
        self.memo.forget();
    }

    /// The frames that the interpreter runs in the native ones of a walk.
    #[inline]
    pub fn read(&mut self, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        match runtime::known() {
            Some(runtime) if runtime.may_go => self.read_held(trail, epoch),
            Some(runtime) => self.read_from(runtime, trail, epoch),
            None => Insertion::NONE,
        }
    }

    /// The same for a thread that a signal interrupted, at any instruction: its data may be in the
    /// middle of a change, and lead to memory that is gone. So nothing is believed that was found
    /// before, and each page is probed before it is read.
    /// [`forget_interrupted`](Self::forget_interrupted) has to follow.
    pub fn read_interrupted(&mut self, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        if runtime::known().is_none() {
            return Insertion::NONE;
        }
        self.memo.forget();
        self.memory.interrupt();
        self.read(trail, epoch)
    }

    /// Forgets what an interrupted thread's data have led to.
    pub fn forget_interrupted(&mut self) {
        if self.memory.is_interrupted() {
            self.memo.forget();
            self.memory.forget();
        }
    }

    /// The same for an interpreter whose library may be unloaded: not while its data are read.
    #[inline(never)]
    fn read_held(&mut self, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        module::reading(move || match runtime::known() {
            Some(runtime) => self.read_from(runtime, trail, epoch),
            None => Insertion::NONE,
        })
        .unwrap_or(Insertion::NONE)
    }

    #[inline(never)]
    fn read_from(&mut self, runtime: &Runtime, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        let walk = Walk {
            layout: &runtime.layout,
            trail,
            epoch,
        };
        self.memo.begin();
        // SAFETY: takes nothing, and reads the thread pointer.
        let thread = unsafe { libc::pthread_self() } as u64;
        if !(self.states.find(runtime, thread) && self.stays(&walk)) {
            self.read_anew(&walk, runtime.loop_at);
        }
        let (frames, same) = self.memo.frames();
        Insertion { frames, same }
    }

    /// Whether the frames of the thread's only state are those of the last walk.
    #[inline(always)]
    fn stays(&mut self, walk: &Walk<'_>) -> bool {
        let layout = walk.layout;
        // SAFETY: a state that is this thread's may be read.
        let top = unsafe { word(self.states.get(0) + layout.frames) };
        let (memo, memory) = (&mut self.memo, &mut self.memory);
        match (layout.style, layout.has_record) {
            (Style::Objects, _) => false,
            (Style::Records, _) => {
                let frame = walk.trail.peek(top + layout.current);
                frame.is_some_and(|frame| memo.stays((walk, memory), Style::Records, (frame, top)))
            }
            (Style::Entries, true) => {
                let frame = memory.record_word(walk.trail, top + layout.current);
                frame.is_some_and(|frame| memo.stays((walk, memory), Style::Entries, (frame, 0)))
            }
            (Style::Entries, false) => memo.stays((walk, memory), Style::Entries, (top, 0)),
        }
    }

    #[inline(never)]
    fn read_anew(&mut self, walk: &Walk<'_>, loop_at: (u64, u64)) {
        self.memo.collect();
        if self.states.count() > 0 {
            match self.collect(walk, loop_at) {
                // No memory for any code object (before Linux 5.14): native frames alone say more.
                Ok(()) if walk.epoch.bank.codes.reserved() == 0 => self.memo.discard(),
                Ok(()) if self.memo.len() > 0 => runtime::confirm(),
                Ok(()) => {}
                Err(Damaged) => {
                    self.memo.discard();
                    runtime::doubt();
                }
            }
        }
        self.memo.end(walk.layout);
    }

    /// The frames of all states: an interpreter that another one's code has started runs within it.
    fn collect(&mut self, walk: &Walk<'_>, loop_at: (u64, u64)) -> Result<(), Damaged> {
        let mut native = 0;
        for index in 0..self.states.count() {
            self.collect_of(walk, self.states.get(index), loop_at, &mut native)?;
            self.memo.discard_pending();
        }
        Ok(())
    }

    fn collect_of(
        &mut self,
        walk: &Walk<'_>,
        state: u64,
        loop_at: (u64, u64),
        native: &mut usize,
    ) -> Result<(), Damaged> {
        let (layout, trail) = (walk.layout, walk.trail);
        let bytes = match layout.style {
            Style::Objects => FRAME_BYTES.0,
            _ => FRAME_BYTES.1,
        };
        self.memory.take_state(state, bytes);
        // SAFETY: a state that is this thread's may be read.
        let top = unsafe {
            if layout.chunk != 0 {
                self.memory.begin(state + layout.chunk);
            }
            word(state + layout.frames)
        };
        match layout.style {
            Style::Objects => self.objects(walk, top, loop_at, native),
            Style::Records => self.records(walk, top),
            Style::Entries if layout.has_record => {
                let at = top + layout.current;
                let first = self.memory.record_word(trail, at);
                self.entries(walk, first.unwrap_or(0))
            }
            Style::Entries => self.entries(walk, top),
        }
    }

    /// Each frame object is run by the next native frame of the evaluation loop.
    fn objects(
        &mut self,
        walk: &Walk<'_>,
        top: u64,
        (from, to): (u64, u64),
        native: &mut usize,
    ) -> Result<(), Damaged> {
        let mut frame = top;
        let mut steps = 0;
        while frame != 0 && steps < MAX_STEPS {
            let runs = loop {
                let Some(registers) = walk.trail.frame(*native) else {
                    return Ok(());
                };
                *native += 1;
                if registers.ip > from && registers.ip <= to {
                    break registers;
                }
            };
            frame = self.step(walk, frame)?;
            self.memo.settle(runs.sp)?;
            steps += 1;
        }
        Ok(())
    }

    /// Each record lies on the native stack, in the frame that runs its frames.
    fn records(&mut self, walk: &Walk<'_>, top: u64) -> Result<(), Damaged> {
        let (current, previous) = (walk.layout.current, walk.layout.current + 8);
        let mut record = top;
        let mut steps = 0;
        let mut expected = None;
        while let Some(mut frame) = walk.trail.peek(record + current) {
            if expected.is_some_and(|expected| expected != frame) {
                return Err(Damaged);
            }
            while frame != 0 {
                steps += 1;
                if steps > MAX_STEPS {
                    return Ok(());
                }
                if self.memo.joins(walk, &mut self.memory, (frame, record))? {
                    return Ok(());
                }
                let next = self.step(walk, frame)?;
                // SAFETY: `step` has found it readable.
                let was_entry = unsafe { is_entry(walk.layout, frame) } != 0;
                frame = next;
                if was_entry {
                    break;
                }
            }
            expected = Some(frame);
            self.memo.settle(record)?;
            let next = walk.trail.peek(record + previous).ok_or(Damaged)?;
            if next <= record {
                // Not further out on this stack: the thread's first record, in its state.
                break;
            }
            record = next;
        }
        Ok(())
    }

    /// A frame on the native stack, which the interpreter does not show, stands behind those that
    /// are run there.
    fn entries(&mut self, walk: &Walk<'_>, top: u64) -> Result<(), Damaged> {
        let mut frame = top;
        for _ in 0..MAX_STEPS {
            if frame == 0 || self.memo.joins(walk, &mut self.memory, (frame, 0))? {
                break;
            }
            if !self.memory.has_frame(walk.trail, frame) {
                return Err(Damaged);
            }
            // SAFETY: just found readable.
            let owner = unsafe { *((frame + walk.layout.frame_owner) as *const u8) };
            if owner < OWNED_BY_NATIVE {
                frame = self.step(walk, frame)?;
                continue;
            }
            if walk.trail.peek(frame).is_some() {
                self.memo.settle(frame)?;
            }
            // SAFETY: as above.
            frame = unsafe { word(frame + walk.layout.frame_previous) };
        }
        Ok(())
    }

    /// Takes a frame; its caller.
    #[inline]
    fn step(&mut self, walk: &Walk<'_>, frame: u64) -> Result<u64, Damaged> {
        let layout = walk.layout;
        if !self.memory.has_frame(walk.trail, frame) {
            return Err(Damaged);
        }
        // SAFETY: just found readable.
        let words = unsafe { Words::of(layout, frame) };
        if self.memo.has_room() {
            self.memo.add(walk, &mut self.memory, (frame, words))?;
        } else {
            self.memo.leave_out();
        }
        Ok(words.previous)
    }
}

/// What a walk reads by.
pub struct Walk<'a> {
    pub layout: &'a Layout,
    pub trail: &'a Trail<'a>,
    pub epoch: &'a Epoch,
}
