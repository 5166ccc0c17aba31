//! Points, rectangles and curves in the plane. The y axis points downwards.

/// A point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Rightwards.
    pub x: f64,
    /// Downwards.
    pub y: f64,
}

/// A width and a height.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Size {
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

/// An axis-aligned rectangle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub x: f64,
    /// Top edge.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

impl Rect {
    /// Returns the x coordinate of the right edge.
    pub fn right(&self) -> f64 {
        self.x + self.w
    }

    /// Returns the y coordinate of the bottom edge.
    pub fn bottom(&self) -> f64 {
        self.y + self.h
    }

    /// Returns the rectangle moved by `dx` and `dy`.
    pub fn shifted(&self, dx: f64, dy: f64) -> Rect {
        Rect {
            x: self.x + dx,
            y: self.y + dy,
            ..*self
        }
    }

    /// Returns the bounding box of both.
    pub fn union(&self, other: &Rect) -> Rect {
        let x = self.x.min(other.x);
        let y = self.y.min(other.y);
        Rect {
            x,
            y,
            w: self.right().max(other.right()) - x,
            h: self.bottom().max(other.bottom()) - y,
        }
    }
}

/// A cubic Bézier curve by its control points.
pub type Cubic = [Point; 4];

/// Returns a straight segment as a cubic.
pub fn straight(a: Point, b: Point) -> Cubic {
    let at = |t: f64| Point {
        x: a.x + (b.x - a.x) * t,
        y: a.y + (b.y - a.y) * t,
    };
    [a, at(1.0 / 3.0), at(2.0 / 3.0), b]
}

/// Returns the point of a cubic at `t` in 0..=1.
pub fn cubic_at(c: &Cubic, t: f64) -> Point {
    let s = 1.0 - t;
    let a = s * s * s;
    let b = 3.0 * s * s * t;
    let d = 3.0 * s * t * t;
    let e = t * t * t;
    Point {
        x: a * c[0].x + b * c[1].x + d * c[2].x + e * c[3].x,
        y: a * c[0].y + b * c[1].y + d * c[2].y + e * c[3].y,
    }
}

/// Returns the bounding box of the control points, which contains the curve.
pub fn hull(curve: &[Cubic]) -> Option<Rect> {
    let mut points = curve.iter().flatten();
    let first = points.next()?;
    let start = Rect {
        x: first.x,
        y: first.y,
        w: 0.0,
        h: 0.0,
    };
    Some(points.fold(start, |r, p| {
        r.union(&Rect {
            x: p.x,
            y: p.y,
            w: 0.0,
            h: 0.0,
        })
    }))
}
