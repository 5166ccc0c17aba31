//! The readable part of the running thread's stack.
//!
//! The bounds of a stack cannot be queried inside `malloc` (the libc call takes
//! locks and allocates), and a program may run on stacks that no library knows
//! (alternate signal stacks, coroutines). So memory is probed page by page
//! ([`crate::probe`]). How long the result is valid depends on whose stack it is:
//!
//! - **The thread's own**, on which it started and which is mapped as long as it lives. The
//!   result is kept (`Own`).
//! - **Any other.** It may be unmapped, and another one mapped in its place, as soon as the
//!   thread has left it. Nothing is kept from one walk to the next: each page is probed
//!   in the walk that reads it, before it is read.
//!
//! The number of system calls is limited (`Budget`): a walk whose stack has more pages than it may
//! probe is truncated, and a wide gap between two frames (a large array, or the way from one piece of
//! a split stack to the next) is left out.
//!
//! Whose stack it is cannot be queried either. It is treated as the thread's own if the memory is
//! readable without a gap up to the thread's end ([`Ends`]) and
//! - in threads other than the first: a complete walk ended so close below that end that no
//!   other stack fits between, and every frame from there inwards was reached by going deeper
//!   on one stack, not by a switch to another;
//! - in the first thread: always, because the kernel keeps a gap below a growing stack.

// Decision 18: stack memory stays trusted only on the thread's own stack.
use crate::probe::{self, PAGE};
use crate::{Cause, Registers};

/// A stack's memory, from which a step reads.
pub trait Memory {
    /// The word at `address`.
    ///
    /// # Errors
    /// [`Cause::OutOfStack`] if it is not on the stack, or not aligned.
    fn read(&mut self, address: u64) -> Result<u64, Cause>;

    /// The word at `address` on the stack of a frame further in, at `sp`: that may be
    /// another stack, which a signal interrupted.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    fn read_inner(&mut self, sp: u64, address: u64) -> Result<u64, Cause>;

    /// Continues on another stack, at `sp`, where a signal interrupted a frame.
    ///
    /// # Errors
    /// [`Cause::OutOfStack`] if its memory is not available.
    fn move_to(&mut self, sp: u64) -> Result<(), Cause>;

    /// Whether the four bytes at `address`, a multiple of four, are there and have this value: of
    /// code that is in no module, and may be unmapped at any moment. `false` also where that cannot
    /// be told.
    fn code_is(&self, _address: u64, _value: u32) -> bool {
        false
    }
}

/// A copy of a stack: of another process, or made up.
#[derive(Clone, Copy, Debug)]
pub struct Copied<'a> {
    low: u64,
    words: &'a [u64],
}

impl<'a> Copied<'a> {
    /// A stack with these words from `low` on, which is a multiple of 8.
    #[must_use]
    pub fn new(low: u64, words: &'a [u64]) -> Self {
        Self { low, words }
    }
}

impl Memory for Copied<'_> {
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        let offset = address.wrapping_sub(self.low);
        let word = self
            .words
            .get(usize::try_from(offset / 8).unwrap_or(usize::MAX));
        word.filter(|_| offset.is_multiple_of(8))
            .copied()
            .ok_or(Cause::OutOfStack)
    }

    fn read_inner(&mut self, _: u64, address: u64) -> Result<u64, Cause> {
        self.read(address)
    }

    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        self.read(sp).map(|_| ())
    }
}

/// The stack of a thread that was interrupted, for the step from its innermost frame: nothing below
/// its stack pointer is read. At a function's end its tables still say that the frame pointer is
/// there, from where it was taken a moment ago: it is in its register again.
pub struct Interrupted<'a, M> {
    /// The innermost frame.
    pub at: Registers,
    /// Its stack.
    pub memory: &'a mut M,
}

