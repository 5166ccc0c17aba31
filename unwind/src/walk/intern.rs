//! From the frames of a walk to the node of its stack.

use super::{DEEP_FRAMES, Frame, MAX_FRAMES, Node, Trace, Tree, Walk, Walker, place_of};
use crate::Cause;
use crate::inserted::{Inserted, Insertion};
use crate::seen::Key;

impl Walker {
    /// Puts the new frames on top of the kept ones, and finds the node of the last. There is room
    /// for both: `walk` ensures it.
    #[inline]
    pub(super) fn intern<T: Tree>(
        &mut self,
        trace: &Trace,
        tree: &T,
        insertion: &Insertion<'_>,
    ) -> Walk {
        self.len = trace.kept + trace.fresh;
        debug_assert!(self.len <= MAX_FRAMES);
        let unmoved = self.unmoved(trace.kept, insertion);
        if unmoved < trace.kept {
            self.move_kept((unmoved, trace.kept), tree, insertion);
        }
        self.remember(trace, tree, insertion);
        let leaf = self.leaf(tree, insertion);
        if leaf.is_none() {
            self.len = 0;
        }
        Walk {
            leaf,
            truncated: self.truncated,
        }
    }

    /// The node above the memo's frames.
    #[inline]
    pub(super) fn root<T: Tree>(&self, tree: &T) -> Node {
        match self.truncated {
            Some(_) => tree.truncated(),
            None => tree.root(),
        }
    }

    /// The stack up to the memo's first `count` frames, and the number of inserted frames among them.
    #[inline]
    fn end_of<T: Tree>(&self, count: usize, tree: &T) -> (Key, u32) {
        match count.checked_sub(1) {
            None => {
                let (path, check) = (self.root(tree).path, tree.salt());
                (Key { path, check }, 0)
            }
            Some(last) => (self.frame(last).key, self.frame(last).inserted),
        }
    }

    /// Number of the memo's first `kept` frames that are still right: none but the same frames
    /// are inserted there.
    #[inline]
    fn unmoved(&self, kept: usize, insertion: &Insertion<'_>) -> usize {
        let mut count = kept;
        while count > 0 {
            let frame = self.frame(count - 1);
            if insertion.keeps(frame.inserted as usize, frame.registers.sp) {
                break;
            }
            count -= 1;
        }
        count
    }

    /// Puts the inserted frames into the memo's frames `from..kept` anew, since they are others
    /// than before.
    #[cold]
    fn move_kept<T: Tree>(
        &mut self,
        (from, kept): (usize, usize),
        tree: &T,
        insertion: &Insertion<'_>,
    ) {
        let (mut key, mut inserted) = self.end_of(from, tree);
        for index in from..kept {
            let (address, sp) = (self.frame(index).address(), self.frame(index).registers.sp);
            key = extended(key, address, tree);
            key = with_inserted(key, &mut inserted, sp, (tree, insertion));
            // SAFETY: a frame of the memo, which is written.
            let frame = unsafe { self.frames[index].assume_init_mut() };
            (frame.key, frame.inserted, frame.node) = (key, inserted, 0);
        }
    }

    /// Copies the new frames to the memo, on top of those that are kept.
    #[inline]
    fn remember<T: Tree>(&mut self, trace: &Trace, tree: &T, insertion: &Insertion<'_>) {
        let (mut key, mut inserted) = self.end_of(trace.kept, tree);
        let mut words = match trace.kept {
            0 => 0,
            kept => self.frame(kept - 1).words as usize,
        };
        for index in trace.kept..trace.kept + trace.fresh {
            // SAFETY: `trace` wrote the first `fresh` ones.
            let fresh = unsafe {
                let inwards = trace.kept + trace.fresh - 1 - index;
                self.fresh.get_unchecked(inwards).assume_init_ref()
            };
            key = extended(key, fresh.address(), tree);
            key = with_inserted(key, &mut inserted, fresh.registers.sp, (tree, insertion));
            self.by_sp[place_of(fresh.registers.sp)] = index as u16;
            // SAFETY: at most MAX_FRAMES frames, the caller's, each with two words at most,
            // and room for one more word: both are always written, without branches, and the
            // next frame overwrites the second if it is unused.
            unsafe {
                for word in fresh.words {
                    self.words.get_unchecked_mut(words).write(word);
                    words += usize::from(word.at != 0);
                }
                self.frames.get_unchecked_mut(index).write(Frame {
                    registers: fresh.registers,
                    key,
                    node: 0,
                    words: words as u32,
                    inserted,
                    rule: fresh.rule,
                });
            }
        }
    }

