//! Reader for the text that `perf script` prints.
//!
//! Each event gets its own column, because counts of different events cannot be added. Clock
//! events, whose periods are nanoseconds, share one column of CPU time.

mod frame;
mod head;

use std::collections::HashMap;
use std::io::Read;

use self::frame::FrameText;
use self::head::Head;
use crate::error::Fault;
use crate::lines::Lines;
use crate::named::NamedBuilder;
use crate::profile::{Format, Profile};
use crate::value_type::ValueType;

/// Returns true if a file that starts like this is the output of `perf script`.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    if start.starts_with(HEADER) {
        return true;
    }
    let mut lines = start.split(|&c| c == b'\n');
    let is_comment = |line: &&[u8]| line.starts_with(b"#") || line.trim_ascii().is_empty();
    let Some(first) = lines.by_ref().find(|line| !is_comment(line)) else {
        return false;
    };
    let begins_chain = |line: &[u8]| line.starts_with(b"\t") && frame::parse(line).is_some();
    if begins_chain(first) {
        return true;
    }
    match head::parse(first) {
        Some(head) if head.is_certain || head.is_record => true,
        Some(head) => lines.next().is_some_and(begins_chain) || is_flat(first, &head),
        None => false,
    }
}

/// Start of the output of `perf script --header`.
const HEADER: &[u8] = b"# ========\n# captured on";

/// Returns true if a sample without time and event has a form that perf aligns in columns, rather
/// than that of a folded stack, which ends in a number.
fn is_flat(line: &[u8], head: &Head<'_>) -> bool {
    let is_aligned = line.windows(2).any(|blanks| blanks == b"  ");
    let last = line.trim_ascii_end().rsplit(u8::is_ascii_whitespace).next();
    let ends_in_number = last.is_some_and(|word| word.iter().all(u8::is_ascii_digit));
    head.frame.is_some() && is_aligned && !ends_in_number
}

/// Returns true if a line without time and event begins a sample. The command of a sample with a
/// call chain is not indented. An indented line is a sample if it has a frame, or numbers only.
fn is_plausible(line: &[u8], head: &Head<'_>) -> bool {
    head.is_record || !line.starts_with(b" ") || head.frame.is_some() || head.command.is_empty()
}

/// Reads all samples.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let mut reader = Reader {
        // Values are added once all events are known.
        builder: NamedBuilder::new(Format::PerfScript, vec![ValueType::new("samples", "count")]),
        samples: Vec::new(),
        events: Vec::new(),
        numbers: HashMap::new(),
        open: None,
    };
    while let Some(line) = lines.next()? {
        reader.line(line.text)?;
    }
    reader.close();
    Ok(reader.finish())
}

/// Maximum number of events, each of which has a column. Real recordings have fewer.
const MAX_EVENTS: usize = 16;

/// Sample whose frames are being read.
struct Open {
    command: Vec<u8>,
    event: usize,
    period: Option<i64>,
    frames: Vec<OwnedFrame>,
}

struct OwnedFrame {
    name: Vec<u8>,
    is_kernels: bool,
}

impl From<FrameText<'_>> for OwnedFrame {
    fn from(frame: FrameText<'_>) -> Self {
        Self {
            name: frame.name.to_vec(),
            is_kernels: frame.is_kernels,
        }
    }
}

struct Reader {
    builder: NamedBuilder,
    /// Event and period of each stack.
    samples: Vec<(usize, Option<i64>)>,
    /// Names of events, without modifiers.
    events: Vec<String>,
    numbers: HashMap<Vec<u8>, usize>,
    open: Option<Open>,
}

impl Reader {
    fn line(&mut self, text: &[u8]) -> Result<(), Fault> {
        if text.starts_with(b"#") {
            return Ok(());
        }
        if text.trim_ascii().is_empty() {
            self.close();
            return Ok(());
        }
        if text.starts_with(b"|") || text.starts_with(b" insn:") {
            return self.annotate();
        }
        // A frame of the current sample. Frames of a call chain are indented by a tab, or by blanks
        // where tabs have been replaced.
        let is_chained = text.starts_with(b"\t") || text.starts_with(b" ") && self.open.is_some();
        let found = if is_chained { frame::parse(text) } else { None };
        if let Some(head) = head::parse(text)
            .filter(|head| found.is_none() && is_plausible(text, head) || head.is_certain)
        {
            self.close();
            if !head.is_record {
                self.begin(&head)?;
            }
            if head.frame.is_some() {
                // A sample without a call chain is complete.
                self.close();
            }
        } else if let Some(frame) = found {
            if self.open.is_none() {
                self.begin(&Head::default())?;
            }
            if let Some(sample) = &mut self.open {
                sample.frames.push(frame.into());
            }
        } else if text.starts_with(b"  ") {
            return self.annotate();
        } else {
            return Err(Fault::here("is neither an event nor a frame"));
        }
        Ok(())
    }

