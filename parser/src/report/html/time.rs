//! Tab with memory over time, and with the live bytes of stacks at those moments for which the
//! profile has them.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use profile::Moment;
use profile::printable::printable;
use serde::Serialize;

use super::tab::{Data, PageContext, ProfileKind, Tab};
use crate::json;
use crate::report::context::Context;
use crate::report::flame::data::round_for_json;
use crate::timeline::{Sampled, Stack, Timeline};

/// The tab of memory over time.
pub const TAB: Tab = Tab {
    script: include_str!("time.js"),
    profiles: ProfileKind::Memory,
    data: Some(Data {
        key: "time",
        json: object,
    }),
};

/// Maximum number of listed stacks. The others, which are the lightest, are summed up.
const MAX_STACKS: usize = 2000;
/// Maximum number of frames of a stack, innermost first.
const MAX_FRAMES: usize = 128;

#[derive(Serialize)]
struct TimelineData<'a> {
    /// Reason why there is no timeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    /// Seconds since the start, live bytes, allocated bytes, resident bytes.
    points: Vec<(f64, u64, u64, Option<u64>)>,
    /// Half-widths of the 95 % confidence intervals of the live bytes of the points; empty if they are
    /// exact.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<u64>,
    names: Vec<Cow<'a, str>>,
    stacks: Vec<StackRow>,
    tables: Vec<Table>,
    /// Bytes of the stacks that are not listed, live at the end of the session.
    rest: u64,
    /// Errors of these stacks.
    rest_errors: Errors,
    /// Set if a filter drops stacks that the points still include.
    filtered: bool,
}

#[derive(Serialize)]
struct StackRow {
    /// Indices of names, innermost first.
    frames: Vec<usize>,
    /// Index of the name of the function that owns the stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<usize>,
    /// Live bytes at the end of the session.
    end: u64,
    #[serde(flatten)]
    errors: Errors,
}

/// Source of the sampling errors of live bytes; left out if they are exact.
#[derive(Serialize, Default)]
struct Errors {
    /// Variance per live byte, at moments other than the end.
    #[serde(skip_serializing_if = "is_zero")]
    variance: f64,
    /// Variance of the bytes at the end.
    #[serde(skip_serializing_if = "is_zero")]
    end_variance: f64,
    /// Bytes freed in the session.
    #[serde(skip_serializing_if = "is_zero")]
    freed: f64,
}

impl Errors {
    fn of(sampled: &Sampled) -> Self {
        let variance = round_for_json(sampled.variance_per_byte());
        if variance == 0.0 {
            return Self::default();
        }
        Self {
            variance,
            end_variance: round_for_json(sampled.live.variance),
            freed: round_for_json(sampled.freed),
        }
    }
}

/// Returns true for an error that is left out of the page.
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Live bytes of the stacks at a moment.
#[derive(Serialize)]
struct Table {
    /// Index of the point.
    at: usize,
    /// Index and live bytes of each listed stack; `None`: each stack holds its `end`.
    held: Option<Vec<(usize, u64)>>,
    /// Live bytes of all stacks that are not listed.
    rest: u64,
}

/// Returns the data of the tab as JSON.
fn object(page: &PageContext) -> String {
    let context = page.context;
    match Timeline::new(context.view, context.nodes, &context.owners()) {
        Ok(timeline) => json::embedded(&data(context, &timeline)),
        Err(why) => json::embedded(&TimelineData {
            why: Some(why),
            points: Vec::new(),
            errors: Vec::new(),
            names: Vec::new(),
            stacks: Vec::new(),
            tables: Vec::new(),
            rest: 0,
            rest_errors: Errors::default(),
            filtered: false,
        }),
    }
}

