//! Tests with walks over synthetic stacks.

mod changing;
mod deep;

use super::*;
use crate::interpreter::InterpreterFrame;
use crate::rule::Kind;
use crate::seen::Key;
use proptest::prelude::*;
use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::vec;
use std::vec::Vec;

/// A tree: nodes by parent and address, and leaves by the hashes of their stacks.
#[derive(Default)]
struct Interned {
    nodes: RefCell<HashMap<(u32, u64), u32>>,
    leaves: RefCell<HashMap<u64, u32>>,
    /// Number of nodes requested.
    lookups: Cell<usize>,
}

impl Tree for Interned {
    fn root(&self) -> Node {
        0.into()
    }
    fn truncated(&self) -> Node {
        1.into()
    }
    fn child(&self, parent: Node, address: u64) -> Option<Node> {
        self.lookups.set(self.lookups.get() + 1);
        let mut map = self.nodes.borrow_mut();
        let next = map.len() as u32 + 2;
        Some((*map.entry((parent.id, address)).or_insert(next)).into())
    }
    fn find_leaf(&self, stack: Key, address: u64) -> Option<u32> {
        let leaf = *self.leaves.borrow().get(&stack.0)?;
        assert_eq!(self.path(leaf).0.first(), Some(&address));
        Some(leaf)
    }
    fn insert_leaf(&self, stack: Key, leaf: u32) {
        self.leaves.borrow_mut().insert(stack.0, leaf);
    }
}

impl Interned {
    fn path(&self, mut node: u32) -> (Vec<u64>, bool) {
        let map = self.nodes.borrow();
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
    walker.init(Ends::default());
    walker
}

/// Walks a stack in the way that the sampler does.
fn walk(walker: &mut Walker, start: Registers, tree: &Interned, code: impl Code) -> Walk {
    let again = walker.walk_if_unchanged(&start);
    again.unwrap_or_else(|| walker.walk(start, 0, tree, code))
}

/// Frames of 32 bytes: two locals, saved fp, return address. Odd addresses save fp.
fn rules(ip: u64, _: &mut Scratch) -> Rule {
    match ip {
        0xdead => Rule::failed(Cause::NoModule),
        _ if ip % 2 == 1 => Rule::new(Kind::Sp, 32, Some(-8), Some(-16)),
        _ => Rule::new(Kind::Sp, 32, Some(-8), None),
    }
}

/// Returns a fake stack whose frames return to `ips` (innermost first), ending in 0.
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
    let mut walker = walker();
    let tree = Interned::default();
    let walk = walker.walk(start, 0, &tree, rules);
    assert_eq!(walk.truncated, Some(Cause::TooDeep));
    let (path, truncated) = tree.path(walk.leaf.unwrap());
    assert_eq!((path.as_slice(), truncated), (&ips[..DEEP_FRAMES], true));
}

#[test]
fn growing_past_the_limit_frame_by_frame_truncates() {
    let ips: Vec<u64> = (0..MAX_FRAMES as u64 + 1).map(|i| 0x1000 + 2 * i).collect();
    let mut memory = vec![0u64; ips.len() * 4];
    let mut walker = walker();
    let tree = Interned::default();
    let start = lay(&mut memory, &ips[1..]);
    assert_eq!(walker.walk(start, 0, &tree, rules).truncated, None);
    let start = lay(&mut memory, &ips);
    let walk = walker.walk(start, 0, &tree, rules);
    assert_eq!(walk.truncated, Some(Cause::TooDeep));
    assert_eq!(tree.path(walk.leaf.unwrap()).0, ips[..DEEP_FRAMES]);
}

#[test]
fn unknown_code_truncates() {
    let mut memory = vec![0u64; 64];
    let start = lay(&mut memory, &[0x10, 0x20, 0xdead, 0x30]);
    let mut walker = walker();
    let tree = Interned::default();
    for _ in 0..2 {
        let walk = walker.walk(start, 0, &tree, rules);
        assert_eq!(walk.truncated, Some(Cause::NoModule));
        let path = tree.path(walk.leaf.unwrap());
        assert_eq!(path, (vec![0x10, 0x20, 0xdead], true));
    }
}

