//! Names of events, and the columns that their samples fill.

use crate::value_type::ValueType;

/// Name of the column of all events that have none of their own.
const OTHERS: &str = "other-events";

/// Name of the column of an event whose name was not printed.
const UNNAMED: &str = "events";

/// Name of an event, split into what is counted and in which mode of the processor.
#[derive(Debug, PartialEq)]
pub(super) struct EventName {
    /// Name of what is counted: without modifiers and terms about sampling.
    counted: String,
    /// Modifiers that select modes: `u`, `k`, `h`, `G`, in this order. Empty: all modes.
    modes: String,
}

/// Values of one event.
pub(super) struct Column {
    pub(super) value_type: ValueType,
    /// Set if the values are periods. Otherwise they are numbers of samples.
    pub(super) has_periods: bool,
}

impl EventName {
    pub(super) fn new(name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(name);
        let modifiers = modifiers(&name);
        // perf counts the host only, unless guests are asked for.
        let is_guest = modifiers.contains('G') && !modifiers.contains('H');
        let is_mode = |mode: &char| match mode {
            'G' => is_guest,
            mode => modifiers.contains(*mode),
        };
        Self {
            counted: counted_event(&name),
            modes: "ukhG".chars().filter(is_mode).collect(),
        }
    }

    /// Returns the name of all events that have no columns of their own.
    pub(super) fn others() -> Self {
        Self {
            counted: OTHERS.to_owned(),
            modes: String::new(),
        }
    }

    /// Returns true if samples of the event say nothing of the program: perf adds it to record
    /// mappings and threads.
    pub(super) fn is_dummy(&self) -> bool {
        self.counted == "dummy"
    }

    /// Returns true if periods are in nanoseconds: of CPU time, or of waiting.
    fn is_timed(&self) -> bool {
        self.is_clock() || self.counted == "offcpu-time"
    }

    /// Returns true if samples say where the processor's time goes.
    fn is_of_time(&self) -> bool {
        let name = self.counted.rsplit('/').next().unwrap_or_default();
        self.is_clock() || matches!(name, "cycles" | "cpu-cycles" | "cpu_cycles")
    }

    /// Returns true if periods are CPU time.
    fn is_clock(&self) -> bool {
        matches!(self.counted.as_str(), "cpu-clock" | "task-clock")
    }
}

/// Returns the columns of all events, in addition to the number of samples. A single event without
/// periods needs none.
pub(super) fn columns(events: &[EventName], samples: &[(usize, Option<i64>)]) -> Vec<Column> {
    // Periods of different events cannot be added.
    let is_single = |event: &EventName| event.counted != OTHERS;
    let mut has_periods: Vec<bool> = events.iter().map(is_single).collect();
    for &(event, period) in samples {
        has_periods[event] &= period.is_some();
    }
    if has_periods == [false] {
        return Vec::new();
    }
    let column = |(index, event): (usize, &EventName)| {
        let shares_name = |other: &EventName| other.counted == event.counted && other != event;
        let kind = if event.is_clock() && events.len() == 1 {
            "cpu".to_owned()
        } else if events.iter().any(shares_name) && !event.modes.is_empty() {
            format!("{}:{}", event.counted, event.modes)
        } else if event.counted.is_empty() {
            UNNAMED.to_owned()
        } else {
            event.counted.clone()
        };
        let has_periods = has_periods[index];
        let unit = if event.is_timed() && has_periods {
            "nanoseconds"
        } else {
            "count"
        };
        Column {
            value_type: ValueType::new(&kind, unit),
            has_periods,
        }
    };
    events.iter().enumerate().map(column).collect()
}

/// Returns the index of the event to show first: that of the processor's time with the largest total
/// (hybrid processors have several), or else the one with the most samples.
pub(super) fn shown(
    events: &[EventName],
    totals: &[u128],
    samples: &[(usize, Option<i64>)],
) -> usize {
    let mut counts = vec![0_u128; events.len()];
    for &(event, _) in samples {
        counts[event] += 1;
    }
    let rank = |&index: &usize| match &events[index] {
        event if event.is_dummy() => (0, counts[index]),
        event if event.is_of_time() => (2, totals[index]),
        _ => (1, counts[index]),
    };
    // The first of equals.
    (0..events.len()).rev().max_by_key(rank).unwrap_or(0)
}

/// Terms of an event that say how it is sampled, not what is counted.
const SAMPLING_TERMS: [&str; 14] = [
    "call-graph",
    "freq",
    "period",
    "time",
    "stack-size",
    "max-stack",
    "branch_type",
    "inherit",
    "no-inherit",
    "overwrite",
    "no-overwrite",
    "name",
    "metric-id",
    "aux-sample-size",
];

/// Returns an event's name without the parts that do not change what is counted: modifiers (`:u`),
/// the default PMU (`cpu/cycles/`) and terms about sampling (`cpu-clock/call-graph=fp/`). Events of
/// different PMUs (`cpu_core/cycles/`, `cpu_atom/cycles/`) remain different.
fn counted_event(name: &str) -> String {
    let Some((event, _)) = name.rsplit_once('/') else {
        return name[..name.len() - modifiers_length(name)].to_owned();
    };
    let Some((pmu, terms)) = event.split_once('/') else {
        // A breakpoint's length is not in slashes: `mem:0x601040/4:rw`.
        return name[..name.len() - modifiers_length(name)].to_owned();
    };
    let counts = |term: &&str| {
        let key = term.split('=').next().unwrap_or_default();
        !key.is_empty() && !SAMPLING_TERMS.contains(&key)
    };
    let kept: Vec<&str> = terms.split(',').filter(counts).collect();
    match (kept.join(","), pmu) {
        (kept, _) if kept.is_empty() => pmu.to_owned(),
        (kept, "cpu") => kept,
        (kept, _) => format!("{pmu}/{kept}"),
    }
}

/// Returns the modifiers of an event: `cycles:u`, `cpu/cycles/u`.
fn modifiers(name: &str) -> &str {
    match name.rsplit_once('/') {
        Some((event, modifiers)) if event.contains('/') => modifiers,
        _ => &name[name.len() - modifiers_length(name)..],
    }
}

/// Returns the length of the modifiers at the end of a name, with their colon. A tracepoint's `:`
/// begins no modifiers.
fn modifiers_length(name: &str) -> usize {
    match name.rsplit_once(':') {
        Some((_, last)) if last.chars().all(|c| "ukhGHpPSDeWIb".contains(c)) => last.len() + 1,
        _ => 0,
    }
}