impl<M: Memory> Memory for Interrupted<'_, M> {
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        let distance = self.at.sp.wrapping_sub(address);
        match (1..=RED_ZONE).contains(&distance) {
            true => Ok(self.at.fp),
            false => self.memory.read(address),
        }
    }

    fn read_inner(&mut self, sp: u64, address: u64) -> Result<u64, Cause> {
        self.memory.read_inner(sp, address)
    }

    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        self.memory.move_to(sp)
    }

    fn code_is(&self, address: u64, value: u32) -> bool {
        self.memory.code_is(address, value)
    }
}

/// The most by which one read may extend the known part, in bytes: frames with arrays of
/// megabytes exist, but wild pointers point further away.
const REACH: u64 = 16 << 20;

/// Pages between two reads that are probed as well, so that the known part has no gap.
const SMALL_GAP: u64 = 8;

/// System calls that walks may make. What is read has the larger share: without it a stack is
/// truncated. What is only passed over, so that the known part has no gap, has the smaller one: without it
/// the known part begins anew behind the gap, and the next walk begins without a memo. Both begin
/// with enough for a stack of 32 MiB, which is probed once if it turns out to be the thread's own.
#[derive(Clone, Copy, Debug)]
struct Budget {
    read: u16,
    passed: u16,
}

impl Budget {
    const MOST: u16 = 8192;
    /// What each walk adds: so many pages of a foreign stack are read in every walk.
    const READ_PER_WALK: u16 = 32;
    const PASSED_PER_WALK: u16 = 1;
    const FULL: Self = Self {
        read: Self::MOST,
        passed: Self::MOST,
    };
    const FEW: Self = Self {
        read: Self::READ_PER_WALK,
        passed: 0,
    };

    fn refill(&mut self) {
        self.read = (self.read + Self::READ_PER_WALK).min(Self::MOST);
        self.passed = (self.passed + Self::PASSED_PER_WALK).min(Self::MOST);
    }

    /// Takes as many calls as a gap of this many pages requires. Whether there were enough.
    fn take_gap(&mut self, pages: u64) -> bool {
        let left = u64::from(self.passed).checked_sub(pages);
        left.inspect(|left| self.passed = *left as u16).is_some()
    }

    /// Takes one call for a page that is read. Whether there was one.
    fn take_read(&mut self) -> bool {
        let left = self.read.checked_sub(1);
        left.inspect(|left| self.read = *left).is_some()
    }
}

/// Bytes that a function may use below its stack pointer (x86-64 psABI 3.2.2).
const RED_ZONE: u64 = 128;

/// Ends of the stacks that threads begin on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// End of the stack that the kernel made for the first thread; 0: unknown.
    pub first: u64,
    /// The first thread's thread pointer: it points into a separate mapping, below which
    /// the program may map anything.
    pub first_thread: u64,
    /// Maximum distance below its thread pointer of the outermost frame of another thread:
    /// the size of what the C library puts between (thread-local storage), plus less stack than
    /// the smallest stack has.
    pub thread_slack: u64,
}

/// A copy of the range known to be readable, small enough for two registers.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    low: u64,
    bytes: u64,
}

impl Known {
    /// The word at `address` if that is known to be readable; does not probe.
    #[inline(always)]
    #[must_use]
    pub fn peek(self, address: u64) -> Option<u64> {
        let inside = address.wrapping_sub(self.low) < self.bytes;
        // SAFETY: as in `Stack::read`.
        (inside && address & 7 == 0).then(|| unsafe { (address as *const u64).read_volatile() })
    }
}

/// Known part of the thread's own stack: mapped as long as the thread lives.
#[derive(Clone, Copy, Debug)]
struct Own {
    low: u64,
    high: u64,
}

/// Memory known to be readable in the walk in progress, as a half-open range around the
/// stack pointer, and what is known for longer.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    low: u64,
    high: u64,
    /// No word at or above this belongs to it; 0: unknown.
    ceiling: u64,
    own: Own,
    ends: Ends,
    thread: u64,
    /// Whether `low` and `high` are the known part of the thread's own stack.
    on_own: bool,
    /// Whether the walk came from another stack.
    moved: bool,
    budget: Budget,
}

