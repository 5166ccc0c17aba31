//! Stack walks that reuse the unchanged part of the thread's last stack.
//!
//! Consecutive samples of a thread share most of their stack: everything above the last common
//! function. The walker therefore caches the last stack (`LastStack`): for each frame its
//! registers, the addresses and values of the two words that its step read, and its node in the
//! calling-context tree. A new walk steps only until it reaches a cached frame with equal
//! registers. It then validates the rest of the cache: it makes sure that all cached addresses are
//! readable now and compares the words there. If no word has changed, the outer frames and their
//! nodes are still valid. At a changed word, the walk continues by stepping, and may reach another
//! cached frame further out.
//!
//! Cost: about 80 instructions for a new frame; for an unchanged one, two compares of words that
//! are adjacent in the cache.

mod frame_cache;
mod intern;
mod key;
mod last_stack;
mod quick;
mod tree;

use crate::arch::Native;
use crate::compile::Scratch;
use crate::interpreter::{InterpreterFrames, NativeStack};
use crate::probe::PAGE;
use crate::rare;
use crate::rule::{Base, Rule, Step, Word, plain_step, step};
use crate::slow;
use crate::stack::{Ends, Interrupted, Stack};
use crate::{Cause, Registers};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use frame_cache::FrameCache;
use key::InterpreterHash;
use last_stack::{LastStack, NewFrames, Traced};
use quick::Pace;

pub use tree::{Code, Node, Tree};

/// Maximum number of frames. Of deeper stacks, the innermost [`DEEP_FRAMES`] are kept.
pub const MAX_FRAMES: usize = 3072;
/// Number of frames that are cached of a deeper stack: as long as [`MAX_FRAMES`] of them are left,
/// the stack is known to be too deep without another step.
const CACHED_FRAMES: usize = MAX_FRAMES + 256;
/// Number of innermost frames kept of a stack that is too deep.
pub const DEEP_FRAMES: usize = 128;

/// Number of address bits in an interned address. The bits above hold the module's instance
/// ([`Rule::instance`]).
pub const ADDRESS_BITS: u32 = 48;

/// Result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Node of the innermost frame; `None` if the tree is full.
    pub leaf: Option<u32>,
    /// Reason why the stack is truncated, or `None` if it is complete.
    pub truncated: Option<Cause>,
}

#[inline]
fn tagged(ip: u64, instance: u8) -> u64 {
    ip | (u64::from(instance) << ADDRESS_BITS)
}

/// Word that [`changed_word`] points to.
static ALWAYS_ZERO: u64 = 0;

/// Returns a word that always compares as changed, for a step that cannot be validated by comparing
/// words, so that each walk takes the step again.
fn changed_word() -> Word {
    Word {
        at: &raw const ALWAYS_ZERO as u64,
        value: 1,
    }
}

/// Returns the words that must be unchanged for a step to have the same result. Unused words are
/// zero.
#[inline]
fn words_read(rule: Rule, step: &Step) -> [Word; 2] {
    let reads_two = (rule.is_plain() && !rule.is_leaf()) || rule.is_bare();
    match *step {
        Step::Caller { ra, fp, .. } if reads_two => [ra, fp],
        Step::End { ra } if reads_two => [ra, Word::default()],
        // The result depends on the rule alone, not on any word of the stack.
        Step::End { .. } | Step::Truncated(_) if rule.ends() => [Word::default(); 2],
        _ => [changed_word(), Word::default()],
    }
}

/// Term added to the hash of a truncated stack.
const TRUNCATED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the frame's term in the stack hash.
#[inline(always)]
fn frame_hash(registers: Registers, rule: Rule, salt: u64) -> u64 {
    last_stack::frame_hash(tagged(registers.ip, rule.instance()), registers.sp, salt)
}

