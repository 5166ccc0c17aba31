//! Names of events, and the columns that their samples fill.

use crate::value_type::ValueType;

/// Name of an event, split into what is counted and in which mode of the processor.
#[derive(Debug, PartialEq)]
pub(super) struct EventName {
    /// Name without the parts that do not change what is counted.
    plain: String,
    /// Modifiers that select modes: `u`, `k`, `h`, in this order. Empty: all modes.
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
        let modifiers = modifiers(name);
        Self {
            plain: String::from_utf8_lossy(plain(name)).into_owned(),
            modes: "ukh"
                .chars()
                .filter(|&mode| modifiers.contains(&(mode as u8)))
                .collect(),
        }
    }

    /// Returns true if periods are in nanoseconds: of CPU time, or of waiting.
    fn is_timed(&self) -> bool {
        self.is_clock() || self.plain == "offcpu-time"
    }

    /// Returns true if periods are CPU time.
    fn is_clock(&self) -> bool {
        matches!(self.plain.as_str(), "cpu-clock" | "task-clock")
    }
}

/// Returns the columns of all events, in addition to the number of samples. A single event without
/// periods needs none.
pub(super) fn columns(events: &[EventName], samples: &[(usize, Option<i64>)]) -> Vec<Column> {
    let mut has_periods = vec![true; events.len()];
    for &(event, period) in samples {
        has_periods[event] &= period.is_some();
    }
    if has_periods == [false] {
        return Vec::new();
    }
    let column = |(index, event): (usize, &EventName)| {
        let shares_name = |other: &EventName| other.plain == event.plain && other != event;
        let kind = if event.is_clock() && events.len() == 1 {
            "cpu".to_owned()
        } else if events.iter().any(shares_name) && !event.modes.is_empty() {
            format!("{}:{}", event.plain, event.modes)
        } else {
            event.plain.clone()
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

/// Returns an event's name without the parts that do not change what is counted: modifiers (`:u`),
/// the default PMU (`cpu/cycles/`) and the terms of a software event (`cpu-clock/call-graph=fp/`).
/// Events of different PMUs (`cpu_core/cycles/`, `cpu_atom/cycles/`) remain different.
fn plain(name: &[u8]) -> &[u8] {
    let mut parts = name.splitn(3, |&c| c == b'/');
    let pmu = parts.next().unwrap_or(name);
    let terms = parts.next();
    match terms {
        None => &name[..name.len() - with_colon(name)],
        Some(b"") => pmu,
        Some(terms) if pmu == b"cpu" => terms,
        Some(terms) if terms.contains(&b'=') && !is_raw(terms) => pmu,
        Some(terms) => &name[..pmu.len() + 1 + terms.len()],
    }
}

/// Returns the modifiers of an event: `cycles:u`, `cpu/cycles/u`.
fn modifiers(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|&c| c == b'/') {
        Some(at) => &name[at + 1..],
        None => &name[name.len() - with_colon(name)..],
    }
}

/// Returns the length of the modifiers at the end of a name, with their colon. A tracepoint's `:`
/// begins no modifiers.
fn with_colon(name: &[u8]) -> usize {
    match name.iter().rposition(|&c| c == b':') {
        Some(at) if name[at + 1..].iter().all(|c| b"ukhGHpPSDeWIb".contains(c)) => name.len() - at,
        _ => 0,
    }
}

/// Returns true if the terms of an event determine what it counts.
fn is_raw(terms: &[u8]) -> bool {
    [&b"event="[..], b"config", b"umask="]
        .iter()
        .any(|term| terms.windows(term.len()).any(|window| window == *term))
}