impl Stack {
    /// A stack of which nothing is known yet, in a process whose stacks end at `ends`.
    #[must_use]
    pub const fn new(ends: Ends) -> Self {
        Self {
            low: 0,
            high: 0,
            ceiling: 0,
            own: Own { low: 0, high: 0 },
            ends,
            thread: 0,
            on_own: false,
            moved: false,
            budget: Budget::FULL,
        }
    }

    /// A stack at `sp` of which nothing is known, for a few reads.
    #[must_use]
    pub fn at(sp: u64) -> Self {
        let mut stack = Self::new(Ends::default());
        stack.budget = Budget::FEW;
        stack.restart(sp);
        stack
    }

    /// Whether the last walk was on the known part of the thread's own stack, and `sp` is
    /// there as well: a walk may begin without further checks.
    #[inline(always)]
    #[must_use]
    pub fn stays_on_own(&self, sp: u64) -> bool {
        self.on_own && sp.wrapping_sub(self.low) < self.high - self.low
    }

    /// Whether the known range is the thread's own stack.
    #[inline(always)]
    #[must_use]
    pub fn is_on_own(&self) -> bool {
        self.on_own
    }

    /// Begins a walk at `sp`, the lowest word in use, of the thread with that thread pointer
    /// (0: unknown). Returns whether `sp` is on the known part of the thread's own stack.
    pub fn enter(&mut self, sp: u64, thread: u64) -> bool {
        self.moved = false;
        self.budget.refill();
        self.thread = if thread == self.ends.first_thread {
            0
        } else {
            thread
        };
        if self.is_own(sp) {
            self.enter_own();
        } else {
            self.restart(sp);
        }
        self.on_own
    }

    /// The known part of the thread's own stack.
    #[must_use]
    pub fn own(&self) -> (u64, u64) {
        (self.own.low, self.own.high)
    }

    fn is_own(&self, sp: u64) -> bool {
        sp.wrapping_sub(self.own.low) < self.own.high - self.own.low
    }

    fn enter_own(&mut self) {
        self.low = self.own.low;
        self.high = self.own.high;
        self.ceiling = self.own.high;
        self.on_own = true;
    }

    /// End of the stack at `sp` if the thread may have started on it; else 0.
    fn end_above(&self, sp: u64) -> u64 {
        let ends = [self.thread, self.ends.first].map(|end| end & !7);
        let above = ends.into_iter().filter(|end| sp < *end);
        above.min().unwrap_or(0)
    }

    #[cold]
    fn restart(&mut self, sp: u64) {
        self.on_own = false;
        self.low = sp & !(PAGE - 1);
        self.high = self.low;
        self.ceiling = self.end_above(sp);
    }

    /// Whether the walk in progress went over more than one stack.
    #[inline]
    #[must_use]
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// The currently known part. Valid until the stack is changed.
    #[inline(always)]
    #[must_use]
    pub fn known(&self) -> Known {
        Known {
            low: self.low,
            bytes: self.high - self.low,
        }
    }

