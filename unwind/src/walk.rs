//! Walking a stack with a memo of the last one.
//!
//! A thread's consecutive samples share most of their stack: everything above the last
//! common function. The memo holds the last stack: each frame with its
//! registers, the addresses of the two words that its step read, and its node in the
//! calling-context tree. A new walk steps only until it meets a frame of the memo with
//! equal registers, then validates the memo: it compares the words that its steps read, after
//! making sure that all of them are readable now. If all are unchanged, the remaining frames
//! and their nodes are the same. A word that differs ends the comparison; the walk continues
//! from that frame and may meet frames of the memo again further out.
//!
//! Cost: about 100 instructions for a new frame, and 50 for its node; one or two compares
//! for an unchanged one, of adjacent words in memory.

mod intern;

use crate::arch::Native;
use crate::compile::Scratch;
use crate::elf::Image;
use crate::inserted::{Insertion, Trail};
use crate::probe::PAGE;
use crate::rare;
use crate::rule::{Base, Rule, Step, Word, plain_step, step};
use crate::seen::Key;
use crate::slow;
use crate::stack::{Ends, Interrupted, Stack};
use crate::{Cause, Registers};
use core::marker::PhantomData;
use core::mem::MaybeUninit;

/// Maximum number of frames. Of deeper stacks, the innermost [`DEEP_FRAMES`] are kept.
pub const MAX_FRAMES: usize = 3072;
/// Number of innermost frames kept of a stack that is too deep.
pub const DEEP_FRAMES: usize = 128;

/// Number of bits of an address; in an interned address, the bits above hold the rule's instance.
pub const ADDRESS_BITS: u32 = 48;

/// A node of a [`Tree`], as the tree names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// What the tree wants to be told with it, for example a hash of the node's path.
    pub path: u64,
}

impl From<u32> for Node {
    /// For trees that need the number alone.
    fn from(id: u32) -> Self {
        Self { id, path: 0 }
    }
}

/// Where walked stacks are interned, as return addresses with their module's instance
/// above [`ADDRESS_BITS`].
pub trait Tree {
    /// The node above all complete stacks; the same as long as a walker remembers its last one.
    fn root(&self) -> Node;
    /// The node above all truncated stacks, likewise.
    fn truncated(&self) -> Node;
    /// The node of `address` under `parent`; `None` when there is no room.
    fn child(&self, parent: Node, address: u64) -> Option<Node>;
    /// [`Node::path`] of the child at `address` of a node with the path `parent`.
    fn path_to(&self, _parent: u64, _address: u64) -> u64 {
        0
    }
    /// The leaf of a stack that was seen before, if that is known; its innermost frame is `address`.
    fn seen(&self, _stack: Key, _address: u64) -> Option<u32> {
        None
    }
    /// Notes a stack's leaf.
    fn see(&self, _stack: Key, _leaf: u32) {}
    /// With what the second hash of all stacks begins: a number of the tree's own.
    fn salt(&self) -> u64 {
        0
    }
}

/// Where the walked code's rules come from.
pub trait Code {
    /// The rule of a return address.
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule;
    /// The image that contains a return address, for the rare frame that takes the slow path;
    /// `None`: such frames end the stack.
    fn image(&self, ip: u64) -> Option<Image>;
    /// Runs code that reads images, which stay mapped meanwhile; `None`: not possible right now.
    fn reading<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        Some(work())
    }
}

impl<F: Fn(u64, &mut Scratch) -> Rule> Code for F {
    #[inline]
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        self(ip, scratch)
    }

    fn image(&self, _: u64) -> Option<Image> {
        None
    }
}

/// A finished walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Node of the innermost frame; `None`: no room in the tree.
    pub leaf: Option<u32>,
    /// Why the stack is truncated, if it is.
    pub truncated: Option<Cause>,
}

/// A frame of the memo.
#[derive(Clone, Copy)]
#[repr(C)]
struct Frame {
    registers: Registers,
    /// The stack up to it.
    key: Key,
    /// Number of its node; 0 where that was not needed yet, which is then so of all frames
    /// further in but the innermost.
    node: u32,
    /// Number of words of this frame and all frames further out, which come first in the memo.
    words: u32,
    /// Number of inserted frames that this frame and all frames further out run.
    inserted: u32,
    /// Which of the successive modules at its address its code belongs to, and whether its step
    /// does not depend on fp.
    rule: Rule,
}

impl Frame {
    /// The value to intern.
    #[inline]
    fn address(&self) -> u64 {
        tagged(self.registers.ip, self.rule.instance())
    }
}