/// Stack walker of one thread, with a cache of its last stack.
///
/// Occupies about 650 KiB of address space, of which only the depth in use is ever touched. Starts
/// as zeroed memory on which [`init`](Self::init) is called.
#[repr(C)]
pub struct Walker {
    stack: Stack,
    /// Address range of all cached words, except [`ALWAYS_ZERO`].
    span: (u64, u64),
    truncated: Option<Cause>,
    /// Leaf node of the cached stack; 0 if not interned yet, or if the stack is too deep.
    leaf: u32,
    /// Leaf node of the cached stack if it is too deep; 0 if not interned yet.
    deep_leaf: u32,
    /// True if the last stack was found in the table of seen stacks.
    was_seen: bool,
    /// Key of the last stack that a quick walk found; 0 if the last walk updated the cache.
    last_quick_key: u64,
    /// Choice between quick and normal walks.
    pace: Pace,
    /// Number of outermost interpreter frames that quick walks since the last cache update have
    /// found unchanged; `usize::MAX` if all.
    unchanged_inserted: usize,
    /// Hash of the interpreter frames that were found last.
    inserted: InterpreterHash,
    scratch: MaybeUninit<Scratch>,
    cached: LastStack,
    frames: FrameCache,
}

/// Result of a trace.
struct Trace {
    stack: Traced,
    /// `Some` if the walk reached the end of the stack, with the reason if it is truncated there;
    /// `None` if the rest is cached.
    end: Option<Option<Cause>>,
}

impl Trace {
    /// Returns the result of a walk that reached the end of the stack or was truncated.
    #[inline]
    fn ends(new: NewFrames, truncated: Option<Cause>) -> Self {
        Self {
            stack: Traced { new, join: None },
            end: Some(truncated),
        }
    }

    /// Returns the result of a walk that reached cached frame `index`. That frame and all its outer
    /// frames in the cache are still valid.
    #[inline]
    fn joining(index: usize, new: NewFrames) -> Self {
        Self {
            stack: Traced {
                new,
                join: Some(index),
            },
            end: None,
        }
    }
}

impl Walker {
    /// Initializes a walker in zeroed memory, for a thread whose stack bounds are not known yet.
    pub fn init(&mut self, ends: Ends) {
        self.stack = Stack::new(ends);
        self.forget();
        self.span = (0, 0);
        self.truncated = None;
        self.pace = Pace::SLOW;
        self.unchanged_inserted = usize::MAX;
        self.inserted = InterpreterHash::default();
        self.scratch.write(Scratch::new());
    }

    /// Clears all caches. Called when nodes or rules become invalid.
    pub fn forget(&mut self) {
        self.frames.forget();
        self.clear_cached();
    }

    /// Returns the number of frames of the cached stack.
    #[inline]
    #[must_use]
    pub fn depth(&self) -> usize {
        self.cached.end() - self.cached.begin()
    }

    /// Clears the cached stack.
    fn clear_cached(&mut self) {
        self.cached.clear();
        self.leaf = 0;
        self.deep_leaf = 0;
    }

    /// Returns the result of the last walk if the current stack is identical.
    ///
    /// Cheaper than [`walk`](Self::walk). Valid only for the same generation of rules and the same
    /// tree as in the last walk.
    #[inline(always)]
    #[must_use]
    pub fn walk_if_unchanged(&mut self, start: &Registers) -> Option<Walk> {
        self.is_cached(start).then(|| self.cached_walk())
    }

    /// Returns true if the native frames equal the cached ones and the cached leaf is known.
    #[inline(always)]
    fn is_cached(&self, start: &Registers) -> bool {
        let is_known = self.leaf | self.deep_leaf != 0 && !self.cached.is_empty();
        if !is_known || !self.stack.stays_on_own(start.sp) {
            return false;
        }
        let begin = self.cached.begin();
        if !self.cached.is_at(begin, start) {
            return false;
        }
        // SAFETY: the cached words are on the thread's own stack, which is mapped: `drop_stale`
        // clears the cache otherwise.
        unsafe { self.cached.first_changed(begin) }.is_none()
    }

    #[inline(always)]
    fn cached_walk(&mut self) -> Walk {
        self.last_quick_key = 0;
        if self.leaf == 0 {
            return Walk {
                leaf: Some(self.deep_leaf),
                truncated: Some(Cause::TooDeep),
            };
        }
        Walk {
            leaf: Some(self.leaf),
            truncated: self.truncated,
        }
    }