    /// The same as a range.
    #[inline]
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        (self.low, self.high)
    }

    /// Whether everything between these is readable now. Probes if that extends the known part
    /// upwards.
    #[inline]
    pub fn covers(&mut self, (low, high): (u64, u64)) -> bool {
        low >= self.low && (high <= self.high || self.extend(high - 8).is_ok())
    }

    /// Whether a read at `address` is taken for one of this stack, or of one that it leads to.
    fn is_near(&self, address: u64) -> bool {
        let beyond = self.ceiling != 0 && address >= self.ceiling;
        address >= self.low && !beyond && address - self.high.min(address) <= REACH
    }

    /// Extends the known part up to `address`, without a gap.
    #[cold]
    fn extend(&mut self, address: u64) -> Result<(), Cause> {
        if !self.is_near(address) {
            return Err(Cause::OutOfStack);
        }
        let gap = self.gap_to(address);
        if gap > SMALL_GAP && !self.budget.take_gap(gap) {
            return Err(Cause::OutOfStack);
        }
        while self.high <= address {
            if self.high == self.own.low && self.high < self.own.high {
                self.high = self.own.high;
            } else {
                let is_read = gap <= SMALL_GAP || address - self.high < PAGE;
                self.probe_next(is_read)?;
            }
        }
        Ok(())
    }

    /// Pages to be probed between the known part and the one at `address`.
    fn gap_to(&self, address: u64) -> u64 {
        let end = match self.is_own(address) && self.high <= self.own.low {
            true => self.own.low,
            false => address,
        };
        (end - self.high.min(end)) / PAGE
    }

    /// Adds the next page to the known part.
    fn probe_next(&mut self, is_read: bool) -> Result<(), Cause> {
        let may = self.high & (PAGE - 1) == 0 && (!is_read || self.budget.take_read());
        if !may || !probe::is_readable(self.high) {
            return Err(Cause::OutOfStack);
        }
        self.high = self.high.checked_add(PAGE).ok_or(Cause::OutOfStack)?;
        Ok(())
    }

    /// Makes the word at `address` known, with the pages before it if they are there and not too
    /// many, else without them: the frame may have been called from another stack.
    #[cold]
    fn fetch(&mut self, address: u64) -> Result<(), Cause> {
        let near = self.is_near(address);
        match self.extend(address) {
            Err(_) if near && self.gap_to(address) > 0 => self.leap(address),
            done => done,
        }
    }

    /// Continues at `address`, behind a gap in the known part.
    fn leap(&mut self, address: u64) -> Result<(), Cause> {
        let before = *self;
        self.moved = true;
        if self.is_own(address) {
            self.enter_own();
            // The memo may refer to the stack on which the walk began.
            self.on_own = false;
            return Ok(());
        }
        self.restart(address);
        let is_there = self.probe_next(true);
        if is_there.is_err() {
            let budget = self.budget;
            *self = Self { budget, ..before };
        }
        is_there
    }

    /// After a walk that did not begin on the known part of the thread's own stack, returns
    /// whether it was on that stack after all. `outermost` is the stack pointer of its last frame
    /// if it is complete, and `steady` gives that of the innermost frame from which the walk
    /// certainly stayed on one stack.
    #[cold]
    pub fn settle(&mut self, outermost: Option<u64>, steady: impl FnOnce() -> u64) {
        let end = self.ceiling;
        let first = end == self.ends.first & !7;
        let ends_here = outermost.is_some_and(|sp| end - sp.min(end) <= self.ends.thread_slack);
        let near = end != 0 && end - self.high.min(end) <= REACH;
        if !near || !(first || ends_here) || self.extend(end - 8).is_err() {
            return;
        }
        let low = if first {
            self.low
        } else {
            steady().max(self.low)
        };
        let low = low & !(PAGE - 1);
        if self.own.high != end || low < self.own.low {
            self.own = Own { low, high: end };
        }
    }
}

impl Memory for Stack {
    #[inline]
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        if address < self.low || address >= self.high {
            self.fetch(address)?;
        }
        if address & 7 != 0 {
            return Err(Cause::OutOfStack);
        }
        // SAFETY: between `low` and `high` every page is either of this thread's own stack,
        // which is mapped while the thread lives, or was found readable in this very walk,
        // during which the thread stays on the stack that begins there.
        Ok(unsafe { (address as *const u64).read_volatile() })
    }

    #[cold]
    fn read_inner(&mut self, sp: u64, address: u64) -> Result<u64, Cause> {
        Self::at(sp).read(address)
    }

    /// Follows a switch of stacks (a signal frame): the known part no longer counts. The red
    /// zone below `sp` belongs to the stack: a function that was interrupted as it was about
    /// to return has its registers there.
    #[cold]
    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        let red = sp.saturating_sub(RED_ZONE);
        if red >= self.low && sp < self.high {
            return Ok(());
        }
        self.moved = true;
        if self.is_own(red) && self.is_own(sp) {
            return self.leap(sp);
        }
        let below = probe::is_readable(red);
        self.restart(if below { red } else { sp });
        self.extend(sp)
    }

    fn code_is(&self, address: u64, value: u32) -> bool {
        probe::holds(address, value)
    }
}

#[cfg(test)]
mod tests;
