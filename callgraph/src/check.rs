//! Measures a finished picture by any layout program: crossings, overlaps, area.
//!
//! Works on the final curves, cut into short straight pieces, not on what the layout believes.

use crate::geometry::{Cubic, Point, Rect, Size, cubic_at, hull};

/// A picture to measure.
pub struct Picture {
    /// Size of the picture.
    pub size: Size,
    /// The legend, if any.
    pub title: Option<Rect>,
    /// The boxes.
    pub boxes: Vec<Rect>,
    /// The arrows.
    pub arrows: Vec<Arrow>,
}

/// One arrow of a picture.
pub struct Arrow {
    /// Index of the box it leaves.
    pub from: usize,
    /// Index of the box it enters.
    pub to: usize,
    /// Curve of the arrow.
    pub curve: Vec<Cubic>,
    /// Rectangle of the label.
    pub label: Option<Rect>,
}

/// Faults and measures. All but the first and the last two must be zero in a picture of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Points where two arrows cross.
    pub crossings: usize,
    /// Pairs of an arrow and a foreign box that it runs through.
    pub through_boxes: usize,
    /// Pairs of an arrow and a label (its own as well) that it runs through.
    pub through_labels: usize,
    /// Pairs of boxes, labels or the title that overlap.
    pub overlaps: usize,
    /// Boxes, labels and curves that leave the picture.
    pub outside: usize,
    /// Arrows that do not start and end at their boxes.
    pub loose: usize,
    /// Width times height.
    pub area: f64,
    /// Sum of the lengths of the arrows.
    pub ink: f64,
}

/// Pieces that a curve is cut into.
const PIECES: usize = 24;
/// Overlap that counts as touching.
const SLACK: f64 = 0.5;

/// Measures a picture.
pub fn measure(picture: &Picture) -> Report {
    let lines: Vec<Line> = picture.arrows.iter().map(|a| Line::new(&a.curve)).collect();
    let mut report = Report {
        area: picture.size.w * picture.size.h,
        crossings: crossings(&lines),
        ink: lines.iter().map(Line::length).sum(),
        ..Report::default()
    };
    through(picture, &lines, &mut report);
    let mut areas: Vec<Rect> = picture.boxes.clone();
    areas.extend(picture.arrows.iter().filter_map(|a| a.label));
    areas.extend(picture.title);
    for (i, a) in areas.iter().enumerate() {
        let a = grown(a, -SLACK / 2.0);
        report.overlaps += areas[..i]
            .iter()
            .filter(|b| overlaps(&a, &grown(b, -SLACK / 2.0)))
            .count();
    }
    let Size { w, h } = picture.size;
    let paper = grown(
        &Rect {
            x: 0.0,
            y: 0.0,
            w,
            h,
        },
        SLACK,
    );
    let inside = |r: &Rect| paper.union(r) == paper;
    report.outside = areas.iter().filter(|r| !inside(r)).count();
    let hulls = picture.arrows.iter().filter_map(|a| hull(&a.curve));
    report.outside += hulls.filter(|r| !inside(r)).count();
    report
}

/// Arrows through boxes, labels and the title, and arrows that miss their boxes.
fn through(picture: &Picture, lines: &[Line], report: &mut Report) {
    for (i, (arrow, line)) in picture.arrows.iter().zip(lines).enumerate() {
        for (v, area) in picture.boxes.iter().enumerate() {
            // Its own boxes it may touch, but not run through.
            let slack = if v == arrow.from || v == arrow.to {
                2.0
            } else {
                SLACK
            };
            report.through_boxes += usize::from(line.enters(&grown(area, -slack)));
        }
        report.through_boxes += usize::from(picture.title.is_some_and(|t| line.enters(&t)));
        for (other, label) in picture.arrows.iter().enumerate() {
            if let Some(area) = label.label {
                // A label's own arrow passes close by it, in other programs' pictures too.
                let slack = if other == i { 1.5 } else { SLACK };
                report.through_labels += usize::from(line.enters(&grown(&area, -slack)));
            }
        }
        let meets = |p: Option<&Point>, v: usize| {
            let dot = p.map(|p| Rect {
                x: p.x - 1.5,
                y: p.y - 1.5,
                w: 3.0,
                h: 3.0,
            });
            dot.is_some_and(|d| overlaps(&d, &picture.boxes[v]))
        };
        let whole = meets(line.points.first(), arrow.from) && meets(line.points.last(), arrow.to);
        report.loose += usize::from(!whole);
    }
}

/// The rectangle with `by` more on every side (less when negative).
pub fn grown(area: &Rect, by: f64) -> Rect {
    Rect {
        x: area.x - by,
        y: area.y - by,
        w: area.w + 2.0 * by,
        h: area.h + 2.0 * by,
    }
}

/// Whether the insides meet; touching edges do not count.
pub fn overlaps(a: &Rect, b: &Rect) -> bool {
    a.x < b.right() && b.x < a.right() && a.y < b.bottom() && b.y < a.bottom()
}

/// A curve cut into straight pieces.
struct Line {
    points: Vec<Point>,
    /// The smallest rectangle around the pieces of each cubic, and around all.
    areas: Vec<Rect>,
    whole: Rect,
}

impl Line {
    fn new(curve: &[Cubic]) -> Self {
        let mut points: Vec<Point> = curve.first().map(|c| c[0]).into_iter().collect();
        for c in curve {
            points.extend((1..=PIECES).map(|i| cubic_at(c, i as f64 / PIECES as f64)));
        }
        let parts = (0..curve.len()).map(|i| &points[i * PIECES..=(i + 1) * PIECES]);
        Line {
            areas: parts.map(bounds).collect(),
            whole: bounds(&points),
            points,
        }
    }

