//! Reads the text that `perf script` prints.
//!
//! Each event gets its own column, because counts of different events cannot be added. Clock
//! events, whose periods are nanoseconds, share one column of CPU time.

use std::collections::HashMap;
use std::io::Read;

use crate::error::Fault;
use crate::lines::Lines;
use crate::named::NamedBuilder;
use crate::profile::{Format, Profile};
use crate::scan::Scan;
use crate::value_type::ValueType;

/// Returns true if the start of a file is an event followed by a frame.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    let mut lines = start.split(|&c| c == b'\n');
    let is_comment = |line: &&[u8]| line.starts_with(b"#") || line.trim_ascii().is_empty();
    let Some(first) = lines.by_ref().find(|line| !is_comment(line)) else {
        return false;
    };
    event(first).is_some_and(|e| e.frame.is_some())
        || event(first).is_some() && lines.next().is_some_and(|line| frame(line).is_some())
}

/// First line of a sample.
struct Event<'a> {
    command: &'a [u8],
    /// Event name with its modifiers, such as `cycles:u`.
    name: &'a [u8],
    /// Period; `None` if not printed.
    period: Option<i64>,
    /// Only frame, if it is on the same line.
    frame: Option<&'a [u8]>,
}

/// Parses `comm pid[/tid] [cpu] time: [period] event: [frame]`. The command may contain blanks, so
/// the first word of digits is the pid.
fn event(line: &[u8]) -> Option<Event<'_>> {
    if line.first().is_none_or(u8::is_ascii_whitespace) {
        return None;
    }
    let (command, mut rest) = split_at_process(line)?;
    // The time ends in a colon. The CPU number may precede it.
    loop {
        rest = rest.trim_ascii_start();
        let word = rest
            .split(u8::is_ascii_whitespace)
            .next()
            .filter(|w| !w.is_empty())?;
        rest = &rest[word.len()..];
        if word.ends_with(b":") {
            break;
        }
    }
    let mut scan = Scan::new(rest.trim_ascii_start());
    let period = scan.int().filter(|_| scan.rest().starts_with(b" "));
    let rest = if period.is_some() { scan.rest() } else { rest }.trim_ascii_start();
    let name = rest
        .split(u8::is_ascii_whitespace)
        .next()
        .filter(|w| w.ends_with(b":"))?;
    let tail = rest[name.len()..].trim_ascii();
    let frame = (!tail.is_empty())
        .then_some(tail)
        .filter(|tail| frame(tail).is_some());
    Some(Event {
        command,
        name: &name[..name.len() - 1],
        period,
        frame,
    })
}

/// Splits a line at its first word that is a pid. Returns what is before and after that word.
fn split_at_process(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    loop {
        at += line[at..].iter().position(u8::is_ascii_whitespace)?;
        let tail = line[at..].trim_ascii_start();
        let word = tail.split(u8::is_ascii_whitespace).next()?;
        let digits = word
            .split(|&c| c == b'/')
            .all(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit));
        if digits {
            return Some((line[..at].trim_ascii_end(), &tail[word.len()..]));
        }
        at = line.len() - tail.len();
    }
}

/// A frame, printed as `HEX symbol+0xOFFSET (module)`.
#[derive(Clone, Copy)]
struct FrameText<'a> {
    name: &'a [u8],
    /// Set for a kernel function.
    kernel: bool,
}

