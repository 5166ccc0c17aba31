//! Sizes of the flame graph.

/// Width of the plain picture without its margins, in pixels.
pub const WIDTH: f64 = 1180.0;

/// Minimum share of the whole for a separate frame: a tenth of a pixel.
pub const MIN_SHARE: f64 = 0.1 / WIDTH;

/// Maximum number of levels of the plain picture.
pub const MAX_LEVELS: u32 = 1500;
