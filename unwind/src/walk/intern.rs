//! From the frames of a walk to the node of its stack.

use super::memo::Found;
use super::name::named;
use super::{DEEP_FRAMES, Node, Tree, Walk, Walker};
use crate::Cause;
use crate::inserted::{Inserted, Insertion};
use crate::seen::Key;

impl Walker {
    /// Makes what was found the memo, and finds the node of its innermost frame. There is room
    /// for it: `complete` ensures that.
    #[inline]
    pub(super) fn intern<T: Tree>(
        &mut self,
        found: &Found,
        tree: &T,
        insertion: &Insertion<'_>,
    ) -> Walk {
        let is_last = found.fresh.count == 0 && found.joins == Some(self.memo.begin());
        let moved = self.memo.adopt(found);
        let kept = match found.joins {
            Some(joins) => joins.wrapping_add_signed(moved),
            None => self.memo.end(),
        };
        let unmoved = self.unmoved(kept, insertion);
        if unmoved > kept || !insertion.frames.is_empty() {
            self.place_inserted((kept, unmoved), insertion);
        }
        if !is_last || unmoved > kept {
            self.leaf = 0;
        }
        let leaf = self.leaf(tree, insertion);
        self.leaf = leaf.unwrap_or(0);
        if leaf.is_none() {
            self.forget_last();
        }
        Walk {
            leaf,
            truncated: self.truncated,
        }
    }

    /// The node above the memo's frames.
    #[inline]
    fn root<T: Tree>(&self, tree: &T) -> Node {
        match self.truncated {
            Some(_) => tree.truncated(),
            None => tree.root(),
        }
    }

    /// The first of the memo's frames, from `kept` outwards, that is still right: none but the same
    /// frames are inserted there.
    #[inline]
    fn unmoved(&self, kept: usize, insertion: &Insertion<'_>) -> usize {
        let is_moved = |index: &usize| {
            let frame = self.memo.frame(*index);
            !insertion.keeps(frame.inserted as usize, frame.registers.sp)
        };
        let moved = (kept..self.memo.end()).take_while(is_moved).count();
        kept + moved
    }

    /// Notes which frames are inserted in the memo's frames that are further in than `unmoved`; those
    /// from `kept` on had others.
    fn place_inserted(&mut self, (kept, unmoved): (usize, usize), insertion: &Insertion<'_>) {
        let mut inserted = self.inserted_from(unmoved);
        for index in (self.memo.begin()..unmoved).rev() {
            let frame = self.memo.frame_mut(index);
            let next = |inserted: u32| insertion.frames.get(inserted as usize);
            while next(inserted).is_some_and(|next| next.at >= frame.registers.sp) {
                inserted += 1;
            }
            frame.inserted = inserted;
            if index >= kept {
                frame.node = 0;
            }
        }
    }

    /// Number of inserted frames in the memo's frame `index` and further out.
    #[inline]
    fn inserted_from(&self, index: usize) -> u32 {
        match index < self.memo.end() {
            true => self.memo.frame(index).inserted,
            false => 0,
        }
    }

    /// The node of the memo's innermost frame; `None`: no room.
    #[inline]
    fn leaf<T: Tree>(&mut self, tree: &T, insertion: &Insertion<'_>) -> Option<u32> {
        if self.memo.is_empty() {
            return Some(self.root(tree).id);
        }
        if self.leaf != 0 {
            return Some(self.leaf);
        }
        let begin = self.memo.begin();
        let frame = self.memo.frame(begin);
        if frame.node != 0 {
            return Some(frame.node);
        }
        let innermost = self.inserted_in(begin, insertion).last();
        let address = innermost.map_or(frame.address(), |frame| frame.address);
        let key = self.key(tree.salt(), insertion);
        match tree.seen(key, address) {
            Some(leaf) => {
                self.was_seen = true;
                Some(leaf)
            }
            None => {
                let leaf = self.leaf_anew(tree, insertion)?;
                tree.see(key, leaf);
                Some(leaf)
            }
        }
    }

    /// What names the memo's stack, with the inserted frames.
    #[inline]
    fn key(&mut self, salt: u64, insertion: &Insertion<'_>) -> Key {
        let Key(native) = named(self.memo.key(), self.truncated);
        let inserted = self.memo.frame(self.memo.begin()).inserted as usize;
        let frames = insertion.frames.get(..inserted).unwrap_or_default();
        self.inserted.name(native, frames, salt)
    }

    /// The frames that are inserted in one of the memo's.
    #[inline]
    fn inserted_in<'a>(&self, index: usize, insertion: &Insertion<'a>) -> &'a [Inserted] {
        let outer = self.inserted_from(index + 1) as usize;
        let own = outer..self.memo.frame(index).inserted as usize;
        insertion.frames.get(own).unwrap_or_default()
    }

    /// Finds or makes the nodes of the frames whose nodes are not known, outermost first.
    #[inline(never)]
    fn leaf_anew<T: Tree>(&mut self, tree: &T, insertion: &Insertion<'_>) -> Option<u32> {
        let (begin, end) = (self.memo.begin(), self.memo.end());
        let known = |index: &usize| self.memo.frame(*index).node != 0;
        let known = (begin..end).find(known).unwrap_or(end);
        let mut node = match known == end {
            true => self.root(tree),
            false => Node {
                id: self.memo.frame(known).node,
                path: self.memo.frame(known).path,
            },
        };
        let mut path = node.path;
        for index in (begin..known).rev() {
            path = tree.expect(path, self.memo.frame(index).address());
            for inserted in self.inserted_in(index, insertion) {
                path = tree.expect(path, inserted.address);
            }
        }
        for index in (begin..known).rev() {
            node = tree.child(node, self.memo.frame(index).address())?;
            for inserted in self.inserted_in(index, insertion) {
                node = tree.child(node, inserted.address)?;
            }
            let frame = self.memo.frame_mut(index);
            (frame.node, frame.path) = (node.id, node.path);
        }
        Some(node.id)
    }

    /// Interns the innermost frames only, and leaves the memo empty.
    #[cold]
    pub(super) fn intern_deep<T: Tree>(
        &mut self,
        found: &Found,
        tree: &T,
        insertion: &Insertion<'_>,
    ) -> Walk {
        let count = self.memo.count(found);
        let depth = count.min(DEEP_FRAMES);
        let end = match depth < count {
            true => self.memo.found(found, depth).registers.sp,
            false => u64::MAX,
        };
        let frames = insertion.frames;
        let mut inserted = frames.partition_point(|frame| frame.at >= end);
        let mut node = Some(tree.truncated());
        for index in (0..depth).rev() {
            let frame = self.memo.found(found, index);
            let (address, sp) = (frame.address(), frame.registers.sp);
            node = node.and_then(|parent| tree.child(parent, address));
            node = node.and_then(|child| insert(child, &mut inserted, sp, (tree, insertion)));
        }
        self.forget_last();
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
