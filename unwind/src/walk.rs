//! Walking a stack with a memo of the last one.
//!
//! A thread's consecutive samples share most of their stack: everything above the last
//! common function. The memo holds the last stack: each frame with its
//! registers, the addresses of the two words that its step read, and its node in the
//! calling-context tree if that was needed. A new walk steps only until it meets a frame of the memo
//! with equal registers, then validates the memo: it compares the words that its steps read, after
//! making sure that all of them are readable now. If all are unchanged, the remaining frames
//! and their nodes are the same. A word that differs ends the comparison; the walk continues
//! from that frame and may meet frames of the memo again further out.
//!
//! Cost: about 80 instructions for a new frame; two compares for an unchanged one, of adjacent
//! words in memory.

mod intern;
mod memo;
mod name;
mod places;
mod quick;
mod tree;

use crate::arch::Native;
use crate::compile::Scratch;
use crate::inserted::{Insertion, Trail};
use crate::probe::PAGE;
use crate::rare;
use crate::rule::{Base, Rule, Step, Word, plain_step, step};
use crate::slow;
use crate::stack::{Ends, Interrupted, Stack};
use crate::{Cause, Registers};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use memo::{Found, Memo, Noted};
use name::InsertedSum;
use places::Places;
use quick::Pace;

pub use tree::{Code, Node, Tree};

/// Maximum number of frames. Of deeper stacks, the innermost [`DEEP_FRAMES`] are kept.
pub const MAX_FRAMES: usize = 3072;
/// Number of innermost frames kept of a stack that is too deep.
pub const DEEP_FRAMES: usize = 128;

/// Number of bits of an address; in an interned address, the bits above hold the rule's instance.
pub const ADDRESS_BITS: u32 = 48;

/// A finished walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Node of the innermost frame; `None`: no room in the tree.
    pub leaf: Option<u32>,
    /// Why the stack is truncated, if it is.
    pub truncated: Option<Cause>,
}

#[inline]
fn tagged(ip: u64, instance: u8) -> u64 {
    ip | u64::from(instance) << ADDRESS_BITS
}

/// Marks a step that cannot be validated by comparing words: it never compares equal.
static NEVER: u64 = 0;

fn never() -> Word {
    Word {
        at: &raw const NEVER as u64,
        value: 1,
    }
}

/// The words that must be unchanged for a step to have the same result.
#[inline]
fn words_read(rule: Rule, step: &Step) -> [Word; 2] {
    let reads_two = (rule.is_plain() && !rule.is_leaf()) || rule.is_bare();
    match *step {
        Step::Caller { ra, fp, .. } if reads_two => [ra, fp],
        Step::End { ra } if reads_two => [ra, Word::default()],
        // The rule alone decides, whatever the stack holds.
        Step::End { .. } | Step::Truncated(_) if rule.ends() => [Word::default(); 2],
        _ => [never(), Word::default()],
    }
}

/// What is added to the sum of a truncated stack.
const TRUNCATED: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a frame adds to its stack's sum.
#[inline(always)]
fn part((registers, rule): (Registers, Rule), salt: u64) -> u64 {
    memo::part(tagged(registers.ip, rule.instance()), registers.sp, salt)
}

/// A thread's walker, with the memo of its last stack. It takes about 650 KiB, of which only the
/// depth in use is ever touched. Start with zeroed memory and call [`init`](Self::init).
#[repr(C)]
pub struct Walker {
    stack: Stack,
    /// All words of the memo except [`NEVER`] lie between these.
    span: (u64, u64),
    truncated: Option<Cause>,
    /// Leaf of the memo's stack; 0: not known.
    leaf: u32,
    /// Whether the last stack was seen before it was walked.
    was_seen: bool,
    /// What names the last stack that was found without the memo; 0: it is the memo's.
    last: u64,
    pace: Pace,
    /// How many of an interpreter's frames are still those of the memo, from the outermost on, as far
    /// as the walks tell that left it alone.
    same: usize,
    inserted: InsertedSum,
    scratch: MaybeUninit<Scratch>,
    memo: Memo,
    places: Places,
}

/// Result of a trace: what was found, and how the stack ended if it was walked to its end.
struct Trace {
    found: Found,
    end: Option<Option<Cause>>,
}

impl Trace {
    /// Walked to the end of the stack, or to where it is truncated.
    #[inline]
    fn ends(fresh: Noted, truncated: Option<Cause>) -> Self {
        Self {
            found: Found { fresh, joins: None },
            end: Some(truncated),
        }
    }

