//! The box of keys and gestures, which everything that is drawn in a browser shows alike.

/// The class `HelpBox`.
pub const SCRIPT: &str = include_str!("help.js");

/// `GRAPH_KEYS`: the keys of a call graph.
pub const KEYS: &str = include_str!("keys.js");

/// Its style in a light environment.
pub const STYLE: &str = include_str!("help.css");

/// What is different in a dark one.
pub const DARK_STYLE: &str = include_str!("help_dark.css");
