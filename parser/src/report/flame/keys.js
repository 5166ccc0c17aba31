// Help on keys and gestures of a flame graph; keys are separated by two spaces.
const FLAME_KEYS = ["Flame graph", [
  ["click", "zoom to a frame; on the zoomed one: out again, to its caller"],
  ["wheel  PageUp  PageDown", "scroll, where there are more rows than fit"],
  ["hover", "name, line and values of a frame"],
  ["/", "search names (regular expression), and see how much the hits hold; Escape clears it"],
  ["i", "root on top, or at the bottom"],
  ["v", "callees first: allocating functions at the root, their callers on them"],
  ["c", "copy the name of the frame under the pointer, or of the one that the keys are at"],
  ["← ↑ → ↓", "go from frame to frame; Enter zooms to it"],
  ["Backspace", "zoom out, to the caller"],
  ["0  Escape", "show everything"],
]];
