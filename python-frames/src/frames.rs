//! Finds the interpreter frames of the running thread, for the stack walker.
//!
//! [`cpython::chain`] follows them through the memory of this thread. Frames that are unchanged
//! since the last walk come from the [cache](super::frame_cache).

// Decision 57: the names of asyncio tasks are not read; the frames of their coroutines tell them
// apart.
use super::frame;
use super::frame_cache::FrameCache;
use super::layout::{Layout, Style};
use super::memory::{Memory, read_word};
use super::session::{Code, Runtime, Session};
use super::state::States;
use super::walk::Walk;
use cpython::chain::{self, Damaged, Frame, Thread};
use unwind::interpreter::{InterpreterFrames, NativeStack};

/// Maximum number of frames that are followed in one walk.
const MAX_STEPS: usize = 1 << 17;

/// State of one thread for reading its interpreter frames. Start with zeroed memory, or call
/// [`forget`](Self::forget).
#[repr(C)]
pub struct Frames {
    states: States,
    memory: Memory,
    cache: FrameCache,
}

impl Frames {
    /// Forgets everything that an earlier thread with the same memory left here.
    pub fn forget(&mut self) {
        // Writing only if a thread has used this memory keeps unused pages unbacked.
        if !self.states.are_unknown() {
            self.states.forget();
            self.cache.forget();
            self.memory.forget();
        }
    }

    /// Forgets the last walk. Called when a new session has renumbered the code objects.
    pub fn forget_last(&mut self) {
        self.cache.forget();
    }

    /// Returns the interpreter frames of a walk, each together with the native frame that runs it.
    ///
    /// # Safety
    /// `runtime` is the interpreter of this process, and its library stays loaded during the call.
    #[inline(never)]
    pub unsafe fn read(
        &mut self,
        runtime: &Runtime,
        native_stack: &NativeStack<'_>,
        session: &Session<'_>,
    ) -> InterpreterFrames<'_> {
        let walk = Walk {
            layout: &runtime.layout,
            native_stack,
            session,
        };
        self.cache.begin();
        // SAFETY: has no arguments, and only reads the thread pointer.
        let thread = unsafe { libc::pthread_self() } as u64;
        if !(self.states.find(runtime, thread) && self.is_unchanged(&walk)) {
            self.read_changed(&walk, runtime.evaluation);
        }
        let (frames, unchanged) = self.cache.frames();
        InterpreterFrames { frames, unchanged }
    }

    /// Like [`read`](Self::read), for a thread that a signal interrupted at any instruction. Its
    /// data may be half written and point to memory that is unmapped. So cached results are not
    /// used, and each page is probed before it is read. Callers must call
    /// [`forget_interrupted`](Self::forget_interrupted) afterwards.
    ///
    /// # Safety
    /// The conditions of [`read`](Self::read) hold.
    pub unsafe fn read_interrupted(
        &mut self,
        runtime: &Runtime,
        native_stack: &NativeStack<'_>,
        session: &Session<'_>,
    ) -> InterpreterFrames<'_> {
        self.cache.forget();
        self.memory.interrupt();
        // SAFETY: the interpreter's library stays loaded during this call, too.
        unsafe { self.read(runtime, native_stack, session) }
    }

    /// Forgets what was found in an interrupted thread's data.
    pub fn forget_interrupted(&mut self) {
        if self.memory.is_interrupted() {
            self.cache.forget();
            self.memory.forget();
        }
    }

    /// Returns true if the thread has one state, with the same frames as in the last walk.
    #[inline(always)]
    fn is_unchanged(&mut self, walk: &Walk<'_>) -> bool {
        let layout = walk.layout;
        // SAFETY: `find` returned true: the state is this thread's own and readable.
        let top = unsafe { read_word(self.states.get(0) + layout.frames) };
        let cache = &mut self.cache;
        let memory = &mut self.memory;
        // `top` is the innermost frame, or the record that points to it.
        match (layout.style, layout.has_record) {
            (Style::Objects, _) => false,
            (Style::Records, _) => {
                // The record is in the native frame that runs the interpreter's frame.
                let frame = walk.native_stack.peek(top + layout.current);
                frame.is_some_and(|frame| {
                    cache.is_unchanged(walk, memory, Style::Records, frame, top)
                })
            }
            (Style::Entries, true) => {
                // The record is on the native stack or in the thread's state.
                let frame = memory.record_word(walk.native_stack, top + layout.current);
                frame
                    .is_some_and(|frame| cache.is_unchanged(walk, memory, Style::Entries, frame, 0))
            }
            (Style::Entries, false) => cache.is_unchanged(walk, memory, Style::Entries, top, 0),
        }
    }

    /// Reads the frames of all states of the thread.
    #[inline(never)]
    fn read_changed(&mut self, walk: &Walk<'_>, evaluation: Code) {
        self.cache.start_collecting();
        if self.states.count() > 0 {
            match self.collect(walk, evaluation) {
                // No memory for code objects (possible before Linux 5.14). Without names, Python
                // frames would say less than native frames do.
                Ok(()) if walk.session.codes.reserved() == 0 => self.cache.discard(),
                Ok(()) if self.cache.len() > 0 => walk.session.host.record_success(),
                Ok(()) => {}
                Err(Damaged) => {
                    self.cache.discard();
                    walk.session.host.record_failure();
                }
            }
        }
        self.cache.end(walk.layout);
    }

    /// Collects the frames of all states. A nested interpreter comes first: its frames are called
    /// from the frames of the interpreter that started it.
    fn collect(&mut self, walk: &Walk<'_>, evaluation: Code) -> Result<(), Damaged> {
        let layout = walk.layout;
        let mut collector = Collector {
            walk,
            memory: &mut self.memory,
            cache: &mut self.cache,
            evaluation,
            native: 0,
            steps: 0,
        };
        for index in 0..self.states.count() {
            let state = self.states.get(index);
            collector.memory.set_state(layout, state);
            // SAFETY: `states` has only readable states of this thread.
            let top = unsafe {
                if layout.chunk != 0 {
                    collector.memory.enter_chunk(state + layout.chunk);
                }
                read_word(state + layout.frames)
            };
            collector.steps = 0;
            chain::follow_frames(&mut collector, layout, top)?;
            collector.cache.discard_pending();
        }
        Ok(())
    }
}

