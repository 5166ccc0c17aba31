//! Finds the interpreter frames of the running thread, for the stack walker.
//!
//! CPython links frames in three ways (see `Style`), and an interpreter frame has to be put
//! next to the native frame that runs it. Each way has its own loop here. Frames that are unchanged
//! since the last walk come from the [cache](super::frame_cache).

// Decision 57: asyncio tasks by coroutines, not by names.
use super::frame::{Words, is_entry};
use super::frame_cache::FrameCache;
use super::layout::{Layout, OWNED_BY_NATIVE, Style};
use super::memory::{Memory, word};
use super::runtime::{self, Code, Runtime};
use super::state::States;
use crate::module;
use crate::session::Epoch;
use unwind::inserted::{Insertion, Trail};

/// Maximum number of frames that are followed in one walk.
const MAX_STEPS: usize = 1 << 17;
/// Number of bytes of a frame object that are read (up to 3.10).
const FRAME_OBJECT_BYTES: u64 = 112;
/// Number of bytes of a frame that are read (from 3.11 on).
const FRAME_BYTES: u64 = 80;

/// State of one thread for reading its interpreter frames. Start with zeroed memory, or call
/// [`forget`](Self::forget).
#[repr(C)]
pub struct Frames {
    states: States,
    memory: Memory,
    cache: FrameCache,
}

/// Error: the interpreter's data are not as expected.
pub struct Damaged;

impl Frames {
    /// Forgets everything that another thread left here.
    pub fn forget(&mut self) {
        // Writing only where something is set keeps the pages of other threads unbacked.
        if !self.states.are_unknown() {
            self.states.forget();
            self.cache.forget();
            self.memory.forget();
        }
    }

    /// Forgets the last walk, because code objects have new numbers.
    pub fn forget_last(&mut self) {
        self.cache.forget();
    }

    /// Returns the interpreter frames of a walk, each with the native frame that runs it.
    #[inline]
    pub fn read(&mut self, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        match runtime::known() {
            Some(runtime) if runtime.may_unload => self.read_held(trail, epoch),
            Some(runtime) => self.read_from(runtime, trail, epoch),
            None => Insertion::NONE,
        }
    }

    /// Like [`read`](Self::read), for a thread that a signal interrupted at any instruction. Its
    /// data may be half written and point to memory that is unmapped. So cached results are not
    /// used, and each page is probed before it is read. Callers must call
    /// [`forget_interrupted`](Self::forget_interrupted) afterwards.
    pub fn read_interrupted(&mut self, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        if runtime::known().is_none() {
            return Insertion::NONE;
        }
        self.cache.forget();
        self.memory.interrupt();
        self.read(trail, epoch)
    }

    /// Forgets what was found in an interrupted thread's data.
    pub fn forget_interrupted(&mut self) {
        if self.memory.is_interrupted() {
            self.cache.forget();
            self.memory.forget();
        }
    }

