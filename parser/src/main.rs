//! The parser.
fn main() {}
