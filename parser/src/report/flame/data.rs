//! What the script needs, as JSON.
//!
//! Safe inside `<script>` of HTML and XML alike: no `<`, `>` or `&` is left as
//! it is, and control characters are escaped, so nothing in a name can end the
//! element or become markup.

use std::collections::HashMap;
use std::fmt::{Display, Write};

use super::tree::{ROOT, SMALL, Tree, Weight};
use super::{Rule, style};
use crate::measure;
use crate::report::context::Context;
use crate::view::View;
use heap_format::printable::printable;

/// Number of a name that stands for the root.
const ALL: i64 = -1;
/// Number of a name that stands for merged small frames.
const FEW: i64 = -2;

const MEMORY: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
const TIME: [&str; 5] = ["ns", "us", "ms", "s", "hrs"];

/// A column as the script shows it.
pub struct Column {
    /// Index in the profile.
    pub index: usize,
    /// What 100 % is.
    pub total: Totals,
}

/// What 100 % is, for each rule of how wide a frame is.
#[derive(Clone, Copy, Debug)]
pub struct Totals {
    /// As wide as the change.
    pub change: i128,
    /// As wide as the larger one of before and after.
    pub larger: i128,
    /// What is there now.
    pub now: i128,
    /// What there was in the base.
    pub base: i128,
}

impl Totals {
    /// The same under every rule.
    pub fn same(total: i64) -> Self {
        let total = i128::from(total);
        Self {
            change: total,
            larger: total,
            now: total,
            base: total,
        }
    }

    /// The totals of a column, of a profile that keeps its base apart if it
    /// is a comparison.
    pub fn of(view: &View, column: usize, compared: bool) -> Self {
        if !compared {
            return Self::same(view.of_column(column, true).total());
        }
        let base = i128::from(view.of_column(column, true).total());
        let mut changes: HashMap<&[u32], i128> = HashMap::new();
        let profile = view.profile();
        for (stack, frames) in profile.stacks.iter().enumerate() {
            *changes.entry(frames).or_default() += i128::from(profile.values_of(stack)[column]);
        }
        Self {
            change: changes.values().map(|change| change.abs()).sum(),
            larger: base,
            now: view.of_column(column, false).total().into(),
            base,
        }
    }
}

/// The tree with its names and columns, as a JSON object.
pub fn object(context: &Context, tree: &Tree, columns: &[Column], rule: Rule) -> String {
    let mut names: Vec<u32> = Vec::new();
    let mut places = vec![u32::MAX; context.nodes.count()];
    let numbers: Vec<i64> = (tree.frames.iter())
        .map(|frame| match frame.node {
            ROOT => ALL,
            SMALL => FEW,
            node => {
                let place = &mut places[node as usize];
                if *place == u32::MAX {
                    *place = names.len() as u32;
                    names.push(node);
                }
                i64::from(*place)
            }
        })
        .collect();
    let name = |&node: &u32| printable(context.nodes.name(node)).into_owned();
    let mut out = String::from("{\"names\":");
    list(&mut out, names.iter().map(|n| quote(&name(n))));
    out.push_str(",\n\"tints\":");
    list(
        &mut out,
        names.iter().map(|n| quote(&style::tint(&name(n)))),
    );
    out.push_str(",\n\"parent\":");
    list(&mut out, tree.frames.iter().map(|f| f.parent));
    out.push_str(",\n\"name\":");
    list(&mut out, numbers);
    out.push_str(",\n\"columns\":");
    let column = |(at, column)| self::column(context, tree, at, column);
    list(&mut out, columns.iter().enumerate().map(column));
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        ",\n\"rule\":{},\"pruned\":{},\"limit\":{}}}",
        quote(rule.name()),
        tree.pruned,
        super::LIMIT
    );
    out
}

