//! Sizes of the flame graph.

/// Width of the plain picture without its margins, in pixels.
pub const WIDTH: f64 = 1180.0;

/// Minimum share of the whole for a separate frame: a tenth of a pixel.
pub const LIMIT: f64 = 0.1 / WIDTH;

/// Maximum number of levels of the plain picture.
pub const ROWS: u32 = 1500;
