//! Readable part of the running thread's stack.
//!
//! The bounds of a stack cannot be queried inside `malloc`, since the libc call takes locks and
//! allocates. Besides, a program may run on stacks that no library knows (alternate signal stacks,
//! coroutines). So memory is probed page by page ([`crate::probe`]). How long the result is valid
//! depends on the stack:
//!
//! - **The thread's own stack**, on which it started, is mapped as long as the thread lives. The
//!   result is kept (`Own`).
//! - **A foreign stack** may be unmapped and replaced by another as soon as the thread has left it.
//!   Nothing is kept between walks: each walk probes each page before it reads it.
//!
//! The number of system calls is limited (`Budget`). A walk that needs to probe more pages is
//! truncated. A gap between two frames that is too wide for the budget (a large array, or the way
//! from one piece of a split stack to the next) is skipped without probing.
//!
//! The kernel has no system call that returns which stack is the thread's own, either. A stack is
//! treated as such if its memory is readable without a gap up to the thread's stack end
//! ([`Ends`]). Except in the main thread, two more conditions must hold: a complete walk ended so
//! close below that end that no other stack fits between, and every frame from there inwards was
//! reached without a stack switch. In the main thread, no such walk is needed, because the kernel
//! keeps a gap below a growing stack.

// Decision 18: stack memory stays trusted only on the thread's own stack.
use crate::probe::{self, PAGE};
use crate::{Cause, Registers};

/// Memory of a stack, from which steps read.
pub trait Memory {
    /// Returns the word at `address`.
    ///
    /// # Errors
    /// [`Cause::OutOfStack`] if it is not on the stack, or not aligned.
    fn read(&mut self, address: u64) -> Result<u64, Cause>;

    /// Returns the word at `address` on the stack of an inner frame at `sp`. That may be another
    /// stack, on which a signal handler runs.
    ///
    /// # Errors
    /// Errors of [`read`](Self::read).
    fn read_callee_stack(&mut self, sp: u64, address: u64) -> Result<u64, Cause>;

    /// Continues at `sp` on another stack: the one that a signal interrupted, or that a frame left.
    ///
    /// # Errors
    /// [`Cause::OutOfStack`] if its memory is not available.
    fn move_to(&mut self, sp: u64) -> Result<(), Cause>;

    /// Returns the word at `address`, which need not be on the stack. Returns `None` if it is not
    /// aligned, or if other memory is not available.
    fn word(&mut self, _address: u64) -> Option<u64> {
        None
    }

    /// Returns true if the four bytes at `address`, which is a multiple of four, are readable and
    /// equal `value`. Used for code outside every module, which may be unmapped at any moment.
    /// Returns false if that cannot be determined.
    fn code_is(&self, _address: u64, _value: u32) -> bool {
        false
    }
}

/// Copy of a stack: of another process, or synthetic.
#[derive(Clone, Copy, Debug)]
pub struct Copied<'a> {
    low: u64,
    words: &'a [u64],
}

impl<'a> Copied<'a> {
    /// Returns a stack with these words, starting at address `low`, which must be a multiple of 8.
    #[must_use]
    pub fn new(low: u64, words: &'a [u64]) -> Self {
        Self { low, words }
    }
}

impl Memory for Copied<'_> {
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        let offset = address.wrapping_sub(self.low);
        if !offset.is_multiple_of(8) {
            return Err(Cause::OutOfStack);
        }
        let index = usize::try_from(offset / 8).unwrap_or(usize::MAX);
        self.words.get(index).copied().ok_or(Cause::OutOfStack)
    }

    fn read_callee_stack(&mut self, _: u64, address: u64) -> Result<u64, Cause> {
        self.read(address)
    }

    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        self.read(sp).map(|_| ())
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        self.read(address).ok()
    }
}

/// Stack of an interrupted thread, for the step from its innermost frame.
///
/// Words below the stack pointer are not read. At the end of a function, unwind tables may still
/// give such a word as the location of the saved frame pointer. By then the frame pointer has been
/// restored, so its register's value is returned instead.
pub struct Interrupted<'a, M> {
    /// Innermost frame.
    pub at: Registers,
    /// Memory of its stack.
    pub memory: &'a mut M,
}

impl<M: Memory> Memory for Interrupted<'_, M> {
    fn read(&mut self, address: u64) -> Result<u64, Cause> {
        let distance = self.at.sp.wrapping_sub(address);
        if (1..=RED_ZONE).contains(&distance) {
            Ok(self.at.fp)
        } else {
            self.memory.read(address)
        }
    }

    fn read_callee_stack(&mut self, sp: u64, address: u64) -> Result<u64, Cause> {
        self.memory.read_callee_stack(sp, address)
    }

    fn move_to(&mut self, sp: u64) -> Result<(), Cause> {
        self.memory.move_to(sp)
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        self.memory.word(address)
    }

    fn code_is(&self, address: u64, value: u32) -> bool {
        self.memory.code_is(address, value)
    }
}

/// Maximum number of bytes by which one read extends the known part. Frames with arrays of
/// megabytes exist, but wild pointers point further away.
const MAX_EXTENSION: u64 = 16 << 20;

