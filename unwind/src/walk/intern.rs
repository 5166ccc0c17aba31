//! Interning: from the frames of a walk to the node of its stack.

use super::key::stack_key;
use super::last_stack::Traced;
use super::{DEEP_FRAMES, Node, Tree, Walk, Walker};
use crate::Cause;
use crate::interpreter::{InterpreterFrame, InterpreterFrames};
use crate::seen::Key;

impl Walker {
    /// Makes a traced stack the cached one and returns the node of its innermost frame. The stack
    /// has at most `MAX_FRAMES` frames.
    #[inline]
    pub(super) fn intern<T: Tree>(
        &mut self,
        found: &Traced,
        tree: &T,
        interpreter_frames: &InterpreterFrames<'_>,
    ) -> Walk {
        self.cache(found, interpreter_frames);
        let leaf = self.leaf(tree, interpreter_frames);
        self.leaf = leaf.unwrap_or(0);
        if leaf.is_none() {
            self.clear_cached();
        }
        Walk {
            leaf,
            truncated: self.truncated,
        }
    }

    /// Makes a traced stack the cached one. Forgets the cached leaf if the stack has changed.
    #[inline(always)]
    fn cache(&mut self, found: &Traced, interpreter_frames: &InterpreterFrames<'_>) {
        let is_last = found.new.count == 0 && found.join == Some(self.cached.begin());
        let shift = self.cached.commit(found);
        // Index of the first cached frame that is kept.
        let kept = match found.join {
            Some(join) => join.wrapping_add_signed(shift),
            None => self.cached.end(),
        };
        let first_unchanged = self.first_unchanged(kept, interpreter_frames);
        if first_unchanged > kept || !interpreter_frames.frames.is_empty() {
            self.assign_inserted(kept, first_unchanged, interpreter_frames);
        }
        if !is_last || first_unchanged > kept {
            self.leaf = 0;
            self.deep_leaf = 0;
        }
    }

    /// Returns the node above the cached stack's outermost frame.
    #[inline]
    fn root<T: Tree>(&self, tree: &T) -> Node {
        match self.truncated {
            Some(_) => tree.truncated(),
            None => tree.root(),
        }
    }

    /// Returns the index of the first cached frame, from `kept` outwards, whose node is still
    /// valid: the interpreter frames that run in it and in all outer frames are unchanged.
    #[inline]
    fn first_unchanged(&self, kept: usize, interpreter_frames: &InterpreterFrames<'_>) -> usize {
        let is_changed = |index: &usize| {
            let frame = self.cached.frame(*index);
            !interpreter_frames.keeps(frame.inserted as usize, frame.registers.sp)
        };
        let changed = (kept..self.cached.end()).take_while(is_changed).count();
        kept + changed
    }

    /// Assigns interpreter frames to the cached native frames with an index below
    /// `first_unchanged`, which are its callees. Drops the nodes of those with index `kept` or
    /// higher, which had other interpreter frames.
    fn assign_inserted(
        &mut self,
        kept: usize,
        first_unchanged: usize,
        interpreter_frames: &InterpreterFrames<'_>,
    ) {
        let mut inserted = self.inserted_from(first_unchanged);
        for index in (self.cached.begin()..first_unchanged).rev() {
            let frame = self.cached.frame_mut(index);
            let next = |inserted: u32| interpreter_frames.frames.get(inserted as usize);
            while next(inserted).is_some_and(|next| next.at >= frame.registers.sp) {
                inserted += 1;
            }
            frame.inserted = inserted;
            if index >= kept {
                frame.node = 0;
            }
        }
    }

    /// Returns the number of interpreter frames that run in cached frame `index` and in all outer
    /// frames.
    #[inline]
    fn inserted_from(&self, index: usize) -> u32 {
        if index < self.cached.end() {
            self.cached.frame(index).inserted
        } else {
            0
        }
    }

    /// Returns the node of the innermost cached frame, or `None` if the tree is full.
    #[inline]
    fn leaf<T: Tree>(
        &mut self,
        tree: &T,
        interpreter_frames: &InterpreterFrames<'_>,
    ) -> Option<u32> {
        if self.cached.is_empty() {
            return Some(self.root(tree).id);
        }
        if self.leaf != 0 {
            return Some(self.leaf);
        }
        let begin = self.cached.begin();
        let frame = self.cached.frame(begin);
        if frame.node != 0 {
            return Some(frame.node);
        }
        let innermost = self.inserted_in(begin, interpreter_frames).last();
        let address = innermost.map_or(frame.address(), |frame| frame.address);
        let key = self.key(tree.salt(), interpreter_frames);
        match tree.find_leaf(key, address) {
            Some(leaf) => {
                self.was_seen = true;
                Some(leaf)
            }
            None => {
                let leaf = self.intern_frames(tree, interpreter_frames)?;
                tree.insert_leaf(key, leaf);
                Some(leaf)
            }
        }
    }

    /// Returns the key of the cached stack with its interpreter frames.
    #[inline]
    fn key(&mut self, salt: u64, interpreter_frames: &InterpreterFrames<'_>) -> Key {
        let Key(native) = stack_key(self.cached.hash(), self.truncated);
        let inserted = self.cached.frame(self.cached.begin()).inserted as usize;
        let frames = interpreter_frames
            .frames
            .get(..inserted)
            .unwrap_or_default();
        self.inserted.key(native, frames, salt)
    }