    /// Walks from `start`, with rules from `code`, and interns the stack in `tree`.
    ///
    /// `thread` is the thread pointer, which lies above all frames of the thread's own stack; 0 if
    /// unknown.
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
            && let Some(walk) =
                self.walk_quickly(start, tree, &code, &mut |_| InterpreterFrames::NONE)
        {
            return walk;
        }
        let trace = self.trace(start, NewFrames::NONE, &[], &code, tree.salt());
        self.was_seen = false;
        let walk = self.complete(&trace, tree, |_| InterpreterFrames::NONE);
        self.pace.record_walk(trace.stack.new.count, self.was_seen);
        walk
    }

    /// Like [`walk`](Self::walk), but adds the interpreter frames that `insert` finds.
    ///
    /// If `by_stack`, `insert` needs only the stack's words, not the native frames. It can then be
    /// called before the walk, so that the cached result or a quick walk may suffice.
    #[inline(never)]
    pub fn walk_with<'a, T: Tree>(
        &mut self,
        start: Registers,
        thread: u64,
        tree: &T,
        code: impl Code,
        by_stack: bool,
        insert: impl FnOnce(&NativeStack<'_>) -> InterpreterFrames<'a>,
    ) -> Walk {
        let mut insert = Some(insert);
        let mut known = None;
        // `insert` is called at most once, because `unchanged` in its result is relative to the
        // previous call. Later calls of this closure return the first result.
        let mut insert_once = |native_stack: &NativeStack<'_>| {
            let inserted = insert.take().map(|insert| insert(native_stack));
            *known.insert(inserted.or(known).unwrap_or(InterpreterFrames::NONE))
        };
        let mut trace = None;
        if !self.stack.stays_on_own(start.sp) {
            self.enter(start.sp, thread);
        } else if by_stack && self.is_cached(&start) {
            let found = insert_once(&NativeStack::without_frames(self.stack.known()));
            self.inserted.update(&found);
            if self.has_inserted(&found) {
                return self.cached_walk();
            }
            trace = Some(Trace::joining(self.cached.begin(), NewFrames::NONE));
        } else if by_stack
            && self.pace.is_quick()
            && let Some(walk) = self.walk_quickly(start, tree, &code, &mut insert_once)
        {
            return walk;
        }
        let trace =
            trace.unwrap_or_else(|| self.trace(start, NewFrames::NONE, &[], &code, tree.salt()));
        self.was_seen = false;
        let unchanged = core::mem::replace(&mut self.unchanged_inserted, usize::MAX);
        let walk = self.complete(&trace, tree, |native_stack| {
            let found = insert_once(native_stack);
            InterpreterFrames {
                unchanged: found.unchanged.min(unchanged),
                ..found
            }
        });
        self.pace.record_walk(trace.stack.new.count, self.was_seen);
        walk
    }

    /// Returns true if the cached stack has exactly these interpreter frames.
    #[inline(always)]
    fn has_inserted(&self, found: &InterpreterFrames<'_>) -> bool {
        let count = found.frames.len();
        let inserted = self.cached.frame(self.cached.begin()).inserted;
        found.unchanged.min(self.unchanged_inserted) >= count && inserted as usize == count
    }

    /// Like [`walk`](Self::walk), but starts at an interrupted frame, so that the rules of all
    /// registers apply, not only of those that survive a call.
    ///
    /// `start.ip` is the address of the next instruction plus one. `live` holds all registers of
    /// the interrupted frame by DWARF number. `insert` finds the interpreter frames, if any; the
    /// previous walk's are not reused.
    pub fn walk_interrupted<'a, T: Tree>(
        &mut self,
        start: Registers,
        live: &[u64],
        thread: u64,
        tree: &T,
        code: impl Code,
        insert: impl FnOnce(&NativeStack<'_>) -> InterpreterFrames<'a>,
    ) -> Walk {
        if !self.stack.stays_on_own(start.sp) {
            self.enter(start.sp, thread);
        }
        // SAFETY: `init` has initialized the scratch memory.
        let rule = code.rule(start.ip, unsafe { self.scratch.assume_init_mut() });
        let step = self.interrupted_step(rule, &start, live, &code);
        let mut new = NewFrames::NONE;
        let salt = tree.salt();
        let words = [changed_word(), Word::default()];
        let hash = frame_hash(start, rule, salt);
        // SAFETY: `new` is empty, so there is room.
        unsafe { self.cached.push(&mut new, start, rule, words, hash) };
        let trace = match step {
            Step::Caller { registers, .. } => self.trace(registers, new, live, &code, salt),
            Step::End { .. } => Trace::ends(new, None),
            Step::Truncated(cause) => Trace::ends(new, Some(cause)),
        };
        self.unchanged_inserted = usize::MAX;
        self.complete(&trace, tree, |native_stack| InterpreterFrames {
            unchanged: 0,
            ..insert(native_stack)
        })
    }

    /// Steps from the innermost frame, which was interrupted.
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
        let mut inner = slow::Callees {
            frame: |_: usize| *at,
            count: 0,
            module: |ip| code.image(ip),
            // SAFETY: `init` has initialized the scratch memory.
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

    /// Interns a traced stack.
    #[inline]
    fn complete<'a, T: Tree>(
        &mut self,
        trace: &Trace,
        tree: &T,
        insert: impl FnOnce(&NativeStack<'_>) -> InterpreterFrames<'a>,
    ) -> Walk {
        if let Some(end) = trace.end {
            self.truncated = end;
        }
        let cached = &self.cached;
        let count = self.cached.count(&trace.stack);
        let interpreter_frames = insert(&NativeStack {
            known: self.stack.known(),
            count,
            frame: &|index| cached.traced_frame(&trace.stack, index).registers,
        });
        self.inserted.update(&interpreter_frames);
        let is_deep = count > MAX_FRAMES || self.truncated == Some(Cause::TooDeep);
        // Deep stacks with frames of an interpreter are not cached.
        if is_deep && !interpreter_frames.frames.is_empty() {
            let walk = self.intern_deep(&trace.stack, tree, &interpreter_frames);
            let bounds_before = self.stack.own();
            self.stack.update_bounds(None, || 0);
            if self.stack.own() != bounds_before {
                self.frames.forget();
            }
            return walk;
        }
        let walk = if is_deep {
            self.intern_deep_cached(&trace.stack, tree, &interpreter_frames)
        } else {
            self.intern(&trace.stack, tree, &interpreter_frames)
        };
        if !self.stack.is_on_own() || self.stack.moved() {
            self.drop_stale();
        }
        walk
    }

    /// Starts a walk that may leave the known part of the thread's own stack.
    #[cold]
    fn enter(&mut self, sp: u64, thread: u64) {
        if self.stack.enter(sp, thread) {
            if !self.stack.covers(self.span.0, self.span.1) {
                self.clear_cached();
            }
            self.span = self.stack.span();
        }
    }

    /// Drops cached bounds and frames after a walk that left the thread's known stack range.
    #[cold]
    fn drop_stale(&mut self) {
        let is_known = matches!(self.truncated, None | Some(Cause::TooDeep));
        let outermost = (is_known && !self.cached.is_empty())
            .then(|| self.cached.frame(self.cached.end() - 1).registers.sp);
        let mut stack = self.stack;
        stack.update_bounds(outermost, || self.same_stack_sp());
        if stack.own() != self.stack.own() {
            self.frames.forget();
        }
        self.stack = stack;
        if self.stack.moved() {
            // The words are on parts of two stacks, which no single span covers.
            self.clear_cached();
        }
        self.span = self.stack.span();
    }

    /// Returns the stack pointer of the innermost frame from which the last walk certainly stayed
    /// on one stack.
    ///
    /// Code that switches stacks returns through a saved register, and that step skips at least all
    /// of the unused space of the other stack.
    fn same_stack_sp(&self) -> u64 {
        let cached = &self.cached;
        let mut sp = cached.frame(cached.end() - 1).registers.sp;
        for index in (cached.begin()..cached.end() - 1).rev() {
            let frame = cached.frame(index);
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

    /// Steps outwards until the end of the stack or a cached frame that is still valid.
    ///
    /// `new` holds the callees of `start` that were pushed already. If the walk began at an
    /// interrupted frame, `live` holds that frame's registers by DWARF number.
    #[inline]
    fn trace(
        &mut self,
        start: Registers,
        mut new: NewFrames,
        live: &[u64],
        code: &impl Code,
        salt: u64,
    ) -> Trace {
        let mut at = start;
        let mut from = self.cached.begin();
        let mut readable = self.stack.known();
        loop {
            let cached_index = self.cached.find(at, &mut from);
            if cached_index.is_some()
                && !self.stack.is_on_own()
                && !self.stack.covers(self.span.0, self.span.1)
            {
                // The cached frames are on another stack, which was mapped at these addresses.
                self.clear_cached();
                from = self.cached.begin();
            } else if let Some(index) = cached_index {
                // SAFETY: the thread's own stack is mapped; of any other stack, `covers` has just
                // checked all cached words.
                let changed = unsafe { self.cached.first_changed(index) };
                let Some(changed) = changed.or_else(|| self.unfinished(index, new.count)) else {
                    return Trace::joining(index, new);
                };
                if changed > index {
                    self.cached.copy_unchanged(index..changed, &mut new);
                }
                at = self.cached.frame(changed).registers;
                from = changed + 1;
            }
            if new.count == CACHED_FRAMES {
                return Trace::ends(new, Some(Cause::TooDeep));
            }
            // SAFETY: `init` has initialized the scratch memory.
            let rule = code.rule(at.ip, unsafe { self.scratch.assume_init_mut() });
            let hash = frame_hash(at, rule, salt);
            if let Some((caller, ra, fp)) = plain_step(rule, at, readable) {
                // SAFETY: `new` has fewer than CACHED_FRAMES frames, as checked above.
                unsafe { self.cached.push(&mut new, at, rule, [ra, fp], hash) };
                at = caller;
                continue;
            }
            // Copied, so that `at` itself can stay in registers.
            let here = at;
            let step = if rule.is_rare::<Native>() {
                self.rare_step(rule, &here, new.count, live, code)
            } else {
                step(rule, &here, &mut self.stack)
            };
            readable = self.stack.known();
            let words = words_read(rule, &step);
            // SAFETY: `new` has fewer than CACHED_FRAMES frames, as checked above.
            unsafe { self.cached.push(&mut new, at, rule, words, hash) };
            match step {
                Step::Caller { registers, .. } => at = registers,
                Step::End { .. } => return Trace::ends(new, None),
                Step::Truncated(cause) => return Trace::ends(new, Some(cause)),
            }
        }
    }

    /// Returns the outermost cached frame if the walk has to continue there: the cached stack was
    /// too deep and is incomplete, but `new_count` new frames and the cached ones from `index`
    /// outwards are fewer than [`MAX_FRAMES`].
    #[inline(always)]
    fn unfinished(&self, index: usize, new_count: usize) -> Option<usize> {
        let end = self.cached.end();
        let is_cut = self.truncated == Some(Cause::TooDeep);
        (is_cut && new_count + (end - index) < MAX_FRAMES).then_some(end - 1)
    }

    /// Steps from `at` to its caller by a rule that needs more than the followed registers.
    /// `new_count` is the number of its callees that were pushed already.
    #[cold]
    fn rare_step(
        &mut self,
        rule: Rule,
        at: &Registers,
        new_count: usize,
        live: &[u64],
        code: &impl Code,
    ) -> Step {
        let cached = &self.cached;
        // `trace` has pushed `new_count` frames, and the steps use no others.
        let frame = |index: usize| cached.new_frame(index);
        let callee = new_count.checked_sub(1).map(frame);
        let mut inner = slow::Callees {
            frame: |index: usize| frame(index).registers,
            count: new_count,
            module: |ip| code.image(ip),
            // SAFETY: `init` has initialized the scratch memory.
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