/// A frame of the walk in progress, with what its step read.
#[derive(Clone, Copy)]
#[repr(C)]
struct Fresh {
    registers: Registers,
    rule: Rule,
    words: [Word; 2],
}

impl Fresh {
    /// The value to intern.
    #[inline]
    fn address(&self) -> u64 {
        tagged(self.registers.ip, self.rule.instance())
    }
}

#[inline]
fn tagged(ip: u64, instance: u8) -> u64 {
    ip | u64::from(instance) << ADDRESS_BITS
}

/// Places of frames by their stack pointers.
const PLACES: usize = 1024;

/// The place of a frame.
#[inline(always)]
fn place_of(sp: u64) -> usize {
    (sp >> 4 ^ sp >> 14) as usize % PLACES
}

/// The last of `words` whose value has changed. Compares four at a time, since nearly
/// always none differs.
///
/// # Safety
/// All of `words` can be read now, including those beyond the result.
#[inline(always)]
unsafe fn last_differing(words: &[Word]) -> Option<usize> {
    // SAFETY: the caller's.
    let difference = |word: &Word| unsafe { (word.at as *const u64).read_volatile() } ^ word.value;
    let mut rest = words;
    while let Some((outer, [a, b, c, d])) = rest.split_last_chunk::<4>() {
        if difference(a) | difference(b) | difference(c) | difference(d) != 0 {
            break;
        }
        rest = outer;
    }
    rest.iter().rposition(|word| difference(word) != 0)
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
    let reads_two = (rule.is_plain() && !rule.is_leaf()) || rule.is_missing();
    match *step {
        Step::Caller { ra, fp, .. } if reads_two => [ra, fp],
        Step::End { ra } if reads_two => [ra, Word::default()],
        // The rule alone decides, whatever the stack holds.
        Step::End { .. } | Step::Truncated(_) if rule.ends() => [Word::default(); 2],
        _ => [never(), Word::default()],
    }
}

/// A thread's walker, with the memo of its last stack. It takes about 400 KiB, of which only the
/// depth in use is ever touched. Start with zeroed memory and call [`init`](Self::init).
#[repr(C)]
pub struct Walker {
    stack: Stack,
    /// Frames of the memo; the outermost is first.
    len: usize,
    /// All of their words except [`NEVER`] lie between these.
    span: (u64, u64),
    truncated: Option<Cause>,
    /// Frames of the memo by their stack pointers ([`place_of`]): the last one of each place. May
    /// be of a former memo.
    by_sp: [u16; PLACES],
    scratch: MaybeUninit<Scratch>,
    frames: [MaybeUninit<Frame>; MAX_FRAMES],
    /// One more than the memo can hold: see `intern`.
    words: [MaybeUninit<Word>; 2 * MAX_FRAMES + 1],
    fresh: [MaybeUninit<Fresh>; MAX_FRAMES],
}

/// Result of a trace: how many frames of the memo are still valid, how many new ones are in
/// `fresh` (innermost first), and how the stack ended if it was walked to its end.
struct Trace {
    kept: usize,
    fresh: usize,
    end: Option<Option<Cause>>,
}

impl Trace {
    /// Walked to the end of the stack, or to where it is truncated.
    #[inline]
    fn ends(fresh: usize, truncated: Option<Cause>) -> Self {
        Self {
            kept: 0,
            fresh,
            end: Some(truncated),
        }
    }

    /// Reached the memo's frames, of which `kept` are still valid.
    #[inline]
    fn joins(kept: usize, fresh: usize) -> Self {
        Self {
            kept,
            fresh,
            end: None,
        }
    }
}

impl Walker {
    /// Turns zeroed memory into a walker, for a thread whose stack is not known yet.
    pub fn init(&mut self, ends: Ends) {
        self.stack = Stack::new(ends);
        self.len = 0;
        self.span = (0, 0);
        self.truncated = None;
        self.scratch.write(Scratch::new());
    }

    /// Forgets the last stack, whose nodes or rules are no longer valid.
    pub fn forget(&mut self) {
        self.len = 0;
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
        self.walk_with(start, thread, tree, code, |_| Insertion::NONE)
    }

    /// Like [`walk`](Self::walk), with an interpreter's frames in the result, which `insert` finds.
    #[inline]
    pub fn walk_with<'a, T: Tree>(
        &mut self,
        start: Registers,
        thread: u64,
        tree: &T,
        code: impl Code,
        insert: impl FnOnce(&Trail<'_>) -> Insertion<'a>,
    ) -> Walk {
        if !self.stack.stays_on_own(start.sp) {
            self.enter(start.sp, thread);
        }
        let trace = self.trace(start, 0, &[], &code);
        self.complete(&trace, tree, insert)
    }

