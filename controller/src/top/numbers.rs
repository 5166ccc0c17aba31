//! Columns: what a table is of.

use serde::Serialize;

use crate::top::sort::Sort;

/// The numbers of a function or a stack.
pub trait Numbers: Copy + Default + Serialize {
    /// Heads of the columns.
    const HEADS: &'static [&'static str];
    /// The orders, as the key changes them; the first is the default.
    const SORTS: &'static [Sort];

    /// The order behind `sort`, round and round.
    fn next(sort: Sort) -> Sort {
        let at = Self::SORTS.iter().position(|s| *s == sort).unwrap_or(0);
        Self::SORTS[(at + 1) % Self::SORTS.len()]
    }

    /// The column of an order, if there is one.
    fn column(sort: Sort) -> Option<usize>;
    /// The columns in a terminal of medium width, by the one that the rows are sorted by.
    fn medium(sorted: usize) -> [usize; 3];
    /// What rows are sorted by.
    fn value(&self, sort: Sort) -> f64;
    /// The columns in words.
    fn cells(&self) -> Vec<String>;
    /// The sums over everything in words.
    fn summary(&self) -> Vec<String>;
    /// Adds those of a stack, which ends in the function if `is_leaf`.
    fn add(&mut self, stack: &Self, is_leaf: bool);
    /// With what follows from the sums.
    fn finished(self) -> Self;
    /// Whether anything was counted.
    fn is_any(&self) -> bool;
}