    /// Reached a frame of the memo, all of which from there on are still valid.
    #[inline]
    fn joins(index: usize, fresh: Noted) -> Self {
        Self {
            found: Found {
                fresh,
                joins: Some(index),
            },
            end: None,
        }
    }
}

impl Walker {
    /// Turns zeroed memory into a walker, for a thread whose stack is not known yet.
    pub fn init(&mut self, ends: Ends) {
        self.stack = Stack::new(ends);
        self.forget();
        self.span = (0, 0);
        self.truncated = None;
        self.pace = Pace::SLOW;
        self.same = usize::MAX;
        self.inserted = InsertedSum::default();
        self.scratch.write(Scratch::new());
    }

    /// Forgets the last stack, whose nodes or rules are no longer valid.
    pub fn forget(&mut self) {
        self.places.forget();
        self.forget_last();
    }

    /// Forgets the memo.
    fn forget_last(&mut self) {
        self.memo.forget();
        self.leaf = 0;
    }

    /// The node of the last stack, if it is that once more: for who asks before [`walk`](Self::walk),
    /// in the same generation of rules and the same tree.
    #[inline(always)]
    #[must_use]
    pub fn again(&mut self, start: &Registers) -> Option<Walk> {
        self.is_last(start).then(|| self.last_again())
    }

    /// Whether the native frames are those of the memo, whose node is known.
    #[inline(always)]
    fn is_last(&self, start: &Registers) -> bool {
        let is_known = self.leaf != 0 && !self.memo.is_empty();
        if !is_known || !self.stack.stays_on_own(start.sp) {
            return false;
        }
        let begin = self.memo.begin();
        if !self.memo.is_at(begin, start) {
            return false;
        }
        // SAFETY: the memo is of the thread's own stack: `settle` forgets others.
        unsafe { self.memo.first_changed(begin) }.is_none()
    }

    #[inline(always)]
    fn last_again(&mut self) -> Walk {
        self.last = 0;
        Walk {
            leaf: Some(self.leaf),
            truncated: self.truncated,
        }
    }

    /// Walks from `start`, asking `code` for rules and interning in `tree`. `thread` is the
    /// thread pointer, above which the thread's own stack holds nothing (0: unknown).
    #[inline]
    pub fn walk<T: Tree>(
        &mut self,
        start: Registers,
        thread: u64,
        tree: &T,
        code: impl Code,
    ) -> Walk {
        if !self.stack.stays_on_own(start.sp) {
            self.enter(start.sp, thread);
        } else if self.pace.is_quick()
            && let Some(walk) = self.walk_quickly(start, tree, &code, &mut |_| Insertion::NONE)
        {
            return walk;
        }
        let trace = self.trace(start, Noted::NONE, &[], (&code, tree.salt()));
        self.was_seen = false;
        let walk = self.complete(&trace, tree, |_| Insertion::NONE);
        self.pace.walked(trace.found.fresh.count, self.was_seen);
        walk
    }