/// Parses a frame.
fn frame(line: &[u8]) -> Option<FrameText<'_>> {
    let line = line.trim_ascii();
    let mut scan = Scan::new(line);
    let address = scan.hex()?;
    let rest = scan.rest();
    if !rest.starts_with(b" ") {
        return None;
    }
    let rest = rest.trim_ascii();
    let (symbol, module) = match rest.windows(2).rposition(|w| w == b" (") {
        Some(at) if rest.ends_with(b")") => (&rest[..at], &rest[at + 2..rest.len() - 1]),
        _ if rest.starts_with(b"(") && rest.ends_with(b")") => (&b""[..], &rest[1..rest.len() - 1]),
        _ => return None,
    };
    let symbol = match symbol.windows(3).rposition(|w| w == b"+0x") {
        Some(at) => &symbol[..at],
        None => symbol,
    };
    let unknown = symbol.is_empty() || symbol == b"[unknown]";
    Some(FrameText {
        name: if unknown {
            module.rsplit(|&c| c == b'/').next().unwrap_or(module)
        } else {
            symbol
        },
        // The upper half of the address space, except for the vsyscall page.
        kernel: address >> 63 == 1 && module != b"[vsyscall]",
    })
}

/// Reads all samples.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let mut reader = Reader {
        // Values are added when all events are known.
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

/// Maximum number of events, because each gets a column.
const MAX_EVENTS: usize = 16;

/// A sample whose frames are being read.
struct Open {
    command: Vec<u8>,
    event: usize,
    period: Option<i64>,
    frames: Vec<(Vec<u8>, bool)>,
}

struct Reader {
    builder: NamedBuilder,
    /// Event and period of each stack.
    samples: Vec<(usize, Option<i64>)>,
    /// Names of events, without modifiers.
    events: Vec<String>,
    /// Index in `events` by name with modifiers.
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
        } else if let Some(event) = event(text) {
            self.close();
            let frames = event.frame.and_then(frame);
            self.open = Some(Open {
                command: event.command.to_vec(),
                event: self.event(event.name)?,
                period: event.period,
                frames: frames.iter().map(|f| (f.name.to_vec(), f.kernel)).collect(),
            });
        } else {
            let frame =
                frame(text).ok_or_else(|| Fault::here("is neither an event nor a frame"))?;
            let sample = self
                .open
                .as_mut()
                .ok_or_else(|| Fault::here("is a frame without an event"))?;
            sample.frames.push((frame.name.to_vec(), frame.kernel));
        }
        Ok(())
    }

    /// Returns the index of an event. `cycles:u` and `cpu/cycles/P` are `cycles`.
    fn event(&mut self, name: &[u8]) -> Result<usize, Fault> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let plain = name.strip_prefix(b"cpu/").unwrap_or(name);
        let end = plain.iter().position(|&c| c == b'/').unwrap_or(plain.len());
        let plain = String::from_utf8_lossy(without_modifiers(&plain[..end])).into_owned();
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

    /// Ends the sample being read.
    fn close(&mut self) {
        let Some(sample) = self.open.take() else {
            return;
        };
        let command = (sample.command.as_slice(), false);
        let frames = sample
            .frames
            .iter()
            .map(|(name, kernel)| (name.as_slice(), *kernel));
        self.builder.stack_of(frames.chain([command]));
        self.samples.push((sample.event, sample.period));
    }

    fn finish(self) -> Profile {
        let mut profile = self.builder.profile;
        let has_periods = self.samples.iter().all(|(_, period)| period.is_some());
        let clocks = self.events.iter().all(|event| is_clock(event));
        let columns: Vec<ValueType> = if self.samples.is_empty() || !has_periods {
            // Without periods, only samples can be counted.
            Vec::new()
        } else if clocks {
            vec![ValueType::new("cpu", "nanoseconds")]
        } else {
            let events = self.events.iter();
            events.map(|e| ValueType::new(e, "count")).collect()
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

/// Removes modifiers such as `:u` and `:ppp`. Keeps the `:` of a tracepoint.
fn without_modifiers(name: &[u8]) -> &[u8] {
    match name.iter().rposition(|&c| c == b':') {
        Some(at) if name[at + 1..].iter().all(|c| b"ukhGHpPSDeWIb".contains(c)) => &name[..at],
        _ => name,
    }
}

/// Returns true if the period of an event is nanoseconds of CPU time.
fn is_clock(event: &str) -> bool {
    matches!(event, "cpu-clock" | "task-clock")
}
