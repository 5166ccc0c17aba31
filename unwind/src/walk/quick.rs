//! Quick walks, which do not update the cached stack.
//!
//! Updating the cache is of little use when the next stack differs again. After some walks in a row
//! that found different stacks, all seen before, the walker switches to the [frame
//! cache](super::frame_cache): it computes only the hash of a stack and looks that up. A stack that
//! was not seen before is walked again with an update; so is one that comes twice in a row, since
//! the cached stack then costs no lookup at all.

use super::key::stack_key;
use super::{Code, Tree, Walk, Walker, frame_hash};
use crate::arch::Native;
use crate::interpreter::{InterpreterFrames, NativeStack};
use crate::rule::{Step, plain_step, step};
use crate::seen::Key;
use crate::{Cause, Registers};

/// Number of quick walks before normal walks are tried again.
const QUICK_WALKS: u32 = 32;
/// Cost of a quick walk that found nothing, in units of quick walks.
const MISS_COST: u32 = 8;
/// Cost of a quick walk that found the same stack as the walk before, in units of quick walks.
const REPEAT_COST: u32 = 4;
/// Number of consecutive different stacks, all seen before, after which quick walks begin.
const MIN_CHANGES: i32 = 2;
/// Number of additional such stacks that are required after quick walks that did not pay off.
const BACKOFF_CHANGES: i32 = 8;
/// Number of frames between two lookups in the cached stack; the first lookup is at the third
/// frame. The innermost frame is not looked up: if it is unchanged, the whole stack is, and the
/// walk has already ended.
const LOOKUP_EVERY: usize = 4;

/// Decides between quick and normal walks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Pace {
    /// Number of quick walks left; 0: walks are normal.
    left: u32,
    /// Number of consecutive walks that would have been cheaper as quick walks. Negative: back-off.
    score: i32,
    /// Maximum number of lookups in the cached stack in one quick walk. If the cached stack shares
    /// no frame with the innermost [`LOOKUP_EVERY`] × `max_lookups` ones, it is too old to be of
    /// use.
    max_lookups: u32,
}

/// Result of a quick walk.
enum Outcome {
    Found(Walk),
    /// The stack equals that of the walk before.
    Repeated,
    Missed,
}

impl Pace {
    pub(super) const SLOW: Self = Self {
        left: 0,
        score: 0,
        max_lookups: 0,
    };

    #[inline(always)]
    pub(super) fn is_quick(self) -> bool {
        self.left > 0
    }

    /// Records a normal walk that found `fresh` new frames. `was_seen` is true if its stack had
    /// been seen before.
    #[inline(always)]
    pub(super) fn record_walk(&mut self, fresh: usize, was_seen: bool) {
        if self.is_quick() {
            return;
        }
        if fresh == 0 || !was_seen {
            self.score = self.score.min(0);
            return;
        }
        self.score += 1;
        if self.score >= MIN_CHANGES {
            self.left = QUICK_WALKS;
            self.max_lookups = (2 * fresh).div_ceil(LOOKUP_EVERY) as u32;
        }
    }

    /// Records a quick walk, and returns what it found.
    #[inline(always)]
    fn record_quick_walk(&mut self, outcome: &Outcome) -> Option<Walk> {
        let (cost, walk) = match outcome {
            Outcome::Found(walk) => (1, Some(*walk)),
            Outcome::Repeated => (REPEAT_COST, None),
            Outcome::Missed => (MISS_COST, None),
        };
        self.left = self.left.saturating_sub(cost);
        if self.left == 0 {
            self.score = if cost < MISS_COST {
                0
            } else {
                -BACKOFF_CHANGES
            };
        }
        walk
    }
}

/// Hash of a stack whose frames are not stored.
struct Sum {
    sum: u64,
    /// Stack pointer of the innermost frame's caller; `u64::MAX` if there is none.
    inner_end: u64,
    truncated: Option<Cause>,
}

impl Walker {
    /// Walks from `start`, on the known part of the thread's own stack, and adds the interpreter
    /// frames that `insert` finds. Returns `None` if the stack was not seen before or has a frame
    /// whose step is not plain.
    #[inline(always)]
    pub(super) fn walk_quickly<'a, T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
        insert: &mut impl FnMut(&NativeStack<'_>) -> InterpreterFrames<'a>,
    ) -> Option<Walk> {
        let found = self.find_quickly(start, tree, code, insert);
        self.pace
            .record_quick_walk(&found.unwrap_or(Outcome::Missed))
    }

