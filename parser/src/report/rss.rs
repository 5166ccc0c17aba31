//! Breaks down resident memory, as recorded in the dump: parts of the heap by the allocator's
//! statistics, memory outside the heap by the kernel's, and the address space by the maps.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use anyhow::{Result, bail};
use profile::Facts;
use profile::elapsed;
use profile::maps::Entry;
use profile::resident::{ByOwner, Heap, Part};

use super::context::Context;
use super::format::{Dumps, Format, Needs, Symbols};
use crate::date::format_time;
use crate::measure::{Style, percentage};
use profile::printable::printable;
use profile::variance::SamplingError;

/// `--rss`.
pub const FORMAT: Format = Format {
    style: Style::Own,
    needs: Needs {
        variance: true,
        symbols: Symbols::Unused,
        dumps: Dumps::Single,
        heap_only: true,
        ..Needs::TABLE
    },
    ..Format::report(
        "rss",
        "Where the resident memory is: heap, holes, dirty pages, and what is outside",
        render,
    )
};

/// Renders the table.
fn render(context: &Context) -> Result<String> {
    let facts = &context.view.profile().facts;
    if facts.allocator.is_empty() && facts.memory.is_empty() && facts.maps_text.is_empty() {
        bail!(
            "the dump has no figures of resident memory: --rss needs a dump of mem_profiler, taken while the process lived"
        );
    }
    let mut out = String::new();
    let mut lines: Vec<String> = context.identity();
    lines.pop(); // Drops the type of the values, since these are not samples.
    lines.extend(
        facts
            .end_unix_ns
            .map(|at| format!("Time: {}", format_time(at))),
    );
    lines.push(headline(context));
    for line in lines {
        out += &line;
        out.push('\n');
    }
    let parts = parts(facts);
    let total: u64 = parts.iter().map(|p| p.bytes).sum();
    if !parts.is_empty() {
        out += "       size  share\n";
    }
    for part in &parts {
        let share = percentage(clamp(part.bytes), clamp(total));
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "{:>11} {share}  {:<20}  {}",
            bytes(context, part.bytes),
            part.name,
            part.note(|n| bytes(context, n))
        );
        if part.name == "live heap" {
            write_sampled_share(context, &mut out, part.bytes, Live::of(facts));
        }
    }
    write_notes(context, &mut out);
    write_address_space(context, &mut out);
    Ok(out)
}

fn headline(context: &Context) -> String {
    let facts = &context.view.profile().facts;
    let Some(total) = resident(&facts.memory) else {
        let when = stale_by(facts).map_or(String::new(), |time| format!(", {time}"));
        return format!("Resident memory: not in the dump; of the heap alone{when}:");
    };
    let more = |name: &str, text: &str| match facts.memory.get(name) {
        Some(&value) if value > 0 => format!(", {text} {}", bytes(context, value)),
        _ => String::new(),
    };
    format!(
        "Resident memory: {}{}{}",
        bytes(context, total),
        more("peak", "at most"),
        more("swap", "and swapped out")
    )
}

/// Returns the resident memory by the kernel's statistics.
fn resident(memory: &BTreeMap<String, u64>) -> Option<u64> {
    let figure = |name: &str| memory.get(name).copied();
    let parts = [
        figure("rss_anon")?,
        figure("rss_file")?,
        figure("rss_shmem")?,
    ];
    Some(parts.into_iter().fold(0, u64::saturating_add))
}

/// Returns the parts, which add up to the resident memory.
fn parts(facts: &Facts) -> Vec<Part> {
    let allocator = &facts.allocator;
    let memory = &facts.memory;
    let figure = |map: &BTreeMap<String, u64>, name: &str| map.get(name).copied().unwrap_or(0);
    let figures =
        (!allocator.is_empty()).then(|| Heap::from_statistics(|name| figure(allocator, name)));
    if resident(memory).is_none() {
        let parts = figures.map(|figures| figures.within(u64::MAX).0);
        return parts.into_iter().flatten().collect();
    }
    let anonymous = figure(memory, "rss_anon");
    let mut parts = match owners(memory) {
        Some(owners) => {
            let current = figures.filter(|_| stale_by(facts).is_none());
            parts_by_owner(owners, current.as_ref(), anonymous)
        }
        None => parts_by_figures(figures.as_ref(), anonymous),
    };
    parts.push(part(
        "files",
        figure(memory, "rss_file"),
        "code and data of mapped files",
    ));
    parts.push(part(
        "shared memory",
        figure(memory, "rss_shmem"),
        "segments and tmpfs files, this profiler's table among them",
    ));
    parts
}

