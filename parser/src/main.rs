//! The parser.

#[allow(dead_code, reason = "the SVG output is the next to be connected")]
mod callgraph;

fn main() {}
