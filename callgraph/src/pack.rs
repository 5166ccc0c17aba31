//! Packs the components of a picture side by side, in columns.

use crate::geometry::{Rect, Size};

/// Horizontal gap between components, in pixels.
const GAP: f64 = 18.0;
/// Vertical gap between components, in pixels.
const VERTICAL_GAP: f64 = 12.0;

/// Minimum ratio of width to height of a picture of many components.
const MIN_ASPECT: f64 = 0.5;
/// Maximum ratio of width to height of a picture of many components.
const MAX_ASPECT: f64 = 4.0;

/// Returns the rectangle of each component. The columns are at least as tall as the tallest
/// component; among several heights, the one with the smallest picture is used.
pub fn columns(sizes: &[Size]) -> Vec<Rect> {
    let area: f64 = sizes
        .iter()
        .map(|s| (s.w + GAP) * (s.h + VERTICAL_GAP))
        .sum();
    let min_height = sizes.iter().map(|s| s.h).fold(0.0, f64::max);
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|&a, &b| sizes[b].h.total_cmp(&sizes[a].h));
    let low = (area / MAX_ASPECT).sqrt();
    let high = (area / MIN_ASPECT).sqrt();
    let heights = (0..=8).map(|i| min_height.max(low + (high - low) * f64::from(i) / 8.0));
    let packings = heights.map(|height| fill_columns(sizes, &order, height));
    let best = packings.min_by(|a, b| a.area.total_cmp(&b.area));
    best.map(|b| b.rects).unwrap_or_default()
}

/// A way to pack the components.
struct Packing {
    /// Area of the picture.
    area: f64,
    /// Rectangle of each component.
    rects: Vec<Rect>,
}

/// Packs the components into columns with a height of at most `max_height`.
fn fill_columns(sizes: &[Size], order: &[usize], max_height: f64) -> Packing {
    let mut rects = vec![Rect::default(); sizes.len()];
    let mut columns: Vec<Column> = Vec::new();
    let mut right = 0.0;
    for &i in order {
        let Size { w, h } = sizes[i];
        let corner = columns
            .iter_mut()
            .find_map(|column| column.place(w, h, max_height));
        let (x, y) = corner.unwrap_or_else(|| {
            let x = right;
            right += w + GAP;
            columns.push(Column {
                x,
                w,
                bottom: h,
                line_width: w,
                line_top: 0.0,
                line_height: h,
            });
            (x, 0.0)
        });
        rects[i] = Rect { x, y, w, h };
    }
    let bottom = rects.iter().map(Rect::bottom).fold(0.0, f64::max);
    let area = right * bottom;
    Packing { area, rects }
}

/// A column of a fixed width, filled in lines from the top.
struct Column {
    x: f64,
    w: f64,
    bottom: f64,
    /// Used width of the last line.
    line_width: f64,
    /// Top of the last line.
    line_top: f64,
    /// Height of the last line.
    line_height: f64,
}

impl Column {
    /// Places a component that is not taller than those before, if there is room. Returns its
    /// corner.
    fn place(&mut self, w: f64, h: f64, max_height: f64) -> Option<(f64, f64)> {
        if h <= self.line_height && self.line_width + GAP + w <= self.w {
            let x = self.x + self.line_width + GAP;
            self.line_width += GAP + w;
            return Some((x, self.line_top));
        }
        let y = self.bottom + VERTICAL_GAP;
        if w > self.w || y + h > max_height {
            return None;
        }
        self.line_top = y;
        self.line_height = h;
        self.line_width = w;
        self.bottom = y + h;
        Some((self.x, y))
    }
}

/// Returns how far the drawing has to move right and down so that a title of this size fits at the
/// top left without overlapping an obstacle. Among several moves, chooses the one with the smallest
/// picture.
pub fn shift_for_title(title: Size, drawing: Size, obstacles: &[Rect]) -> (f64, f64) {
    if title.w == 0.0 {
        return (0.0, 0.0);
    }
    let w = title.w + GAP;
    let h = title.h + GAP;
    let mut best = (0.0, h);
    let mut best_area = f64::INFINITY;
    for step in 0..=20 {
        let dx = w * f64::from(step) / 20.0;
        // Everything left of the title's right edge has to start below the title.
        let top = obstacles
            .iter()
            .filter(|r| r.x + dx < w)
            .map(|r| r.y)
            .fold(h, f64::min);
        let dy = h - top;
        let area = (drawing.w + dx).max(title.w) * (drawing.h + dy).max(title.h);
        if area < best_area {
            best = (dx, dy);
            best_area = area;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{grown, overlaps};

    #[test]
    fn parts_never_overlap() {
        let sizes: Vec<Size> = (0..60)
            .map(|i| Size {
                w: f64::from(i * 37 % 91) + 5.0,
                h: f64::from(i * 53 % 67) + 5.0,
            })
            .collect();
        let rects = columns(&sizes);
        for (i, a) in rects.iter().enumerate() {
            assert_eq!((a.w, a.h), (sizes[i].w, sizes[i].h));
            assert!(rects[..i].iter().all(|b| !overlaps(
                &grown(a, VERTICAL_GAP / 2.0),
                &grown(b, VERTICAL_GAP / 2.01)
            )));
        }
    }

    #[test]
    fn the_title_uses_the_free_corner() {
        let title = Size { w: 100.0, h: 50.0 };
        let free = [Rect {
            x: 200.0,
            y: 0.0,
            w: 50.0,
            h: 20.0,
        }];
        assert_eq!(
            shift_for_title(title, Size { w: 250.0, h: 300.0 }, &free),
            (0.0, 0.0)
        );
        let full = [Rect {
            x: 0.0,
            y: 0.0,
            w: 900.0,
            h: 20.0,
        }];
        let (dx, dy) = shift_for_title(title, Size { w: 900.0, h: 20.0 }, &full);
        assert!(dx >= 100.0 || dy >= 50.0);
    }
}
