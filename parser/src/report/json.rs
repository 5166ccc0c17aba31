//! The profile as JSON, for programs.
//!
//! One object. `version` changes when a field changes its meaning; new fields may be added at any
//! time.
//!
//! - `version`: 1
//! - `program`, `dumps`: paths
//! - `format`: format of the first dump
//! - `interval`: mean bytes between samples; 1 if exact; nanoseconds in CPU profiles
//! - `columns`: `[{kind, unit}]`; `column`: index of the one shown; `total`: its total; `total_error`:
//!   half of its 95 % confidence interval, with `--ci`
//! - `functions`: `[{name, file, line, flat, cum, flat_error?, cum_error?}]`, largest first; errors
//!   with `--ci`: half-width of the 95 % confidence interval
//! - `frames`: `[{name, file, line, address, module}]`, which stacks refer to
//! - `stacks`: `[{frames, values, detail?}]`, frames leaf first; `detail`: samples, ages and
//!   variances, only for this project's dumps, without ages if they are of Go's runtime; `live_age_error_ms`: half-width of the 95 %
//!   confidence interval of the mean age, missing if there are too few samples
//! - `moments`: `[{at_ns, live, live_error?, allocated, resident?, stacks?: [{stack, bytes}]}]`, the timeline of
//!   the session; `at_ns`: since its start; `stack`: index in `stacks`
//! - `mappings`: `[{start, end, offset, build_id, path, past}]`, numbers in hex
//! - `remarks`: sentences about what makes values less certain than they look; missing if there are
//!   none
//! - `facts`: metadata of the dump; `intervals`, if the interval changed:
//!   `[{from_unix_ns, interval, overhead?}]` in order of time, the overhead as a share of CPU time;
//!   `cpu`, for CPU profiles: engine, mode, samples per second, and what was lost, truncated, not
//!   sampled or has no name

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use profile::variance::SamplingError;
use profile::{Detail, Moment, Profile, StackBytes, age, crowding, overwritten};
use serde::Serialize;

use super::context::Context;
use super::format::{Format, Needs};
use super::sampling::Quality;
use crate::graph::{Graph, Node};
use crate::json;
use crate::timeline::Timeline;
use crate::view::ViewStack;

/// `--json`.
pub const FORMAT: Format = Format {
    needs: Needs {
        trim: None,
        ..Needs::TABLE
    },
    ..Format::report("json", "Everything as JSON, for programs", render)
};

fn render(context: &Context) -> Result<String> {
    let profile = context.view.profile();
    let files = &context.options.files;
    let document = Document {
        version: 1,
        program: context.program.map(|p| p.to_string_lossy()),
        dumps: files.iter().map(|f| f.to_string_lossy()).collect(),
        format: profile.format.to_string(),
        interval: profile.period,
        columns: columns(profile),
        column: context.view.column(),
        total: context.view.total(),
        functions: functions(context),
        frames: frames(context),
        stacks: stacks(context),
        total_error: context.options.error_bars.then(|| total_error(context)),
        moments: moments(context),
        mappings: mappings(profile),
        remarks: [crowding::remark(profile), overwritten::remark(profile)]
            .into_iter()
            .flatten()
            .collect(),
        facts: facts(profile),
    };
    Ok(json::document(&document) + "\n")
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    program: Option<Cow<'a, str>>,
    dumps: Vec<Cow<'a, str>>,
    format: String,
    interval: i64,
    columns: Vec<Column<'a>>,
    column: usize,
    total: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_error: Option<f64>,
    functions: Vec<Function<'a>>,
    frames: Vec<Frame<'a>>,
    stacks: Vec<Stack<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    moments: Vec<MomentEntry>,
    mappings: Vec<Mapping<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<String>,
    facts: Facts<'a>,
}

#[derive(Serialize)]
struct Column<'a> {
    kind: &'a str,
    unit: &'a str,
}

fn columns(profile: &Profile) -> Vec<Column<'_>> {
    let types = profile.sample_types.iter();
    types
        .map(|t| Column {
            kind: &t.kind,
            unit: &t.unit,
        })
        .collect()
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(flatten)]
    frame: Frame<'a>,
    flat: i64,
    cum: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    flat_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cum_error: Option<f64>,
}

fn functions<'a>(context: &Context<'a>) -> Vec<Function<'a>> {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    let half_width = |error: SamplingError| {
        let shown = context.options.error_bars;
        shown.then(|| error.half_width().round())
    };
    let function = |node: &Node| Function {
        frame: frame(context, node.id),
        flat: node.flat,
        cum: node.cum,
        flat_error: half_width(node.flat_error),
        cum_error: half_width(node.cum_error),
    };
    trimmed.graph.nodes.iter().map(function).collect()
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    module: &'a str,
}

