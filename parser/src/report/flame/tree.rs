//! Builds the tree of all stacks: common outer frames of stacks become one frame.
//!
//! Only frames wide enough to be seen are built. A group of stacks is split level by level, and
//! parts below the limit are not descended into. So memory use depends on the number of stacks and
//! of visible frames, however many other frames there are.

use profile::variance::SamplingError;

use crate::nodes::Nodes;
use crate::view::View;

/// Entry index of a frame for merged small frames.
pub const MERGED: u32 = u32::MAX;

/// Entry index of the root frame.
pub const ROOT: u32 = u32::MAX - 1;

/// Entry index that marks the end of a stack.
const ENDED: u32 = u32::MAX;

/// Present and base values of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weight {
    /// Sum of the positive values.
    pub plus: i128,
    /// Sum of the absolute negative values.
    pub minus: i128,
    /// Sampling error of the change, or of the value if there is no base.
    pub error: SamplingError,
}

impl Weight {
    fn add(&mut self, other: Weight) {
        self.plus += other.plus;
        self.minus += other.minus;
        self.error += other.error;
    }

    /// Adds a value and its error.
    pub fn count(&mut self, value: i64, error: SamplingError) {
        self.error += error;
        let magnitude = i128::from(value.unsigned_abs());
        if value > 0 {
            self.plus += magnitude;
        } else {
            self.minus += magnitude;
        }
    }

    /// Returns the change.
    pub fn net(&self) -> i128 {
        self.plus - self.minus
    }

    fn magnitude(&self) -> i128 {
        self.plus + self.minus
    }
}

/// A frame of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Index of the caller; the root is its own caller.
    pub parent: u32,
    /// Index of the entry, or [`MERGED`] or [`ROOT`].
    pub node: u32,
    /// Number of calls from the root.
    pub depth: u32,
}

/// The frames that are wide enough. A frame comes after its caller, and the callees of a frame are
/// adjacent, heaviest first.
pub struct Tree {
    /// Frames; the first one is the root.
    pub frames: Vec<Frame>,
    /// Number of columns.
    pub columns: usize,
    /// Weights of stacks that end in a frame, by frame and column.
    self_weights: Vec<Weight>,
    /// Number of callees that, together with their own callees, were too small.
    pub pruned: u64,
    /// Stacks that end in merged frames, heaviest first, at most [`MAX_MERGED_STACKS`].
    pub merged_stacks: Vec<MergedStack>,
}

/// Maximum number of stacks in merged frames whose entries are known.
pub const MAX_MERGED_STACKS: usize = 2000;

/// Stack that ends in a merged frame.
pub struct MergedStack {
    /// Index of the merged frame.
    pub frame: u32,
    /// Entries from there to the stack's end, without repetitions.
    pub entries: Vec<u32>,
    /// Weight in each column.
    pub weights: Vec<Weight>,
}

impl Tree {
    /// Builds the tree of a view, for some columns of its profile. Frames smaller than `limit`, a
    /// share of the whole, in all columns are merged into one [`MERGED`] frame per caller. Callees
    /// are ordered by the first column.
    pub fn new(view: &View, nodes: &Nodes, columns: &[usize], limit: f64) -> Self {
        Builder::new(view, nodes, columns, limit).build()
    }

    /// Returns the weight of stacks that end in a frame.
    pub fn self_weight(&self, frame: usize, column: usize) -> Weight {
        self.self_weights[frame * self.columns + column]
    }

    /// Returns the sampling error of each frame with its callees.
    pub fn errors(&self, column: usize) -> Vec<SamplingError> {
        let mut sums: Vec<SamplingError> = (0..self.frames.len())
            .map(|frame| self.self_weight(frame, column).error)
            .collect();
        for frame in (1..sums.len()).rev() {
            let error = sums[frame];
            sums[self.frames[frame].parent as usize] += error;
        }
        sums
    }

    /// Returns, for each frame, the sum of `value_of` over it and its callees.
    pub fn sums(&self, value_of: impl Fn(usize) -> i128) -> Vec<i128> {
        let mut sums: Vec<i128> = (0..self.frames.len()).map(value_of).collect();
        for frame in (1..sums.len()).rev() {
            sums[self.frames[frame].parent as usize] += sums[frame];
        }
        sums
    }
}

/// Position in a stack.
struct Cursor<'a> {
    /// Index of the stack.
    stack: usize,
    /// Remaining locations, the next one last.
    locations: &'a [u32],
    /// Remaining entries of the current location, the next one last.
    entries: &'a [u32],
    /// Current entry.
    current: u32,
}

