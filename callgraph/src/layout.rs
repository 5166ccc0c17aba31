//! Computes the coordinates of everything that is drawn, in pixels.

// Decision 12: a layout of our own.
use crate::geometry::{Cubic, Point, Rect, Size, hull};
use crate::graph::{Edge, Graph, Node};
use crate::layers::{self, Block, Layered, Wire};
use crate::route::{self, DrawnComponent};
use crate::style;
use crate::text;
use crate::{order, pack, position, rank};

/// Margin around the picture, in pixels.
const MARGIN: f64 = 4.0;
/// Font size of edge labels.
pub const LABEL_FONT: f64 = 10.0;
/// Font size of the title.
pub const TITLE_FONT: f64 = 12.0;
/// Line height, as a multiple of the font size.
pub const LINE_HEIGHT: f64 = 1.2;
/// Padding between the border of a box and its text, in pixels.
const PADDING: Size = Size { w: 7.0, h: 4.0 };
/// Width of the first self-loop of a box, in pixels.
const LOOP_WIDTH: f64 = 20.0;
/// Additional width of each further self-loop, in pixels.
const LOOP_STEP: f64 = 9.0;

/// A line of text in a box.
#[derive(Clone, Debug)]
pub struct Line {
    /// The text.
    pub text: String,
    /// Font size.
    pub font: f64,
    /// Set for a number, unset for part of the name.
    pub number: bool,
}

/// Coordinates of everything.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Size of the picture.
    pub size: Size,
    /// Rectangle of the legend, if any.
    pub title: Option<Rect>,
    /// Boxes, by node.
    pub boxes: Vec<Rect>,
    /// Text lines of the boxes, by node.
    pub lines: Vec<Vec<Line>>,
    /// Curves, by edge, from caller to callee; empty if one of the edge's nodes does not exist.
    pub curves: Vec<Vec<Cubic>>,
    /// Rectangles of the labels, by edge; `None` without a label.
    pub labels: Vec<Option<Rect>>,
}

/// Lays out the whole picture.
pub fn lay_out(graph: &Graph) -> Layout {
    let lines: Vec<Vec<Line>> = graph
        .nodes
        .iter()
        .map(|n| text_lines(n, graph.total))
        .collect();
    let mut layout = Layout {
        size: Size::default(),
        title: None,
        boxes: vec![Rect::default(); graph.nodes.len()],
        curves: vec![Vec::new(); graph.edges.len()],
        labels: vec![None; graph.edges.len()],
        lines,
    };
    let components: Vec<Component> = connected_components(graph);
    let drawn: Vec<DrawnComponent> = components
        .iter()
        .map(|component| component.lay_out(graph, &layout.lines))
        .collect();
    let bounding_boxes: Vec<Rect> = drawn.iter().map(bounding_box).collect();
    let sizes: Vec<Size> = bounding_boxes
        .iter()
        .map(|f| Size { w: f.w, h: f.h })
        .collect();
    for (i, corner) in pack::columns(&sizes).iter().enumerate() {
        let shift = Offset {
            dx: corner.x - bounding_boxes[i].x,
            dy: corner.y - bounding_boxes[i].y,
        };
        layout.add_component(
            &components[i].edges_as_drawn(graph),
            &components[i].nodes,
            &drawn[i],
            shift,
        );
    }
    layout.add_title(&graph.title);
    layout
}

/// Returns the size of an edge's label; zero if the text is empty.
pub fn label_size(label: &str) -> Size {
    if label.is_empty() {
        return Size::default();
    }
    let w = text::max_width(&text::printable(label)) * LABEL_FONT + 2.0;
    Size {
        w,
        h: LABEL_FONT * LINE_HEIGHT,
    }
}

