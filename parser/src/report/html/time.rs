//! Memory over time: the moments, and what the stacks held at those of which it is known.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use heap_format::Moment;
use heap_format::printable::printable;
use serde::Serialize;

use super::tab::{Data, Of, PageContext, Tab};
use crate::json;
use crate::report::context::Context;
use crate::timeline::{Stack, Timeline};

/// The tab of memory over time.
pub const TAB: Tab = Tab {
    script: include_str!("time.js"),
    of: Of::Memory,
    data: Some(Data {
        key: "time",
        json: object,
    }),
};

/// More stacks than anybody looks at; the lightest count together.
const MOST: usize = 2000;
/// Frames of a stack that the page has, from the allocating one on.
const MOST_FRAMES: usize = 128;

#[derive(Serialize)]
struct TimelineData<'a> {
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    /// Seconds since the start, bytes live, allocated and resident.
    points: Vec<(f64, u64, u64, Option<u64>)>,
    names: Vec<Cow<'a, str>>,
    stacks: Vec<StackRow>,
    tables: Vec<Table>,
    /// Bytes at the end of the stacks that are not in the list.
    rest: u64,
    /// Whether a filter leaves out stacks that the points still include.
    filtered: bool,
}

#[derive(Serialize)]
struct StackRow {
    /// Indices of names, innermost first.
    frames: Vec<usize>,
    end: u64,
}

/// What the stacks held at a moment.
#[derive(Serialize)]
struct Table {
    /// Index of the point.
    at: usize,
    /// Indices of stacks, and bytes; `None` for what they hold at the end.
    held: Option<Vec<(usize, u64)>>,
    /// Bytes of the others.
    rest: u64,
}

fn object(page: &PageContext) -> String {
    let context = page.context;
    match Timeline::new(context.view, context.nodes) {
        Ok(timeline) => json::embedded(&data(context, &timeline)),
        Err(why) => json::embedded(&TimelineData {
            why: Some(why),
            points: Vec::new(),
            names: Vec::new(),
            stacks: Vec::new(),
            tables: Vec::new(),
            rest: 0,
            filtered: false,
        }),
    }
}

fn data<'a>(context: &Context<'a>, timeline: &Timeline) -> TimelineData<'a> {
    let mut order: Vec<usize> = (0..timeline.stacks.len()).collect();
    order.sort_by_key(|&place| (Reverse(timeline.stacks[place].most), place));
    let (listed, others) = order.split_at(order.len().min(MOST));
    let places: HashMap<usize, usize> = listed.iter().copied().zip(0..).collect();
    let mut names = Names::new(context);
    let stack = |&place: &usize| row(&timeline.stacks[place], &mut names);
    let stacks = listed.iter().map(stack).collect();
    let end = |&place: &usize| timeline.stacks[place].end;
    let rest = others.iter().map(end).fold(0, u64::saturating_add);
    let moments = timeline.moments.iter().enumerate();
    TimelineData {
        why: None,
        points: timeline.moments.iter().map(point).collect(),
        names: names.texts,
        stacks,
        tables: moments
            .filter_map(|(at, moment)| table(context, timeline, (at, moment), &places, rest))
            .collect(),
        rest,
        filtered: !context.options.filters.active().is_empty(),
    }
}

fn point(moment: &Moment) -> (f64, u64, u64, Option<u64>) {
    // Milliseconds are enough to draw.
    let seconds = (moment.at_ns as f64 / 1e6).round() / 1e3;
    (seconds, moment.live, moment.allocated, moment.resident)
}

fn table(
    context: &Context,
    timeline: &Timeline,
    (at, moment): (usize, &Moment),
    places: &HashMap<usize, usize>,
    rest_at_end: u64,
) -> Option<Table> {
    if let Some(held) = timeline.held(moment) {
        let listed = |(place, bytes): (usize, u64)| Some((*places.get(&place)?, bytes));
        let unlisted = held.iter().filter(|(place, _)| !places.contains_key(place));
        let rest = unlisted.fold(moment.rest(), |sum, (_, bytes)| sum.saturating_add(*bytes));
        let held = held.into_iter().filter_map(listed).collect();
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
    let frames = stack.entries.iter().take(MOST_FRAMES);
    StackRow {
        frames: frames.map(|&entry| names.number(entry)).collect(),
        end: stack.end,
    }
}

/// The names that occur, each once.
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

    fn number(&mut self, entry: u32) -> usize {
        *self.numbers.entry(entry).or_insert_with(|| {
            self.texts.push(printable(self.context.nodes.name(entry)));
            self.texts.len() - 1
        })
    }
}
