//! Measures the quality of a finished picture from any layout program: crossings, overlaps, area.
//!
//! Measures the drawn curves, flattened to short straight segments, not the layout's data.

use crate::geometry::{Cubic, Point, Rect, Size, cubic_at, hull};

/// A picture to measure.
pub struct Picture {
    /// Size of the picture.
    pub size: Size,
    /// Rectangle of the legend, if any.
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

/// Faults and measures of a picture. In our pictures all faults except crossings must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of points where two arrows cross.
    pub crossings: usize,
    /// Number of pairs of an arrow and an unrelated box that it runs through.
    pub through_boxes: usize,
    /// Number of pairs of an arrow and a label, including its own, that it runs through.
    pub through_labels: usize,
    /// Number of overlapping pairs of boxes, labels and title.
    pub overlaps: usize,
    /// Number of boxes, labels and curves that extend beyond the picture.
    pub outside: usize,
    /// Number of arrows that do not start and end at their boxes.
    pub loose: usize,
    /// Width times height.
    pub area: f64,
    /// Sum of the lengths of the arrows, in pixels.
    pub ink: f64,
}

/// Segments per cubic.
const SEGMENTS: usize = 24;
/// Maximum overlap that counts as touching, in pixels.
const TOLERANCE: f64 = 0.5;

/// Measures a picture.
pub fn measure(picture: &Picture) -> Report {
    let lines: Vec<Line> = picture.arrows.iter().map(|a| Line::new(&a.curve)).collect();
    let mut report = Report {
        area: picture.size.w * picture.size.h,
        crossings: crossings(&lines),
        ink: lines.iter().map(Line::length).sum(),
        ..Report::default()
    };
    count_bad_arrows(picture, &lines, &mut report);
    let mut areas: Vec<Rect> = picture.boxes.clone();
    areas.extend(picture.arrows.iter().filter_map(|a| a.label));
    areas.extend(picture.title);
    for (i, a) in areas.iter().enumerate() {
        let a = grown(a, -TOLERANCE / 2.0);
        report.overlaps += areas[..i]
            .iter()
            .filter(|b| overlaps(&a, &grown(b, -TOLERANCE / 2.0)))
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
        TOLERANCE,
    );
    let inside = |r: &Rect| paper.union(r) == paper;
    report.outside = areas.iter().filter(|r| !inside(r)).count();
    let hulls = picture.arrows.iter().filter_map(|a| hull(&a.curve));
    report.outside += hulls.filter(|r| !inside(r)).count();
    report
}

