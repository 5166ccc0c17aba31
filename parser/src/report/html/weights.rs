//! Weights of all entries, in all columns.

use profile::variance::SamplingError;

use crate::nodes::Nodes;
use crate::report::flame::tree::Weight;
use crate::view::{View, ViewStack};

/// Flat and cum of every entry, with those of the base.
pub struct Weights {
    columns: usize,
    flat: Vec<Weight>,
    cum: Vec<Weight>,
}

impl Weights {
    /// Sums the stacks of a view, for some columns.
    pub fn new(view: &View, nodes: &Nodes, columns: &[usize]) -> Self {
        let size = nodes.count() * columns.len();
        let mut weights = Self {
            columns: columns.len(),
            flat: vec![Weight::default(); size],
            cum: vec![Weight::default(); size],
        };
        // Number of the last stack that was counted for an entry, so that recursion counts once.
        let mut seen = vec![usize::MAX; nodes.count()];
        for ViewStack {
            index: stack,
            frames,
            ..
        } in view.stacks()
        {
            let values = view.profile().values_of(stack);
            let value = |column: usize| (values[column], view.error_in(stack, column));
            let visible = frames.iter().filter(|&&f| !view.is_hidden(f));
            let entries = visible.flat_map(|&f| nodes.of_location(f));
            for (depth, &entry) in entries.enumerate() {
                let at = entry as usize * columns.len();
                if depth == 0 {
                    count(&mut weights.flat[at..], value, columns);
                }
                if seen[entry as usize] != stack {
                    seen[entry as usize] = stack;
                    count(&mut weights.cum[at..], value, columns);
                }
            }
        }
        weights
    }

    /// Returns the weight of an entry itself.
    pub fn flat(&self, entry: u32, column: usize) -> Weight {
        self.flat[entry as usize * self.columns + column]
    }

    /// Returns the weight of an entry with its callees.
    pub fn cum(&self, entry: u32, column: usize) -> Weight {
        self.cum[entry as usize * self.columns + column]
    }
}

fn count(weights: &mut [Weight], value: impl Fn(usize) -> (i64, SamplingError), columns: &[usize]) {
    for (weight, &column) in weights.iter_mut().zip(columns) {
        let (value, error) = value(column);
        weight.count(value, error);
    }
}
