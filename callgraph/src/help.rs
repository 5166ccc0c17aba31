//! The help box with keys and gestures, shared by all interactive pictures and pages.

/// JavaScript of the class `HelpBox`.
pub const SCRIPT: &str = include_str!("help.js");

/// JavaScript of `GRAPH_KEYS`, the keys of a call graph.
pub const KEYS: &str = include_str!("keys.js");

/// Style of the box for light colour schemes.
pub const STYLE: &str = include_str!("help.css");

/// Changes of the style for dark colour schemes.
pub const DARK_STYLE: &str = include_str!("help_dark.css");