    /// The node of the memo's innermost frame; `None`: no room.
    #[inline]
    fn leaf<T: Tree>(&mut self, tree: &T, insertion: &Insertion<'_>) -> Option<u32> {
        let Some(last) = self.len.checked_sub(1) else {
            return Some(self.root(tree).id);
        };
        let frame = self.frame(last);
        if frame.node != 0 {
            return Some(frame.node);
        }
        let innermost = self.inserted_in(last, insertion).last();
        let address = innermost.map_or(frame.address(), |frame| frame.address);
        match tree.seen(frame.key, address) {
            Some(leaf) => {
                self.set_node(last, leaf);
                Some(leaf)
            }
            None => self.leaf_anew(tree, insertion),
        }
    }

    /// The frames that are inserted in one of the memo's.
    #[inline]
    fn inserted_in<'a>(&self, index: usize, insertion: &Insertion<'a>) -> &'a [Inserted] {
        let outer = index.checked_sub(1).map_or(0, |at| self.frame(at).inserted);
        let own = outer as usize..self.frame(index).inserted as usize;
        insertion.frames.get(own).unwrap_or_default()
    }

    /// Finds or makes the nodes of the frames whose nodes are not known, outermost first.
    #[inline(never)]
    fn leaf_anew<T: Tree>(&mut self, tree: &T, insertion: &Insertion<'_>) -> Option<u32> {
        let known = |index: &usize| self.frame(*index).node != 0;
        let from = (0..self.len).rev().find(known).map_or(0, |last| last + 1);
        let mut node = match from {
            0 => self.root(tree),
            _ => Node {
                id: self.frame(from - 1).node,
                path: self.frame(from - 1).key.path,
            },
        };
        for index in from..self.len {
            node = tree.child(node, self.frame(index).address())?;
            for inserted in self.inserted_in(index, insertion) {
                node = tree.child(node, inserted.address)?;
            }
            self.set_node(index, node.id);
        }
        tree.see(self.frame(self.len - 1).key, node.id);
        Some(node.id)
    }

    #[inline]
    fn set_node(&mut self, index: usize, node: u32) {
        // SAFETY: callers pass an index below `len`, up to which frames are written.
        unsafe { self.frames.get_unchecked_mut(index).assume_init_mut() }.node = node;
    }

    /// Interns the innermost frames only, and leaves the memo empty.
    #[cold]
    pub(super) fn intern_deep<T: Tree>(
        &mut self,
        trace: &Trace,
        tree: &T,
        insertion: &Insertion<'_>,
    ) -> Walk {
        let from_fresh = trace.fresh.min(DEEP_FRAMES);
        let from_kept = trace.kept.min(DEEP_FRAMES - from_fresh);
        let kept_frames = from_fresh + from_kept;
        let end = match kept_frames < trace.kept + trace.fresh {
            true => self.registers(trace, kept_frames).sp,
            false => u64::MAX,
        };
        let frames = insertion.frames;
        let mut inserted = frames.partition_point(|frame| frame.at >= end);
        let mut node = Some(tree.truncated());
        let mut add = |address, sp| {
            let child = node.and_then(|parent| tree.child(parent, address));
            node = child.and_then(|child| insert(child, &mut inserted, sp, (tree, insertion)));
        };
        for index in trace.kept - from_kept..trace.kept {
            add(self.frame(index).address(), self.frame(index).registers.sp);
        }
        for index in (0..from_fresh).rev() {
            // SAFETY: `trace` wrote the first `fresh` ones.
            let fresh = unsafe { self.fresh[index].assume_init_ref() };
            add(fresh.address(), fresh.registers.sp);
        }
        self.len = 0;
        Walk {
            leaf: node.map(|node| node.id),
            truncated: Some(Cause::TooDeep),
        }
    }
}

/// Interns the frames that are inserted in a native frame whose stack begins at `sp`: those from
/// the `inserted`th on that lie there. The node that they end in.
#[inline]
fn insert<T: Tree>(
    mut node: Node,
    inserted: &mut usize,
    sp: u64,
    (tree, insertion): (&T, &Insertion<'_>),
) -> Option<Node> {
    while let Some(frame) = insertion.frames.get(*inserted).filter(|f| f.at >= sp) {
        node = tree.child(node, frame.address)?;
        *inserted += 1;
    }
    Some(node)
}

/// The stack of `key` with one more frame.
#[inline(always)]
fn extended<T: Tree>(key: Key, address: u64, tree: &T) -> Key {
    Key {
        path: tree.path_to(key.path, address),
        check: key.check_with(address),
    }
}

/// [`insert`], of the stack alone.
#[inline(always)]
fn with_inserted<T: Tree>(
    mut key: Key,
    inserted: &mut u32,
    sp: u64,
    (tree, insertion): (&T, &Insertion<'_>),
) -> Key {
    let next = |inserted: u32| insertion.frames.get(inserted as usize);
    while let Some(frame) = next(*inserted).filter(|f| f.at >= sp) {
        key = extended(key, frame.address, tree);
        *inserted += 1;
    }
    key
}
