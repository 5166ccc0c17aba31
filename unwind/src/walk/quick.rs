//! Walks that leave the memo alone.
//!
//! A memo of the last stack is of little use where most frames of each stack differ from the one
//! before. Once that was so in some walks in a row, and those stacks had been seen before, the walker
//! goes by [places](super::places), keeps nothing but the stack's sum, and looks that up. If the stack
//! was not seen before, it is walked once more, for the memo.

use super::near::named;
use super::{Code, Tree, Walk, Walker, part, tagged};
use crate::arch::Native;
use crate::rule::{Step, plain_step, step};
use crate::{Cause, Registers};

/// New frames from which on a stack differs much from the last one.
const MANY: usize = 6;
/// Walks in a row that leave the memo alone.
const ROW: u32 = 32;
/// As how many of them one counts that was in vain.
const IN_VAIN: u32 = 8;
/// Walks in a row that must have found a stack that differs much, and that was seen before.
const TRIED: i32 = 2;
/// Walks for the memo that are not counted as such after a row that ended in vain.
const PAUSE: i32 = 8;
/// One frame in this many is looked up in the memo.
const OFTEN: usize = 4;

/// Whether to leave the memo alone.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Pace {
    /// Walks left that do.
    left: u32,
    /// Walks in a row after which doing so would have been worth it.
    worth: i32,
}

impl Pace {
    pub(super) const SLOW: Self = Self { left: 0, worth: 0 };

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
        if fresh < MANY || !was_seen {
            self.worth = self.worth.min(0);
            return;
        }
        self.worth += 1;
        if self.worth >= TRIED {
            self.left = ROW;
        }
    }

    /// A quick walk has found its stack, or not.
    #[inline(always)]
    fn walked_quickly(&mut self, was_seen: bool) {
        let cost = if was_seen { 1 } else { IN_VAIN };
        self.left = self.left.saturating_sub(cost);
        if self.left == 0 {
            self.worth = if was_seen { 0 } else { -PAUSE };
        }
    }
}

/// What is known of a stack without its frames.
struct Sum {
    sum: u64,
    truncated: Option<Cause>,
}

impl Walker {
    /// Walks from `start`, on the known part of the thread's own stack. `None`: the stack was not
    /// seen before, or takes more than plain steps.
    #[inline(never)]
    pub(super) fn walk_quickly<T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
    ) -> Option<Walk> {
        let walk = self.find_quickly(start, tree, code);
        self.pace.walked_quickly(walk.is_some());
        walk
    }

    #[inline(always)]
    fn find_quickly<T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
    ) -> Option<Walk> {
        let found = self.sum(start, (code, tree.salt()))?;
        // SAFETY: `init` wrote it.
        let rule = code.rule(start.ip, unsafe { self.scratch.assume_init_mut() });
        let address = tagged(start.ip, rule.instance());
        let leaf = tree.seen(named(found.sum, found.truncated), address)?;
        Some(Walk {
            leaf: Some(leaf),
            truncated: found.truncated,
        })
    }

    /// Sums up the frames from `start` outwards.
    #[inline(always)]
    fn sum(&mut self, start: Registers, (code, salt): (&impl Code, u64)) -> Option<Sum> {
        let Registers {
            mut ip,
            mut sp,
            mut fp,
        } = start;
        let mut sum = 0u64;
        let mut from = self.memo.begin();
        for _ in 0..super::MAX_FRAMES / OFTEN {
            if let Some(outer) = self.joined(Registers { ip, sp, fp }, &mut from) {
                return Some(Sum {
                    sum: sum.wrapping_add(outer),
                    truncated: self.truncated,
                });
            }
            for _ in 0..OFTEN {
                let at = Registers { ip, sp, fp };
                // SAFETY: they were noted in walks on the thread's own stack, which stays mapped while
                // the thread lives; with another thread, stack or generation of rules they are
                // forgotten.
                let known = unsafe { self.places.caller(at) };
                if let Some(caller) = known
                    && caller.registers.ip != 0
                {
                    sum = sum.wrapping_add(caller.part);
                    Registers { ip, sp, fp } = caller.registers;
                    continue;
                }
                let (caller, part) = self.plain(at, (code, salt))?;
                sum = sum.wrapping_add(part);
                let Some(caller) = caller else {
                    return Some(Sum {
                        sum,
                        truncated: None,
                    });
                };
                Registers { ip, sp, fp } = caller;
            }
        }
        None
    }

    /// The sum of the memo's frames from the one with these registers outwards, if there is one and
    /// they are all unchanged.
    #[inline(always)]
    pub(super) fn joined(&self, at: Registers, from: &mut usize) -> Option<u64> {
        let index = self.memo.meet(at, from)?;
        // SAFETY: the memo is of the thread's own stack: `settle` forgets others.
        let changed = unsafe { self.memo.first_changed(index) };
        changed.is_none().then(|| self.memo.sum_from(index))
    }

    /// The step from a frame at a new place: its caller, or that there is none, and its part. `None`:
    /// not a plain step.
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