/// Returns the text lines of a box: name, flat, cum. The share of the flat weight determines the
/// font size.
fn text_lines(node: &Node, total: f64) -> Vec<Line> {
    let share = style::share(node.flat, total);
    let font = (10.0 + 13.0 * share.sqrt()).round();
    let small = (font * 0.9).max(9.0).round();
    let cum = format!("of {}", node.cum_label);
    let numbers = if node.flat_label == node.cum_label || node.cum_label.is_empty() {
        vec![node.flat_label.clone()]
    } else if node.flat == 0.0 {
        vec![format!("{} {cum}", node.flat_label)]
    } else {
        vec![node.flat_label.clone(), cum]
    };
    let numbers: Vec<Line> = numbers
        .iter()
        .filter(|n| !n.trim().is_empty())
        .map(|n| Line {
            text: text::printable(n),
            font: small,
            number: true,
        })
        .collect();
    // The name may take at least the width of the numbers.
    let free = numbers
        .iter()
        .map(|l| text::width(&l.text) * small / font)
        .fold(0.0, f64::max);
    let name = text::wrap_name(&node.name, free).into_iter();
    name.map(|text| Line {
        text,
        font,
        number: false,
    })
    .chain(numbers)
    .collect()
}

fn box_size(lines: &[Line]) -> Size {
    let w = lines
        .iter()
        .map(|l| text::max_width(&l.text) * l.font)
        .fold(0.0, f64::max);
    let h: f64 = lines.iter().map(|l| l.font * LINE_HEIGHT).sum();
    Size {
        w: (w + 2.0 * PADDING.w).ceil(),
        h: (h + 2.0 * PADDING.h).ceil(),
    }
}

/// Returns the size of the legend.
pub fn title_size(title: &[String]) -> Size {
    let w = title
        .iter()
        .map(|t| text::max_width(&text::printable(t)))
        .fold(0.0, f64::max);
    Size {
        w: (w * TITLE_FONT + 16.0).ceil(),
        h: (title.len() as f64 * TITLE_FONT * 1.35 + 12.0).ceil(),
    }
}

/// Returns the bounding box of a drawn component.
fn bounding_box(drawn: &DrawnComponent) -> Rect {
    let curves = drawn.curves.iter().filter_map(|c| hull(c));
    let all = drawn
        .boxes
        .iter()
        .copied()
        .chain(drawn.labels.iter().flatten().copied());
    all.chain(curves)
        .reduce(|a, b| a.union(&b))
        .unwrap_or_default()
}

/// A connected component of the graph: indices of its nodes and edges.
struct Component {
    nodes: Vec<usize>,
    /// Edges between different nodes.
    edges: Vec<usize>,
    /// Edges from a node to itself.
    loops: Vec<usize>,
}

/// Splits the graph into connected components, in the order of their first nodes.
fn connected_components(graph: &Graph) -> Vec<Component> {
    let count = graph.nodes.len();
    // Union-find: `root[v]` leads to the first node of the component.
    let mut root: Vec<usize> = (0..count).collect();
    fn find(root: &mut [usize], mut v: usize) -> usize {
        while root[v] != v {
            root[v] = root[root[v]];
            v = root[v];
        }
        v
    }
    let valid = |e: &Edge| e.from < count && e.to < count;
    for edge in graph.edges.iter().filter(|e| valid(e)) {
        let a = find(&mut root, edge.from);
        let b = find(&mut root, edge.to);
        root[a.max(b)] = a.min(b);
    }
    let mut component_of = vec![usize::MAX; count];
    let mut components: Vec<Component> = Vec::new();
    for v in 0..count {
        let r = find(&mut root, v);
        if component_of[r] == usize::MAX {
            component_of[r] = components.len();
            components.push(Component {
                nodes: Vec::new(),
                edges: Vec::new(),
                loops: Vec::new(),
            });
        }
        component_of[v] = component_of[r];
        components[component_of[v]].nodes.push(v);
    }
    for (index, edge) in graph.edges.iter().enumerate().filter(|(_, e)| valid(e)) {
        let component = &mut components[component_of[edge.from]];
        if edge.from == edge.to {
            &mut component.loops
        } else {
            &mut component.edges
        }
        .push(index);
    }
    components
}

/// A ranking of the boxes, with its rows ordered.
struct Arrangement {
    crossings: usize,
    layered: Layered,
    ranks: Vec<usize>,
}

/// Orders the rows for each of the `rankings`. Returns the arrangement with the fewest crossings.
fn fewest_crossings(
    blocks: &[Block],
    wires: &[Wire],
    rankings: Vec<Vec<usize>>,
) -> Option<Arrangement> {
    let count = rankings.len();
    let arranged = rankings.into_iter().map(|ranks| {
        let mut layered = layers::build(blocks, wires, &ranks);
        let crossings = order::arrange(&mut layered, count);
        Arrangement {
            crossings,
            layered,
            ranks,
        }
    });
    arranged.min_by_key(|a| a.crossings)
}

