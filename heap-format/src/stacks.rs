//! Stacks of a profile, in one array.

/// Stacks, flattened: frames of all of them in one array.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stacks {
    ends: Vec<u64>,
    frames: Vec<u32>,
}

impl Stacks {
    /// Number of stacks.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The frames of stack `index`, leaf first: indices into
    /// [`Profile::locations`].
    pub fn get(&self, index: usize) -> &[u32] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.frames[start as usize..self.ends[index] as usize]
    }

    /// All stacks in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> + '_ {
        (0..self.len()).map(|i| self.get(i))
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
        self.ends.push(self.frames.len() as u64);
    }

    /// The frames pushed since the last [`Stacks::close`].
    pub(crate) fn open_frames(&self) -> &[u32] {
        &self.frames[self.ends.last().map_or(0, |&end| end as usize)..]
    }

    /// Drops the frames pushed since the last [`Stacks::close`].
    pub(crate) fn discard_open(&mut self) {
        self.frames
            .truncate(self.ends.last().map_or(0, |&end| end as usize));
    }

    /// Total number of frames.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }
}
