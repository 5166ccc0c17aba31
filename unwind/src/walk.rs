//! Walking a stack, remembering the last one.
//!
//! A thread's consecutive samples share most of their stack: everything above the
//! function that both ran under. The walker keeps its last stack, each frame with
//! its registers, the addresses of the two words that its step read, and its node
//! in the calling-context tree. A new walk steps only until it meets a remembered
//! frame with equal registers, then compares the words that the remembered steps
//! read, innermost first. Where all are unchanged the remaining frames, and their
//! nodes, are the same. A word that differs ends the comparison; the walk goes on
//! from that frame and may meet remembered frames again further out.
//!
//! Cost: about 5 ns a new frame plus its node's lookup; one or two compares (under
//! 1 ns) an unchanged one.

use crate::compile::Scratch;
use crate::rule::{Rule, Step, return_address, step};
use crate::stack::Stack;
use crate::{Cause, Registers};
use core::mem::MaybeUninit;

/// Most frames of a stack. Deeper ones keep their innermost [`DEEP_FRAMES`].
pub const MAX_FRAMES: usize = 3072;
/// What is kept of a stack that is too deep.
pub const DEEP_FRAMES: usize = 128;

/// Where walked stacks are interned.
pub trait Tree {
    /// The node above all complete stacks.
    const ROOT: u32;
    /// The node above all truncated stacks.
    const TRUNCATED: u32;
    /// The node of `address` under `parent`; `None` when there is no room.
    fn child(&self, parent: u32, address: u64) -> Option<u32>;
}

/// A finished walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Node of the innermost frame; `None`: no room in the tree.
    pub leaf: Option<u32>,
    /// Why the stack is truncated, if it is.
    pub cut: Option<Cause>,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Frame {
    registers: Registers,
    /// Where its step read the caller's ip and fp; 0: not read.
    ra_at: u64,
    fp_at: u64,
    node: u32,
    /// Whether comparing these two words is enough to repeat the step.
    plain: bool,
}

/// A thread's memory of its last stack. About 300 KiB, of which only the depth in use is
/// ever touched; all zero is a valid start but for [`init`](Self::init).
#[repr(C)]
pub struct Walker {
    stack: Stack,
    /// Frames remembered; the outermost is first.
    len: usize,
    cut: Option<Cause>,
    scratch: MaybeUninit<Scratch>,
    frames: [MaybeUninit<Frame>; MAX_FRAMES],
    fresh: [MaybeUninit<Frame>; MAX_FRAMES],
}

impl Walker {
    /// Makes zeroed memory a walker.
    pub fn init(&mut self) {
        self.stack = Stack::EMPTY;
        self.len = 0;
        self.cut = None;
        self.scratch.write(Scratch::new());
    }

    /// Forgets the last stack: its nodes or its rules no longer hold.
    pub fn forget(&mut self) {
        self.len = 0;
    }

    /// Walks from `start` (with `link`, the link register, on aarch64), asking `rule` for
    /// rules and interning in `tree`. No word at or above `ceiling` is read (0: unknown).
    #[inline]
    pub fn walk<T: Tree>(
        &mut self,
        start: Registers,
        ceiling: u64,
        tree: &T,
        rule: impl Fn(u64, &mut Scratch) -> Rule,
    ) -> Walk {
        self.stack.enter(start.sp, ceiling);
        let (kept, fresh, end) = self.trace(start, rule);
        if let Some(end) = end {
            self.cut = end;
        }
        if kept + fresh > MAX_FRAMES || self.cut == Some(Cause::TooDeep) {
            return self.intern_deep(kept, fresh, tree);
        }
        self.intern(kept, fresh, tree)
    }