impl Component {
    /// Lays out the component. The result has its edges, then its self-loops.
    fn lay_out(&self, graph: &Graph, lines: &[Vec<Line>]) -> DrawnComponent {
        let blocks = self.blocks(graph, lines);
        let wires = self.wires(graph);
        let mut best = fewest_crossings(&blocks, &wires, rank::assign(&blocks, &wires));
        let is_tangled = |best: &Arrangement| 2 * best.crossings > wires.len();
        if best.as_ref().is_some_and(is_tangled) {
            let more = fewest_crossings(&blocks, &wires, rank::assign_tangled(&blocks, &wires));
            best = best.into_iter().chain(more).min_by_key(|b| b.crossings);
        }
        let Some(Arrangement { layered, ranks, .. }) = best else {
            return DrawnComponent::default();
        };
        let down: Vec<bool> = wires.iter().map(|w| ranks[w.from] < ranks[w.to]).collect();
        let positions = position::assign(&layered, &wires);
        let mut drawn = route::draw(&blocks, &wires, &layered, &positions, &down);
        self.add_loops(graph, &mut drawn);
        drawn
    }

    fn blocks(&self, graph: &Graph, lines: &[Vec<Line>]) -> Vec<Block> {
        let blocks = self.nodes.iter().map(|&v| {
            let loops: Vec<&Edge> = self
                .loops
                .iter()
                .map(|&e| &graph.edges[e])
                .filter(|e| e.from == v)
                .collect();
            let mut size = box_size(&lines[v]);
            let mut loop_width = 0f64;
            for (i, edge) in loops.iter().enumerate() {
                let reach = loop_reach(i) + style::thickness(edge, graph.total);
                loop_width = loop_width.max(reach + layers::LABEL_GAP + label_size(&edge.label).w);
                size.h = size
                    .h
                    .max((i + 1) as f64 * LABEL_FONT * LINE_HEIGHT + 2.0 * PADDING.h);
            }
            Block { size, loop_width }
        });
        blocks.collect()
    }

    fn wires(&self, graph: &Graph) -> Vec<Wire> {
        let mut index_of = std::collections::HashMap::new();
        for (i, &v) in self.nodes.iter().enumerate() {
            index_of.insert(v, i);
        }
        let wires = self.edges.iter().map(|&e| {
            let edge = &graph.edges[e];
            let share = style::share(edge.weight, graph.total);
            Wire {
                from: index_of[&edge.from],
                to: index_of[&edge.to],
                weight: 1 + (share * 100.0) as i64,
                label: label_size(&edge.label),
                thickness: style::thickness(edge, graph.total),
            }
        });
        wires.collect()
    }

    /// Adds self-loops at the right side of each box, one around the other, with their labels
    /// stacked.
    fn add_loops(&self, graph: &Graph, drawn: &mut DrawnComponent) {
        for (i, &v) in self.nodes.iter().enumerate() {
            let loops: Vec<usize> = self
                .loops
                .iter()
                .copied()
                .filter(|&e| graph.edges[e].from == v)
                .collect();
            let area = drawn.boxes[i];
            let count = loops.len() as f64;
            let widest = loops
                .iter()
                .map(|&e| style::thickness(&graph.edges[e], graph.total));
            let widest = widest.fold(0.0, f64::max);
            for (k, &e) in loops.iter().enumerate() {
                let reach = loop_reach(k);
                let half = area.h * (0.15 + 0.25 * (k + 1) as f64 / count);
                drawn.curves.push(loop_curve(&area, reach, half));
                let size = label_size(&graph.edges[e].label);
                let x = area.right() + loop_reach(loops.len() - 1) + widest / 2.0;
                let top = area.y + (area.h - count * LABEL_FONT * LINE_HEIGHT) / 2.0;
                let y = top + k as f64 * LABEL_FONT * LINE_HEIGHT;
                let label = Rect {
                    x: x + layers::LABEL_GAP,
                    y,
                    w: size.w,
                    h: size.h,
                };
                drawn.labels.push((size.w > 0.0).then_some(label));
            }
        }
    }