    #[inline(always)]
    fn find_quickly<'a, T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
        insert: &mut impl FnMut(&NativeStack<'_>) -> InterpreterFrames<'a>,
    ) -> Option<Outcome> {
        let found = self.sum(start, code, tree.salt())?;
        let interpreter_frames = insert(&NativeStack::without_frames(self.stack.known()));
        self.unchanged_inserted = self.unchanged_inserted.min(interpreter_frames.unchanged);
        self.inserted.update(&interpreter_frames);
        let inserted = interpreter_frames.frames_above(start.sp);
        let Key(native) = stack_key(found.sum, found.truncated);
        let key = self.inserted.key(native, inserted, tree.salt());
        if core::mem::replace(&mut self.last_quick_key, key.0) == key.0 {
            return Some(Outcome::Repeated);
        }
        let innermost = match inserted.last() {
            Some(last) if last.at < found.inner_end => last.address,
            _ => start.ip,
        };
        let leaf = tree.find_leaf(key, innermost)?;
        Some(Outcome::Found(Walk {
            leaf: Some(leaf),
            truncated: found.truncated,
        }))
    }

    /// Sums the hashes of the frames from `start` outwards. Returns `None` if a step is not plain
    /// or the walk has become too long.
    #[inline(always)]
    fn sum(&mut self, start: Registers, code: &impl Code, salt: u64) -> Option<Sum> {
        let mut sum = 0u64;
        let mut from = self.cached.begin();
        let caller = self.add_frame(start, &mut sum, code, salt)?;
        let inner_end = caller.map_or(u64::MAX, |caller| caller.sp);
        let whole = |sum| Sum {
            sum,
            inner_end,
            truncated: None,
        };
        let joined = |sum: u64, outer, truncated| Sum {
            sum: sum.wrapping_add(outer),
            inner_end,
            truncated,
        };
        let Some(second) = caller else {
            return Some(whole(sum));
        };
        if let Some(outer) = self.cached_sum(second, &mut from) {
            return Some(joined(sum, outer, self.truncated));
        }
        let Some(mut at) = self.add_frame(second, &mut sum, code, salt)? else {
            return Some(whole(sum));
        };
        for _ in 0..self.pace.max_lookups {
            if let Some(outer) = self.cached_sum(at, &mut from) {
                return Some(joined(sum, outer, self.truncated));
            }
            for _ in 0..LOOKUP_EVERY {
                match self.add_frame(at, &mut sum, code, salt)? {
                    Some(caller) => at = caller,
                    None => return Some(whole(sum)),
                }
            }
        }
        None
    }

    /// Adds a frame's hash to `sum` and returns its caller. Returns `Some(None)` if the frame is
    /// the outermost, and `None` if its step is not plain.
    #[inline(always)]
    fn add_frame(
        &mut self,
        at: Registers,
        sum: &mut u64,
        code: &impl Code,
        salt: u64,
    ) -> Option<Option<Registers>> {
        // SAFETY: the words were read in walks on the thread's own stack, which stays mapped while
        // the thread lives. The frame cache is cleared when thread, stack or rules change.
        let known = unsafe { self.frames.caller(at) };
        let (caller, hash) = match known {
            Some(caller) if caller.registers.ip != 0 => (Some(caller.registers), caller.hash),
            _ => self.step_uncached(at, code, salt)?,
        };
        *sum = sum.wrapping_add(hash);
        Some(caller)
    }

    /// Returns the sum of the hashes from the cached frame with these registers outwards, if there
    /// is one and no word has changed.
    #[inline(always)]
    fn cached_sum(&self, at: Registers, from: &mut usize) -> Option<u64> {
        let index = self.cached.find(at, from)?;
        // SAFETY: the cached words are on the thread's own stack, which is mapped: `drop_stale`
        // clears the cache otherwise.
        let changed = unsafe { self.cached.first_changed(index) };
        changed.is_none().then(|| self.cached.sum_from(index))
    }

    /// Takes the step from a frame that is not in the frame cache, and caches it. Returns the
    /// frame's caller (`None` if it is the outermost) and its hash. Returns `None` instead of the
    /// pair if the step is not plain.
    #[inline(never)]
    fn step_uncached(
        &mut self,
        at: Registers,
        code: &impl Code,
        salt: u64,
    ) -> Option<(Option<Registers>, u64)> {
        // SAFETY: `init` has initialized the scratch memory.
        let rule = code.rule(at.ip, unsafe { self.scratch.assume_init_mut() });
        let hash = frame_hash(at, rule, salt);
        if let Some((caller, ra, fp)) = plain_step(rule, at, self.stack.known()) {
            self.frames.insert(at, rule, ra, fp, caller.sp, hash);
            return Some((Some(caller), hash));
        }
        let is_end = !rule.is_rare::<Native>()
            && matches!(step(rule, &at, &mut self.stack), Step::End { .. });
        is_end.then_some((None, hash))
    }
}