/// Returns the resident anonymous memory by owner; `None` if the dump does not have it.
fn owners(memory: &BTreeMap<String, u64>) -> Option<ByOwner> {
    ByOwner::from_counters(|name| memory.get(name).copied())
}

fn parts_by_owner(mut owners: ByOwner, figures: Option<&Heap>, anonymous: u64) -> Vec<Part> {
    let variables = owners.limit(anonymous);
    let mut parts = owners.heap_parts(figures);
    let mapped = owners.own_mappings;
    parts.push(part(
        "own mappings",
        mapped,
        "what the program maps by itself, and stacks of threads",
    ));
    parts.push(part("agent", owners.agent, "this profiler's tables"));
    parts.push(part(
        "variables",
        variables,
        "of program and libraries, and private copies of pages of files",
    ));
    parts
}

/// Like [`parts_by_owner`], for dumps that do not distinguish the memory of the heap by address.
fn parts_by_figures(figures: Option<&Heap>, anonymous: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = anonymous;
    if let Some(figures) = figures {
        let (heap, other) = figures.within(anonymous);
        parts.extend(heap);
        rest = other;
    }
    let remark = if figures.is_some() {
        "stacks, variables, what the program maps by itself, and what the heap has grown by since"
    } else {
        "heap, stacks, and what the program maps: the dump has no figures of the allocator"
    };
    parts.push(part("other anonymous", rest, remark));
    parts
}

fn part(name: &'static str, bytes: u64, remark: &'static str) -> Part {
    Part {
        name,
        bytes,
        counted: None,
        remark,
    }
}

/// Meaning of the live heap in the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Live {
    /// Resident parts of objects.
    Touched,
    /// Objects by the allocator's figures, of the samples' moment.
    Counted,
    /// Objects by figures of another moment.
    OtherMoment,
}

impl Live {
    fn of(facts: &Facts) -> Self {
        match owners(&facts.memory) {
            Some(_) => Self::Touched,
            None if stale_by(facts).is_some() => Self::OtherMoment,
            None => Self::Counted,
        }
    }
}

/// Writes the share of the live heap that samples account for.
fn write_sampled_share(context: &Context, out: &mut String, live: u64, kind: Live) {
    let profile = context.view.profile();
    let Some(column) = profile.type_index("inuse_space") else {
        return;
    };
    let value = profile.total(column);
    let mut sampling_error = SamplingError::default();
    (0..profile.stacks.len()).for_each(|stack| sampling_error += profile.error(stack, column));
    let error = context.plus_minus(sampling_error, &context.options.unit);
    let value = u64::try_from(value).unwrap_or(0);
    let shown = bytes(context, value) + &error;
    let mut line = |value: &str, text: &str| {
        let _ = writeln!(out, "{:>20}{value:<21} {text}", "");
    };
    let rest = live
        .checked_sub(value)
        .filter(|_| kind != Live::OtherMoment);
    let Some(rest) = rest else {
        let exceeds = value as f64 - sampling_error.half_width() > live as f64;
        let text = match kind {
            Live::OtherMoment => "by the samples, which are of another moment: -t shows by whom",
            Live::Touched if exceeds => {
                "by the samples, with pages that are not resident: -t shows by whom"
            }
            _ => "by the samples, all of it since the session began: -t shows by whom",
        };
        line(&shown, text);
        return;
    };
    line(
        &shown,
        "of it allocated since the session began: -t shows by whom",
    );
    let what = if kind == Live::Touched {
        "or more of it older, rounded up, samples' headers, or free in a cache"
    } else {
        "of it older, rounded up, samples' headers, or free in a cache"
    };
    line(&bytes(context, rest), what);
}