    /// The same from a frame that was interrupted, at any of its instructions: `start.ip` is the
    /// next one's address plus one. `live`: all of its registers by their DWARF numbers.
    pub fn walk_interrupted<T: Tree>(
        &mut self,
        (start, live): (Registers, &[u64]),
        thread: u64,
        tree: &T,
        code: impl Code,
    ) -> Walk {
        if !self.stack.stays_on_own(start.sp) {
            self.enter(start.sp, thread);
        }
        // SAFETY: `init` wrote it.
        let rule = code.rule(start.ip, unsafe { self.scratch.assume_init_mut() });
        let step = self.interrupted_step(rule, &start, live, &code);
        // SAFETY: the first of all.
        unsafe { self.note(0, start, rule, [never(), Word::default()]) };
        let trace = match step {
            Step::Caller { registers, .. } => self.trace(registers, 1, live, &code),
            Step::End { .. } => Trace::ends(1, None),
            Step::Truncated(cause) => Trace::ends(1, Some(cause)),
        };
        self.complete(&trace, tree, |_| Insertion::NONE)
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
        let insertion = insert(&Trail {
            known: self.stack.known(),
            count: trace.kept + trace.fresh,
            frame: &|index| self.registers(trace, index),
        });
        if trace.kept + trace.fresh > MAX_FRAMES || self.truncated == Some(Cause::TooDeep) {
            let walk = self.intern_deep(trace, tree, &insertion);
            self.stack.settle(None, || 0);
            return walk;
        }
        let walk = self.intern(trace, tree, &insertion);
        if !self.stack.is_on_own() || self.stack.moved() {
            self.settle();
        }
        walk
    }

    /// The registers of a frame of the walk in progress; the innermost is first.
    fn registers(&self, trace: &Trace, index: usize) -> Registers {
        match index.checked_sub(trace.fresh) {
            // SAFETY: `trace` wrote the first `fresh` ones.
            None => unsafe { self.fresh[index].assume_init_ref().registers },
            Some(outwards) => self.frame(trace.kept - 1 - outwards).registers,
        }
    }

    /// Begins a walk that does not stay on the known part of the thread's own stack.
    #[cold]
    fn enter(&mut self, sp: u64, thread: u64) {
        if self.stack.enter(sp, thread) {
            if !self.stack.covers(self.span) {
                self.len = 0;
            }
            self.span = self.stack.span();
        }
    }

    /// Called after a walk that was not entirely on the known part of the thread's own stack.
    #[cold]
    fn settle(&mut self) {
        let complete = self.truncated.is_none() && self.len > 0;
        let outermost = complete.then(|| self.frame(0).registers.sp);
        let mut stack = self.stack;
        stack.settle(outermost, || self.steady());
        self.stack = stack;
        if self.stack.moved() {
            // Parts of two stacks: the memo's words are not all in one span.
            self.len = 0;
        }
        self.span = self.stack.span();
    }

    /// The stack pointer of the innermost frame from which the last walk certainly stayed on
    /// one stack. Code that switches stacks returns by a saved register, and that step skips
    /// at least all the unused space of the other stack.
    fn steady(&self) -> u64 {
        let mut sp = self.frame(0).registers.sp;
        for index in 1..self.len {
            let frame = self.frame(index);
            let step = sp.wrapping_sub(frame.registers.sp);
            let stays = match frame.rule.base() {
                Base::Sp => true,
                Base::Fp => step <= PAGE,
                Base::Other => false,
            };
            if !stays {
                break;
            }
            sp = frame.registers.sp;
        }
        sp
    }