fn frames<'a>(context: &Context<'a>) -> Vec<Frame<'a>> {
    let all = 0..context.nodes.count() as u32;
    all.map(|id| frame(context, id)).collect()
}

fn frame<'a>(context: &Context<'a>, id: u32) -> Frame<'a> {
    let entry = context.nodes.entry(id);
    Frame {
        name: context.nodes.name(id),
        file: &entry.file,
        line: Some(entry.line).filter(|&line| line != 0),
        address: (entry.address != 0).then(|| hex(entry.address)),
        module: &entry.object,
    }
}

#[derive(Serialize)]
struct Stack<'a> {
    frames: Vec<u32>,
    values: &'a [i64],
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<StackDetail>,
}

fn stacks<'a>(context: &Context<'a>) -> Vec<Stack<'a>> {
    let view = context.view;
    let nodes = context.nodes;
    let profile = view.profile();
    let stack = |stack: ViewStack<'_>| {
        let visible = stack.frames.iter().filter(|&&f| !view.is_hidden(f));
        let has_ages = !profile.is_of_go();
        let details = profile.details.get(stack.index);
        Stack {
            frames: visible
                .flat_map(|&f| nodes.of_location(f).iter().copied())
                .collect(),
            values: profile.values_of(stack.index),
            detail: details.map(|d| detail(d, has_ages)),
        }
    };
    view.stacks().map(stack).collect()
}

#[derive(Serialize)]
struct StackDetail {
    alloc_samples: u64,
    free_samples: u64,
    alloc_objects: f64,
    alloc_bytes: f64,
    freed_objects: f64,
    freed_bytes: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    live_age_ms_sum: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_lifetime_ms_sum: Option<f64>,
    alloc_variance: f64,
    live_variance: f64,
    alloc_object_variance: f64,
    live_object_variance: f64,
    /// Half-width of the 95 % confidence interval of the mean age.
    #[serde(skip_serializing_if = "Option::is_none")]
    live_age_error_ms: Option<f64>,
}

/// Converts details. `has_ages`: the profile has ages of objects.
fn detail(d: &Detail, has_ages: bool) -> StackDetail {
    // JSON cannot represent infinities.
    let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    StackDetail {
        alloc_samples: d.alloc_samples,
        free_samples: d.free_samples,
        alloc_objects: finite(d.alloc_objects),
        alloc_bytes: finite(d.alloc_bytes),
        freed_objects: finite(d.freed_objects),
        freed_bytes: finite(d.freed_bytes),
        live_age_ms_sum: has_ages.then(|| finite(d.live_age_ms_sum)),
        freed_lifetime_ms_sum: has_ages.then(|| finite(d.freed_lifetime_ms_sum)),
        alloc_variance: finite(d.alloc_variance),
        live_variance: finite(d.live_variance),
        alloc_object_variance: finite(d.alloc_object_variance),
        live_object_variance: finite(d.live_object_variance),
        live_age_error_ms: age::error(d).filter(|_| d.age_spread.is_some()),
    }
}

#[derive(Serialize)]
struct MomentEntry {
    at_ns: u64,
    live: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    live_error: Option<f64>,
    allocated: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    resident: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stacks: Option<Vec<StackBytesEntry>>,
}

#[derive(Serialize)]
struct StackBytesEntry {
    stack: u32,
    bytes: u64,
}

/// Returns the half-width of the 95 % confidence interval of the sum of all stacks.
fn total_error(context: &Context) -> f64 {
    let mut error = SamplingError::default();
    let stacks = 0..context.view.profile().stacks.len();
    stacks.for_each(|stack| error += context.view.error(stack));
    error.half_width().round()
}

/// Returns the moments; their stacks are indices in the result of [`stacks`].
fn moments(context: &Context) -> Vec<MomentEntry> {
    let profile = context.view.profile();
    let shown = context.view.stacks().map(|stack| stack.index as u32);
    let numbers: HashMap<u32, u32> = shown.zip(0..).collect();
    let owners = context.owners();
    let timeline = Timeline::new(context.view, context.nodes, &owners);
    let timeline = timeline.ok().filter(|_| context.options.error_bars);
    let entry = |moment: &Moment| {
        let live_error = timeline
            .as_ref()
            .map(|timeline| timeline.error(moment).half_width().round());
        let moment = moment.renumbered(|stack| numbers.get(&stack).copied());
        let held = |&StackBytes { stack, bytes }: &StackBytes| StackBytesEntry { stack, bytes };
        MomentEntry {
            at_ns: moment.at_ns,
            live: moment.live,
            live_error,
            allocated: moment.allocated,
            resident: moment.resident,
            stacks: moment.stacks.as_ref().map(|s| s.iter().map(held).collect()),
        }
    };
    profile.moments.iter().map(entry).collect()
}

