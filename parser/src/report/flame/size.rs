//! Sizes of the flame graph.

/// Width of the plain picture without its margins.
pub const WIDTH: f64 = 1180.0;

/// Least share of the whole for a frame of its own: a tenth of a pixel.
pub const LIMIT: f64 = 0.1 / WIDTH;

/// Levels of the plain picture.
pub const ROWS: u32 = 1500;
