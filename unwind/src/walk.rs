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
//! Cost: about 100 instructions a new frame, and 50 for its node; one or two compares an
//! unchanged one, of words that lie side by side in memory.

use crate::compile::Scratch;
use crate::elf::Image;
use crate::full;
use crate::rule::{Rule, Step, Word, plain_step, step};
use crate::stack::Stack;
use crate::{Cause, Registers};
use core::mem::MaybeUninit;

/// Most frames of a stack. Deeper ones keep their innermost [`DEEP_FRAMES`].
pub const MAX_FRAMES: usize = 3072;
/// What is kept of a stack that is too deep.
pub const DEEP_FRAMES: usize = 128;

/// Bits of an address; above them an interned address carries the rule's instance.
pub const ADDRESS_BITS: u32 = 48;

/// Where walked stacks are interned, as return addresses with their module's instance
/// above [`ADDRESS_BITS`].
pub trait Tree {
    /// The node above all complete stacks.
    const ROOT: u32;
    /// The node above all truncated stacks.
    const TRUNCATED: u32;
    /// The node of `address` under `parent`; `None` when there is no room.
    fn child(&self, parent: u32, address: u64) -> Option<u32>;
}

/// Where the walked code's rules come from.
pub trait Code {
    /// The rule of a return address.
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule;
    /// The image that holds it, for the rare frame that is followed in full; `None`: such
    /// frames end the stack.
    fn image(&self, ip: u64) -> Option<Image>;
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
    pub cut: Option<Cause>,
}

/// A remembered frame.
#[derive(Clone, Copy)]
#[repr(C)]
struct Frame {
    registers: Registers,
    node: u32,
    /// Its words and those of all frames further out are the first so many.
    words: u32,
    /// Which module at its place its code belongs to, and whether its step is the same
    /// whatever fp holds.
    rule: Rule,
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
    /// What is interned.
    #[inline]
    fn address(&self) -> u64 {
        tagged(self.registers.ip, self.rule.instance())
    }
}

#[inline]
fn tagged(ip: u64, instance: u8) -> u64 {
    ip | u64::from(instance) << ADDRESS_BITS
}