    /// The points of the cubic of this index.
    fn part(&self, index: usize) -> &[Point] {
        &self.points[index * PIECES..=(index + 1) * PIECES]
    }

    fn length(&self) -> f64 {
        self.points.windows(2).map(|p| distance(p[0], p[1])).sum()
    }

    /// Whether a point counts as one of the ends.
    fn ends_at(&self, point: Point) -> bool {
        let ends = [self.points.first(), self.points.last()];
        ends.into_iter()
            .flatten()
            .any(|e| distance(*e, point) < 1.5)
    }

    /// Whether a piece of the line is inside the rectangle.
    fn enters(&self, area: &Rect) -> bool {
        let near = |r: &Rect| overlaps(&grown(r, 1e-9), area);
        near(&self.whole)
            && (0..self.areas.len()).any(|i| near(&self.areas[i]) && enters(self.part(i), area))
    }
}

fn distance(a: Point, b: Point) -> f64 {
    (a.x - b.x).hypot(a.y - b.y)
}

fn bounds(line: &[Point]) -> Rect {
    let at = |p: &Point| Rect {
        x: p.x,
        y: p.y,
        w: 0.0,
        h: 0.0,
    };
    line.iter()
        .map(at)
        .reduce(|a, b| a.union(&b))
        .unwrap_or_default()
}

/// The points where two of the lines cross; points of the same two less than 3 apart count once,
/// common ends not at all.
fn crossings(lines: &[Line]) -> usize {
    // From the top down: a cubic meets only those above it that reach down to its top.
    let mut parts: Vec<Part> = Vec::new();
    for (line, l) in lines.iter().enumerate() {
        let areas = l.areas.iter().enumerate();
        parts.extend(areas.map(|(index, area)| Part {
            area: grown(area, 0.1),
            line,
            index,
        }));
    }
    parts.sort_by(|a, b| a.area.y.total_cmp(&b.area.y));
    let mut open: Vec<Part> = Vec::new();
    let mut found: Vec<(usize, usize, Point)> = Vec::new();
    for part in parts {
        open.retain(|o| o.area.bottom() > part.area.y);
        for other in open.iter().filter(|o| o.line != part.line) {
            let (a, b) = (other.line.min(part.line), other.line.max(part.line));
            let points = part.meets(other, lines);
            found.extend(points.into_iter().map(|point| (a, b, point)));
        }
        open.push(part);
    }
    found.sort_by_key(|f| (f.0, f.1));
    let pairs = found.chunk_by(|f, g| (f.0, f.1) == (g.0, g.1));
    pairs.map(|p| apart(p.iter().map(|f| f.2))).sum()
}

/// One cubic of a line.
#[derive(Clone, Copy)]
struct Part {
    area: Rect,
    line: usize,
    index: usize,
}

impl Part {
    /// Where it crosses a part of another line, but for common ends.
    fn meets(&self, other: &Part, lines: &[Line]) -> Vec<Point> {
        let mut found = Vec::new();
        if !overlaps(&self.area, &other.area) {
            return found;
        }
        let (a, b) = (&lines[self.line], &lines[other.line]);
        for p in a.part(self.index).windows(2) {
            let area = grown(&bounds(p), 0.1);
            if !overlaps(&area, &other.area) {
                continue;
            }
            for q in b.part(other.index).windows(2) {
                if overlaps(&area, &grown(&bounds(q), 0.1))
                    && let Some(point) = intersection(p, q)
                    && !(a.ends_at(point) && b.ends_at(point))
                {
                    found.push(point);
                }
            }
        }
        found
    }
}

/// How many of the points are at least 3 away from those counted before.
fn apart(points: impl Iterator<Item = Point>) -> usize {
    let mut kept: Vec<Point> = Vec::new();
    for point in points {
        if kept.iter().all(|k| distance(*k, point) > 3.0) {
            kept.push(point);
        }
    }
    kept.len()
}

/// Where two straight pieces cross, if they do.
fn intersection(p: &[Point], q: &[Point]) -> Option<Point> {
    let (r, s) = (sub(p[1], p[0]), sub(q[1], q[0]));
    let det = r.x * s.y - r.y * s.x;
    if det.abs() < 1e-12 {
        return None;
    }
    let d = sub(q[0], p[0]);
    let (t, u) = ((d.x * s.y - d.y * s.x) / det, (d.x * r.y - d.y * r.x) / det);
    let inside = (0.0..=1.0).contains(&t) && (0.0..=1.0).contains(&u);
    inside.then(|| Point {
        x: p[0].x + r.x * t,
        y: p[0].y + r.y * t,
    })
}

fn sub(a: Point, b: Point) -> Point {
    Point {
        x: a.x - b.x,
        y: a.y - b.y,
    }
}

/// Whether a line has a piece inside the rectangle.
fn enters(line: &[Point], area: &Rect) -> bool {
    let corner = |x, y| Point { x, y };
    let (l, r, t, b) = (area.x, area.right(), area.y, area.bottom());
    if l >= r || t >= b {
        return false;
    }
    let diagonals = [[corner(l, t), corner(r, b)], [corner(l, b), corner(r, t)]];
    let inside = |p: &Point| p.x > l && p.x < r && p.y > t && p.y < b;
    line.iter().any(inside)
        || line.windows(2).any(|p| {
            overlaps(&grown(&bounds(p), 1e-9), area)
                && diagonals.iter().any(|d| intersection(p, d).is_some())
        })
}
