//! Colours, line widths and the style sheet.
//!
//! Light colours are attributes, so that viewers without style sheets show them. The style sheet
//! replaces them for dark colour schemes, on screens only.

use crate::graph::Edge;
use crate::help;
use std::fmt::Write;

/// Number of steps in a colour scale.
const STEPS: usize = 12;

type Rgb = [f64; 3];

/// A colour scale from the lightest to the heaviest weight.
#[derive(Clone, Copy)]
struct Scale {
    from: Rgb,
    to: Rgb,
}

/// Start of the scales of boxes, for light colour schemes.
const BOX: Rgb = [244.0, 242.0, 238.0];
/// Start of the scales of arrows, for light colour schemes.
const EDGE: Rgb = [168.0, 164.0, 158.0];
/// Start of the scales of boxes, for dark colour schemes.
const DARK_BOX: Rgb = [42.0, 45.0, 51.0];
/// Start of the scales of arrows, for dark colour schemes.
const DARK_EDGE: Rgb = [104.0, 108.0, 116.0];

/// Scales of boxes and arrows: `UP` for positive values (in comparisons, more than in the base),
/// `DOWN` for negative ones.
const BOX_UP: Scale = Scale::new(BOX, [241.0, 135.0, 100.0]);
const BOX_DOWN: Scale = Scale::new(BOX, [116.0, 190.0, 120.0]);
const EDGE_UP: Scale = Scale::new(EDGE, [190.0, 56.0, 28.0]);
const EDGE_DOWN: Scale = Scale::new(EDGE, [38.0, 128.0, 52.0]);
const DARK_BOX_UP: Scale = Scale::new(DARK_BOX, [150.0, 52.0, 30.0]);
const DARK_BOX_DOWN: Scale = Scale::new(DARK_BOX, [34.0, 104.0, 48.0]);
const DARK_EDGE_UP: Scale = Scale::new(DARK_EDGE, [238.0, 112.0, 76.0]);
const DARK_EDGE_DOWN: Scale = Scale::new(DARK_EDGE, [96.0, 196.0, 112.0]);

impl Scale {
    const fn new(from: Rgb, to: Rgb) -> Self {
        Self { from, to }
    }

    fn color_at(&self, step: usize) -> String {
        let t = step as f64 / (STEPS - 1) as f64;
        let mix = |i: usize| (self.from[i] + (self.to[i] - self.from[i]) * t).round() as u8;
        format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
    }

    /// Returns a darker variant for borders; lighter with a factor above 1.
    fn shaded(&self, step: usize, factor: f64) -> String {
        let shade = |c: Rgb| c.map(|v| (v * factor).min(255.0));
        Scale {
            from: shade(self.from),
            to: shade(self.to),
        }
        .color_at(step)
    }
}

/// Colours of a box or an arrow.
pub struct Paint {
    /// Class in the style sheet.
    pub class: String,
    /// Fill of a box, or stroke of an arrow, for light colour schemes.
    pub main: String,
    /// Border of a box, for light colour schemes.
    pub border: String,
}

/// Returns the absolute share of the total, 0 to 1; 0 if it is not a number.
pub fn share(value: f64, total: f64) -> f64 {
    let share = (value / total).abs();
    if share.is_finite() {
        share.min(1.0)
    } else {
        0.0
    }
}

/// Returns the line width of an edge, in pixels.
pub fn thickness(edge: &Edge, total: f64) -> f64 {
    ((1.0 + 4.0 * share(edge.weight, total)) * 10.0).round() / 10.0
}

/// Returns the step of a scale for a weight of 0 to 1. Uses the square root, which emphasises
/// differences between small weights.
fn step(weight: f64) -> usize {
    let weight = if weight.is_finite() {
        weight.abs().min(1.0)
    } else {
        0.0
    };
    (weight.sqrt() * (STEPS - 1) as f64).round() as usize
}

/// Returns true if the value has decreased compared with the base.
fn is_less(weight: f64) -> bool {
    weight < 0.0
}

/// Returns the colours of a box.
pub fn box_paint(weight: f64) -> Paint {
    let index = step(weight);
    let (scale, sign) = if is_less(weight) {
        (&BOX_DOWN, 'm')
    } else {
        (&BOX_UP, 'p')
    };
    Paint {
        class: format!("b{sign}{index}"),
        main: scale.color_at(index),
        border: scale.shaded(index, 0.62),
    }
}