    /// Steps outwards. Returns how many remembered frames still hold, how many new ones
    /// lie in `fresh` (innermost first), and how the stack ended if it was walked anew.
    #[inline]
    fn trace(
        &mut self,
        start: Registers,
        rule: impl Fn(u64, &mut Scratch) -> Rule,
    ) -> (usize, usize, Option<Option<Cause>>) {
        let mut at = start;
        let mut known = self.len;
        let mut fresh = 0;
        loop {
            while known > 0 && self.frame(known - 1).registers.sp < at.sp {
                known -= 1;
            }
            if known > 0 && self.frame(known - 1).registers == at {
                let changed = self.first_changed(known - 1);
                let Some(changed) = changed else {
                    return (known, fresh, None);
                };
                for index in (changed + 1..known).rev() {
                    let Some(slot) = self.fresh.get_mut(fresh) else {
                        break;
                    };
                    *slot = self.frames[index];
                    fresh += 1;
                }
                at = self.frame(changed).registers;
                known = changed;
            }
            if fresh == MAX_FRAMES {
                return (0, fresh, Some(Some(Cause::TooDeep)));
            }
            // SAFETY: `init` wrote it.
            let found = rule(at.ip, unsafe { self.scratch.assume_init_mut() });
            let step = step(found, &at, 0, &mut self.stack);
            let (ra_at, fp_at) = match step {
                Step::Caller { ra_at, fp_at, .. } => (ra_at, fp_at),
                Step::End { ra_at } => (ra_at, 0),
                Step::Cut(_) => (0, 0),
            };
            let plain = found.is_plain();
            self.fresh[fresh].write(Frame {
                registers: at,
                ra_at,
                fp_at,
                node: 0,
                plain,
            });
            fresh += 1;
            match step {
                Step::Caller { registers, .. } => at = registers,
                Step::End { .. } => return (0, fresh, Some(None)),
                Step::Cut(cause) => return (0, fresh, Some(Some(cause))),
            }
        }
    }

    #[inline]
    fn frame(&self, index: usize) -> &Frame {
        // SAFETY: callers pass an index below `len`, up to which frames are written.
        unsafe { self.frames[index].assume_init_ref() }
    }

    /// Compares, from frame `from` outwards, what each step read with what is there now.
    /// Returns the first frame whose step has to be taken again.
    #[inline]
    fn first_changed(&self, from: usize) -> Option<usize> {
        for index in (1..=from).rev() {
            let (inner, outer) = (self.frame(index), &self.frame(index - 1).registers);
            let ra = self.stack.peek(inner.ra_at);
            let same_ip = ra.map(return_address) == Some(outer.ip);
            let same_fp = inner.fp_at == 0 || self.stack.peek(inner.fp_at) == Some(outer.fp);
            if !(same_ip & same_fp & inner.plain) {
                return Some(index);
            }
        }
        let outermost = self.frame(0);
        let same_end = match self.cut {
            None => outermost.ra_at == 0 || self.stack.peek(outermost.ra_at) == Some(0),
            // These depend on words that were not kept: look again.
            Some(Cause::BadFrame | Cause::OutOfStack) => false,
            Some(_) => true,
        };
        (!same_end).then_some(0)
    }

    /// Puts the new frames on top of the kept ones, with their nodes.
    #[inline]
    fn intern<T: Tree>(&mut self, kept: usize, fresh: usize, tree: &T) -> Walk {
        let mut node = match kept {
            0 if self.cut.is_some() => T::TRUNCATED,
            0 => T::ROOT,
            _ => self.frame(kept - 1).node,
        };
        self.len = kept + fresh;
        for (slot, index) in (0..fresh).rev().zip(kept..).map(|(from, to)| (to, from)) {
            // SAFETY: `trace` wrote the first `fresh` ones.
            let mut frame = unsafe { self.fresh[index].assume_init() };
            let Some(child) = tree.child(node, frame.registers.ip) else {
                self.len = 0;
                return Walk {
                    leaf: None,
                    cut: self.cut,
                };
            };
            node = child;
            frame.node = child;
            self.frames[slot].write(frame);
        }
        Walk {
            leaf: Some(node),
            cut: self.cut,
        }
    }