fn write_notes(context: &Context, out: &mut String) {
    let facts = &context.view.profile().facts;
    if let Some(&retained) = facts.allocator.get("retained") {
        let _ = writeln!(
            out,
            "The allocator keeps another {} of address space, which is not resident.",
            bytes(context, retained)
        );
    }
    let has_figures = !facts.allocator.is_empty() && resident(&facts.memory).is_some();
    if has_figures && let Some(time) = stale_by(facts) {
        let _ = writeln!(out, "The allocator's figures are of {time}.");
    }
    if facts.allocator.is_empty() && resident(&facts.memory).is_some() {
        let missing = match owners(&facts.memory) {
            Some(_) => "holes between live objects are not told apart",
            None => "the heap is not broken down",
        };
        let _ = writeln!(
            out,
            "The dump has no figures of the allocator, so {missing}."
        );
    }
}

/// Minimum difference in time that is mentioned, in ns. The agent updates the statistics once a
/// second if it can.
const STALE_NS: u64 = 2_000_000_000;

/// Describes the time of the allocator's statistics relative to that of the samples, if the two are
/// too far apart to be compared: by more than [`STALE_NS`] or a quarter of the time sampled.
pub fn stale_by(facts: &Facts) -> Option<String> {
    let taken = facts.allocator_unix_ns?;
    let end = elapsed::end_by_length(facts)?;
    let ignored = STALE_NS.min(facts.duration_ns.unwrap_or(0) / 4);
    time_between(facts).filter(|_| taken.abs_diff(end) > ignored)
}

/// Describes the time of the allocator's statistics relative to that of the samples.
pub fn time_between(facts: &Facts) -> Option<String> {
    let taken = facts.allocator_unix_ns?;
    let end = elapsed::end_by_length(facts)?;
    let when = if taken < end { "before" } else { "after" };
    let time = Style::Own.label(clamp(taken.abs_diff(end)), "nanoseconds", "auto");
    (taken != end).then(|| format!("{time} {when} the samples'"))
}

/// Writes the size of the address space by kind of mapping. It need not be resident.
fn write_address_space(context: &Context, out: &mut String) {
    let facts = &context.view.profile().facts;
    // Of a process that has ended, only the modules of its stacks are known.
    if Entry::all(&facts.maps_text).all(|entry| entry.permissions.contains(&b'x')) {
        return;
    }
    let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (size, kind) in Entry::all(&facts.maps_text).filter_map(|entry| size_and_kind(&entry)) {
        let sum = kinds.entry(kind).or_default();
        *sum = (sum.0.saturating_add(size), sum.1 + 1);
    }
    *out += "\nAddress space, by the maps:\n       size mappings\n";
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|&(kind, (size, _))| (std::cmp::Reverse(size), kind));
    for (kind, (size, count)) in kinds {
        let _ = writeln!(
            out,
            "{:>11} {count:>8}  {}",
            bytes(context, size),
            printable(kind)
        );
    }
}

/// Returns size and kind of a mapping; `None` for pseudo-frames and unloaded modules, whose
/// addresses are where no process has memory.
fn size_and_kind(entry: &Entry<'_>) -> Option<(u64, &'static str)> {
    /// Addresses where no process has memory.
    const NO_MEMORY: [Range<u64>; 2] = [0..0x1000, 1 << 61..1 << 63];
    let size = entry.end.checked_sub(entry.start)?;
    if NO_MEMORY.iter().any(|range| range.contains(&entry.start)) {
        return None;
    }
    let path = entry.path;
    let permissions = entry.permissions;
    // In `/dev/shm`, or where `MEM_PROFILER_DIR` says.
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(b"");
    let is_shared = permissions.ends_with(b"s");
    let kind = match path {
        _ if is_shared && file.starts_with(b"mem_profiler.") => "table of this profiler",
        b"" if permissions.starts_with(b"---") => "reserved, without access",
        b"" => "anonymous",
        b"[heap]" => "brk heap",
        _ if path.starts_with(b"[stack") => "stack of the first thread",
        _ if path.starts_with(b"[anon") => "anonymous",
        _ if path.starts_with(b"[") => "kernel's (vdso and such)",
        _ if is_shared => "shared files",
        _ if permissions.contains(&b'x') => "code of files",
        _ => "data of files",
    };
    Some((size, kind))
}