impl<'a> Cursor<'a> {
    fn advance(&mut self, view: &View, nodes: &'a Nodes) {
        self.current = loop {
            if let Some((&entry, rest)) = self.entries.split_last() {
                self.entries = rest;
                break entry;
            }
            let Some((&location, rest)) = self.locations.split_last() else {
                break ENDED;
            };
            self.locations = rest;
            if !view.is_hidden(location) {
                self.entries = nodes.of_location(location);
            }
        };
    }
}

/// Stacks that share all frames up to this one.
struct Group {
    frame: u32,
    /// Index of the first stack's cursor.
    from: usize,
    /// Index after the last stack's cursor.
    to: usize,
}

/// Part of a group that may become a frame.
struct Part {
    node: u32,
    from: usize,
    to: usize,
    weights: Vec<Weight>,
}

/// Orders callees by size, then by name.
fn largest_first(nodes: &Nodes, a: &Part, b: &Part) -> std::cmp::Ordering {
    let size = |part: &Part| part.weights.first().map_or(0, Weight::magnitude);
    let name = |part: &Part| nodes.name(part.node);
    (size(b).cmp(&size(a)))
        .then_with(|| name(a).cmp(name(b)))
        .then_with(|| a.node.cmp(&b.node))
}

struct Builder<'a> {
    view: &'a View,
    nodes: &'a Nodes,
    columns: &'a [usize],
    cursors: Vec<Cursor<'a>>,
    /// Minimum magnitude in each column.
    limits: Vec<f64>,
    /// Parts that were merged.
    merged: Vec<Group>,
    tree: Tree,
}

impl<'a> Builder<'a> {
    fn new(view: &'a View, nodes: &'a Nodes, columns: &'a [usize], limit: f64) -> Self {
        let cursors: Vec<Cursor> = view
            .stacks()
            .map(|stack| Cursor {
                stack: stack.index,
                locations: stack.frames,
                entries: &[],
                current: ENDED,
            })
            .collect();
        let mut builder = Self {
            view,
            nodes,
            columns,
            cursors,
            limits: Vec::new(),
            merged: Vec::new(),
            tree: Tree {
                frames: Vec::new(),
                columns: columns.len(),
                self_weights: Vec::new(),
                pruned: 0,
                merged_stacks: Vec::new(),
            },
        };
        let all = builder.weights(0, builder.cursors.len());
        builder.limits = all.iter().map(|w| w.magnitude() as f64 * limit).collect();
        builder
    }

    fn build(mut self) -> Tree {
        self.push(0, ROOT, 0, None);
        let mut groups = vec![Group {
            frame: 0,
            from: 0,
            to: self.cursors.len(),
        }];
        while let Some(group) = groups.pop() {
            self.split(&group, &mut groups);
        }
        self.tree.merged_stacks = self.heaviest_merged_stacks();
        self.tree
    }

    /// Returns the heaviest stacks of the merged parts.
    fn heaviest_merged_stacks(&mut self) -> Vec<MergedStack> {
        let merged = std::mem::take(&mut self.merged);
        let mut stacks: Vec<(u32, usize)> = Vec::new();
        for part in &merged {
            stacks.extend((part.from..part.to).map(|at| (part.frame, at)));
        }
        // By the largest share in any column.
        let share = |&(_, at): &(u32, usize)| {
            let weights = self.weights(at, at + 1);
            let shares = weights.iter().zip(&self.limits);
            let shares = shares.filter(|&(_, &limit)| limit > 0.0);
            shares.fold(0.0, |largest: f64, (w, limit)| {
                largest.max(w.magnitude() as f64 / limit)
            })
        };
        stacks.sort_by_cached_key(|stack| std::cmp::Reverse(share(stack).to_bits()));
        stacks.truncate(MAX_MERGED_STACKS);
        let (view, nodes) = (self.view, self.nodes);
        let mut heaviest = Vec::new();
        for (frame, at) in stacks {
            let weights = self.weights(at, at + 1);
            let cursor = &mut self.cursors[at];
            let mut entries = Vec::new();
            while cursor.current != ENDED {
                entries.push(cursor.current);
                cursor.advance(view, nodes);
            }
            entries.sort_unstable();
            entries.dedup();
            heaviest.push(MergedStack {
                frame,
                entries,
                weights,
            });
        }
        heaviest
    }

    fn push(&mut self, parent: u32, node: u32, depth: u32, self_weights: Option<&[Weight]>) -> u32 {
        let frame = self.tree.frames.len() as u32;
        self.tree.frames.push(Frame {
            parent,
            node,
            depth,
        });
        match self_weights {
            Some(weights) => self.tree.self_weights.extend_from_slice(weights),
            None => {
                let end = self.tree.self_weights.len() + self.columns.len();
                self.tree.self_weights.resize(end, Weight::default());
            }
        }
        frame
    }

