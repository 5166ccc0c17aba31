//! Columns of the table, by kind of session.

use serde::Serialize;

use crate::top::sort::Sort;

/// Numbers of a function or a stack.
pub trait Numbers: Copy + Default + Serialize {
    /// Titles of the columns.
    const HEADS: &'static [&'static str];
    /// Sort orders, in the order in which the key cycles through them. The first is the default.
    const SORTS: &'static [Sort];

    /// Returns the sort order after `sort`, cyclically.
    fn next(sort: Sort) -> Sort {
        let index = Self::SORTS.iter().position(|s| *s == sort).unwrap_or(0);
        Self::SORTS[(index + 1) % Self::SORTS.len()]
    }

    /// Returns the column of a sort order, if there is one.
    fn column(sort: Sort) -> Option<usize>;
    /// Returns the three columns for a terminal of medium width, given the sorted one.
    fn medium_columns(sorted: usize) -> [usize; 3];
    /// Returns the value that rows are sorted by.
    fn value(&self, sort: Sort) -> f64;
    /// Formats the columns.
    fn cells(&self) -> Vec<String>;
    /// Formats the sums over all stacks.
    fn summary(&self) -> Vec<String>;
    /// Adds the numbers of a stack to those of a function, which is the innermost if `is_leaf`.
    fn add(&mut self, stack: &Self, is_leaf: bool);
    /// Computes the numbers that derive from the sums.
    fn with_derived(self) -> Self;
    /// Returns true if anything was counted.
    fn is_nonzero(&self) -> bool;
}