proptest! {
    /// For any stacks, walks with the last-stack cache give the same results as walks without it.
    #[test]
    fn memory_never_changes_the_result(
        stacks in prop::collection::vec(prop::collection::vec(0x10u64..0x18, 1..12), 1..40),
        fps in prop::collection::vec(0u64..3, 40),
    ) {
        let mut memory = vec![0u64; 4 * 16];
        let tree = Interned::default();
        let mut remembering = walker();
        let mut forgetful = walker();
        for (ips, fp) in stacks.iter().zip(fps) {
            let mut start = lay(&mut memory, ips);
            start.fp = fp;
            let slot = memory.len() - 2;
            memory[slot] = fp;
            forgetful.forget();
            let expected = forgetful.walk(start, 0, &tree, rules);
            prop_assert_eq!(walk(&mut remembering, start, &tree, rules), expected);
            prop_assert_eq!(&tree.path(expected.leaf.unwrap()).0, ips);
        }
    }
}

#[test]
fn a_repeated_stack_looks_up_no_node() {
    let mut memory = vec![0u64; 64];
    let mut walker = walker();
    let tree = Interned::default();
    let mut walk = |ips: &[u64]| {
        let start = lay(&mut memory, ips);
        let lookups = tree.lookups.get();
        let leaf = walker.walk(start, 0, &tree, rules).leaf.unwrap();
        assert_eq!(tree.path(leaf).0, ips);
        (leaf, tree.lookups.get() - lookups)
    };
    let one = [0x10, 0x20, 0x30, 0x50];
    let other = [0x10, 0x22, 0x40, 0x50];
    let (first, lookups) = walk(&one);
    assert_eq!(lookups, 4);
    let (second, lookups) = walk(&other);
    assert_eq!(lookups, 3);
    for _ in 0..3 {
        assert_eq!(walk(&one), (first, 0));
        assert_eq!(walk(&other), (second, 0));
    }
    // The frames inside have no nodes yet, since none were needed.
    assert_ne!(walk(&[0x11, 0x20, 0x30, 0x50]).0, first);
    assert_eq!(walk(&one), (first, 0));
}

#[test]
fn an_interrupted_frame_keeps_its_frame_pointer_in_the_register() {
    // The outer frame is found by the frame pointer, which the inner frame has just restored: its
    // tables still locate the saved value below the stack pointer.
    const INNER: u64 = 0x100;
    let rules = |ip: u64, _: &mut Scratch| match ip {
        INNER => Rule::new(Kind::Sp, 8, Some(-8), Some(-16)),
        _ => Rule::new(Kind::Fp, 16, Some(-8), Some(-16)),
    };
    let mut memory = [0u64; 16];
    // The word below the stack pointer was left there by another function.
    (memory[3], memory[4]) = (0xbad, 0x200);
    (memory[8], memory[9]) = (1, 0);
    let address = |index: usize| &raw const memory[index] as u64;
    let start = Registers {
        ip: INNER,
        sp: address(4),
        fp: address(8),
    };
    let mut walker = walker();
    let tree = Interned::default();
    for _ in 0..2 {
        let walk =
            walker.walk_interrupted(start, &[], 0, &tree, rules, |_| InterpreterFrames::NONE);
        assert_eq!(walk.truncated, None);
        assert_eq!(tree.path(walk.leaf.unwrap()), (vec![INNER, 0x200], false));
    }
    // Both kinds of walks use the cached outer frame.
    let caller = Registers {
        ip: 0x200,
        sp: address(5),
        fp: address(8),
    };
    let walk = walker.walk(caller, 0, &tree, rules);
    assert_eq!(tree.path(walk.leaf.unwrap()).0, [0x200]);
}

/// Places interpreter frames inside native ones. Each row belongs to a native frame, outermost
/// first.
fn inserted(start: Registers, frames: usize, inside: &[Vec<u64>]) -> Vec<InterpreterFrame> {
    let mut all = Vec::new();
    for index in (0..frames).rev() {
        let at = start.sp + 32 * index as u64 + 8;
        let addresses = inside.get(index).into_iter().flatten();
        all.extend(addresses.map(|&address| InterpreterFrame { at, address }));
    }
    all
}