    /// Skips an annotation of the preceding frame: its source line (`+srcline`), that line's text
    /// (`+srccode`), or an instruction (`+insn`).
    fn annotate(&self) -> Result<(), Fault> {
        if self.open.is_none() && self.samples.is_empty() {
            return Err(Fault::here("is neither an event nor a frame"));
        }
        Ok(())
    }

    fn begin(&mut self, head: &Head<'_>) -> Result<(), Fault> {
        self.open = Some(Open {
            command: head.command.to_vec(),
            event: self.event(head.event)?,
            period: head.period,
            frames: head.frame.into_iter().map(OwnedFrame::from).collect(),
        });
        Ok(())
    }

    /// Returns the index of an event, by its name without modifiers.
    fn event(&mut self, name: &[u8]) -> Result<usize, Fault> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let plain = String::from_utf8_lossy(plain_name(name)).into_owned();
        let known = self.events.iter().position(|event| *event == plain);
        let number = known.unwrap_or(self.events.len());
        if number == MAX_EVENTS {
            let what = format!("has one more event than the {MAX_EVENTS} that can be told apart");
            return Err(Fault::here(what));
        }
        if known.is_none() {
            self.events.push(plain);
        }
        self.numbers.insert(name.to_vec(), number);
        Ok(number)
    }

    fn close(&mut self) {
        let Some(sample) = self.open.take() else {
            return;
        };
        let frames = sample
            .frames
            .iter()
            .map(|frame| (frame.name.as_slice(), frame.is_kernels));
        let command = (!sample.command.is_empty()).then_some((sample.command.as_slice(), false));
        self.builder.stack_of(frames.chain(command));
        self.samples.push((sample.event, sample.period));
    }

    fn finish(self) -> Profile {
        let mut profile = self.builder.profile;
        let given = self.samples.iter().all(|(_, period)| period.is_some());
        let clocks = self.events.iter().all(|event| is_clock(event));
        let columns: Vec<ValueType> = match (given, clocks) {
            _ if self.samples.is_empty() => Vec::new(),
            // Without periods, only numbers of samples are known.
            (false, _) => Vec::new(),
            (true, true) => vec![ValueType::new("cpu", "nanoseconds")],
            (true, false) => self
                .events
                .iter()
                .map(|e| ValueType::new(e, "count"))
                .collect(),
        };
        let width = columns.len();
        profile.values.clear();
        for (event, period) in self.samples {
            profile.values.push(1);
            let column = if width == 1 { 0 } else { event };
            let value = |c| if c == column { period.unwrap_or(0) } else { 0 };
            profile.values.extend((0..width).map(value));
        }
        profile.default_type = usize::from(clocks && width == 1);
        profile.sample_types.extend(columns);
        profile
    }
}

/// Returns an event's name without the parts that do not change what is counted: modifiers (`:u`),
/// the default PMU (`cpu/cycles/`) and the terms of a software event (`cpu-clock/call-graph=fp/`).
/// Events of different PMUs (`cpu_core/cycles/`, `cpu_atom/cycles/`) remain different.
fn plain_name(name: &[u8]) -> &[u8] {
    let mut parts = name.splitn(3, |&c| c == b'/');
    let pmu = parts.next().unwrap_or(name);
    let terms = parts.next();
    match terms {
        None => without_modifiers(name),
        Some(b"") => pmu,
        Some(terms) if pmu == b"cpu" => terms,
        Some(terms) if terms.contains(&b'=') && !is_raw(terms) => pmu,
        Some(terms) => &name[..pmu.len() + 1 + terms.len()],
    }
}

/// Returns true if the terms of an event determine what it counts.
fn is_raw(terms: &[u8]) -> bool {
    [&b"event="[..], b"config", b"umask="]
        .iter()
        .any(|term| terms.windows(term.len()).any(|window| window == *term))
}

/// Strips modifiers such as `:u` and `:ppp` from a name. A tracepoint's `:` stays.
fn without_modifiers(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|&c| c == b':') {
        Some(at) if name[at + 1..].iter().all(|c| b"ukhGHpPSDeWIb".contains(c)) => &name[..at],
        _ => name,
    }
}

/// Returns true if the period of an event is in nanoseconds of CPU time.
fn is_clock(event: &str) -> bool {
    matches!(event, "cpu-clock" | "task-clock")
}
