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
/// So many of the last walk's frames are looked at for one that is met again.
const REACH: usize = 16;

/// A frame as it was read. Where none of it has changed, nor has its code object, its number holds.
#[derive(Clone, Copy)]
#[repr(C)]
struct Seen {
    inserted: Inserted,
    frame: u64,
    code: u64,
    previous: u64,
    instruction: u64,
    number: u32,
    /// The last of those that its native frame runs (3.11).
    is_entry: bool,
}

type Buffer<T> = [MaybeUninit<T>; MAX_FRAMES];

/// What a thread needs for its frames. Start with zeroed memory, or call [`forget`](Self::forget).
#[repr(C)]
pub struct Frames {
    /// The thread's states, as they were found.
    states: [u64; OWN],
    /// Samples until they are looked for again, and how many that were the last time.
    patience: (u32, u32),
    memory: Memory,
    /// Frames of the last walk, outermost first, and what they were read from.
    inserted: Buffer<Inserted>,
    seen: Buffer<Seen>,
    count: usize,
    /// Frames of the walk in progress, innermost first, and how many of the last one follow.
    fresh: Buffer<Seen>,
    fresh_count: usize,
    kept: usize,
    /// Of the last walk's frames, those that the walk in progress may still meet.
    ahead: usize,
    /// Fresh frames, the outermost ones, whose native frame is not known yet.
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
            self.count = 0;
            self.memory.forget();
        }
    }

    /// Forgets the last walk, whose frames have other numbers.
    pub fn forget_last(&mut self) {
        self.count = 0;
    }

    /// The frames that the interpreter runs in the native ones of a walk.
    #[inline]
    pub fn read(&mut self, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        match runtime::known() {
            Some(runtime) => self.read_from(runtime, trail, epoch),
            None => Insertion::NONE,
        }
    }

    #[inline(never)]
    fn read_from(&mut self, runtime: &Runtime, trail: &Trail<'_>, epoch: &Epoch) -> Insertion<'_> {
        (self.fresh_count, self.kept, self.pending) = (0, 0, 0);
        self.ahead = self.count;
        if self.find_states(runtime) {
            let read = self.collect(runtime, trail, epoch);
            // The outermost are run by no native frame that is known.
            self.fresh_count -= self.pending;
            match read {
                // No memory for any code object (before Linux 5.14): native frames alone say more.
                Ok(()) if epoch.bank.codes.reserved() == 0 => {
                    (self.fresh_count, self.kept) = (0, 0)
                }
                Ok(()) if self.fresh_count + self.kept > 0 => runtime::confirm(),
                Ok(()) => {}
                Err(Damaged) => {
                    (self.fresh_count, self.kept) = (0, 0);
                    runtime::doubt();
                }
            }
        }
        let same = self.put();
        let frames = self.inserted.as_ptr().cast();
        Insertion {
            // SAFETY: `put` wrote so many, now or before.
            frames: unsafe { core::slice::from_raw_parts(frames, self.count) },
            same,
        }
    }

    /// Puts the fresh frames on top of the kept ones; how many are as in the last walk.
    #[inline]
    fn put(&mut self) -> usize {
        let mut same = self.kept;
        let total = self.kept + self.fresh_count;
        for index in self.kept..total {
            // SAFETY: `push` wrote the first `fresh_count`.
            let seen = unsafe { self.fresh[total - 1 - index].assume_init() };
            // SAFETY: written, as the last walk's.
            let last = (index < self.count).then(|| unsafe { self.inserted[index].assume_init() });
            if same == index && last == Some(seen.inserted) {
                same += 1;
            }
            self.inserted[index].write(seen.inserted);
            self.seen[index].write(seen);
        }
        self.count = total;
        same
    }

    /// Whether a frame in the native frame `at` is one of the last walk's, as are all further out:
    /// then these are taken as they were. `at` 0: it is not known yet.
    #[inline]
    fn joins(&mut self, walk: &Walk<'_>, frame: u64, at: u64) -> Result<bool, Damaged> {
        let from = self.ahead.saturating_sub(REACH);
        let is_it = |index: &usize| {
            // SAFETY: the last walk's.
            let seen = unsafe { self.seen[*index].assume_init_ref() };
            seen.frame == frame && (at == 0 || seen.inserted.at == at)
        };
        let Some(index) = (from..self.ahead).rev().find(is_it) else {
            return Ok(false);
        };
        let changed = self.first_changed(walk, index);
        if let Some(changed) = changed {
            // What is further in leads to it, so each frame is looked at once.
            self.ahead = changed;
        }
        if changed.is_some() || index + self.fresh_count + 2 >= MAX_FRAMES {
            return Ok(false);
        }
        self.kept = index + 1;
        // Frames of the same native frame further in.
        // SAFETY: as above.
        let at = unsafe { self.seen[index].assume_init_ref().inserted.at };
        self.settle(at)?;
        Ok(true)
    }

    /// The first of the last walk's frames from `index` outwards that is not as it was.
    #[inline]
    fn first_changed(&self, walk: &Walk<'_>, index: usize) -> Option<usize> {
        let layout = walk.layout;
        for index in (0..=index).rev() {
            // SAFETY: the last walk's.
            let seen = unsafe { self.seen[index].assume_init_ref() };
            if seen.frame == 0 {
                // In the place of those that were too many.
                return Some(index);
            }
            // SAFETY: the thread's own frames lead here, and it could be read when they did before.
            let (code, previous, instruction) = unsafe {
                (
                    word(seen.frame + layout.frame_code) & !3,
                    word(seen.frame + layout.frame_previous),
                    word(seen.frame + layout.frame_instruction),
                )
            };
            let same = code == seen.code && previous == seen.previous;
            if !same || instruction != seen.instruction {
                return Some(index);
            }
            let number = codes::number(layout, code, walk.epoch);
            let same = number == Some(seen.number) && seen.number != NO_CODE;
            if !same || !self.leads_on(walk, index) {
                return Some(index);
            }
        }
        None
    }

    /// Whether one of the last walk's frames leads to the next one, by the same native frame.
    #[inline]
    fn leads_on(&self, walk: &Walk<'_>, index: usize) -> bool {
        let (layout, trail) = (walk.layout, walk.trail);
        // SAFETY: the last walk's.
        let seen = |index: usize| unsafe { self.seen[index].assume_init_ref() };
        let this = seen(index);
        let is_entry = layout.style == Style::Records && is_entry(layout, this.frame);
        if is_entry != this.is_entry {
            return false;
        }
        let Some(next) = index.checked_sub(1).map(seen) else {
            return true;
        };
        let (at, next_at) = (this.inserted.at, next.inserted.at);
        match layout.style {
            Style::Objects => false,
            _ if this.previous == next.frame && !is_entry => true,
            Style::Records => {
                this.previous == next.frame
                    && trail.peek(at + layout.current + 8) == Some(next_at)
                    && trail.peek(next_at + layout.current) == Some(next.frame)
            }
            Style::Entries => {
                this.previous == at && trail.peek(at + layout.frame_previous) == Some(next.frame)
            }
        }
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
                if self.joins(walk, frame, record)? {
                    return Ok(());
                }
                let next = self.step(walk, frame)?;
                let was_entry = is_entry(walk.layout, frame);
                frame = next;
                if was_entry {
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
            if frame == 0 || self.joins(walk, frame, 0)? {
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
        if self.fresh_count + 1 >= MAX_FRAMES {
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
        self.push(Seen {
            inserted: Inserted { at: 0, address },
            frame,
            code,
            previous,
            instruction,
            number,
            is_entry: layout.style == Style::Records && is_entry(layout, frame),
        });
        Ok(previous)
    }

    #[inline]
    fn push(&mut self, seen: Seen) {
        if self.fresh_count < MAX_FRAMES {
            self.fresh[self.fresh_count].write(seen);
            self.fresh_count += 1;
            self.pending += 1;
        }
    }

    /// Puts one frame in the place of all that are further out.
    #[cold]
    fn leave_out(&mut self) {
        if self.fresh_count + 1 == MAX_FRAMES {
            let address = address_of(NO_CODE, LEFT_OUT);
            self.push(Seen {
                inserted: Inserted { at: 0, address },
                frame: 0,
                code: 0,
                previous: 0,
                instruction: 0,
                number: NO_CODE,
                is_entry: false,
            });
        }
    }

    /// The frames since the last call are run by the native frame in which `at` is.
    #[inline]
    fn settle(&mut self, at: u64) -> Result<(), Damaged> {
        let first = self.fresh_count - self.pending;
        for seen in &mut self.fresh[first..self.fresh_count] {
            // SAFETY: `push` wrote it.
            unsafe { seen.assume_init_mut() }.inserted.at = at;
        }
        self.pending = 0;
        let inner = first.checked_sub(1).map(|inner| {
            // SAFETY: as above.
            unsafe { self.fresh[inner].assume_init_ref() }.inserted.at
        });
        match inner {
            // On another stack than the frames further in.
            Some(inner) if inner > at => Err(Damaged),
            _ => Ok(()),
        }
    }
}

/// Whether a frame, which can be read, is the last of those that its native frame runs (3.11).
#[inline]
fn is_entry(layout: &Layout, frame: u64) -> bool {
    // SAFETY: the caller's word that it can be read; its owner is in its first bytes.
    let word = unsafe { word(frame + layout.frame_owner) };
    word >> 32 & 0xff != 0
}

/// What a walk reads by.
struct Walk<'a> {
    layout: &'a Layout,
    trail: &'a Trail<'a>,
    epoch: &'a Epoch,
}
