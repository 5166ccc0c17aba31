//! Stacks that differ from the last one in the innermost frame at most, as where a function
//! allocates in a loop, or at several places in turn: the memo serves them, and stays as it is.

use super::{Code, TRUNCATED, Tree, Walk, Walker, part, tagged};
use crate::rule::plain_step;
use crate::seen::Key;
use crate::{Cause, Registers};

impl Walker {
    /// The node of the last stack, if it is that once more: for who asks before [`walk`](Self::walk),
    /// in the same generation of rules and the same tree.
    #[inline(always)]
    #[must_use]
    pub fn again(&mut self, start: &Registers) -> Option<Walk> {
        let is_known = self.leaf != 0 && !self.memo.is_empty();
        if !is_known || !self.stack.stays_on_own(start.sp) {
            return None;
        }
        let begin = self.memo.begin();
        if !self.memo.is_at(begin, start) {
            return None;
        }
        // SAFETY: the memo is of the thread's own stack: `settle` forgets others.
        let changed = unsafe { self.memo.first_changed(begin) };
        if changed.is_some() {
            return None;
        }
        self.near = 0;
        Some(Walk {
            leaf: Some(self.leaf),
            truncated: self.truncated,
        })
    }

    /// Walks a stack, on the known part of the thread's own, that differs from the memo's in its
    /// innermost frame alone and was seen before. `None`: another one; or one that comes twice in a
    /// row, which the memo should hold, as its frames then need no lookups.
    #[inline(always)]
    pub(super) fn walk_near<T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
    ) -> Option<Walk> {
        let found = self.find_near(start, tree, code);
        self.is_near = found.is_some();
        let (key, leaf) = found?;
        (core::mem::replace(&mut self.near, key.0) != key.0).then_some(Walk {
            leaf: Some(leaf),
            truncated: self.truncated,
        })
    }

    #[inline(always)]
    fn find_near<T: Tree>(
        &mut self,
        start: Registers,
        tree: &T,
        code: &impl Code,
    ) -> Option<(Key, u32)> {
        // SAFETY: `init` wrote it.
        let rule = code.rule(start.ip, unsafe { self.scratch.assume_init_mut() });
        let (caller, ..) = plain_step(rule, start, self.stack.known())?;
        let outer = self.joined(caller, &mut self.memo.begin())?;
        let sum = outer.wrapping_add(part((start, rule), tree.salt()));
        let key = named(sum, self.truncated);
        let leaf = tree.seen(key, tagged(start.ip, rule.instance()))?;
        Some((key, leaf))
    }
}

/// What names a stack of native frames with that sum, and that end.
#[inline(always)]
pub(super) fn named(sum: u64, truncated: Option<Cause>) -> Key {
    match truncated {
        Some(_) => Key(sum.wrapping_add(TRUNCATED)),
        None => Key(sum),
    }
}