fn bytes(context: &Context, value: u64) -> String {
    let value = context.divide(clamp(value));
    Style::Own.label(value, "bytes", &context.options.unit)
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|&(k, v)| (k.to_owned(), v)).collect()
    }

    fn facts(allocator: BTreeMap<String, u64>, memory: BTreeMap<String, u64>) -> Facts {
        Facts {
            allocator,
            memory,
            ..Facts::default()
        }
    }

    #[test]
    fn parts_always_add_up_to_resident_memory() {
        let memory = map(&[("rss_anon", 1000), ("rss_file", 200), ("rss_shmem", 30)]);
        for claim in [0, 10, 700, u64::MAX] {
            let names = ["allocated", "active", "metadata", "resident"];
            let allocator = map(&names.map(|n| (n, claim)));
            let mut facts = facts(allocator, memory.clone());
            let sum = |facts: &Facts| parts(facts).iter().map(|p| p.bytes).sum::<u64>();
            assert_eq!(sum(&facts), 1230, "{claim}");
            let owners = ["heap_in_use", "heap_unused", "heap_metadata", "agent"];
            facts.memory.extend(map(&owners.map(|name| (name, claim))));
            facts.memory.insert("own_mappings".to_owned(), 40);
            assert_eq!(sum(&facts), 1230, "{claim}");
        }
    }

    #[test]
    fn parts_are_those_of_the_allocator_and_the_rest() {
        let allocator = map(&[
            ("allocated", 600),
            ("active", 700),
            ("metadata", 50),
            ("resident", 800),
        ]);
        let memory = map(&[("rss_anon", 1000), ("rss_file", 200), ("rss_shmem", 30)]);
        let sizes = |memory: &BTreeMap<String, u64>| {
            let parts = parts(&facts(allocator.clone(), memory.clone()));
            parts.iter().map(|p| p.bytes).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&memory), [600, 100, 50, 50, 200, 200, 30]);
        // Without the kernel's figures, only the heap is divided.
        assert_eq!(sizes(&BTreeMap::new()), [600, 100, 50, 50]);
        // 300 bytes of large objects were never touched; a mapping of 240 bytes does not belong to
        // the heap.
        let mut memory = memory;
        memory.extend(map(&[
            ("heap_in_use", 400),
            ("heap_unused", 60),
            ("heap_metadata", 9),
            ("agent", 11),
            ("own_mappings", 240),
        ]));
        assert_eq!(sizes(&memory), [300, 100, 60, 9, 240, 11, 280, 200, 30]);
    }

    #[test]
    fn mappings_are_distinguished() {
        let mapping =
            |line: &str| Entry::parse(line.as_bytes()).and_then(|entry| size_and_kind(&entry));
        let kind = |line| mapping(line).map(|(_, kind)| kind);
        for pseudo in [
            "100-200 r-xp 0 0:0 0 [truncated]",
            "2000000000000000-2000000100000000 r-xp 0 0:0 0 [python]",
            "4000000000000000-4000000000001000 r-xp 0 8:1 5 /lib/past.so",
        ] {
            assert_eq!(kind(pseudo), None, "{pseudo}");
        }
        assert_eq!(
            mapping("1000-3000 rw-p 0 0:0 0"),
            Some((0x2000, "anonymous"))
        );
        assert_eq!(
            kind("1000-2000 r-xp 0 8:1 5 /bin/x y"),
            Some("code of files")
        );
        assert_eq!(
            kind("1000-2000 ---p 0 0:0 0"),
            Some("reserved, without access")
        );
        assert_eq!(
            kind("1000-2000 rw-s 0 0:1a 7 /dev/shm/mem_profiler.1.2.0"),
            Some("table of this profiler")
        );
        assert_eq!(
            kind("1000-2000 rw-s 0 0:1a 7 /run/tables/mem_profiler.1.2.0"),
            Some("table of this profiler")
        );
        assert_eq!(
            kind("1000-2000 r-xp 0 0:1a 7 /opt/mem_profiler.1"),
            Some("code of files")
        );
        assert_eq!(kind("3-1 rw-p 0 0:0 0"), None);
        assert_eq!(kind("no line of maps"), None);
    }
}
