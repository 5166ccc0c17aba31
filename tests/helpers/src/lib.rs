//! Helpers of the tests of several crates.

pub mod browser;
pub mod random;
pub mod reference;