/// Maximum width, in pages, of a gap between two reads that is charged to [`Budget::read`]. Wider
/// gaps are charged to [`Budget::passed`].
const SMALL_GAP: u64 = 8;

/// Numbers of system calls that walks may still make: `read` for pages that are read, `passed` for
/// pages in gaps.
///
/// The budget for pages that are read is refilled faster, because a stack is truncated when it is
/// exhausted. Pages in gaps are probed only to keep the known part contiguous; when their budget is
/// exhausted, the known part restarts after the gap, and the next walk starts without a cached
/// stack. Both start with enough for a stack of 32 MiB: the thread's own stack is probed only once.
#[derive(Clone, Copy, Debug)]
struct Budget {
    read: u16,
    passed: u16,
}

impl Budget {
    /// Maximum number of calls saved up, of each kind.
    const MAX_CALLS: u16 = 8192;
    /// Calls added by each walk, so that each can read that many pages of a foreign stack.
    const READ_PER_WALK: u16 = 32;
    const PASSED_PER_WALK: u16 = 1;
    const FULL: Self = Self {
        read: Self::MAX_CALLS,
        passed: Self::MAX_CALLS,
    };
    /// Allowance of a single walk.
    const ONE_WALK: Self = Self {
        read: Self::READ_PER_WALK,
        passed: 0,
    };

    fn refill(&mut self) {
        self.read = (self.read + Self::READ_PER_WALK).min(Self::MAX_CALLS);
        self.passed = (self.passed + Self::PASSED_PER_WALK).min(Self::MAX_CALLS);
    }

    /// Takes the calls for a gap of `pages` pages. Returns false if there are not enough.
    fn take_gap(&mut self, pages: u64) -> bool {
        let left = u64::from(self.passed).checked_sub(pages);
        left.inspect(|left| self.passed = *left as u16).is_some()
    }

    /// Takes one call for a page that is read. Returns false if none is left.
    fn take_read(&mut self) -> bool {
        let left = self.read.checked_sub(1);
        left.inspect(|left| self.read = *left).is_some()
    }
}

/// Bytes that a function may use below its stack pointer (x86-64 psABI 3.2.2).
const RED_ZONE: u64 = 128;

/// Ends (highest addresses) of the stacks on which threads start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// End of the stack that the kernel made for the main thread; 0 if unknown.
    pub first: u64,
    /// Thread pointer of the main thread. It is not the end of a stack: it points into a separate
    /// mapping, below which the program may map anything.
    pub first_thread: u64,
    /// Maximum distance, in bytes, between a thread's thread pointer and its outermost frame, in
    /// threads other than the main one: the size of thread-local storage, plus less than the size
    /// of the smallest stack.
    pub thread_slack: u64,
}

/// Copy of the range known to be readable, small enough for two registers.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    low: u64,
    bytes: u64,
}

impl Known {
    /// Returns the word at `address` if that is known to be readable; does not probe.
    #[inline(always)]
    #[must_use]
    pub fn peek(self, address: u64) -> Option<u64> {
        let is_inside = address.wrapping_sub(self.low) < self.bytes;
        // SAFETY: the address is aligned and inside the known range, which is readable during this
        // walk (see `Stack::read`).
        (is_inside && address & 7 == 0).then(|| unsafe { (address as *const u64).read_volatile() })
    }
}

/// Known part of the thread's own stack, which is mapped as long as the thread lives.
#[derive(Clone, Copy, Debug)]
struct Own {
    low: u64,
    high: u64,
}

/// Range of memory around the stack pointer that is known to be readable in the walk in progress
/// (`low..high`), and what is kept between walks.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    low: u64,
    high: u64,
    /// End of the stack, if the thread may have started on it; 0 if unknown.
    ceiling: u64,
    own: Own,
    ends: Ends,
    thread: u64,
    /// True if `low` and `high` are the known part of the thread's own stack.
    on_own: bool,
    /// True if the walk has moved from one stack to another.
    moved: bool,
    budget: Budget,
}

impl Stack {
    /// Returns a stack of which nothing is known, in a process whose stacks end at `ends`.
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

    /// Returns a stack at `sp` of which nothing is known, for a few reads.
    #[must_use]
    pub fn at(sp: u64) -> Self {
        let mut stack = Self::new(Ends::default());
        stack.budget = Budget::ONE_WALK;
        stack.restart(sp);
        stack
    }

    /// Returns true if the last walk was on the known part of the thread's own stack and `sp` is
    /// there too. A walk may then start without further checks.
    #[inline(always)]
    #[must_use]
    pub fn stays_on_own(&self, sp: u64) -> bool {
        self.on_own && sp.wrapping_sub(self.low) < self.high - self.low
    }

    /// Returns true if the known range is the thread's own stack.
    #[inline(always)]
    #[must_use]
    pub fn is_on_own(&self) -> bool {
        self.on_own
    }

    /// Starts a walk at `sp`, the lowest word in use. `thread` is the thread pointer; 0 if unknown.
    /// Returns true if `sp` is on the known part of the thread's own stack.
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

    /// Returns the known part of the thread's own stack.
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