/// Counts arrows that run through boxes, labels or the title, and arrows that miss their boxes.
fn count_bad_arrows(picture: &Picture, lines: &[Line], report: &mut Report) {
    for (i, (arrow, line)) in picture.arrows.iter().zip(lines).enumerate() {
        for (v, area) in picture.boxes.iter().enumerate() {
            // An arrow touches its own boxes, but must not run through them.
            let tolerance = if v == arrow.from || v == arrow.to {
                2.0
            } else {
                TOLERANCE
            };
            report.through_boxes += usize::from(line.enters(&grown(area, -tolerance)));
        }
        report.through_boxes += usize::from(picture.title.is_some_and(|t| line.enters(&t)));
        for (other, label) in picture.arrows.iter().enumerate() {
            if let Some(area) = label.label {
                // An arrow may touch its own label: they are close, also in pictures of other
                // programs.
                let tolerance = if other == i { 1.5 } else { TOLERANCE };
                report.through_labels += usize::from(line.enters(&grown(&area, -tolerance)));
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
        let is_attached =
            meets(line.points.first(), arrow.from) && meets(line.points.last(), arrow.to);
        report.loose += usize::from(!is_attached);
    }
}

/// Returns the rectangle grown by `by` on every side; shrunk if `by` is negative.
pub fn grown(area: &Rect, by: f64) -> Rect {
    Rect {
        x: area.x - by,
        y: area.y - by,
        w: area.w + 2.0 * by,
        h: area.h + 2.0 * by,
    }
}

/// Returns true if two rectangles overlap. Touching edges do not count.
pub fn overlaps(a: &Rect, b: &Rect) -> bool {
    a.x < b.right() && b.x < a.right() && a.y < b.bottom() && b.y < a.bottom()
}

/// A curve flattened to segments.
struct Line {
    points: Vec<Point>,
    /// Bounding box of the segments of each cubic.
    areas: Vec<Rect>,
    /// Bounding box of all segments.
    bounds: Rect,
}

impl Line {
    fn new(curve: &[Cubic]) -> Self {
        let mut points: Vec<Point> = curve.first().map(|c| c[0]).into_iter().collect();
        for c in curve {
            points.extend((1..=SEGMENTS).map(|i| cubic_at(c, i as f64 / SEGMENTS as f64)));
        }
        let parts = (0..curve.len()).map(|i| &points[i * SEGMENTS..=(i + 1) * SEGMENTS]);
        Line {
            areas: parts.map(bounds).collect(),
            bounds: bounds(&points),
            points,
        }
    }

    /// Returns the points of cubic `index`.
    fn part(&self, index: usize) -> &[Point] {
        &self.points[index * SEGMENTS..=(index + 1) * SEGMENTS]
    }

    fn length(&self) -> f64 {
        self.points.windows(2).map(|p| distance(p[0], p[1])).sum()
    }

    /// Returns true if a point counts as one of the ends.
    fn ends_at(&self, point: Point) -> bool {
        let ends = [self.points.first(), self.points.last()];
        ends.into_iter()
            .flatten()
            .any(|e| distance(*e, point) < 1.5)
    }

    /// Returns true if a segment is inside the rectangle.
    fn enters(&self, area: &Rect) -> bool {
        let near = |r: &Rect| overlaps(&grown(r, 1e-9), area);
        near(&self.bounds)
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

/// Counts the points at which two of the lines cross. Crossings of the same two lines less than 3
/// pixels apart count once; common ends do not count.
fn crossings(lines: &[Line]) -> usize {
    // Sweep line from the top down: a cubic can only meet those that reach down to its top.
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
    let mut active: Vec<Part> = Vec::new();
    let mut found: Vec<Crossing> = Vec::new();
    for part in parts {
        active.retain(|o| o.area.bottom() > part.area.y);
        for other in active.iter().filter(|o| o.line != part.line) {
            let first = other.line.min(part.line);
            let second = other.line.max(part.line);
            let points = part.crossings_with(other, lines);
            found.extend(points.into_iter().map(|point| Crossing {
                lines: [first, second],
                point,
            }));
        }
        active.push(part);
    }
    found.sort_by_key(|c| c.lines);
    let pairs = found.chunk_by(|c, d| c.lines == d.lines);
    pairs
        .map(|p| count_distinct(p.iter().map(|c| c.point)))
        .sum()
}

/// A point at which two lines cross.
struct Crossing {
    /// Indices of the lines, the lower one first.
    lines: [usize; 2],
    point: Point,
}

/// One cubic of a line.
#[derive(Clone, Copy)]
struct Part {
    area: Rect,
    line: usize,
    index: usize,
}

impl Part {
    /// Returns the points at which the cubic crosses one of another line, except for common ends.
    fn crossings_with(&self, other: &Part, lines: &[Line]) -> Vec<Point> {
        let mut found = Vec::new();
        if !overlaps(&self.area, &other.area) {
            return found;
        }
        let a = &lines[self.line];
        let b = &lines[other.line];
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

/// Counts the points that are at least 3 pixels away from those counted before.
fn count_distinct(points: impl Iterator<Item = Point>) -> usize {
    let mut kept: Vec<Point> = Vec::new();
    for point in points {
        if kept.iter().all(|k| distance(*k, point) > 3.0) {
            kept.push(point);
        }
    }
    kept.len()
}

/// Returns the point at which two segments cross, if they do.
fn intersection(p: &[Point], q: &[Point]) -> Option<Point> {
    let r = sub(p[1], p[0]);
    let s = sub(q[1], q[0]);
    let det = r.x * s.y - r.y * s.x;
    if det.abs() < 1e-12 {
        return None;
    }
    let d = sub(q[0], p[0]);
    let t = (d.x * s.y - d.y * s.x) / det;
    let u = (d.x * r.y - d.y * r.x) / det;
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

/// Returns true if a line has a segment inside the rectangle.
fn enters(line: &[Point], area: &Rect) -> bool {
    let corner = |x, y| Point { x, y };
    let l = area.x;
    let r = area.right();
    let t = area.y;
    let b = area.bottom();
    if l >= r || t >= b {
        return false;
    }
    // A segment that runs through a rectangle crosses a diagonal of it or ends inside.
    let diagonals = [[corner(l, t), corner(r, b)], [corner(l, b), corner(r, t)]];
    let inside = |p: &Point| p.x > l && p.x < r && p.y > t && p.y < b;
    line.iter().any(inside)
        || line.windows(2).any(|p| {
            overlaps(&grown(&bounds(p), 1e-9), area)
                && diagonals.iter().any(|d| intersection(p, d).is_some())
        })
}
