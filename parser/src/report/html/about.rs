//! What the dump says of the allocator and of itself.

use std::fmt::Write;

use heap_format::Profile;

use crate::report::context::Context;
use crate::report::flame::data::{list, quote};
use crate::report::interval::history;
use heap_format::printable::printable;

/// The allocator's figures in bytes, by name, and what the samples say is in
/// use; null without figures.
pub fn allocator(context: &Context) -> String {
    let profile = context.view.profile();
    let figures = &profile.facts.allocator;
    if figures.is_empty() {
        return "null".to_owned();
    }
    let mut out = String::from("{\"sampled\":");
    let sampled = profile.type_index("inuse_space").map(|c| profile.total(c));
    let _ = write!(
        out,
        "{}",
        sampled.map_or("null".to_owned(), |s| s.to_string())
    );
    out.push_str(",\"figures\":");
    list(
        &mut out,
        figures
            .iter()
            .map(|(k, v)| format!("[{},{v}]", quote(&printable(k)))),
    );
    out + "}"
}

/// What is known of the dump, as pairs of texts.
pub fn facts(context: &Context) -> String {
    let profile = context.view.profile();
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            pairs.push((key.to_owned(), printable(&value).into_owned()));
        }
    };
    let facts = &profile.facts;
    add("Program", context.program.map(heap_format::printable::path));
    for file in &context.options.files {
        add("Dump", Some(heap_format::printable::path(file)));
    }
    add("Format", Some(profile.format.to_string()));
    add("Process", facts.process.clone());
    add("Process id", facts.pid.map(|pid| pid.to_string()));
    add(
        "Executable",
        facts.exe.as_ref().map(|p| heap_format::printable::path(p)),
    );
    add("Build id", Some(facts.exe_build_id.to_string()));
    add("Command line", Some(facts.command_line.join(" ")));
    add("Interval", interval(profile));
    add("Intervals", history(facts));
    add(
        "Session",
        facts
            .duration_ns
            .map(|ns| format!("{:.1} s", ns as f64 / 1e9)),
    );
    add("Dump number", facts.sequence.map(|n| n.to_string()));
    add("Trigger", facts.trigger.clone());
    add("Ended", facts.ended.clone());
    for filter in context.options.filters.active() {
        add("Filter", Some(filter));
    }
    for comment in &profile.comments {
        add("Comment", Some(comment.clone()));
    }
    for (name, value) in &facts.counters {
        add(&format!("Counter: {name}"), Some(value.to_string()));
    }
    let mut out = String::new();
    let pair = |(key, value): &(String, String)| {
        format!("\n[{},{}]", quote(&printable(key)), quote(value))
    };
    list(&mut out, pairs.iter().map(pair));
    out
}

fn interval(profile: &Profile) -> Option<String> {
    let unit = profile
        .period_type
        .as_ref()
        .map_or("bytes", |t| t.unit.as_str());
    let each = || format!("a sample each {} {unit} on average", profile.period_text());
    (profile.period > 0).then(each)
}