    /// Returns the interpreter frames that run in one cached frame.
    #[inline]
    fn inserted_in<'a>(
        &self,
        index: usize,
        interpreter_frames: &InterpreterFrames<'a>,
    ) -> &'a [InterpreterFrame] {
        let outer = self.inserted_from(index + 1) as usize;
        let range = outer..self.cached.frame(index).inserted as usize;
        interpreter_frames.frames.get(range).unwrap_or_default()
    }

    /// Finds or creates the nodes of the cached frames without one, outermost first. Returns the
    /// innermost node, or `None` if the tree is full.
    #[inline(never)]
    fn intern_frames<T: Tree>(
        &mut self,
        tree: &T,
        interpreter_frames: &InterpreterFrames<'_>,
    ) -> Option<u32> {
        let begin = self.cached.begin();
        let end = self.cached.end();
        let has_node = |index: &usize| self.cached.frame(*index).node != 0;
        let known = (begin..end).find(has_node).unwrap_or(end);
        let mut node = if known == end {
            self.root(tree)
        } else {
            Node {
                id: self.cached.frame(known).node,
                path: self.cached.frame(known).path,
            }
        };
        let mut path = node.path;
        for index in (begin..known).rev() {
            path = tree.prefetch(path, self.cached.frame(index).address());
            for inserted in self.inserted_in(index, interpreter_frames) {
                path = tree.prefetch(path, inserted.address);
            }
        }
        for index in (begin..known).rev() {
            node = tree.child(node, self.cached.frame(index).address())?;
            for inserted in self.inserted_in(index, interpreter_frames) {
                node = tree.child(node, inserted.address)?;
            }
            let frame = self.cached.frame_mut(index);
            frame.node = node.id;
            frame.path = node.path;
        }
        Some(node.id)
    }

    /// Interns only the innermost frames of a stack that is too deep, and caches up to
    /// `CACHED_FRAMES` of its frames, without nodes. The stack has no interpreter frames.
    #[cold]
    pub(super) fn intern_deep_cached<T: Tree>(
        &mut self,
        found: &Traced,
        tree: &T,
        interpreter_frames: &InterpreterFrames<'_>,
    ) -> Walk {
        if self.cached.cut(found) {
            self.truncated = Some(Cause::TooDeep);
        }
        self.cache(found, interpreter_frames);
        self.leaf = 0;
        if self.deep_leaf == 0 {
            self.deep_leaf = self.innermost_leaf(tree).unwrap_or(0);
        }
        Walk {
            leaf: Some(self.deep_leaf).filter(|leaf| *leaf != 0),
            truncated: Some(Cause::TooDeep),
        }
    }

    /// Returns the node of the cached stack's innermost frames, or `None` if the tree is full.
    fn innermost_leaf<T: Tree>(&mut self, tree: &T) -> Option<u32> {
        /// Added to the hash, so that the key differs from that of a stack with only these frames.
        const CUT: u64 = 0xC2B2_AE3D_27D4_EB4F;
        let begin = self.cached.begin();
        let inner = self.cached.sum_of_innermost(DEEP_FRAMES);
        let key = stack_key(inner.wrapping_add(CUT), Some(Cause::TooDeep));
        if let Some(leaf) = tree.find_leaf(key, self.cached.frame(begin).address()) {
            return Some(leaf);
        }
        let mut node = tree.truncated();
        for index in (begin..begin + DEEP_FRAMES).rev() {
            node = tree.child(node, self.cached.frame(index).address())?;
        }
        tree.insert_leaf(key, node.id);
        Some(node.id)
    }

    /// Interns only the innermost frames of a stack that is too deep, and clears the cache.
    #[cold]
    pub(super) fn intern_deep<T: Tree>(
        &mut self,
        found: &Traced,
        tree: &T,
        interpreter_frames: &InterpreterFrames<'_>,
    ) -> Walk {
        let count = self.cached.count(found);
        let depth = count.min(DEEP_FRAMES);
        let end = if depth < count {
            self.cached.traced_frame(found, depth).registers.sp
        } else {
            u64::MAX
        };
        let frames = interpreter_frames.frames;
        let mut inserted = frames.partition_point(|frame| frame.at >= end);
        let mut node = Some(tree.truncated());
        for index in (0..depth).rev() {
            let frame = self.cached.traced_frame(found, index);
            let address = frame.address();
            let sp = frame.registers.sp;
            node = node.and_then(|parent| tree.child(parent, address));
            node =
                node.and_then(|child| insert(child, &mut inserted, sp, tree, interpreter_frames));
        }
        self.clear_cached();
        Walk {
            leaf: node.map(|node| node.id),
            truncated: Some(Cause::TooDeep),
        }
    }
}

/// Interns the interpreter frames of a native frame whose stack begins at `sp`: those at index
/// `inserted` or later that lie at or above `sp`. Returns the innermost node, or `None` if the tree
/// is full.
#[inline]
fn insert<T: Tree>(
    mut node: Node,
    inserted: &mut usize,
    sp: u64,
    tree: &T,
    interpreter_frames: &InterpreterFrames<'_>,
) -> Option<Node> {
    while let Some(frame) = interpreter_frames
        .frames
        .get(*inserted)
        .filter(|f| f.at >= sp)
    {
        node = tree.child(node, frame.address)?;
        *inserted += 1;
    }
    Some(node)
}
