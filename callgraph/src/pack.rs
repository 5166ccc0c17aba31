//! Puts the parts of a picture side by side, in columns, without waste.

use crate::geometry::{Rect, Size};

/// Space between parts side by side, and between those above each other.
const GAP: f64 = 18.0;
const GAP_DOWN: f64 = 12.0;

/// How much higher than wide a picture of many parts may be, and how much wider than high.
const SHAPES: (f64, f64) = (0.5, 4.0);

/// Where each part goes: the first stays leftmost at the top, the others stand at its right in
/// columns no higher than the highest part, or than what makes the picture smallest.
pub fn columns(sizes: &[Size]) -> Vec<Rect> {
    let area: f64 = sizes.iter().map(|s| (s.w + GAP) * (s.h + GAP_DOWN)).sum();
    let least = sizes.iter().map(|s| s.h).fold(0.0, f64::max);
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|&a, &b| sizes[b].h.total_cmp(&sizes[a].h));
    let (flat, high) = ((area / SHAPES.1).sqrt(), (area / SHAPES.0).sqrt());
    let heights = (0..=8).map(|i| least.max(flat + (high - flat) * f64::from(i) / 8.0));
    let all = heights.map(|height| filled(sizes, &order, height));
    let best = all.min_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|b| b.1).unwrap_or_default()
}

/// The area of the picture and the rectangles if columns may be this high.
fn filled(sizes: &[Size], order: &[usize], highest: f64) -> (f64, Vec<Rect>) {
    let mut rects = vec![Rect::default(); sizes.len()];
    let mut shelves: Vec<Shelf> = Vec::new();
    let mut right = 0.0;
    for &i in order {
        let Size { w, h } = sizes[i];
        let found = shelves
            .iter_mut()
            .find_map(|shelf| shelf.take(w, h, highest));
        let (x, y) = found.unwrap_or_else(|| {
            let x = right;
            right += w + GAP;
            shelves.push(Shelf {
                x,
                w,
                bottom: h,
                used: w,
                line: 0.0,
                height: h,
            });
            (x, 0.0)
        });
        rects[i] = Rect { x, y, w, h };
    }
    let bottom = rects.iter().map(Rect::bottom).fold(0.0, f64::max);
    (right * bottom, rects)
}

/// A column of a fixed width, filled in lines from the top.
struct Shelf {
    x: f64,
    w: f64,
    bottom: f64,
    /// The last line: how much of its width is used, where it starts, how high it is.
    used: f64,
    line: f64,
    height: f64,
}

impl Shelf {
    /// A rectangle for a part that is no higher than the ones before, if there is room.
    fn take(&mut self, w: f64, h: f64, highest: f64) -> Option<(f64, f64)> {
        if h <= self.height && self.used + GAP + w <= self.w {
            let x = self.x + self.used + GAP;
            self.used += GAP + w;
            return Some((x, self.line));
        }
        let y = self.bottom + GAP_DOWN;
        if w > self.w || y + h > highest {
            return None;
        }
        (self.line, self.height, self.used, self.bottom) = (y, h, w, y + h);
        Some((self.x, y))
    }
}

/// How far the drawing must move right or down so that a title of this size fits at the top
/// left, free of every obstacle; the move that makes the picture smallest.
pub fn beside_title(title: Size, drawing: Size, obstacles: &[Rect]) -> (f64, f64) {
    if title.w == 0.0 {
        return (0.0, 0.0);
    }
    let (w, h) = (title.w + GAP, title.h + GAP);
    let mut best = (0.0, h);
    let mut least = f64::INFINITY;
    for step in 0..=20 {
        let dx = w * f64::from(step) / 20.0;
        // Everything that stands left of the title's right edge must start below it.
        let top = obstacles
            .iter()
            .filter(|r| r.x + dx < w)
            .map(|r| r.y)
            .fold(h, f64::min);
        let dy = h - top;
        let area = (drawing.w + dx).max(title.w) * (drawing.h + dy).max(title.h);
        if area < least {
            (best, least) = ((dx, dy), area);
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
            assert!(
                rects[..i]
                    .iter()
                    .all(|b| !overlaps(&grown(a, GAP_DOWN / 2.0), &grown(b, GAP_DOWN / 2.01)))
            );
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
            beside_title(title, Size { w: 250.0, h: 300.0 }, &free),
            (0.0, 0.0)
        );
        let full = [Rect {
            x: 0.0,
            y: 0.0,
            w: 900.0,
            h: 20.0,
        }];
        let (dx, dy) = beside_title(title, Size { w: 900.0, h: 20.0 }, &full);
        assert!(dx >= 100.0 || dy >= 50.0);
    }
}
