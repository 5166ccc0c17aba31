//! Assigns vertical coordinates and draws the curves of the arrows.
//!
//! The items of an arrow (wire), from one box to the other, form a chain.
//!
//! A row is a horizontal band. Inside a band a wire runs straight down at its own x coordinate,
//! which the layout keeps free. Between bands, where nothing else is drawn, it bends from one
//! coordinate to the next with vertical ends. So no wire can touch an unrelated box or label, and
//! two wires cross between two rows only if their order differs there.

use crate::geometry::{Cubic, Point, Rect, Size, straight};
use crate::layers::{Block, Kind, LABEL_GAP, Layered, Wire};
use crate::position::Positions;

/// Minimum distance between bands, in pixels.
const MIN_GAP: f64 = 15.0;
/// Distance between bands, as a fraction of the longest horizontal step between them.
const GAP_PER_STEP: f64 = 0.06;
/// Maximum distance between bands in a picture of few rows, in pixels.
const MAX_GAP: f64 = 28.0;
/// Increase of the maximum distance per row, in pixels.
const MAX_GAP_PER_ROW: f64 = 1.2;
/// Height for each of the wires that run above each other between two bands, in pixels.
const LANE_HEIGHT: f64 = 2.0;
/// Maximum height that lanes add to a distance, in pixels.
const MAX_LANES_HEIGHT: f64 = 60.0;
/// Maximum height that all lanes add, as a fraction of the picture's height.
const MAX_LANES_SHARE: f64 = 0.06;

/// A drawn connected component.
#[derive(Default)]
pub struct DrawnComponent {
    /// Boxes.
    pub boxes: Vec<Rect>,
    /// Curve of each wire, from caller to callee.
    pub curves: Vec<Vec<Cubic>>,
    /// Label of each wire; `None` without one.
    pub labels: Vec<Option<Rect>>,
}

/// Vertical extent of a row.
struct Band {
    top: f64,
    bottom: f64,
    /// Steepness of wires below the band, 0 to 1. One value for all wires, so that no wires cross
    /// unnecessarily.
    bend: f64,
}

/// Draws a component whose items have positions. `down` is true for each wire that points
/// downwards.
pub fn draw(
    blocks: &[Block],
    wires: &[Wire],
    layered: &Layered,
    positions: &Positions,
    down: &[bool],
) -> DrawnComponent {
    let bands = bands(blocks, wires, layered, positions);
    let boxes: Vec<Rect> = (0..blocks.len())
        .map(|v| {
            let (Size { w, h }, band) = (blocks[v].size, &bands[layered.items[v].row]);
            Rect {
                x: positions.x[v] - w / 2.0,
                y: (band.top + band.bottom - h) / 2.0,
                w,
                h,
            }
        })
        .collect();
    let mut curves = Vec::with_capacity(wires.len());
    let mut labels = Vec::with_capacity(wires.len());
    for (wire, &down) in down.iter().enumerate() {
        let mut curve = curve(wire, layered, positions, &boxes, &bands);
        if !down {
            curve.reverse();
            curve.iter_mut().for_each(|piece| piece.reverse());
        }
        curves.push(curve);
        labels.push(label(wire, wires, layered, positions, &bands));
    }
    DrawnComponent {
        boxes,
        curves,
        labels,
    }
}

fn label(
    wire: usize,
    wires: &[Wire],
    layered: &Layered,
    positions: &Positions,
    bands: &[Band],
) -> Option<Rect> {
    let item = *layered.chains[wire]
        .iter()
        .find(|&&v| layered.items[v].kind == Kind::Label(wire))?;
    let (Size { w, h }, band) = (wires[wire].label, &bands[layered.items[item].row]);
    let x = positions.x[item] + wires[wire].thickness / 2.0 + LABEL_GAP;
    Some(Rect {
        x,
        y: (band.top + band.bottom - h) / 2.0,
        w,
        h,
    })
}

/// Horizontal step of a wire between two rows.
#[derive(Clone, Copy)]
struct HorizontalStep {
    from: f64,
    to: f64,
}

impl HorizontalStep {
    fn length(self) -> f64 {
        (self.from - self.to).abs()
    }
}

/// Horizontal steps of the wires below a row.
type Steps = Vec<HorizontalStep>;

fn steps(layered: &Layered, positions: &Positions) -> Vec<Steps> {
    let mut steps = vec![Steps::new(); layered.rows.len()];
    for (wire, chain) in layered.chains.iter().enumerate() {
        let passages = passages(wire, chain, positions);
        for (pair, x) in chain.windows(2).zip(passages.windows(2)) {
            steps[layered.items[pair[0]].row].push(HorizontalStep {
                from: x[0].exit,
                to: x[1].entry,
            });
        }
    }
    steps
}

/// Returns the length of the longest step.
fn longest_step(steps: &Steps) -> f64 {
    steps.iter().map(|s| s.length()).fold(0.0, f64::max)
}