    /// Returns the edges in the order of the drawn component: edges, then self-loops box by box.
    fn edges_as_drawn(&self, graph: &Graph) -> Vec<usize> {
        let mut edges = self.edges.clone();
        for &v in &self.nodes {
            edges.extend(self.loops.iter().filter(|&&e| graph.edges[e].from == v));
        }
        edges
    }
}

/// Returns the width of self-loop number `index` of a box.
fn loop_reach(index: usize) -> f64 {
    LOOP_WIDTH + LOOP_STEP * index as f64
}

/// Returns a self-loop at the right side of a box. Its ends are `half` above and below the middle
/// of the side.
fn loop_curve(area: &Rect, reach: f64, half: f64) -> Vec<Cubic> {
    let x = area.right();
    let y = area.y + area.h / 2.0;
    // A cubic whose control points are 4/3 of the width away extends exactly to the width.
    let control_x = x + reach * 4.0 / 3.0;
    let start = Point { x, y: y - half };
    let end = Point { x, y: y + half };
    vec![[
        start,
        Point {
            x: control_x,
            y: start.y,
        },
        Point {
            x: control_x,
            y: end.y,
        },
        end,
    ]]
}

/// A translation, in pixels.
#[derive(Clone, Copy)]
struct Offset {
    dx: f64,
    dy: f64,
}

impl Layout {
    /// Adds a drawn component, moved to its place.
    fn add_component(
        &mut self,
        edges: &[usize],
        nodes: &[usize],
        drawn: &DrawnComponent,
        offset: Offset,
    ) {
        let Offset { dx, dy } = offset;
        for (&v, area) in nodes.iter().zip(&drawn.boxes) {
            self.boxes[v] = area.shifted(dx, dy);
        }
        for (i, &e) in edges.iter().enumerate() {
            self.curves[e] = drawn.curves[i]
                .iter()
                .map(|c| translated(c, dx, dy))
                .collect();
            self.labels[e] = drawn.labels[i].map(|r| r.shifted(dx, dy));
        }
    }

    /// Puts the legend into the top left corner, moves the drawing away from it, and computes the
    /// size of the picture.
    fn add_title(&mut self, title: &[String]) {
        let size = if title.is_empty() {
            Size::default()
        } else {
            title_size(title)
        };
        let labels = self.labels.iter().flatten();
        let mut obstacles: Vec<Rect> = self.boxes.iter().chain(labels).copied().collect();
        obstacles.extend(self.curves.iter().flatten().filter_map(|c| hull(&[*c])));
        let Some(all) = obstacles.iter().copied().reduce(|a, b| a.union(&b)) else {
            self.title = (size.w > 0.0).then_some(Rect {
                x: MARGIN,
                y: MARGIN,
                ..at_origin(size)
            });
            self.size = Size {
                w: size.w + 2.0 * MARGIN,
                h: size.h + 2.0 * MARGIN,
            };
            return;
        };
        let placed: Vec<Rect> = obstacles
            .iter()
            .map(|r| r.shifted(-all.x, -all.y))
            .collect();
        let drawing = Size { w: all.w, h: all.h };
        let (dx, dy) = pack::shift_for_title(size, drawing, &placed);
        self.title = (size.w > 0.0).then_some(Rect {
            x: MARGIN,
            y: MARGIN,
            ..at_origin(size)
        });
        self.size = Size {
            w: (dx + all.w).max(size.w) + 2.0 * MARGIN,
            h: (dy + all.h).max(size.h) + 2.0 * MARGIN,
        };
        self.shift(dx - all.x + MARGIN, dy - all.y + MARGIN);
    }

    fn shift(&mut self, dx: f64, dy: f64) {
        self.boxes.iter_mut().for_each(|r| *r = r.shifted(dx, dy));
        self.labels
            .iter_mut()
            .flatten()
            .for_each(|r| *r = r.shifted(dx, dy));
        self.curves
            .iter_mut()
            .flatten()
            .for_each(|c| *c = translated(c, dx, dy));
    }
}

fn at_origin(size: Size) -> Rect {
    Rect {
        w: size.w,
        h: size.h,
        ..Rect::default()
    }
}

fn translated(c: &Cubic, dx: f64, dy: f64) -> Cubic {
    c.map(|p| Point {
        x: p.x + dx,
        y: p.y + dy,
    })
}
