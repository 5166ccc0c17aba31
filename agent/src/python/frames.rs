//! The frames of the running thread, for the walker.

use super::codes;
use super::layout::{Layout, Style};
use super::memory::{Memory, word};
use super::runtime::{self, Runtime};
use super::state::{self, OWN};
use crate::session::Epoch;
use core::mem::MaybeUninit;
use shm_protocol::codes::{LEFT_OUT, NO_CODE, TABLE_FULL, address_of};
use unwind::inserted::{Inserted, Insertion, Trail};
use unwind::probe;

/// Most frames that are kept of a stack; of deeper ones, the innermost.
const MAX_FRAMES: usize = 2048;
/// Most frames that are looked at.
const MAX_STEPS: usize = 1 << 17;
/// Samples without a state before it is looked for again, at first and at most.
const PATIENCE: (u32, u32) = (4, 256);
/// Bytes of a frame object that are read, and of other frames.
const FRAME_BYTES: (u64, u64) = (112, 80);
/// Largest place that is believed in.
const MAX_PLACE: u64 = 1 << 24;

type Buffer = [MaybeUninit<Inserted>; MAX_FRAMES];

/// What a thread needs for its frames. Start with zeroed memory, or call [`forget`](Self::forget).
#[repr(C)]
pub struct Frames {
    /// The thread's states, as they were found.
    states: [u64; OWN],
    /// Samples until they are looked for again, and how many that were the last time.
    patience: (u32, u32),
    memory: Memory,
    /// Frames of the last two walks, in turn, each at its end, outermost first.
    buffers: [Buffer; 2],
    counts: [usize; 2],
    turn: usize,
    /// Frames, from the innermost on, whose native frame is not known yet.
    pending: usize,
}

/// The data are not what they should be.
struct Damaged;

impl Frames {
    /// Forgets everything: the memory was another thread's.
    pub fn forget(&mut self) {
        // Only where there is something: nobody else pays for the memory.
        if self.patience != (0, 0) || self.states[0] != 0 {
            self.states = [0; OWN];
            self.patience = (0, 0);
            self.counts = [0; 2];
            self.memory.forget();
        }
    }

    /// Forgets the last walk, whose frames have other numbers.
    pub fn forget_last(&mut self) {
        self.counts = [0; 2];
    }

    /// The frames that the interpreter runs in the native ones of a walk.
    #[inline]
    pub fn read(&mut self, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        match runtime::known() {
            Some(runtime) => self.read_from(runtime, trail, epoch),
            None => Insertion::NONE,
        }
    }

    fn read_from(&mut self, runtime: &Runtime, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        self.turn ^= 1;
        self.counts[self.turn] = 0;
        self.pending = 0;
        if self.find_states(runtime) {
            let read = self.collect(runtime, trail, epoch);
            // The outermost are run by no native frame that is known.
            self.counts[self.turn] -= self.pending;
            match read {
                // No memory for any code object (before Linux 5.14): native frames alone say more.
                Ok(()) if epoch.bank.codes.reserved() == 0 => self.counts[self.turn] = 0,
                Ok(()) if self.counts[self.turn] > 0 => runtime::confirm(),
                Ok(()) => {}
                Err(Damaged) => {
                    self.counts[self.turn] = 0;
                    runtime::doubt();
                }
            }
        }
        let frames = self.of_turn(self.turn);
        let last = self.of_turn(self.turn ^ 1);
        let same = frames
            .iter()
            .zip(last)
            .take_while(|(now, then)| now == then);
        Insertion {
            frames,
            same: same.count(),
        }
    }

    fn of_turn(&self, turn: usize) -> &[Inserted] {
        let kept = &self.buffers[turn][MAX_FRAMES - self.counts[turn]..];
        // SAFETY: `push` wrote so many, from the end on.
        unsafe { core::slice::from_raw_parts(kept.as_ptr().cast(), kept.len()) }
    }

    /// Whether the states of this thread are known.
    #[inline]
    fn find_states(&mut self, runtime: &Runtime) -> bool {
        // SAFETY: takes nothing, and reads the thread pointer.
        let thread = unsafe { libc::pthread_self() } as u64;
        let state = self.states[0];
        if state != 0 {
            let gone = crate::backend::is_system() && !probe::is_readable(state);
            // SAFETY: this thread's state was here: the allocator's memory stays mapped, or, with
            // the program's own, it was just probed.
            if !gone && unsafe { word(state + runtime.layout.thread_id) } == thread {
                return true;
            }
            self.states = [0; OWN];
            self.patience = (0, 0);
        }
        self.look_for_states(runtime, thread)
    }

    fn look_for_states(&mut self, runtime: &Runtime, thread: u64) -> bool {
        if self.patience.0 > 0 {
            self.patience.0 -= 1;
            return false;
        }
        // SAFETY: a variable of a loaded module.
        if unsafe { word(runtime.at + runtime.layout.interpreters) } == 0 {
            return false;
        }
        let (first, most) = PATIENCE;
        let next = (self.patience.1 * 2).clamp(first, most);
        self.patience = (next, next);
        self.states = state::find(runtime, thread);
        let bytes = match runtime.layout.style {
            Style::Objects => FRAME_BYTES.0,
            _ => FRAME_BYTES.1,
        };
        self.memory.take_state(self.states[0], bytes);
        self.states[0] != 0
    }