    /// Like [`read`](Self::read), for an interpreter whose library may be unloaded: keeps it
    /// loaded while its data are read.
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
        self.cache.begin();
        // SAFETY: has no arguments, and only reads the thread pointer.
        let thread = unsafe { libc::pthread_self() } as u64;
        if !(self.states.find(runtime, thread) && self.is_unchanged(&walk)) {
            self.read_anew(&walk, runtime.evaluation);
        }
        let (frames, unchanged) = self.cache.frames();
        Insertion { frames, unchanged }
    }

    /// Returns true if the thread has one state and its frames are those of the last walk.
    #[inline(always)]
    fn is_unchanged(&mut self, walk: &Walk<'_>) -> bool {
        let layout = walk.layout;
        // SAFETY: `find` returned true: the state is this thread's own and readable.
        let top = unsafe { word(self.states.get(0) + layout.frames) };
        let (cache, memory) = (&mut self.cache, &mut self.memory);
        match (layout.style, layout.has_record) {
            (Style::Objects, _) => false,
            (Style::Records, _) => {
                let frame = walk.trail.peek(top + layout.current);
                frame.is_some_and(|frame| {
                    cache.is_unchanged(walk, memory, Style::Records, frame, top)
                })
            }
            (Style::Entries, true) => {
                let frame = memory.record_word(walk.trail, top + layout.current);
                frame
                    .is_some_and(|frame| cache.is_unchanged(walk, memory, Style::Entries, frame, 0))
            }
            (Style::Entries, false) => cache.is_unchanged(walk, memory, Style::Entries, top, 0),
        }
    }

    /// Reads the frames of all states of the thread.
    #[inline(never)]
    fn read_anew(&mut self, walk: &Walk<'_>, evaluation: Code) {
        self.cache.collect();
        if self.states.count() > 0 {
            match self.collect(walk, evaluation) {
                // No memory for code objects (possible before Linux 5.14): Python frames without
                // names would say less than the native frames alone.
                Ok(()) if walk.epoch.bank.codes.reserved() == 0 => self.cache.discard(),
                Ok(()) if self.cache.len() > 0 => runtime::record_success(),
                Ok(()) => {}
                Err(Damaged) => {
                    self.cache.discard();
                    runtime::record_failure();
                }
            }
        }
        self.cache.end(walk.layout);
    }

    /// Collects the frames of all states. A nested interpreter comes first: its frames are called
    /// from the frames of the interpreter that started it.
    fn collect(&mut self, walk: &Walk<'_>, evaluation: Code) -> Result<(), Damaged> {
        let mut native = 0;
        for index in 0..self.states.count() {
            self.collect_of(walk, self.states.get(index), evaluation, &mut native)?;
            self.cache.discard_pending();
        }
        Ok(())
    }

    /// Collects the frames of one state.
    fn collect_of(
        &mut self,
        walk: &Walk<'_>,
        state: u64,
        evaluation: Code,
        native: &mut usize,
    ) -> Result<(), Damaged> {
        let (layout, trail) = (walk.layout, walk.trail);
        let bytes = match layout.style {
            Style::Objects => FRAME_OBJECT_BYTES,
            _ => FRAME_BYTES,
        };
        self.memory.take_state(state, bytes);
        // SAFETY: `states` has only readable states of this thread.
        let top = unsafe {
            if layout.chunk != 0 {
                self.memory.begin(state + layout.chunk);
            }
            word(state + layout.frames)
        };
        match layout.style {
            Style::Objects => self.objects(walk, top, evaluation, native),
            Style::Records => self.records(walk, top),
            Style::Entries if layout.has_record => {
                let at = top + layout.current;
                let first = self.memory.record_word(trail, at);
                self.entries(walk, first.unwrap_or(0))
            }
            Style::Entries => self.entries(walk, top),
        }
    }

    /// Collects frame objects: each is run by its own native frame of the evaluation loop, whose
    /// code is `evaluation`.
    fn objects(
        &mut self,
        walk: &Walk<'_>,
        top: u64,
        evaluation: Code,
        native: &mut usize,
    ) -> Result<(), Damaged> {
        let mut frame = top;
        let mut steps = 0;
        while frame != 0 && steps < MAX_STEPS {
            let native_frame = loop {
                let Some(registers) = walk.trail.frame(*native) else {
                    return Ok(());
                };
                *native += 1;
                if registers.ip > evaluation.start && registers.ip <= evaluation.end {
                    break registers;
                }
            };
            frame = self.step(walk, frame)?;
            self.cache.attach_to(native_frame.sp)?;
            steps += 1;
        }
        Ok(())
    }

    /// Collects the frames of records: each record lies on the native stack, in the native frame
    /// that runs its interpreter frames.
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
                if self
                    .cache
                    .joins_cached(walk, &mut self.memory, frame, record)?
                {
                    return Ok(());
                }
                let next = self.step(walk, frame)?;
                // SAFETY: `step` found the frame readable.
                let was_entry = unsafe { is_entry(walk.layout, frame) } != 0;
                frame = next;
                if was_entry {
                    break;
                }
            }
            expected = Some(frame);
            self.cache.attach_to(record)?;
            let next = walk.trail.peek(record + previous).ok_or(Damaged)?;
            if next <= record {
                // Not a caller on this stack: the first record of the thread, in its state.
                break;
            }
            record = next;
        }
        Ok(())
    }

    /// Collects frames in one list, where an entry frame on the native stack follows those that
    /// the same native frame runs. Entry frames are internal and not shown.
    fn entries(&mut self, walk: &Walk<'_>, top: u64) -> Result<(), Damaged> {
        let mut frame = top;
        for _ in 0..MAX_STEPS {
            if frame == 0 || self.cache.joins_cached(walk, &mut self.memory, frame, 0)? {
                break;
            }
            if !self.memory.has_frame(walk.trail, frame) {
                return Err(Damaged);
            }
            // SAFETY: `has_frame` found the frame readable.
            let owner = unsafe { *((frame + walk.layout.frame_owner) as *const u8) };
            if owner < OWNED_BY_NATIVE {
                frame = self.step(walk, frame)?;
                continue;
            }
            if walk.trail.peek(frame).is_some() {
                self.cache.attach_to(frame)?;
            }
            // SAFETY: `has_frame` found the frame readable.
            frame = unsafe { word(frame + walk.layout.frame_previous) };
        }
        Ok(())
    }

    /// Adds a frame and returns its caller.
    #[inline]
    fn step(&mut self, walk: &Walk<'_>, frame: u64) -> Result<u64, Damaged> {
        let layout = walk.layout;
        if !self.memory.has_frame(walk.trail, frame) {
            return Err(Damaged);
        }
        // SAFETY: `has_frame` found the frame readable.
        let words = unsafe { Words::of(layout, frame) };
        if self.cache.has_room() {
            self.cache.add(walk, &mut self.memory, frame, words)?;
        } else {
            self.cache.add_elision();
        }
        Ok(words.previous)
    }
}

/// Context of one walk.
pub struct Walk<'a> {
    pub layout: &'a Layout,
    pub trail: &'a Trail<'a>,
    pub epoch: &'a Epoch,
}
