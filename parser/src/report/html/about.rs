//! Tab with facts about the dump.

use profile::printable::printable;
use profile::{Format, Profile, crowding};

use super::tab::{Data, PageContext, ProfileKind, Tab};
use crate::json;
use crate::report::interval::history;
use crate::report::sampling;
use crate::untracked;

/// The tab of facts.
pub const TAB: Tab = Tab {
    script: include_str!("about.js"),
    profiles: ProfileKind::All,
    data: Some(Data {
        key: "about",
        json: facts,
    }),
};

/// Returns the facts as pairs of strings.
fn facts(page: &PageContext) -> String {
    let context = page.context;
    let profile = context.view.profile();
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            pairs.push((printable(key).into_owned(), printable(&value).into_owned()));
        }
    };
    let facts = &profile.facts;
    add("Program", context.program.map(profile::printable::path));
    for file in &context.options.files {
        add("Dump", Some(profile::printable::path(file)));
    }
    add("Format", Some(profile.format.to_string()));
    add("Process", facts.process.clone());
    add("Process id", facts.pid.map(|pid| pid.to_string()));
    add(
        "Executable",
        facts.exe.as_ref().map(|p| profile::printable::path(p)),
    );
    add("Build id", Some(facts.exe_build_id.to_string()));
    add("Command line", Some(facts.command_line.join(" ")));
    for (name, text) in sampling::facts(profile) {
        add(name, Some(text));
    }
    add("Interval", interval(profile));
    add("Not followed", untracked::remark(profile));
    add("Without room", crowding::remark(profile));
    add("Overwritten", profile::overwritten::remark(profile));
    add("Intervals", history(facts));
    add(
        "Session",
        facts
            .duration_ns
            .map(|ns| format!("{:.1} s", ns as f64 / 1e9)),
    );
    add("Python", facts.python.clone());
    add(
        "Small objects of Python",
        facts.python_hides.map(|hides| {
            if hides {
                "missing: they come from Python's own allocator (without PYTHONMALLOC=malloc)"
                    .to_owned()
            } else {
                "each is seen".to_owned()
            }
        }),
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
    json::embedded(&pairs)
}

fn interval(profile: &Profile) -> Option<String> {
    let unit = profile
        .period_type
        .as_ref()
        .map_or("bytes", |t| t.unit.as_str());
    let each = || {
        let thinned = match profile.facts.thinning {
            Some(factor) => format!(", of well-known call sites one in up to {factor}"),
            None => String::new(),
        };
        if profile.period == 1 && unit == "bytes" {
            return format!("every allocation{thinned}");
        }
        format!(
            "a sample each {} {unit} on average{thinned}",
            profile.period_text()
        )
    };
    (profile.period > 0 && profile.format != Format::Cpu).then(each)
}