    /// Like [`walk`](Self::walk), with an interpreter's frames in the result, which `insert` finds:
    /// where `by_stack`, from the stack alone, without the native frames.
    #[inline(never)]
    pub fn walk_with<'a, T: Tree>(
        &mut self,
        start: Registers,
        thread: u64,
        tree: &T,
        code: impl Code,
        by_stack: bool,
        insert: impl FnOnce(&Trail<'_>) -> Insertion<'a>,
    ) -> Walk {
        let mut insert = Some(insert);
        let mut known = None;
        // Once: what is the same is so since the last time.
        let mut once = |trail: &Trail<'_>| {
            let found = insert.take().map(|insert| insert(trail));
            *known.insert(found.or(known).unwrap_or(Insertion::NONE))
        };
        let mut trace = None;
        if !self.stack.stays_on_own(start.sp) {
            self.enter(start.sp, thread);
        } else if by_stack && self.is_last(&start) {
            let found = once(&Trail::of_stack(self.stack.known()));
            self.inserted.note(&found);
            if self.has_inserted(&found) {
                return self.last_again();
            }
            trace = Some(Trace::joins(self.memo.begin(), Noted::NONE));
        } else if by_stack
            && self.pace.is_quick()
            && let Some(walk) = self.walk_quickly(start, tree, &code, &mut once)
        {
            return walk;
        }
        let trace =
            trace.unwrap_or_else(|| self.trace(start, Noted::NONE, &[], (&code, tree.salt())));
        self.was_seen = false;
        let same = core::mem::replace(&mut self.same, usize::MAX);
        let walk = self.complete(&trace, tree, |trail| {
            let found = once(trail);
            Insertion {
                same: found.same.min(same),
                ..found
            }
        });
        self.pace.walked(trace.found.fresh.count, self.was_seen);
        walk
    }

    /// Whether these are the frames that are inserted in the memo's.
    #[inline(always)]
    fn has_inserted(&self, found: &Insertion<'_>) -> bool {
        let count = found.frames.len();
        let inserted = self.memo.frame(self.memo.begin()).inserted;
        found.same.min(self.same) >= count && inserted as usize == count
    }

    /// The same from a frame that was interrupted, at any of its instructions: `start.ip` is the
    /// next one's address plus one. `live`: all of its registers by their DWARF numbers. `insert`
    /// finds the frames of an interpreter, if there are any, all of them again.
    pub fn walk_interrupted<'a, T: Tree>(
        &mut self,
        (start, live): (Registers, &[u64]),
        thread: u64,
        tree: &T,
        code: impl Code,
        insert: impl FnOnce(&Trail<'_>) -> Insertion<'a>,
    ) -> Walk {
        if !self.stack.stays_on_own(start.sp) {
            self.enter(start.sp, thread);
        }
        // SAFETY: `init` wrote it.
        let rule = code.rule(start.ip, unsafe { self.scratch.assume_init_mut() });
        let step = self.interrupted_step(rule, &start, live, &code);
        let (frame, words) = ((start, rule), [never(), Word::default()]);
        let (mut noted, salt) = (Noted::NONE, tree.salt());
        // SAFETY: the first of all.
        unsafe { self.memo.note(&mut noted, frame, words, part(frame, salt)) };
        let trace = match step {
            Step::Caller { registers, .. } => self.trace(registers, noted, live, (&code, salt)),
            Step::End { .. } => Trace::ends(noted, None),
            Step::Truncated(cause) => Trace::ends(noted, Some(cause)),
        };
        self.same = usize::MAX;
        self.complete(&trace, tree, |trail| Insertion {
            same: 0,
            ..insert(trail)
        })
    }

    /// The step from the innermost frame, which was interrupted.
    fn interrupted_step(
        &mut self,
        rule: Rule,
        at: &Registers,
        live: &[u64],
        code: &impl Code,
    ) -> Step {
        let mut memory = Interrupted {
            at: *at,
            memory: &mut self.stack,
        };
        if !rule.is_rare::<Native>() {
            return step(rule, at, &mut memory);
        }
        let mut inner = slow::Inner {
            frame: |_: usize| *at,
            count: 0,
            module: |ip| code.image(ip),
            // SAFETY: `init` wrote it.
            scratch: unsafe { self.scratch.assume_init_mut() },
            machine: PhantomData::<Native>,
            live,
        };
        let callee = None;
        let from = rare::Frame { rule, at, callee };
        let rules = |ip, scratch: &mut Scratch| code.rule(ip, scratch);
        code.reading(|| rare::step(&from, &mut memory, &mut inner, rules))
            .unwrap_or(Step::Truncated(Cause::Unsupported))
    }

    /// Interns what a trace has found.
    #[inline]
    fn complete<'a, T: Tree>(
        &mut self,
        trace: &Trace,
        tree: &T,
        insert: impl FnOnce(&Trail<'_>) -> Insertion<'a>,
    ) -> Walk {
        if let Some(end) = trace.end {
            self.truncated = end;
        }
        let (memo, count) = (&self.memo, self.memo.count(&trace.found));
        let insertion = insert(&Trail {
            known: self.stack.known(),
            count,
            frame: &|index| memo.found(&trace.found, index).registers,
        });
        self.inserted.note(&insertion);
        if count > MAX_FRAMES || self.truncated == Some(Cause::TooDeep) {
            let walk = self.intern_deep(&trace.found, tree, &insertion);
            let own = self.stack.own();
            self.stack.settle(None, || 0);
            if self.stack.own() != own {
                self.places.forget();
            }
            return walk;
        }
        let walk = self.intern(&trace.found, tree, &insertion);
        if !self.stack.is_on_own() || self.stack.moved() {
            self.settle();
        }
        walk
    }

    /// Begins a walk that does not stay on the known part of the thread's own stack.
    #[cold]
    fn enter(&mut self, sp: u64, thread: u64) {
        if self.stack.enter(sp, thread) {
            if !self.stack.covers(self.span) {
                self.forget_last();
            }
            self.span = self.stack.span();
        }
    }

    /// Called after a walk that was not entirely on the known part of the thread's own stack.
    #[cold]
    fn settle(&mut self) {
        let complete = self.truncated.is_none() && !self.memo.is_empty();
        let outermost = complete.then(|| self.memo.frame(self.memo.end() - 1).registers.sp);
        let mut stack = self.stack;
        stack.settle(outermost, || self.steady());
        if stack.own() != self.stack.own() {
            self.places.forget();
        }
        self.stack = stack;
        if self.stack.moved() {
            // Parts of two stacks: the memo's words are not all in one span.
            self.forget_last();
        }
        self.span = self.stack.span();
    }

    /// The stack pointer of the innermost frame from which the last walk certainly stayed on
    /// one stack. Code that switches stacks returns by a saved register, and that step skips
    /// at least all the unused space of the other stack.
    fn steady(&self) -> u64 {
        let memo = &self.memo;
        let mut sp = memo.frame(memo.end() - 1).registers.sp;
        for index in (memo.begin()..memo.end() - 1).rev() {
            let frame = memo.frame(index);
            let step = sp.wrapping_sub(frame.registers.sp);
            let stays = match frame.rule.base() {
                Base::Sp => true,
                Base::Fp => step <= PAGE,
                Base::Other => frame.rule.is_bare() && step <= PAGE,
            };
            if !stays {
                break;
            }
            sp = frame.registers.sp;
        }
        sp
    }

    /// Steps outwards until the end or a frame of the memo that is still valid; `noted` are the
    /// frames further in, and `live` as above.
    #[inline]
    fn trace(
        &mut self,
        start: Registers,
        mut noted: Noted,
        live: &[u64],
        (code, salt): (&impl Code, u64),
    ) -> Trace {
        let mut at = start;
        let mut from = self.memo.begin();
        let mut readable = self.stack.known();
        loop {
            let met = self.memo.meet(at, &mut from);
            if met.is_some() && !self.stack.is_on_own() && !self.stack.covers(self.span) {
                // The memo is of another stack that was mapped here.
                self.forget_last();
                from = self.memo.begin();
            } else if let Some(index) = met {
                // SAFETY: all words of the memo are readable now, as just checked.
                let Some(changed) = (unsafe { self.memo.first_changed(index) }) else {
                    return Trace::joins(index, noted);
                };
                if changed > index {
                    self.memo.take_back((index, changed), &mut noted);
                }
                at = self.memo.frame(changed).registers;
                from = changed + 1;
            }
            if noted.count == MAX_FRAMES {
                return Trace::ends(noted, Some(Cause::TooDeep));
            }
            // SAFETY: `init` wrote it.
            let found = code.rule(at.ip, unsafe { self.scratch.assume_init_mut() });
            let part = part((at, found), salt);
            if let Some((caller, ra, fp)) = plain_step(found, at, readable) {
                // SAFETY: fewer than MAX_FRAMES, as checked above.
                unsafe { self.memo.note(&mut noted, (at, found), [ra, fp], part) };
                at = caller;
                continue;
            }
            // A copy, so that `at` may stay in registers.
            let here = at;
            let step = if found.is_rare::<Native>() {
                self.rare_step(found, &here, (noted.count, live), code)
            } else {
                step(found, &here, &mut self.stack)
            };
            readable = self.stack.known();
            let words = words_read(found, &step);
            // SAFETY: fewer than MAX_FRAMES, as checked above.
            unsafe { self.memo.note(&mut noted, (at, found), words, part) };
            match step {
                Step::Caller { registers, .. } => at = registers,
                Step::End { .. } => return Trace::ends(noted, None),
                Step::Truncated(cause) => return Trace::ends(noted, Some(cause)),
            }
        }
    }

    /// Steps from `at`, whose rule needs more than the followed registers, with `fresh`
    /// frames further in.
    #[cold]
    fn rare_step(
        &mut self,
        rule: Rule,
        at: &Registers,
        (fresh, live): (usize, &[u64]),
        code: &impl Code,
    ) -> Step {
        let memo = &self.memo;
        // `trace` noted the first `fresh` ones, and only those are requested.
        let frame = |index: usize| memo.fresh(index);
        let callee = fresh.checked_sub(1).map(frame);
        let mut inner = slow::Inner {
            frame: |index: usize| frame(index).registers,
            count: fresh,
            module: |ip| code.image(ip),
            // SAFETY: `init` wrote it.
            scratch: unsafe { self.scratch.assume_init_mut() },
            machine: PhantomData::<Native>,
            live,
        };
        let from = rare::Frame {
            rule,
            at,
            callee: callee.map(|callee| (callee.rule, callee.registers.sp)),
        };
        let rules = |ip, scratch: &mut Scratch| code.rule(ip, scratch);
        let stack = &mut self.stack;
        code.reading(|| rare::step(&from, stack, &mut inner, rules))
            .unwrap_or(Step::Truncated(Cause::Unsupported))
    }
}

#[cfg(test)]
mod tests;