    /// Advances the stacks of a group by one frame, and adds a frame for each part that is wide
    /// enough.
    fn split(&mut self, group: &Group, groups: &mut Vec<Group>) {
        let view = self.view;
        let nodes = self.nodes;
        let cursors = &mut self.cursors[group.from..group.to];
        cursors.iter_mut().for_each(|c| c.advance(view, nodes));
        if cursors.iter().any(|c| c.current != cursors[0].current) {
            cursors.sort_unstable_by_key(|c| (c.current, c.stack));
        }
        let depth = self.tree.frames[group.frame as usize].depth + 1;
        let mut parts = Vec::new();
        let mut merged = Vec::new();
        let mut small = vec![Weight::default(); self.columns.len()];
        for part in self.parts(group) {
            if part.node == ENDED {
                let at = group.frame as usize * self.columns.len();
                self.tree.self_weights[at..at + part.weights.len()].copy_from_slice(&part.weights);
            } else if self.is_wide(&part.weights) {
                parts.push(part);
            } else if part.weights.iter().any(|w| w.magnitude() != 0) {
                small
                    .iter_mut()
                    .zip(&part.weights)
                    .for_each(|(s, w)| s.add(*w));
                self.tree.pruned += 1;
                merged.push(part);
            }
        }
        parts.sort_by(|a, b| largest_first(nodes, a, b));
        for part in parts {
            let frame = self.push(group.frame, part.node, depth, None);
            groups.push(Group {
                frame,
                from: part.from,
                to: part.to,
            });
        }
        if small.iter().any(|w| w.magnitude() != 0) {
            let frame = self.push(group.frame, MERGED, depth, Some(&small));
            let parts = merged.into_iter().map(|part| Group {
                frame,
                from: part.from,
                to: part.to,
            });
            self.merged.extend(parts);
        }
    }

    /// Returns the parts of a group: stacks with the same current entry.
    fn parts(&self, group: &Group) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut from = group.from;
        for same in self.cursors[group.from..group.to].chunk_by(|a, b| a.current == b.current) {
            let to = from + same.len();
            parts.push(Part {
                node: same[0].current,
                from,
                to,
                weights: self.weights(from, to),
            });
            from = to;
        }
        parts
    }

    fn weights(&self, from: usize, to: usize) -> Vec<Weight> {
        let mut weights = vec![Weight::default(); self.columns.len()];
        for cursor in &self.cursors[from..to] {
            let values = self.view.profile().values_of(cursor.stack);
            for (weight, &column) in weights.iter_mut().zip(self.columns) {
                weight.count(values[column], self.view.error_in(cursor.stack, column));
            }
        }
        weights
    }

    fn is_wide(&self, weights: &[Weight]) -> bool {
        let wide = |w: &Weight, limit: f64| w.magnitude() > 0 && w.magnitude() as f64 >= limit;
        weights
            .iter()
            .zip(&self.limits)
            .any(|(w, &limit)| wide(w, limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Granularity;

    fn tree(folded: &str, limit: f64) -> (Tree, Vec<String>) {
        let profile = profile::read(folded.as_bytes(), "test").unwrap();
        let view = View::new(profile, None).unwrap();
        let nodes = Nodes::new(&view, Granularity::Functions, true, false);
        let tree = Tree::new(&view, &nodes, &[0], limit);
        let shown = tree.frames.iter().enumerate().map(|(i, f)| {
            let name = match f.node {
                ROOT => "root",
                MERGED => "small",
                node => nodes.name(node),
            };
            format!("{} {name} {}", f.depth, tree.self_weight(i, 0).net())
        });
        let shown = shown.collect();
        (tree, shown)
    }

    #[test]
    fn common_outer_frames_are_merged() {
        let (tree, shown) = tree("a;b;c 5\na;b 2\na;d 9\na;b;c 1\n", 0.0);
        assert_eq!(shown, ["0 root 0", "1 a 0", "2 d 9", "2 b 2", "3 c 6"]);
        let sums = tree.sums(|f| tree.self_weight(f, 0).net());
        assert_eq!(sums, [17, 17, 9, 8, 6]);
        assert_eq!(tree.pruned, 0);
    }

    #[test]
    fn small_frames_are_merged_and_counted() {
        let (tree, shown) = tree("a;b 98\na;c;x 1\na;d;y 1\n", 0.015);
        assert_eq!(shown, ["0 root 0", "1 a 0", "2 b 98", "2 small 2"]);
        assert_eq!(tree.pruned, 2);
    }

    #[test]
    fn recursion_of_ten_thousand_frames_is_kept() {
        let (tree, _) = tree(&format!("{} 7\n", vec!["f"; 10_000].join(";")), 0.001);
        assert_eq!(tree.frames.len(), 10_001);
        assert_eq!(tree.frames.last().map(|f| f.depth), Some(10_000));
    }
}