fn data<'a>(context: &Context<'a>, timeline: &Timeline) -> TimelineData<'a> {
    let mut order: Vec<usize> = (0..timeline.stacks.len()).collect();
    order.sort_by_key(|&index| (Reverse(timeline.stacks[index].max_bytes), index));
    let (listed, others) = order.split_at(order.len().min(MAX_STACKS));
    let indices: HashMap<usize, usize> = listed.iter().copied().zip(0..).collect();
    let mut names = Names::new(context);
    let stack = |&index: &usize| row(&timeline.stacks[index], &mut names);
    let stacks = listed.iter().map(stack).collect();
    let end = |&index: &usize| timeline.stacks[index].end;
    let rest = others.iter().map(end).fold(0, u64::saturating_add);
    let mut sampled = Sampled::default();
    let unlisted = others.iter().map(|&index| &timeline.stacks[index].sampled);
    unlisted.for_each(|stack| sampled.add(stack));
    let errors = timeline.moments.iter().map(|moment| timeline.error(moment));
    let errors: Vec<u64> = errors
        .map(|error| error.half_width().round() as u64)
        .collect();
    let is_exact = errors.iter().all(|half| *half == 0);
    TimelineData {
        why: None,
        points: timeline.moments.iter().map(point).collect(),
        errors: if is_exact { Vec::new() } else { errors },
        names: names.texts,
        stacks,
        tables: (0..timeline.moments.len())
            .filter_map(|at| table(context, timeline, at, &indices, rest))
            .collect(),
        rest,
        rest_errors: Errors::of(&sampled),
        filtered: !context.options.filters.active().is_empty(),
    }
}

fn point(moment: &Moment) -> (f64, u64, u64, Option<u64>) {
    // Milliseconds are precise enough for drawing.
    let seconds = (moment.at_ns as f64 / 1e6).round() / 1e3;
    (seconds, moment.live, moment.allocated, moment.resident)
}

/// Returns the stacks of moment `at`, if they are known. `indices` maps each listed stack to its
/// index in the page.
fn table(
    context: &Context,
    timeline: &Timeline,
    at: usize,
    indices: &HashMap<usize, usize>,
    rest_at_end: u64,
) -> Option<Table> {
    let moment = &timeline.moments[at];
    if let Some(held) = timeline.bytes_by_stack(moment) {
        let unlisted = held
            .iter()
            .filter(|(index, _)| !indices.contains_key(index));
        let rest = unlisted.fold(moment.unlisted_bytes(), |sum, (_, bytes)| {
            sum.saturating_add(*bytes)
        });
        let listed = held
            .into_iter()
            .filter_map(|(index, bytes)| Some((*indices.get(&index)?, bytes)));
        let held = listed.collect();
        return Some(Table {
            at,
            held: Some(held),
            rest,
        });
    }
    let duration = context.view.profile().facts.duration_ns;
    let is_dump = at + 1 == timeline.moments.len() && duration == Some(moment.at_ns);
    is_dump.then_some(Table {
        at,
        held: None,
        rest: rest_at_end,
    })
}

fn row(stack: &Stack, names: &mut Names) -> StackRow {
    let frames = stack.entries.iter().take(MAX_FRAMES);
    StackRow {
        frames: frames.map(|&entry| names.index_of(entry)).collect(),
        own: stack.owner.map(|entry| names.index_of(entry)),
        end: stack.end,
        errors: Errors::of(&stack.sampled),
    }
}

/// Table of the names that occur in stacks.
struct Names<'a, 'c> {
    context: &'c Context<'a>,
    numbers: HashMap<u32, usize>,
    texts: Vec<Cow<'a, str>>,
}

impl<'a, 'c> Names<'a, 'c> {
    fn new(context: &'c Context<'a>) -> Self {
        Self {
            context,
            numbers: HashMap::new(),
            texts: Vec::new(),
        }
    }

    fn index_of(&mut self, entry: u32) -> usize {
        *self.numbers.entry(entry).or_insert_with(|| {
            self.texts.push(printable(self.context.nodes.name(entry)));
            self.texts.len() - 1
        })
    }
}
