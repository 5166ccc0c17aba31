//! The live view: what the terminal shows of a session while it runs.
//!
//! `heap` and `cpu` count stacks, `model` turns them into rows of what `numbers` requests,
//! `quality` says what CPU time lacks, `names` names addresses outside the target, `view` keeps
//! what the user chose, `screen` draws, and `help` over it. A refresh copies the table and adds up
//! stacks whose functions are resolved already: its cost does not depend on their depth.

pub mod cpu;
pub mod heap;
pub mod help;
pub mod model;
pub mod numbers;
pub mod quality;
pub mod screen;
pub mod sort;
pub mod view;
