//! Walks that leave the memo alone.
//!
//! To change the memo is of little use where the next stack differs again. Once some walks in a row
//! found stacks that differ, and that had been seen before, the walker goes by
//! [places](super::places), keeps nothing but the stack's sum, and looks that up. If the stack
//! was not seen before, it is walked once more, for the memo; so is one that comes twice in a row,
//! whose frames then need no lookups.

use super::name::named;
use super::{Code, Tree, Walk, Walker, part};
use crate::arch::Native;
use crate::inserted::{Insertion, Trail};
use crate::rule::{Step, plain_step, step};
use crate::seen::Key;
use crate::{Cause, Registers};

/// Walks in a row that leave the memo alone.
const ROW: u32 = 32;
/// As how many of them a walk counts that found nothing.
const IN_VAIN: u32 = 8;
/// The same for one that found the stack of the walk before.
const TWICE: u32 = 4;
/// Walks in a row that must have found a stack that differs, and that was seen before.
const TRIED: i32 = 2;
/// Walks for the memo that are not counted as such after a run of them that did not pay off.
const PAUSE: i32 = 8;
/// For the frames from the third on, one in this many is looked up in the memo. The innermost is
/// not: a stack that is the memo's wholly was found before.
const OFTEN: usize = 4;

/// Whether to leave the memo alone.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Pace {
    /// Walks left that do.
    left: u32,
    /// Walks in a row after which doing so would have been worth it.
    worth: i32,
    /// How many times [`OFTEN`] frames may differ from the memo's; if more do, that is too old to
    /// be of use.
    reach: u32,
}

/// What came of a walk that left the memo alone.
enum Outcome {
    Found(Walk),
    /// As the walk before.
    Twice,
    InVain,
}

impl Pace {
    pub(super) const SLOW: Self = Self {
        left: 0,
        worth: 0,
        reach: 0,
    };

    #[inline(always)]
    pub(super) fn is_quick(self) -> bool {
        self.left > 0
    }

    /// A walk for the memo found a stack with that many new frames.
    #[inline(always)]
    pub(super) fn walked(&mut self, fresh: usize, was_seen: bool) {
        if self.is_quick() {
            return;
        }
        if fresh == 0 || !was_seen {
            self.worth = self.worth.min(0);
            return;
        }
        self.worth += 1;
        if self.worth >= TRIED {
            self.left = ROW;
            self.reach = (2 * fresh).div_ceil(OFTEN) as u32;
        }
    }

    /// The node that a quick walk has found.
    #[inline(always)]
    fn walked_quickly(&mut self, outcome: &Outcome) -> Option<Walk> {
        let (cost, walk) = match outcome {
            Outcome::Found(walk) => (1, Some(*walk)),
            Outcome::Twice => (TWICE, None),
            Outcome::InVain => (IN_VAIN, None),
        };
        self.left = self.left.saturating_sub(cost);
        if self.left == 0 {
            self.worth = if cost < IN_VAIN { 0 } else { -PAUSE };
        }
        walk
    }
}

/// What is known of a stack without its frames.
struct Sum {
    sum: u64,
    /// Where the innermost frame ends.
    inner_end: u64,
    truncated: Option<Cause>,
}

impl Walker {
    /// Walks from `start`, on the known part of the thread's own stack, with an interpreter's
    /// frames in the result, which `insert` finds. `None`: the stack was not seen before, or takes
    /// more than plain steps.
    #[inline(always)]
    pub(super) fn walk_quickly<'a, T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
        insert: &mut impl FnMut(&Trail<'_>) -> Insertion<'a>,
    ) -> Option<Walk> {
        let found = self.find_quickly(start, tree, code, insert);
        self.pace.walked_quickly(&found.unwrap_or(Outcome::InVain))
    }