fn column(context: &Context, tree: &Tree, at: usize, column: &Column) -> String {
    let kind = &context.view.profile().sample_types[column.index];
    let own =
        |pick: fn(&Weight) -> i128| (0..tree.frames.len()).map(move |f| pick(&tree.own(f, at)));
    let mut out = format!(
        "\n{{\"kind\":{},\"scales\":{},\"totals\":{{\"change\":{},\"larger\":{},\
         \"now\":{},\"base\":{}}},\"plus\":",
        quote(&kind.kind),
        scales(&kind.unit, &context.options.unit, context.options.divide_by),
        column.total.change,
        column.total.larger,
        column.total.now,
        column.total.base
    );
    list(&mut out, own(|w| w.plus));
    if own(|w| w.minus).any(|minus| minus != 0) {
        out.push_str(",\"minus\":");
        list(&mut out, own(|w| w.minus));
    }
    let variances = || (0..tree.frames.len()).map(|f| tree.own(f, at).variance);
    if variances().any(|v| v > 0.0) {
        out.push_str(",\"variance\":");
        list(&mut out, variances().map(brief));
    }
    out.push('}');
    out
}

/// A variance as short as is useful: to a thousandth of itself.
pub fn brief(variance: f64) -> String {
    if variance > 0.0 && variance.is_finite() {
        format!("{variance:.3e}")
    } else {
        "0".to_owned()
    }
}

/// The units that values may be shown in, smallest first: name and factor.
pub fn scales(from: &str, to: &str, divide_by: f64) -> String {
    let best = measure::scale(1, from, "minimum").1;
    let family: &[&str] = [&MEMORY[..], &TIME[..]]
        .into_iter()
        .find(|units| units.contains(&best.as_str()))
        .unwrap_or(&[]);
    let fixed = measure::scale(1, from, to).1;
    let units: Vec<&str> = match to {
        _ if family.is_empty() => vec![&fixed],
        "minimum" | "auto" => family.to_vec(),
        _ => vec![&fixed],
    };
    let one = |unit: &&str| {
        let factor = if family.is_empty() {
            1.0
        } else {
            // Small units have no whole number of large ones, so ask the other way.
            measure::scale(1, unit, &best).0 / measure::scale(1, from, &best).0
        };
        format!("[{},{}]", quote(unit), factor * divide_by)
    };
    let mut out = String::new();
    list(&mut out, units.iter().map(one));
    out
}

/// Appends `[a,b,…]`.
pub fn list(out: &mut String, items: impl IntoIterator<Item = impl Display>) {
    out.push('[');
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        let _ = write!(out, "{item}");
    }
    out.push(']');
}

/// A text as a JSON string.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // What could be markup, what ends a line of a script, and marks that turn the
            // direction of text around, which could make a name read as another.
            '<' | '>' | '&' | '\'' | '\u{2028}' | '\u{2029}' => escape(&mut out, c),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escape(&mut out, '\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => escape(&mut out, '\u{fffd}'),
            c if c.is_control() => escape(&mut out, c),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn escape(out: &mut String, c: char) {
    let _ = write!(out, "\\u{:04x}", c as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_can_neither_end_an_element_nor_become_markup() {
        assert_eq!(quote("a\"b\\c"), r#""a\"b\\c""#);
        assert_eq!(
            quote("</script><!--&'\n\u{1}\u{2028}"),
            r#""\u003c/script\u003e\u003c!--\u0026\u0027\u000a\u0001\u2028""#
        );
        assert_eq!(quote("a\u{202e}b"), r#""a\ufffdb""#);
        assert_eq!(quote("grün 名"), "\"grün 名\"");
    }

    #[test]
    fn units_are_those_of_the_column() {
        let bytes = scales("bytes", "minimum", 1.0);
        assert!(
            bytes.starts_with(r#"[["B",1],["kB",1024],["MB",1048576],"#),
            "{bytes}"
        );
        assert_eq!(scales("bytes", "MB", 1.0), r#"[["MB",1048576]]"#);
        assert_eq!(scales("bytes", "kB", 2.0), r#"[["kB",2048]]"#);
        assert_eq!(scales("count", "minimum", 1.0), r#"[["",1]]"#);
        assert!(scales("nanoseconds", "minimum", 1.0).starts_with(r#"[["ns",1],["us",1000],"#));
    }
}
