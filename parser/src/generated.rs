//! Advice for profiles in which much generated code has no names: how to make the program that
//! generated it write a perf map.

use profile::{maps, marker_at, printable};

use crate::nodes::{Origin, origin_of};
use crate::program;
use crate::view::{View, ViewStack};

/// Reciprocal of the smallest share of the values for which there is a hint.
const MIN_SHARE_RECIPROCAL: i64 = 20;

/// Advice on making programs write perf maps, by the beginning of their names.
const OPTIONS: [(&str, &str); 6] = [
    ("node", "start it with --perf-basic-prof"),
    (
        "java",
        "start it with -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit",
    ),
    ("python", "start it with -X perf"),
    ("dotnet", "set DOTNET_PerfMapEnabled=1 for it"),
    ("ruby", "start it with --yjit-perf"),
    ("php", "start it with -d opcache.jit_debug=16"),
];

/// Returns a hint if much of a view lies in generated code without names, or in functions called
/// from such code.
pub fn unnamed_code_hint(view: &View) -> Option<String> {
    let profile = view.profile();
    let is_unnamed = |&frame: &u32| {
        let location = &profile.locations[frame as usize];
        location.line_count == 0
            && location.address != 0
            && marker_at(location.address).is_none()
            && !view.is_hidden(frame)
            && origin_of(profile, location) == Origin::Jit
    };
    let unnamed: Vec<bool> = (0..profile.locations.len() as u32)
        .map(|frame| is_unnamed(&frame))
        .collect();
    let mut sum: i64 = 0;
    let mut unnamed_sum: i64 = 0;
    for ViewStack { value, frames, .. } in view.stacks() {
        let value = value.saturating_abs();
        sum = sum.saturating_add(value);
        if frames.iter().any(|&frame| unnamed[frame as usize]) {
            unnamed_sum = unnamed_sum.saturating_add(value);
        }
    }
    let total = view.total().max(sum).max(1);
    if unnamed_sum == 0 || unnamed_sum < total / MIN_SHARE_RECIPROCAL {
        return None;
    }
    let main = program::main_mapping(profile).map(|main| maps::strip_deleted(&main.path).0);
    let name = main.and_then(|path| path.file_name()).unwrap_or_default();
    let name = printable::path(name.as_ref());
    let option = OPTIONS.iter().find(|(start, _)| name.starts_with(start));
    let advice = option.map_or(
        "--perf-map FILE names its functions, if it writes a perf map",
        |(_, advice)| advice,
    );
    let program = if name.is_empty() {
        "the program"
    } else {
        &name
    };
    Some(format!(
        "{}% of the values are of stacks with code that {program} generated, which has no names; \
         {advice}",
        unnamed_sum.saturating_mul(100) / total
    ))
}