    #[inline(always)]
    fn find_quickly<'a, T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
        insert: &mut impl FnMut(&Trail<'_>) -> Insertion<'a>,
    ) -> Option<Outcome> {
        let found = self.sum(start, (code, tree.salt()))?;
        let insertion = insert(&Trail::of_stack(self.stack.known()));
        self.same = self.same.min(insertion.same);
        self.inserted.note(&insertion);
        let inserted = insertion.frames_above(start.sp);
        let Key(native) = named(found.sum, found.truncated);
        let key = self.inserted.name(native, inserted, tree.salt());
        if core::mem::replace(&mut self.last, key.0) == key.0 {
            return Some(Outcome::Twice);
        }
        let innermost = match inserted.last() {
            Some(last) if last.at < found.inner_end => last.address,
            _ => start.ip,
        };
        let leaf = tree.seen(key, innermost)?;
        Some(Outcome::Found(Walk {
            leaf: Some(leaf),
            truncated: found.truncated,
        }))
    }

    /// Sums up the frames from `start` outwards.
    #[inline(always)]
    fn sum(&mut self, start: Registers, code: (&impl Code, u64)) -> Option<Sum> {
        let mut sum = 0u64;
        let mut from = self.memo.begin();
        let first = self.outwards(start, &mut sum, code)?;
        let inner_end = first.map_or(u64::MAX, |caller| caller.sp);
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
        let Some(second) = first else {
            return Some(whole(sum));
        };
        if let Some(outer) = self.joined(second, &mut from) {
            return Some(joined(sum, outer, self.truncated));
        }
        let Some(mut at) = self.outwards(second, &mut sum, code)? else {
            return Some(whole(sum));
        };
        for _ in 0..self.pace.reach {
            if let Some(outer) = self.joined(at, &mut from) {
                return Some(joined(sum, outer, self.truncated));
            }
            for _ in 0..OFTEN {
                match self.outwards(at, &mut sum, code)? {
                    Some(caller) => at = caller,
                    None => return Some(whole(sum)),
                }
            }
        }
        None
    }

    /// A frame's caller, or that there is none; adds the frame to the sum. `None`: not a plain
    /// step.
    #[inline(always)]
    fn outwards(
        &mut self,
        at: Registers,
        sum: &mut u64,
        code: (&impl Code, u64),
    ) -> Option<Option<Registers>> {
        // SAFETY: they were noted in walks on the thread's own stack, which stays mapped while
        // the thread lives; with another thread, stack or generation of rules they are
        // forgotten.
        let known = unsafe { self.places.caller(at) };
        let (caller, part) = match known {
            Some(caller) if caller.registers.ip != 0 => (Some(caller.registers), caller.part),
            _ => self.plain(at, code)?,
        };
        *sum = sum.wrapping_add(part);
        Some(caller)
    }

    /// The sum of the memo's frames from the one with these registers outwards, if there is one and
    /// they are all unchanged.
    #[inline(always)]
    fn joined(&self, at: Registers, from: &mut usize) -> Option<u64> {
        let index = self.memo.meet(at, from)?;
        // SAFETY: the memo is of the thread's own stack: `settle` forgets others.
        let changed = unsafe { self.memo.first_changed(index) };
        changed.is_none().then(|| self.memo.sum_from(index))
    }

    /// The step from a frame at a new place: its caller, or that there is none, and its part.
    /// `None`: not a plain step.
    #[inline(never)]
    fn plain(
        &mut self,
        at: Registers,
        (code, salt): (&impl Code, u64),
    ) -> Option<(Option<Registers>, u64)> {
        // SAFETY: `init` wrote it.
        let rule = code.rule(at.ip, unsafe { self.scratch.assume_init_mut() });
        let part = part((at, rule), salt);
        if let Some((caller, ra, fp)) = plain_step(rule, at, self.stack.known()) {
            self.places.note((at, rule), (ra, fp), caller.sp, part);
            return Some((Some(caller), part));
        }
        let is_end = !rule.is_rare::<Native>()
            && matches!(step(rule, &at, &mut self.stack), Step::End { .. });
        is_end.then_some((None, part))
    }
}
