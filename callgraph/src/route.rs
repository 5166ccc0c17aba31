//! Vertical coordinates and the curves of the arrows.
//!
//! A row is a horizontal band. Inside a band a wire runs straight down at its own place, which
//! the coordinates keep free; between bands, where nothing else stands, it bends from one place
//! to the next with upright ends. So no wire can touch a foreign box or label, and two wires
//! cross between two rows only if their order there differs.

use crate::geometry::{Cubic, Point, Rect, Size, straight};
use crate::layers::{Block, Kind, LABEL_GAP, Layered, Wire};
use crate::position::Positions;

/// Least and greatest distance between bands; pictures of many rows can afford more.
const GAP: f64 = 15.0;
const GAP_MOST: f64 = 28.0;
const GAP_MORE: f64 = 1.2;
/// Height for each of the wires that lie above each other between two bands, how much at most
/// that adds to a distance, and what part of the height all of that may add.
const LANE: f64 = 2.0;
const LANES_MOST: f64 = 60.0;
const LANES_SHARE: f64 = 0.06;

/// A laid-out connected part.
#[derive(Default)]
pub struct Drawn {
    /// The boxes.
    pub boxes: Vec<Rect>,
    /// The curve of each wire, from caller to callee.
    pub curves: Vec<Vec<Cubic>>,
    /// The label of each wire that has one.
    pub labels: Vec<Option<Rect>>,
}

struct Band {
    top: f64,
    bottom: f64,
    /// How upright wires start below it, 0 to 1. One value for all: then only those cross that
    /// must.
    bend: f64,
}

/// Draws a placed part; `down` says which wires point downwards.
pub fn draw(
    blocks: &[Block],
    wires: &[Wire],
    layered: &Layered,
    positions: &Positions,
    down: &[bool],
) -> Drawn {
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
    Drawn {
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

/// The sideways steps of the wires below a row: from where to where.
type Steps = Vec<(f64, f64)>;

fn steps(layered: &Layered, positions: &Positions) -> Vec<Steps> {
    let mut steps = vec![Steps::new(); layered.rows.len()];
    for (wire, chain) in layered.chains.iter().enumerate() {
        let ends = chain_x(wire, chain, positions);
        for (pair, x) in chain.windows(2).zip(ends.windows(2)) {
            steps[layered.items[pair[0]].row].push((x[0].1, x[1].0));
        }
    }
    steps
}

fn widest(steps: &Steps) -> f64 {
    steps.iter().map(|s| (s.0 - s.1).abs()).fold(0.0, f64::max)
}

/// How many of the steps lie above each other at most.
fn lanes(steps: &Steps) -> usize {
    let mut ends: Vec<(f64, i64)> = Vec::with_capacity(2 * steps.len());
    for &(a, b) in steps.iter().filter(|s| (s.0 - s.1).abs() >= 1.0) {
        ends.extend([(a.min(b), 1), (a.max(b), -1)]);
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut most, mut now) = (0, 0);
    for (_, by) in ends {
        now += by;
        most = most.max(now);
    }
    most as usize
}

/// Distances below the rows. They grow with the sideways steps there, and, as far as the whole
/// stays about as high, with the number of wires that would else lie upon each other.
fn gaps(steps: &[Steps], heights: &[f64]) -> Vec<f64> {
    let most = GAP_MOST + (GAP_MORE * steps.len() as f64).min(GAP_MOST);
    let mut gaps: Vec<f64> = steps
        .iter()
        .map(|s| (widest(s) * 0.06).clamp(GAP, most))
        .collect();
    let wants = steps.iter().zip(&gaps);
    let wants: Vec<f64> = wants
        .map(|(s, gap)| (lanes(s) as f64 * LANE - gap).clamp(0.0, LANES_MOST))
        .collect();
    let wanted: f64 = wants.iter().sum();
    let height: f64 = heights.iter().chain(&gaps).sum();
    let part = (height * LANES_SHARE / wanted.max(1.0)).min(1.0);
    for (gap, want) in gaps.iter_mut().zip(wants) {
        *gap += want * part;
    }
    gaps
}

/// Coordinates of the rows.
fn bands(blocks: &[Block], wires: &[Wire], layered: &Layered, positions: &Positions) -> Vec<Band> {
    let height = |v: usize| match layered.items[v].kind {
        Kind::Block => blocks[v].size.h,
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
            // Long flat wires lie less upon each other when they start at a slant.
            bend: (0.65 - 0.035 * widest(steps) / gap).clamp(0.32, 0.55),
        });
        y += height + gap;
    }
    bands
}

/// For each item of a chain where the wire enters it from above and leaves it below.
fn chain_x(wire: usize, chain: &[usize], positions: &Positions) -> Vec<(f64, f64)> {
    let mut x: Vec<(f64, f64)> = chain
        .iter()
        .map(|&v| (positions.x[v], positions.x[v]))
        .collect();
    let last = x.len() - 1;
    x[0].1 += positions.ports[wire][0];
    x[last].0 += positions.ports[wire][1];
    x
}

fn curve(
    wire: usize,
    layered: &Layered,
    positions: &Positions,
    boxes: &[Rect],
    bands: &[Band],
) -> Vec<Cubic> {
    let chain = &layered.chains[wire];
    let x = chain_x(wire, chain, positions);
    let last = chain.len() - 1;
    let mut pen = Pen::new(Point {
        x: x[0].1,
        y: boxes[chain[0]].bottom(),
    });
    for i in 1..=last {
        let (above, below) = (
            &bands[layered.items[chain[i - 1]].row],
            &bands[layered.items[chain[i]].row],
        );
        pen.down_to(above.bottom);
        pen.bend_to(
            Point {
                x: x[i].0,
                y: below.top,
            },
            above.bend,
        );
    }
    pen.down_to(boxes[chain[last]].y);
    pen.finish()
}

/// Draws downwards, joining straight pieces.
struct Pen {
    at: Point,
    /// Where the straight piece that is not yet drawn starts.
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
        let (a, h) = (self.at, (to.y - self.at.y) * bend);
        let (b, c) = (
            Point { x: a.x, y: a.y + h },
            Point {
                x: to.x,
                y: to.y - h,
            },
        );
        self.pieces.push([a, b, c, to]);
        (self.at, self.from) = (to, to);
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
