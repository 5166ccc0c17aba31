//! Measures a finished picture, whoever laid it out: crossings, overlaps, area.
//!
//! Works on the final curves, cut into short straight pieces, not on what the layout believes.

use super::geometry::{Cubic, Point, Rect, Size, cubic_at, hull};

/// A picture to measure.
pub struct Picture {
    /// Its size.
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
    /// Its curve.
    pub curve: Vec<Cubic>,
    /// Where its label is.
    pub label: Option<Rect>,
}

/// What was found. All but the first and the last two must be zero in a picture of ours.
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
/// What counts as touching, not overlapping.
const SLACK: f64 = 0.5;

/// Measures a picture.
pub fn measure(picture: &Picture) -> Report {
    let lines: Vec<Vec<Point>> = picture.arrows.iter().map(|a| flatten(&a.curve)).collect();
    let mut report = Report {
        area: picture.size.w * picture.size.h,
        ..Report::default()
    };
    for a in 0..lines.len() {
        report.ink += lines[a]
            .windows(2)
            .map(|p| distance(p[0], p[1]))
            .sum::<f64>();
        for b in 0..a {
            report.crossings += crossings(&lines[a], &lines[b]);
        }
    }
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
fn through(picture: &Picture, lines: &[Vec<Point>], report: &mut Report) {
    for (i, (arrow, line)) in picture.arrows.iter().zip(lines).enumerate() {
        for (v, area) in picture.boxes.iter().enumerate() {
            // Its own boxes it may touch, but not run through.
            let slack = if v == arrow.from || v == arrow.to {
                2.0
            } else {
                SLACK
            };
            report.through_boxes += usize::from(enters(line, &grown(area, -slack)));
        }
        report.through_boxes += usize::from(picture.title.is_some_and(|t| enters(line, &t)));
        for (other, label) in picture.arrows.iter().enumerate() {
            if let Some(area) = label.label {
                // A label's own arrow passes close by it, in other programs' pictures too.
                let slack = if other == i { 1.5 } else { SLACK };
                report.through_labels += usize::from(enters(line, &grown(&area, -slack)));
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
        let whole = meets(line.first(), arrow.from) && meets(line.last(), arrow.to);
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

fn flatten(curve: &[Cubic]) -> Vec<Point> {
    let mut line: Vec<Point> = curve.first().map(|c| c[0]).into_iter().collect();
    for c in curve {
        line.extend((1..=PIECES).map(|i| cubic_at(c, i as f64 / PIECES as f64)));
    }
    line
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

/// The points where two lines cross; points less than 3 apart count once, as do common ends.
fn crossings(a: &[Point], b: &[Point]) -> usize {
    if !overlaps(&grown(&bounds(a), 0.1), &grown(&bounds(b), 0.1)) {
        return 0;
    }
    let ends = |l: &[Point]| [l.first().copied(), l.last().copied()];
    let mut found: Vec<Point> = Vec::new();
    for p in a.windows(2) {
        let area = grown(&bounds(p), 0.1);
        for q in b.windows(2) {
            if !overlaps(&area, &grown(&bounds(q), 0.1)) {
                continue;
            }
            let Some(point) = intersection(p, q) else {
                continue;
            };
            let near = |e: &Option<Point>| e.is_some_and(|e| distance(e, point) < 1.5);
            let common = ends(a).iter().any(near) && ends(b).iter().any(near);
            if !common && found.iter().all(|f| distance(*f, point) > 3.0) {
                found.push(point);
            }
        }
    }
    found.len()
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
