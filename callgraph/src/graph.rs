//! The graph to draw, as given by the caller.

/// A call graph with its legend, ready to be drawn.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Lines of the legend at the top left.
    pub title: Vec<String>,
    /// Boxes.
    pub nodes: Vec<Node>,
    /// Arrows.
    pub edges: Vec<Edge>,
    /// Weight that counts as 100 %.
    pub total: f64,
}

/// A box: one function, line, file or address.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Short name. Wrapped, and shortened in the middle if it is very long.
    pub name: String,
    /// First line of the tooltip; if empty, the short name.
    pub full_name: String,
    /// Position in the source code, for the tooltip; empty if unknown.
    pub place: String,
    /// Last lines of the tooltip, below the values.
    pub detail: String,
    /// Weight of the function itself, which determines the font size.
    pub flat: f64,
    /// Weight of the function and its callees.
    pub cum: f64,
    /// Formatted `flat`, such as `12.3MB (4.5%)`.
    pub flat_label: String,
    /// Formatted `cum`, such as `25.1MB (9.1%)`.
    pub cum_label: String,
    /// Strength of the fill colour, from -1 to 1. Negative values (less than the base) are
    /// green.
    pub color_weight: f64,
}

/// An arrow from caller to callee.
#[derive(Clone, Debug, Default)]
pub struct Edge {
    /// Index of the caller in [`Graph::nodes`].
    pub from: usize,
    /// Index of the callee in [`Graph::nodes`].
    pub to: usize,
    /// Weight of the calls, which determines thickness, colour and straightness.
    pub weight: f64,
    /// Text next to the arrow, such as `1.20MB`.
    pub label: String,
    /// Set if functions between the two were dropped. Drawn dashed.
    pub residual: bool,
    /// Set if the callee was inlined into the caller.
    pub inlined: bool,
    /// Additional lines of the tooltip.
    pub detail: String,
}