#[test]
fn interpreter_frames_are_inserted_inside_the_native_frames_that_run_them() {
    let mut memory = vec![0u64; 64];
    let start = lay(&mut memory, &[0x10, 0x20, 0x30]);
    let frames = inserted(start, 3, &[vec![], vec![0x900, 0x800], vec![0x700]]);
    let mut walker = walker();
    let tree = Interned::default();
    let mut walk = |frames: &[InterpreterFrame], same| {
        let walk = walker.walk_with(start, 0, &tree, rules, true, |_| InterpreterFrames {
            frames,
            unchanged: same,
        });
        tree.path(walk.leaf.unwrap()).0
    };
    let all = [0x10, 0x800, 0x900, 0x20, 0x700, 0x30];
    assert_eq!(walk(&frames, 0), all);
    assert_eq!(walk(&frames, 3), all);
    assert_eq!(walk(&frames[..1], 1), [0x10, 0x20, 0x700, 0x30]);
    assert_eq!(walk(&frames, 1), all);
    assert_eq!(walk(&[], 0), [0x10, 0x20, 0x30]);
}

#[test]
fn a_deep_stack_keeps_the_innermost_interpreter_frames() {
    let count = MAX_FRAMES + 10;
    let ips: Vec<u64> = (0..count as u64).map(|i| 0x1000 + 2 * i).collect();
    let mut memory = vec![0u64; ips.len() * 4];
    let start = lay(&mut memory, &ips);
    let inside: Vec<Vec<u64>> = (0..count as u64).map(|i| vec![0x90_0000 + i]).collect();
    let frames = inserted(start, count, &inside);
    let mut walker = walker();
    let tree = Interned::default();
    let interpreter_frames = InterpreterFrames {
        frames: &frames,
        unchanged: 0,
    };
    let walk = walker.walk_with(start, 0, &tree, rules, true, |_| interpreter_frames);
    let (path, _) = tree.path(walk.leaf.unwrap());
    let expected = (0..DEEP_FRAMES).flat_map(|i| [0x90_0000 + i as u64, ips[i]]);
    assert_eq!(path, expected.collect::<Vec<_>>());
}

proptest! {
    /// Walks with the cache are also correct with interpreter frames, which may change while the
    /// native frames do not.
    #[test]
    fn memory_never_changes_the_result_with_an_interpreter(
        stacks in prop::collection::vec(
            prop::collection::vec((0x10u64..0x13, prop::collection::vec(0x900u64..0x903, 0..3)), 1..8),
            1..60,
        ),
    ) {
        let mut memory = vec![0u64; 4 * 16];
        let tree = Interned::default();
        let mut remembering = walker();
        let mut forgetful = walker();
        let mut last: Vec<InterpreterFrame> = Vec::new();
        for stack in stacks {
            let ips: Vec<u64> = stack.iter().map(|frame| frame.0).collect();
            let inside: Vec<Vec<u64>> = stack.iter().map(|frame| frame.1.clone()).collect();
            let start = lay(&mut memory, &ips);
            let frames = inserted(start, ips.len(), &inside);
            let same = frames.iter().zip(&last).take_while(|(now, then)| now == then).count();
            let walk = |walker: &mut Walker, same| {
                let interpreter_frames = InterpreterFrames { frames: &frames, unchanged: same };
                let walk = walker.walk_with(start, 0, &tree, rules, true, |_| interpreter_frames);
                walk.leaf.unwrap()
            };
            forgetful.forget();
            let expected = walk(&mut forgetful, 0);
            prop_assert_eq!(walk(&mut remembering, same), expected);
            let mut path = Vec::new();
            for (ip, inside) in ips.iter().zip(&inside) {
                path.extend(inside.iter().rev());
                path.push(*ip);
            }
            prop_assert_eq!(tree.path(expected).0, path);
            last = frames;
        }
    }
}