/// Returns the maximum number of steps that cover the same x coordinate.
fn lanes(steps: &Steps) -> usize {
    let mut ends: Vec<(f64, i64)> = Vec::with_capacity(2 * steps.len());
    for step in steps.iter().filter(|s| s.length() >= 1.0) {
        ends.extend([(step.from.min(step.to), 1), (step.from.max(step.to), -1)]);
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut max_open = 0;
    let mut open = 0;
    for (_, change) in ends {
        open += change;
        max_open = max_open.max(open);
    }
    max_open as usize
}

/// Returns the distances below the rows. They grow with the horizontal steps there. They also grow
/// with the number of wires that would otherwise overlap, unless the picture would become much
/// taller.
fn gaps(steps: &[Steps], heights: &[f64]) -> Vec<f64> {
    let max_gap = MAX_GAP + (MAX_GAP_PER_ROW * steps.len() as f64).min(MAX_GAP);
    let mut gaps: Vec<f64> = steps
        .iter()
        .map(|s| (longest_step(s) * GAP_PER_STEP).clamp(MIN_GAP, max_gap))
        .collect();
    let additions = steps.iter().zip(&gaps);
    let additions: Vec<f64> = additions
        .map(|(s, gap)| (lanes(s) as f64 * LANE_HEIGHT - gap).clamp(0.0, MAX_LANES_HEIGHT))
        .collect();
    let total: f64 = additions.iter().sum();
    let height: f64 = heights.iter().chain(&gaps).sum();
    let granted = (height * MAX_LANES_SHARE / total.max(1.0)).min(1.0);
    for (gap, addition) in gaps.iter_mut().zip(additions) {
        *gap += addition * granted;
    }
    gaps
}

/// Computes the vertical extents of the rows.
fn bands(blocks: &[Block], wires: &[Wire], layered: &Layered, positions: &Positions) -> Vec<Band> {
    let height = |v: usize| match layered.items[v].kind {
        Kind::Box => blocks[v].size.h,
        Kind::Label(wire) => wires[wire].label.h,
        Kind::Bend(_) => 0.0,
    };
    let rows = layered.rows.iter();
    let heights: Vec<f64> = rows
        .map(|items| items.iter().map(|&v| height(v)).fold(0.0, f64::max))
        .collect();
    let steps = steps(layered, positions);
    let gaps = gaps(&steps, &heights);
    let mut y = 0.0;
    let mut bands = Vec::with_capacity(layered.rows.len());
    for ((height, gap), steps) in heights.iter().zip(gaps).zip(&steps) {
        bands.push(Band {
            top: y,
            bottom: y + height,
            // Long flat wires overlap less if they start at a slant.
            bend: (0.65 - 0.035 * longest_step(steps) / gap).clamp(0.32, 0.55),
        });
        y += height + gap;
    }
    bands
}

/// Passage of a wire through an item: x coordinates, in pixels.
struct Passage {
    /// Position at which the wire enters the item from above.
    entry: f64,
    /// Position at which it leaves the item below.
    exit: f64,
}

/// Returns the passages of a wire through the items of its chain.
fn passages(wire: usize, chain: &[usize], positions: &Positions) -> Vec<Passage> {
    let axes = chain.iter().map(|&v| positions.x[v]);
    let mut passages: Vec<Passage> = axes.map(|x| Passage { entry: x, exit: x }).collect();
    let last = passages.len() - 1;
    passages[0].exit += positions.ports[wire][0];
    passages[last].entry += positions.ports[wire][1];
    passages
}

fn curve(
    wire: usize,
    layered: &Layered,
    positions: &Positions,
    boxes: &[Rect],
    bands: &[Band],
) -> Vec<Cubic> {
    let chain = &layered.chains[wire];
    let passages = passages(wire, chain, positions);
    let last = chain.len() - 1;
    let mut pen = Pen::new(Point {
        x: passages[0].exit,
        y: boxes[chain[0]].bottom(),
    });
    for i in 1..=last {
        let above = &bands[layered.items[chain[i - 1]].row];
        let below = &bands[layered.items[chain[i]].row];
        pen.down_to(above.bottom);
        pen.bend_to(
            Point {
                x: passages[i].entry,
                y: below.top,
            },
            above.bend,
        );
    }
    pen.down_to(boxes[chain[last]].y);
    pen.finish()
}

/// Draws a curve downwards, merging straight pieces.
struct Pen {
    at: Point,
    /// Start of the straight piece that has not been drawn yet.
    from: Point,
    pieces: Vec<Cubic>,
}

impl Pen {
    fn new(at: Point) -> Self {
        Pen {
            at,
            from: at,
            pieces: Vec::new(),
        }
    }

    fn down_to(&mut self, y: f64) {
        self.at.y = y.max(self.at.y);
    }

    fn bend_to(&mut self, to: Point, bend: f64) {
        if (to.x - self.at.x).abs() < 0.01 {
            self.at.y = to.y;
            return;
        }
        self.flush();
        let a = self.at;
        let h = (to.y - self.at.y) * bend;
        let b = Point { x: a.x, y: a.y + h };
        let c = Point {
            x: to.x,
            y: to.y - h,
        };
        self.pieces.push([a, b, c, to]);
        self.at = to;
        self.from = to;
    }

    fn flush(&mut self) {
        if self.at.y > self.from.y {
            self.pieces.push(straight(self.from, self.at));
        }
        self.from = self.at;
    }

    fn finish(mut self) -> Vec<Cubic> {
        self.flush();
        self.pieces
    }
}