/// Returns the colours of an arrow.
pub fn edge_paint(weight: f64, total: f64) -> Paint {
    let index = step(share(weight, total));
    let (scale, sign) = if is_less(weight) {
        (&EDGE_DOWN, 'm')
    } else {
        (&EDGE_UP, 'p')
    };
    Paint {
        class: format!("e{sign}{index}"),
        main: scale.color_at(index),
        border: scale.color_at(index),
    }
}

/// Returns the style sheet: states that the script sets, and the dark colours.
pub fn sheet() -> String {
    let mut dark = String::new();
    for step in 0..STEPS {
        for (sign, fill, line) in [
            ('p', DARK_BOX_UP, DARK_EDGE_UP),
            ('m', DARK_BOX_DOWN, DARK_EDGE_DOWN),
        ] {
            let (fill, border) = (fill.color_at(step), fill.shaded(step, 1.7));
            let line = line.color_at(step);
            let _ = writeln!(dark, ".b{sign}{step} rect{{fill:{fill};stroke:{border}}}");
            let _ = writeln!(
                dark,
                ".e{sign}{step} .line{{stroke:{line}}}.e{sign}{step} .head{{fill:{line}}}"
            );
        }
    }
    format!(
        "{STATES}{}@media screen and (prefers-color-scheme:dark){{\n{dark}{DARK}{}}}\n",
        help::STYLE,
        help::DARK_STYLE
    )
}

const STATES: &str = "\
.node,.edge{transition:opacity .12s}
.edge .wide{fill:none;stroke:none;stroke-width:10;pointer-events:stroke}
.live{cursor:grab;touch-action:none;user-select:none;display:block}
.live .node{cursor:pointer}
.live.grab,.live.grab .node{cursor:grabbing}
.focus .node:not(.on),.focus .edge:not(.on){opacity:.22}
.focus .edge.in .line{stroke:#2f6fd6}.focus .edge.in .head{fill:#2f6fd6}
.focus .edge.out .line{stroke:#d2491f}.focus .edge.out .head{fill:#d2491f}
.focus .node.self rect{stroke-width:3}
.seek .node:not(.hit){opacity:.3}
.seek .edge:not(.on){opacity:.3}
.seek .node.hit rect{stroke:#1a5fd0;stroke-width:3}
.focus.seek .node.hit:not(.on){opacity:.6}
.hud{overflow:visible}
.bar{display:flex;flex-wrap:wrap;gap:4px;justify-content:flex-end;align-items:center;font:13px sans-serif}
.bar *{font:inherit;color:#1c1b19}
.bar input{width:150px;padding:4px 7px;border:1px solid #b9b4ab;border-radius:4px;background:#fff}
.bar input[data-bad]{border-color:#c22;outline-color:#c22}
.bar button{min-width:28px;padding:4px 7px;border:1px solid #b9b4ab;border-radius:4px;\
background:#f6f4f0;cursor:pointer}
.bar .count{padding:3px 6px;border-radius:4px;background:#fff}
.bar .count:empty{display:none}
";

const DARK: &str = "\
.paper{fill:#16181c}
text{fill:#e9e7e3}
text.number{fill:#cfccc6}
text.label{fill:#c3c6cc}
.legend rect{fill:#1f2228;stroke:#3a3f48}
.focus .edge.in .line{stroke:#6ea8ff}.focus .edge.in .head{fill:#6ea8ff}
.focus .edge.out .line{stroke:#ff8a5c}.focus .edge.out .head{fill:#ff8a5c}
.seek .node.hit rect{stroke:#6ea8ff}
.bar *{color:#e9e7e3}
.bar input,.bar button,.bar .count{background:#24272e;border-color:#474c56}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_weight_is_redder_and_less_is_green() {
        assert_eq!(box_paint(0.0).main, "#f4f2ee");
        assert_eq!(box_paint(1.0).main, "#f18764");
        assert_eq!(box_paint(-1.0).main, "#74be78");
        assert_eq!(box_paint(7.0).class, box_paint(1.0).class);
        assert_eq!(box_paint(f64::NAN).class, "bp0");
    }

    #[test]
    fn share_of_zero_or_nan_is_zero() {
        assert_eq!(share(5.0, 0.0), 0.0);
        assert_eq!(share(f64::NAN, 1.0), 0.0);
        assert_eq!(share(-5.0, 10.0), 0.5);
    }
}