    /// Returns the end of the stack at `sp` if the thread may have started on it, else 0.
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

    /// Returns true if the walk in progress has moved from one stack to another.
    #[inline]
    #[must_use]
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// Returns the known part. Valid until the stack is changed.
    #[inline(always)]
    #[must_use]
    pub fn known(&self) -> Known {
        Known {
            low: self.low,
            bytes: self.high - self.low,
        }
    }

    /// Returns the bounds of the known part.
    #[inline]
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        (self.low, self.high)
    }

    /// Returns true if all of the range `low..high` is readable now. Probes if that extends the
    /// known part upwards.
    #[inline]
    pub fn covers(&mut self, low: u64, high: u64) -> bool {
        low >= self.low && (high <= self.high || self.extend(high - 8).is_ok())
    }

    /// Returns true if `address` may be on this stack, or on a stack that it was called from.
    fn is_near(&self, address: u64) -> bool {
        let beyond = self.ceiling != 0 && address >= self.ceiling;
        address >= self.low && !beyond && address - self.high.min(address) <= MAX_EXTENSION
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

    /// Returns the number of pages to probe between the known part and the page of `address`.
    fn gap_to(&self, address: u64) -> u64 {
        let end = if self.is_own(address) && self.high <= self.own.low {
            self.own.low
        } else {
            address
        };
        (end - self.high.min(end)) / PAGE
    }

    /// Adds the next page to the known part.
    fn probe_next(&mut self, is_read: bool) -> Result<(), Cause> {
        let may_probe = self.high & (PAGE - 1) == 0 && (!is_read || self.budget.take_read());
        if !may_probe || !probe::is_readable(self.high) {
            return Err(Cause::OutOfStack);
        }
        self.high = self.high.checked_add(PAGE).ok_or(Cause::OutOfStack)?;
        Ok(())
    }

    /// Makes the word at `address` known. Includes the pages below it if they are readable and not
    /// too many; otherwise restarts at `address`, since the frame may have been called from another
    /// stack.
    #[cold]
    fn fetch(&mut self, address: u64) -> Result<(), Cause> {
        let is_near = self.is_near(address);
        match self.extend(address) {
            Err(_) if is_near && self.gap_to(address) > 0 => self.leap(address),
            result => result,
        }
    }

    /// Continues at `address`, after a gap in the known part.
    fn leap(&mut self, address: u64) -> Result<(), Cause> {
        let before = *self;
        self.moved = true;
        if self.is_own(address) {
            self.enter_own();
            // Cleared, so that cached words are checked: they may be on the stack that was left.
            self.on_own = false;
            return Ok(());
        }
        self.restart(address);
        let probed = self.probe_next(true);
        if probed.is_err() {
            let budget = self.budget;
            *self = Self { budget, ..before };
        }
        probed
    }

    /// Determines, after a walk that did not start on the known part of the thread's own stack,
    /// whether the walk was on that stack nevertheless.
    ///
    /// `outermost` is the stack pointer of the outermost frame that the walk reached; `None` if the
    /// stack is truncated for another reason than its depth. `same_stack_sp` returns the stack
    /// pointer of the innermost frame from which the walk certainly stayed on one stack.
    #[cold]
    pub fn update_bounds(&mut self, outermost: Option<u64>, same_stack_sp: impl FnOnce() -> u64) {
        let end = self.ceiling;
        let is_main_stack = end == self.ends.first & !7;
        let is_at_end = |sp: u64| end - sp.min(end) <= self.ends.thread_slack || self.is_own(sp);
        let ends_here = outermost.is_some_and(is_at_end);
        let is_near = end != 0 && end - self.high.min(end) <= MAX_EXTENSION;
        if !is_near || !(is_main_stack || ends_here) || self.extend(end - 8).is_err() {
            return;
        }
        let low = if is_main_stack {
            self.low
        } else {
            same_stack_sp().max(self.low)
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
        // SAFETY: every page between `low` and `high` is readable. Either it is on this thread's
        // own stack, which is mapped while the thread lives, or it was probed in this walk, and the
        // thread does not leave a stack while it is being walked.
        Ok(unsafe { (address as *const u64).read_volatile() })
    }

    #[cold]
    fn read_callee_stack(&mut self, sp: u64, address: u64) -> Result<u64, Cause> {
        Self::at(sp).read(address)
    }

    /// Follows a switch of stacks, and restarts the known part there. Includes the red zone below
    /// `sp`: a function that was interrupted just before it returns has saved registers there.
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
        let has_red_zone = probe::is_readable(red);
        self.restart(if has_red_zone { red } else { sp });
        self.extend(sp)
    }

    #[cold]
    fn word(&mut self, address: u64) -> Option<u64> {
        let may_probe = address & 7 == 0 && self.budget.take_read() && probe::is_readable(address);
        // SAFETY: the page has just been probed. The caller asks only for the description of the
        // goroutine that waits for this very call, which Go's runtime never unmaps.
        may_probe.then(|| unsafe { (address as *const u64).read_volatile() })
    }

    fn code_is(&self, address: u64, value: u32) -> bool {
        probe::word_equals(address, value)
    }
}

#[cfg(test)]
mod tests;