    /// Steps outwards until the end or a frame of the memo that is still valid, with `fresh` frames
    /// further in; `live` as above.
    #[inline]
    fn trace(
        &mut self,
        start: Registers,
        mut fresh: usize,
        live: &[u64],
        code: &impl Code,
    ) -> Trace {
        let mut at = start;
        let mut known = self.len;
        let mut readable = self.stack.known();
        loop {
            let met = self.meet(at, &mut known);
            if met.is_some() && !self.stack.is_on_own() && !self.stack.covers(self.span) {
                // The memo is of another stack that was mapped here.
                self.len = 0;
                known = 0;
            } else if let Some(index) = met {
                // SAFETY: all words of the memo are readable now, as just checked.
                let Some(changed) = (unsafe { self.first_changed(index) }) else {
                    return Trace::joins(known, fresh);
                };
                fresh = self.take_back(changed + 1, known, fresh);
                at = self.frame(changed).registers;
                known = changed;
            }
            if fresh == MAX_FRAMES {
                return Trace::ends(fresh, Some(Cause::TooDeep));
            }
            // SAFETY: `init` wrote it.
            let found = code.rule(at.ip, unsafe { self.scratch.assume_init_mut() });
            if let Some((caller, ra, fp)) = plain_step(found, at, readable) {
                // SAFETY: fewer than MAX_FRAMES, as checked above.
                unsafe { self.note(fresh, at, found, [ra, fp]) };
                fresh += 1;
                at = caller;
                continue;
            }
            // A copy, so that `at` may stay in registers.
            let here = at;
            let step = if found.is_rare::<Native>() {
                self.rare_step(found, &here, (fresh, live), code)
            } else {
                step(found, &here, &mut self.stack)
            };
            readable = self.stack.known();
            // SAFETY: fewer than MAX_FRAMES, as checked above.
            unsafe { self.note(fresh, at, found, words_read(found, &step)) };
            fresh += 1;
            match step {
                Step::Caller { registers, .. } => at = registers,
                Step::End { .. } => return Trace::ends(fresh, None),
                Step::Truncated(cause) => return Trace::ends(fresh, Some(cause)),
            }
        }
    }

    /// Makes a frame the `index`th of the walk in progress.
    ///
    /// # Safety
    /// `index` is less than [`MAX_FRAMES`].
    #[inline(always)]
    unsafe fn note(&mut self, index: usize, registers: Registers, rule: Rule, words: [Word; 2]) {
        // SAFETY: the caller's.
        let slot = unsafe { self.fresh.get_unchecked_mut(index) };
        slot.write(Fresh {
            registers,
            rule,
            words,
        });
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
        let frames = &self.fresh;
        // SAFETY: `trace` wrote the first `fresh` ones, and only those are requested.
        let frame = |index: usize| unsafe { frames[index].assume_init_ref() };
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

    /// The memo's frame with these registers, if there is one among the first `known`, which then
    /// becomes the number of frames from it outwards. If frames share a place in `by_sp` one may not
    /// be met: the walk goes on to the next.
    #[inline]
    fn meet(&self, at: Registers, known: &mut usize) -> Option<usize> {
        let index = usize::from(self.by_sp[place_of(at.sp)]);
        if index >= *known {
            return None;
        }
        let frame = self.frame(index);
        // One branch: which of them differs cannot be foreseen.
        if (frame.registers.sp ^ at.sp) | (frame.registers.ip ^ at.ip) != 0 {
            return None;
        }
        let same = frame.registers.fp == at.fp || frame.rule.ignores_fp();
        if same {
            *known = index + 1;
        }
        same.then_some(index)
    }

    #[inline]
    fn frame(&self, index: usize) -> &Frame {
        // SAFETY: callers pass an index below `len`, up to which frames are written.
        unsafe { self.frames.get_unchecked(index).assume_init_ref() }
    }

    /// Compares, from frame `from` outwards, the words that each step read with their current
    /// values. Returns the first frame whose step must be taken again.
    ///
    /// # Safety
    /// The stack covers [`span`](Self::span).
    #[inline]
    unsafe fn first_changed(&self, from: usize) -> Option<usize> {
        let count = self.frame(from).words as usize;
        // SAFETY: `intern` wrote this number of words for the frame.
        let words =
            unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast::<Word>(), count) };
        // SAFETY: `span` holds them all, as every walk that fills the memo noted it, or they
        // are `NEVER`, which stays.
        let changed = unsafe { last_differing(words) }?;
        (0..=from).find(|index| self.frame(*index).words as usize > changed)
    }

    /// Adds the memo's frames `from..to` to the walk in progress, because frames before
    /// them have changed.
    #[cold]
    fn take_back(&mut self, from: usize, to: usize, mut fresh: usize) -> usize {
        for index in (from..to).rev() {
            let frame = *self.frame(index);
            let first = self.frame(index - 1).words as usize;
            let mut words = [Word::default(); 2];
            for (word, at) in words.iter_mut().zip(first..frame.words as usize) {
                // SAFETY: written, as are all words of the memo's frames.
                *word = unsafe { self.words[at].assume_init() };
            }
            if fresh == MAX_FRAMES {
                break;
            }
            // SAFETY: as checked.
            unsafe { self.note(fresh, frame.registers, frame.rule, words) };
            fresh += 1;
        }
        fresh
    }
}

#[cfg(test)]
mod tests;
