//! Helpers of the unit tests of several crates.

pub mod browser;
pub mod reference;