    /// Interns the innermost frames only, and remembers nothing.
    #[cold]
    fn intern_deep<T: Tree>(&mut self, kept: usize, fresh: usize, tree: &T) -> Walk {
        let cut = Some(Cause::TooDeep);
        let from_fresh = fresh.min(DEEP_FRAMES);
        let from_kept = kept.min(DEEP_FRAMES - from_fresh);
        let mut node = Some(T::TRUNCATED);
        for index in kept - from_kept..kept {
            node = node.and_then(|parent| tree.child(parent, self.frame(index).registers.ip));
        }
        for index in (0..from_fresh).rev() {
            // SAFETY: `trace` wrote the first `fresh` ones.
            let frame = unsafe { self.fresh[index].assume_init_ref() };
            node = node.and_then(|parent| tree.child(parent, frame.registers.ip));
        }
        self.len = 0;
        Walk { leaf: node, cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Kind;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::vec;
    use std::vec::Vec;

    #[derive(Default)]
    struct Interned(RefCell<HashMap<(u32, u64), u32>>);

    impl Tree for Interned {
        const ROOT: u32 = 0;
        const TRUNCATED: u32 = 1;
        fn child(&self, parent: u32, address: u64) -> Option<u32> {
            let mut map = self.0.borrow_mut();
            let next = map.len() as u32 + 2;
            Some(*map.entry((parent, address)).or_insert(next))
        }
    }

    impl Interned {
        fn path(&self, mut node: u32) -> (Vec<u64>, bool) {
            let map = self.0.borrow();
            let mut path = Vec::new();
            while node > 1 {
                let (&(parent, address), _) = map.iter().find(|(_, id)| **id == node).unwrap();
                path.push(address);
                node = parent;
            }
            (path, node == 1)
        }
    }

    fn walker() -> Box<Walker> {
        // SAFETY: zeroed memory is what `init` expects.
        let mut walker = unsafe { Box::<Walker>::new_zeroed().assume_init() };
        walker.init();
        walker
    }

    /// Frames of 32 bytes: two locals, saved fp, return address. Odd addresses save fp.
    fn rules(ip: u64, _: &mut Scratch) -> Rule {
        match ip {
            0xdead => Rule::failed(Cause::NoModule),
            _ if ip % 2 == 1 => Rule::new(Kind::Sp, 32, Some(-8), Some(-16)),
            _ => Rule::new(Kind::Sp, 32, Some(-8), None),
        }
    }

    /// A fake stack whose frames return to `ips` (innermost first), ending in 0.
    fn lay(memory: &mut [u64], ips: &[u64]) -> Registers {
        let top = memory.len();
        let first = top - 4 * ips.len();
        for (i, _) in ips.iter().enumerate() {
            let at = first + 4 * i;
            memory[at + 3] = ips.get(i + 1).copied().unwrap_or(0);
        }
        Registers {
            ip: ips[0],
            sp: &raw const memory[first] as u64,
            fp: 5,
        }
    }

    #[test]
    fn a_deep_stack_keeps_its_innermost_frames() {
        let ips: Vec<u64> = (0..MAX_FRAMES as u64 + 10)
            .map(|i| 0x1000 + 2 * i)
            .collect();
        let mut memory = vec![0u64; ips.len() * 4];
        let start = lay(&mut memory, &ips);
        let (mut walker, tree) = (walker(), Interned::default());
        let walk = walker.walk(start, 0, &tree, rules);
        assert_eq!(walk.cut, Some(Cause::TooDeep));
        let (path, truncated) = tree.path(walk.leaf.unwrap());
        assert_eq!((path.as_slice(), truncated), (&ips[..DEEP_FRAMES], true));
    }

    #[test]
    fn growing_over_the_limit_one_frame_at_a_time_is_noticed() {
        let ips: Vec<u64> = (0..MAX_FRAMES as u64 + 1).map(|i| 0x1000 + 2 * i).collect();
        let mut memory = vec![0u64; ips.len() * 4];
        let (mut walker, tree) = (walker(), Interned::default());
        let start = lay(&mut memory, &ips[1..]);
        assert_eq!(walker.walk(start, 0, &tree, rules).cut, None);
        let start = lay(&mut memory, &ips);
        let walk = walker.walk(start, 0, &tree, rules);
        assert_eq!(walk.cut, Some(Cause::TooDeep));
        assert_eq!(tree.path(walk.leaf.unwrap()).0, ips[..DEEP_FRAMES]);
    }

    #[test]
    fn unknown_code_truncates() {
        let mut memory = vec![0u64; 64];
        let start = lay(&mut memory, &[0x10, 0x20, 0xdead, 0x30]);
        let (mut walker, tree) = (walker(), Interned::default());
        for _ in 0..2 {
            let walk = walker.walk(start, 0, &tree, rules);
            assert_eq!(walk.cut, Some(Cause::NoModule));
            let path = tree.path(walk.leaf.unwrap());
            assert_eq!(path, (vec![0x10, 0x20, 0xdead], true));
        }
    }

    proptest! {
        /// Whatever the stacks of a thread, a walk that remembers gives what a walk that
        /// does not gives.
        #[test]
        fn memory_never_changes_the_result(
            stacks in prop::collection::vec(prop::collection::vec(0x10u64..0x18, 1..12), 1..40),
            fps in prop::collection::vec(0u64..3, 40),
        ) {
            let mut memory = vec![0u64; 4 * 16];
            let tree = Interned::default();
            let (mut remembering, mut forgetful) = (walker(), walker());
            for (ips, fp) in stacks.iter().zip(fps) {
                let mut start = lay(&mut memory, ips);
                start.fp = fp;
                let slot = memory.len() - 2;
                memory[slot] = fp;
                forgetful.forget();
                let expected = forgetful.walk(start, 0, &tree, rules);
                prop_assert_eq!(remembering.walk(start, 0, &tree, rules), expected);
                prop_assert_eq!(&tree.path(expected.leaf.unwrap()).0, ips);
            }
        }
    }
}