/// The last of `words` that no longer holds what it held. Four at a time, since nearly
/// always none differs.
#[inline(always)]
fn last_differing(words: &[Word]) -> Option<usize> {
    // SAFETY: each was read while the thread was on this stack, which `walk` makes sure of:
    // the pages between its stack pointer and the outermost frame are still there.
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

/// Stands for a step that comparing words cannot repeat: it never compares equal.
static NEVER: u64 = 0;

fn never() -> Word {
    Word {
        at: &raw const NEVER as u64,
        value: 1,
    }
}

/// A thread's memory of its last stack. About 400 KiB, of which only the depth in use is
/// ever touched; all zero is a valid start but for [`init`](Self::init).
#[repr(C)]
pub struct Walker {
    stack: Stack,
    /// Frames remembered; the outermost is first.
    len: usize,
    cut: Option<Cause>,
    scratch: MaybeUninit<Scratch>,
    frames: [MaybeUninit<Frame>; MAX_FRAMES],
    /// One more than can be remembered: see `intern`.
    words: [MaybeUninit<Word>; 2 * MAX_FRAMES + 1],
    fresh: [MaybeUninit<Fresh>; MAX_FRAMES],
}

/// What a walk found: how many remembered frames still hold, how many new ones lie in
/// `fresh` (innermost first), and how the stack ended where it was walked to its end.
struct Trace {
    kept: usize,
    fresh: usize,
    end: Option<Option<Cause>>,
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

    /// Walks from `start`, asking `code` for rules and interning in `tree`. No word at or
    /// above `ceiling` is read (0: unknown).
    #[inline]
    pub fn walk<T: Tree>(
        &mut self,
        start: Registers,
        ceiling: u64,
        tree: &T,
        code: impl Code,
    ) -> Walk {
        let moves = self.stack.moves();
        self.stack.enter(start.sp, ceiling);
        if moves != self.stack.moves() {
            self.len = 0;
        }
        let moves = self.stack.moves();
        let trace = self.trace(start, &code);
        if let Some(end) = trace.end {
            self.cut = end;
        }
        if trace.kept + trace.fresh > MAX_FRAMES || self.cut == Some(Cause::TooDeep) {
            return self.intern_deep(&trace, tree);
        }
        let walk = self.intern(&trace, tree);
        if moves != self.stack.moves() {
            // Parts of two stacks: not all of its words can be compared later.
            self.len = 0;
        }
        walk
    }

    /// Steps outwards until the end or a remembered frame.
    #[inline]
    fn trace(&mut self, start: Registers, code: &impl Code) -> Trace {
        let mut at = start;
        let mut known = self.len;
        let mut fresh = 0;
        let mut readable = self.stack.known();
        loop {
            if let Some(index) = self.meet(at, &mut known) {
                let Some(changed) = self.first_changed(index) else {
                    return Trace {
                        kept: known,
                        fresh,
                        end: None,
                    };
                };
                fresh = self.take_back(changed + 1, known, fresh);
                at = self.frame(changed).registers;
                known = changed;
            }
            if fresh == MAX_FRAMES {
                return Trace {
                    kept: 0,
                    fresh,
                    end: Some(Some(Cause::TooDeep)),
                };
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
            let step = if found == Rule::IN_FULL.with_instance(found.instance()) {
                self.step_in_full(&here, fresh, code)
            } else {
                step(found, &here, &mut self.stack)
            };
            readable = self.stack.known();
            let words = match step {
                Step::Caller { ra, fp, .. } if found.is_plain() => [ra, fp],
                Step::End { ra } if found.is_plain() => [ra, Word::default()],
                // By its rule, whatever the stack holds.
                Step::End { .. } | Step::Cut(_) if found.ends() => [Word::default(); 2],
                _ => [never(), Word::default()],
            };
            // SAFETY: fewer than MAX_FRAMES, as checked above.
            unsafe { self.note(fresh, at, found, words) };
            fresh += 1;
            match step {
                Step::Caller { registers, .. } => at = registers,
                Step::End { .. } => {
                    return Trace {
                        kept: 0,
                        fresh,
                        end: Some(None),
                    };
                }
                Step::Cut(cause) => {
                    return Trace {
                        kept: 0,
                        fresh,
                        end: Some(Some(cause)),
                    };
                }
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
    fn step_in_full(&mut self, at: &Registers, fresh: usize, code: &impl Code) -> Step {
        let frames = &self.fresh;
        let mut inner = full::Inner {
            // SAFETY: `trace` wrote the first `fresh` ones, and those only are asked for.
            frame: |index: usize| unsafe { frames[index].assume_init_ref() }.registers,
            count: fresh,
            image: |ip| code.image(ip),
            // SAFETY: `init` wrote it.
            scratch: unsafe { self.scratch.assume_init_mut() },
        };
        full::step(at, &mut self.stack, &mut inner)
    }

    /// The remembered frame with these registers, if there is one; `known` becomes the
    /// number of frames from it outwards.
    #[inline]
    fn meet(&self, at: Registers, known: &mut usize) -> Option<usize> {
        while *known > 0 && self.frame(*known - 1).registers.sp < at.sp {
            *known -= 1;
        }
        let index = known.checked_sub(1)?;
        let frame = self.frame(index);
        let same = frame.registers.ip == at.ip
            && frame.registers.sp == at.sp
            && (frame.registers.fp == at.fp || frame.rule.ignores_fp());
        same.then_some(index)
    }

    #[inline]
    fn frame(&self, index: usize) -> &Frame {
        // SAFETY: callers pass an index below `len`, up to which frames are written.
        unsafe { self.frames.get_unchecked(index).assume_init_ref() }
    }

    /// Compares, from frame `from` outwards, what each step read with what is there now.
    /// Returns the first frame whose step has to be taken again.
    #[inline]
    fn first_changed(&self, from: usize) -> Option<usize> {
        let count = self.frame(from).words as usize;
        // SAFETY: so many words are written.
        let words =
            unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast::<Word>(), count) };
        let changed = last_differing(words)?;
        (0..=from).find(|index| self.frame(*index).words as usize > changed)
    }

    /// Makes the remembered frames `from..to` part of the walk in progress: those before
    /// them have changed.
    #[cold]
    fn take_back(&mut self, from: usize, to: usize, mut fresh: usize) -> usize {
        for index in (from..to).rev() {
            let frame = *self.frame(index);
            let first = self.frame(index - 1).words as usize;
            let mut words = [Word::default(); 2];
            for (word, at) in words.iter_mut().zip(first..frame.words as usize) {
                // SAFETY: written, as are all words of remembered frames.
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

    /// Puts the new frames on top of the kept ones, with their nodes. There is room for
    /// both: `walk` has seen to it.
    #[inline]
    fn intern<T: Tree>(&mut self, trace: &Trace, tree: &T) -> Walk {
        let (mut node, mut words) = match trace.kept {
            0 if self.cut.is_some() => (T::TRUNCATED, 0),
            0 => (T::ROOT, 0),
            kept => (
                self.frame(kept - 1).node,
                self.frame(kept - 1).words as usize,
            ),
        };
        self.len = trace.kept + trace.fresh;
        debug_assert!(self.len <= MAX_FRAMES);
        for index in 0..trace.fresh {
            // SAFETY: `trace` wrote the first `fresh` ones.
            let fresh = unsafe {
                let inwards = trace.fresh - 1 - index;
                self.fresh.get_unchecked(inwards).assume_init_ref()
            };
            let Some(child) = tree.child(node, fresh.address()) else {
                self.len = 0;
                return Walk {
                    leaf: None,
                    cut: self.cut,
                };
            };
            node = child;
            // SAFETY: at most MAX_FRAMES frames, the caller's, each with two words at most,
            // and room for one more word: both are written, and the next frame writes over
            // what is none, so that there are no branches.
            unsafe {
                for word in fresh.words {
                    self.words.get_unchecked_mut(words).write(word);
                    words += usize::from(word.at != 0);
                }
                self.frames
                    .get_unchecked_mut(trace.kept + index)
                    .write(Frame {
                        registers: fresh.registers,
                        node,
                        words: words as u32,
                        rule: fresh.rule,
                    });
            }
        }
        Walk {
            leaf: Some(node),
            cut: self.cut,
        }
    }

    /// Interns the innermost frames only, and remembers nothing.
    #[cold]
    fn intern_deep<T: Tree>(&mut self, trace: &Trace, tree: &T) -> Walk {
        let from_fresh = trace.fresh.min(DEEP_FRAMES);
        let from_kept = trace.kept.min(DEEP_FRAMES - from_fresh);
        let mut node = Some(T::TRUNCATED);
        for index in trace.kept - from_kept..trace.kept {
            let frame = self.frame(index);
            let address = tagged(frame.registers.ip, frame.rule.instance());
            node = node.and_then(|parent| tree.child(parent, address));
        }
        for index in (0..from_fresh).rev() {
            // SAFETY: `trace` wrote the first `fresh` ones.
            let fresh = unsafe { self.fresh[index].assume_init_ref() };
            node = node.and_then(|parent| tree.child(parent, fresh.address()));
        }
        self.len = 0;
        Walk {
            leaf: node,
            cut: Some(Cause::TooDeep),
        }
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
