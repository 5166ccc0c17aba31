//! The controller.
fn main() {}