    fn collect(
        &mut self,
        runtime: &Runtime,
        trail: &Trail<'_>,
        epoch: &Epoch,
    ) -> Result<(), Damaged> {
        let layout = &runtime.layout;
        let state = self.states[0];
        // SAFETY: a state that is this thread's may be read, as `find_states` says.
        let top = unsafe {
            if layout.chunk != 0 {
                self.memory.begin(state + layout.chunk);
            }
            word(state + layout.frames)
        };
        let walk = Walk {
            layout,
            trail,
            epoch,
        };
        match layout.style {
            Style::Objects => self.objects(&walk, top, runtime.loop_at),
            Style::Records => self.records(&walk, top),
            Style::Entries if layout.has_record => {
                let at = top + layout.current;
                let first = self.memory.record_word(trail, at);
                self.entries(&walk, first.unwrap_or(0))
            }
            Style::Entries => self.entries(&walk, top),
        }
    }

    /// Each frame object is run by the next native frame of the evaluation loop.
    fn objects(
        &mut self,
        walk: &Walk<'_>,
        top: u64,
        (from, to): (u64, u64),
    ) -> Result<(), Damaged> {
        let mut native = 0;
        let mut frame = top;
        let mut steps = 0;
        while frame != 0 && steps < MAX_STEPS {
            let runs = loop {
                let Some(registers) = walk.trail.frame(native) else {
                    return Ok(());
                };
                native += 1;
                if registers.ip > from && registers.ip <= to {
                    break registers;
                }
            };
            frame = self.step(walk, frame)?;
            self.settle(runs.sp)?;
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
                let next = self.step(walk, frame)?;
                // SAFETY: a frame that `step` has found readable.
                let is_entry = unsafe { word(frame + walk.layout.frame_owner) } >> 32 & 0xff;
                frame = next;
                if is_entry != 0 {
                    break;
                }
            }
            expected = Some(frame);
            self.settle(record)?;
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
        const OWNED_BY_NATIVE: u8 = 3;
        let mut frame = top;
        for _ in 0..MAX_STEPS {
            if frame == 0 {
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
                self.settle(frame)?;
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
        let (code, previous, instruction) = unsafe {
            (
                word(frame + layout.frame_code) & !3,
                word(frame + layout.frame_previous),
                word(frame + layout.frame_instruction),
            )
        };
        if self.counts[self.turn] + 1 >= MAX_FRAMES {
            self.leave_out();
            return Ok(previous);
        }
        let number = codes::number(layout, code, walk.epoch).ok_or(Damaged)?;
        let place = match layout.style {
            Style::Objects => {
                (i64::from(instruction as i32).max(0) as u64) / u64::from(layout.place_unit)
            }
            _ => {
                let bytes = instruction.wrapping_sub(code + layout.instructions) as i64;
                bytes.max(0) as u64 / 2
            }
        };
        if place >= MAX_PLACE {
            return Err(Damaged);
        }
        let address = match number {
            NO_CODE => address_of(NO_CODE, TABLE_FULL),
            number => address_of(number, place as u32),
        };
        self.push(address);
        Ok(previous)
    }

    #[inline]
    fn push(&mut self, address: u64) {
        let count = &mut self.counts[self.turn];
        if *count < MAX_FRAMES {
            *count += 1;
            self.buffers[self.turn][MAX_FRAMES - *count].write(Inserted { at: 0, address });
            self.pending += 1;
        }
    }

    /// Puts one frame in the place of all that are further out.
    #[cold]
    fn leave_out(&mut self) {
        if self.counts[self.turn] + 1 == MAX_FRAMES {
            self.push(address_of(NO_CODE, LEFT_OUT));
        }
    }

    /// The frames since the last call are run by the native frame in which `at` is.
    #[inline]
    fn settle(&mut self, at: u64) -> Result<(), Damaged> {
        let count = self.counts[self.turn];
        let buffer = &mut self.buffers[self.turn];
        let first = MAX_FRAMES - count;
        for frame in &mut buffer[first..first + self.pending] {
            // SAFETY: `push` wrote it.
            unsafe { frame.assume_init_mut() }.at = at;
        }
        let inner = first + self.pending;
        // SAFETY: as above.
        let inner = (inner < MAX_FRAMES).then(|| unsafe { buffer[inner].assume_init_ref().at });
        self.pending = 0;
        match inner {
            // On another stack than the frames further in.
            Some(inner) if inner > at => Err(Damaged),
            _ => Ok(()),
        }
    }
}

/// What a walk reads by.
struct Walk<'a> {
    layout: &'a Layout,
    trail: &'a Trail<'a>,
    epoch: &'a Epoch,
}
