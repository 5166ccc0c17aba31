//! Stacks of a profile, in one array.

use std::ops::Range;

/// Stacks as ranges of one array of frames. Equal neighbours may share their frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stacks {
    spans: Vec<Range<usize>>,
    frames: Vec<u32>,
}

impl Stacks {
    /// Returns the number of stacks.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns true if there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the frames of stack `index`, innermost first: indices into
    /// [`Profile::locations`](crate::Profile::locations).
    pub fn get(&self, index: usize) -> &[u32] {
        &self.frames[self.spans[index].clone()]
    }

    /// Returns all stacks in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Returns the same number of stacks, each with the frames that `rewrite` appends for it.
    pub fn rewritten(&self, mut rewrite: impl FnMut(&[u32], &mut Vec<u32>)) -> Self {
        let mut stacks = Self::default();
        let mut before = None;
        for span in &self.spans {
            if before == Some(span) {
                stacks.repeat_last();
                continue;
            }
            rewrite(&self.frames[span.clone()], &mut stacks.frames);
            stacks.close();
            before = Some(span);
        }
        stacks
    }

    /// Appends one frame to the stack under construction.
    pub(crate) fn push_frame(&mut self, location: u32) {
        self.frames.push(location);
    }

    /// Appends frames to the stack under construction.
    pub(crate) fn push_frames(&mut self, locations: impl ExactSizeIterator<Item = u32>) {
        self.frames.extend(locations);
    }

    /// Ends the stack under construction.
    pub(crate) fn close(&mut self) {
        self.spans.push(self.open_start()..self.frames.len());
    }

    /// Appends a copy of the last stack.
    pub(crate) fn repeat_last(&mut self) {
        self.spans.extend(self.spans.last().cloned());
    }

    fn open_start(&self) -> usize {
        self.spans.last().map_or(0, |span| span.end)
    }

    /// Returns the frames pushed since the last [`Stacks::close`].
    pub(crate) fn open_frames(&self) -> &[u32] {
        &self.frames[self.open_start()..]
    }

    /// Drops the frames pushed since the last [`Stacks::close`].
    pub(crate) fn discard_open(&mut self) {
        self.frames.truncate(self.open_start());
    }
}
