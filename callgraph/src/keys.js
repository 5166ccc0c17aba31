// What keys and gestures do in a call graph. Two spaces separate keys.
const GRAPH_KEYS = ["Call graph", [
  ["drag", "move the picture"],
  ["wheel  +  -", "zoom; Shift and the wheel moves sideways"],
  ["click", "on a box: select and centre it; beside: deselect"],
  ["hover", "callers of a box in blue, callees in red; its name, line and values"],
  ["/", "search names (regular expression); Enter and Shift+Enter go through the hits"],
  ["0", "start view: legend and root"],
  ["m", "where the memory is: the heaviest boxes"],
  ["a", "the whole picture"],
  ["← ↑ → ↓", "move, where the picture fills the window"],
  ["Escape", "deselect"],
]];
