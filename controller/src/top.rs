//! Live view of a running session on the terminal.
//!
//! `heap` and `cpu` sum the samples by stack, and `model` turns the sums into rows, with the
//! columns of `numbers`. `quality` describes what CPU numbers lack. `view` holds the user's
//! choices, `screen` draws them, and `help` draws the list of keys. A refresh copies the table and
//! sums stacks whose functions are known already, so its cost does not depend on their depth.

pub mod cpu;
pub mod heap;
pub mod help;
pub mod model;
pub mod numbers;
pub mod quality;
pub mod screen;
pub mod sort;
pub mod view;
