//! Leak suspects: stacks whose objects stay, by what the dump knows of ages.

use std::collections::HashMap;
use std::fmt::Write;

use heap_format::Detail;

use crate::report::flame::data::{list, quote};
use crate::report::{Context, printable};

/// Stacks of the dump that are looked at, those with most live bytes.
const MOST_STACKS: usize = 20_000;
/// Rows of the table.
const MOST: usize = 200;
/// Frames of a stack that are listed, from the allocating one on.
const MOST_FRAMES: usize = 40;

/// For a share of 95 % of a normal distribution.
const QUANTILE: f64 = 1.96;

/// `duration` of the session in seconds or null, and `rows`, worst first;
/// without the exact values of this project's dumps `rows` is null.
///
/// The score is the live bytes, less the more of what a stack allocates is
/// freed, and less the younger the live objects are beside what the freed ones
/// lived to: what is old and never freed counts whole.
pub fn object(context: &Context) -> String {
    let profile = context.view.profile();
    let duration = (profile.facts.duration_ns).map(|ns| format!("{:.3}", ns as f64 / 1e9));
    let mut out = format!(
        "{{\"duration\":{},\"rows\":",
        duration.as_deref().unwrap_or("null")
    );
    if profile.details.len() != profile.stacks.len() || profile.details.is_empty() {
        return out + "null}";
    }
    let mut rows: Vec<(f64, Vec<u32>, Detail)> = stacks(context)
        .into_iter()
        .map(|(entries, detail)| (score(&detail), entries, detail))
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    rows.truncate(MOST);
    let rows = rows
        .iter()
        .map(|(score, entries, detail)| row(context, *score, entries, detail));
    list(&mut out, rows);
    out + "}"
}

/// The largest stacks, equal ones added up.
fn stacks(context: &Context) -> HashMap<Vec<u32>, Detail> {
    let details = &context.view.profile().details;
    let mut largest: Vec<(usize, &[u32])> = (context.view.stacks())
        .filter(|&(i, _, _)| details[i].live_bytes() > 0.0)
        .map(|(i, _, frames)| (i, frames))
        .collect();
    largest.sort_by(|a, b| {
        let live = |i: usize| details[i].live_bytes();
        live(b.0).total_cmp(&live(a.0)).then(a.0.cmp(&b.0))
    });
    largest.truncate(MOST_STACKS);
    let mut stacks: HashMap<Vec<u32>, Detail> = HashMap::new();
    for (stack, frames) in largest {
        let shown = frames.iter().filter(|&&f| !context.view.is_hidden(f));
        let entries = shown.flat_map(|&f| context.nodes.of_location(f).iter().copied());
        stacks
            .entry(entries.collect())
            .or_default()
            .add(&details[stack]);
    }
    stacks
}

fn score(detail: &Detail) -> f64 {
    let kept = ratio(detail.live_bytes(), detail.alloc_bytes);
    let (age, lifetime) = ages(detail);
    let older = match lifetime {
        Some(lifetime) => ratio(age, age + lifetime),
        None => 1.0,
    };
    let score = detail.live_bytes() * kept.min(1.0) * older;
    if score.is_finite() { score } else { 0.0 }
}

/// Mean age of live objects and, if any were freed, mean lifetime of those; in
/// milliseconds.
fn ages(detail: &Detail) -> (f64, Option<f64>) {
    let age = ratio(detail.live_age_ms_sum, detail.live_objects());
    let freed = (detail.freed_objects > 0.0)
        .then(|| ratio(detail.freed_lifetime_ms_sum, detail.freed_objects));
    (age, freed)
}

fn ratio(part: f64, whole: f64) -> f64 {
    let ratio = part / whole;
    if ratio.is_finite() {
        ratio.max(0.0)
    } else {
        0.0
    }
}

fn row(context: &Context, score: f64, entries: &[u32], detail: &Detail) -> String {
    let (age, lifetime) = ages(detail);
    let lifetime = lifetime.map_or("null".to_owned(), |ms| format!("{ms:.0}"));
    let error = QUANTILE * detail.live_variance.max(0.0).sqrt();
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "\n{{\"score\":{},\"bytes\":{},\"error\":{},\"objects\":{},\"samples\":{},\
         \"kept\":{},\"age\":{age:.0},\"lifetime\":{lifetime},\"stack\":",
        whole(score),
        whole(detail.live_bytes()),
        whole(error),
        whole(detail.live_objects()),
        detail.live_samples(),
        (ratio(detail.live_bytes(), detail.alloc_bytes).min(1.0) * 1e4).round() / 1e4,
    );
    let names = entries.iter().take(MOST_FRAMES);
    list(
        &mut out,
        names.map(|&e| quote(&printable(context.nodes.name(e)))),
    );
    let _ = write!(
        out,
        ",\"more\":{}}}",
        entries.len().saturating_sub(MOST_FRAMES)
    );
    out
}

/// A number of JSON, which knows neither infinity nor NaN.
fn whole(value: f64) -> f64 {
    if value.is_finite() {
        value.round()
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(freed: f64, age: f64, lifetime: f64) -> Detail {
        Detail {
            alloc_samples: 10,
            free_samples: if freed > 0.0 { 5 } else { 0 },
            alloc_objects: 100.0,
            alloc_bytes: 1000.0,
            freed_objects: freed,
            freed_bytes: freed * 10.0,
            live_age_ms_sum: age * (100.0 - freed),
            freed_lifetime_ms_sum: lifetime * freed,
            ..Detail::default()
        }
    }

    #[test]
    fn what_is_old_and_never_freed_counts_whole() {
        assert_eq!(score(&detail(0.0, 50.0, 0.0)), 1000.0);
        let cache = score(&detail(50.0, 50.0, 50.0));
        let leak = score(&detail(50.0, 5000.0, 50.0));
        assert!(cache < leak && leak < 500.0, "{cache} {leak}");
        assert_eq!(score(&Detail::default()), 0.0);
    }
}
