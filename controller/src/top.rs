//! The live view: what the terminal shows of a session while it runs.
//!
//! `model` turns snapshots into rows, `symbols` names addresses outside the target, `view`
//! keeps what the user chose, `screen` draws, and `help` over it. A refresh copies the table and
//! adds up stacks whose functions are resolved already: its cost does not depend on their depth.

pub mod help;
pub mod model;
pub mod screen;
pub mod view;
