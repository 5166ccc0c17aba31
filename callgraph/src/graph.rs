//! The graph that is drawn, as the caller gives it.

/// A call graph with its legend, ready to be drawn.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Legend lines, top left.
    pub title: Vec<String>,
    /// The boxes.
    pub nodes: Vec<Node>,
    /// The arrows.
    pub edges: Vec<Edge>,
    /// 100 %, in the unit of the weights.
    pub total: f64,
}

/// A box: one function, line, file or address.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Short name; wrapped and, when very long, shortened in the middle.
    pub name: String,
    /// First line of the tooltip; the short name where this is empty.
    pub full_name: String,
    /// Where the code is, for the tooltip; empty when unknown.
    pub place: String,
    /// End of the tooltip, below the values.
    pub detail: String,
    /// Weight of the function itself; its size decides the font size.
    pub flat: f64,
    /// Weight of the function and its callees.
    pub cum: f64,
    /// Text of `flat`, such as `12.3MB (4.5%)`.
    pub flat_label: String,
    /// Text of `cum`, such as `25.1MB (9.1%)`.
    pub cum_label: String,
    /// -1 to 1: how strong the fill is; negative ones (less than the base) are green.
    pub color_weight: f64,
}

/// An arrow from caller to callee.
#[derive(Clone, Debug, Default)]
pub struct Edge {
    /// Index of the caller in [`Graph::nodes`].
    pub from: usize,
    /// Index of the callee in [`Graph::nodes`].
    pub to: usize,
    /// Weight that flows along it; decides thickness, colour and straightness.
    pub weight: f64,
    /// Text next to the arrow, such as `1.20MB`.
    pub label: String,
    /// Calls between the two were dropped: drawn dashed.
    pub residual: bool,
    /// The callee was inlined into the caller.
    pub inlined: bool,
    /// Tooltip.
    pub detail: String,
}