/// Collector of the frames that one walk reads again.
struct Collector<'a> {
    walk: &'a Walk<'a>,
    memory: &'a mut Memory,
    cache: &'a mut FrameCache,
    /// Code of the evaluation loop.
    evaluation: Code,
    /// Number of native frames that were passed (Python 3.10 and older).
    native: usize,
    /// Number of frames of the current state that were followed.
    steps: usize,
}

impl Thread for Collector<'_> {
    #[inline(always)]
    fn stack_word(&mut self, at: u64) -> Result<Option<u64>, Damaged> {
        Ok(self.walk.native_stack.peek(at))
    }

    #[inline(always)]
    fn record_word(&mut self, at: u64) -> Option<u64> {
        self.memory.record_word(self.walk.native_stack, at)
    }

    #[inline(always)]
    fn frame(&mut self, layout: &Layout, at: u64) -> Option<Frame> {
        let is_readable = self.memory.is_frame_readable(self.walk.native_stack, at);
        // SAFETY: `is_frame_readable` found the frame readable.
        is_readable.then(|| unsafe { frame::read(layout, at) })
    }

    fn next_evaluation(&mut self) -> Option<u64> {
        loop {
            let registers = self.walk.native_stack.frame(self.native)?;
            self.native += 1;
            if registers.ip > self.evaluation.start && registers.ip <= self.evaluation.end {
                return Some(registers.sp);
            }
        }
    }

    /// Counts a frame. After [`MAX_STEPS`] frames, the walk ends, and the outer frames are missing.
    #[inline(always)]
    fn count_step(&mut self) -> Result<bool, Damaged> {
        self.steps += 1;
        Ok(self.steps <= MAX_STEPS)
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.cache.is_full()
    }

    #[inline(always)]
    fn joins_earlier_walk(&mut self, frame: u64, at: u64) -> Result<bool, Damaged> {
        self.cache.joins_cached(self.walk, self.memory, frame, at)
    }

    // Not inlined, so that the loops over frames share one copy of this and of all that it calls.
    #[inline(never)]
    fn add(&mut self, _layout: &Layout, at: u64, frame: &Frame) -> Result<(), Damaged> {
        if self.cache.has_room() {
            self.cache.add(self.walk, self.memory, at, frame)
        } else {
            self.cache.add_elision();
            Ok(())
        }
    }

    #[inline(always)]
    fn attach_to(&mut self, at: u64) -> Result<(), Damaged> {
        self.cache.attach_to(at)
    }
}