#[derive(Serialize)]
struct Mapping<'a> {
    start: String,
    end: String,
    offset: String,
    build_id: String,
    path: Cow<'a, str>,
    past: bool,
}

fn mappings(profile: &Profile) -> Vec<Mapping<'_>> {
    let mappings = profile.mappings.iter();
    mappings
        .map(|m| Mapping {
            start: hex(m.start),
            end: hex(m.end),
            offset: hex(m.file_offset),
            build_id: m.build_id.to_string(),
            path: m.path.to_string_lossy(),
            past: m.past,
        })
        .collect()
}

#[derive(Serialize)]
struct Facts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trigger: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_unix_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_unix_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_boot_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    exe_build_id: String,
    command_line: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    comments: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_ns: Option<u64>,
    intervals: Vec<Interval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinning: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    python_hides: Option<bool>,
    counters: &'a BTreeMap<String, u64>,
    allocator: &'a BTreeMap<String, u64>,
    memory: &'a BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu<'a>>,
}

#[derive(Serialize)]
struct Cost {
    cpu_ns: u64,
    spent_ns: u64,
    error_ns: u64,
}

#[derive(Serialize)]
struct Interval {
    from_unix_ns: u64,
    interval: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    overhead: Option<f64>,
}

/// Sampling of a CPU profile. In a comparison, `samples` and the fields below it are null.
#[derive(Serialize)]
struct Cpu<'a> {
    engine: &'a str,
    mode: &'static str,
    rate: u32,
    process_ns: Option<u64>,
    lost: u64,
    kernel_hidden: Option<&'a str>,
    fallbacks: &'a [String],
    samples: Option<i64>,
    truncated_ns: Option<i64>,
    not_sampled_ns: Option<i64>,
    unnamed_ns: Option<i64>,
}

fn cpu(profile: &Profile) -> Option<Cpu<'_>> {
    let sampling = profile.facts.cpu.as_ref()?;
    let quality = Quality::new(profile);
    Some(Cpu {
        engine: &sampling.engine,
        mode: sampling.mode.name(),
        rate: sampling.rate,
        process_ns: sampling.process_ns,
        lost: sampling.lost,
        kernel_hidden: sampling.kernel_hidden.as_deref(),
        fallbacks: &sampling.fallbacks,
        samples: quality.map(|q| q.samples),
        truncated_ns: quality.map(|q| q.truncated_ns),
        not_sampled_ns: quality.map(|q| q.not_sampled_ns),
        unnamed_ns: quality.map(|q| q.unnamed_ns),
    })
}

fn facts(profile: &Profile) -> Facts<'_> {
    let facts = &profile.facts;
    let interval = |p: &profile::IntervalPeriod| Interval {
        from_unix_ns: p.from_unix_ns,
        interval: p.interval,
        overhead: p.overhead.map(|millionths| f64::from(millionths) / 1e6),
    };
    Facts {
        process: facts.process.as_deref(),
        exe: facts.exe.as_ref().map(|p| p.to_string_lossy()),
        boot_id: facts.boot_id.as_deref(),
        trigger: facts.trigger.as_deref(),
        ended: facts.ended.as_deref(),
        pid: facts.pid,
        start_unix_ns: facts.start_unix_ns,
        end_unix_ns: facts.end_unix_ns,
        end_boot_ns: facts.end_boot_ns,
        duration_ns: facts.duration_ns,
        sequence: facts.sequence,
        exe_build_id: facts.exe_build_id.to_string(),
        command_line: &facts.command_line,
        comments: &profile.comments,
        intervals: facts.intervals.iter().map(interval).collect(),
        cost: facts.cost.map(|cost| Cost {
            cpu_ns: cost.cpu_ns,
            spent_ns: cost.spent_ns,
            error_ns: cost.error_ns,
        }),
        peak_ns: facts.peak_ns,
        thinning: facts.thinning,
        python: facts.python.as_deref(),
        python_hides: facts.python_hides,
        counters: &facts.counters,
        allocator: &facts.allocator,
        memory: &facts.memory,
        cpu: cpu(profile),
    }
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}
