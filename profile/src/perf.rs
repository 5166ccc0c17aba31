//! Reader for the text that `perf script` prints.
//!
//! Each event gets its own column, because counts of different events cannot be added.

mod event;
mod frame;
mod head;

use std::collections::HashMap;
use std::io::Read;

use self::event::EventName;
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
    let is_comment = |line: &&[u8]| {
        line.starts_with(b"#") || line.trim_ascii().is_empty() || line.starts_with(TRACE_ERROR)
    };
    let Some(first) = lines.by_ref().find(|line| !is_comment(line)) else {
        return false;
    };
    let begins_chain = |line: &[u8]| {
        let frame = frame::parse(line).filter(|frame| frame.is_certain);
        line.starts_with(b"\t") && frame.is_some()
    };
    if begins_chain(first) {
        return true;
    }
    let Some(head) = head::parse(first) else {
        return false;
    };
    // Any word may contain a colon, so an event alone is not enough: a call chain must be near.
    let is_sample =
        head.has_time && (!head.event.is_empty() || head.frame.is_some() || head.is_placed);
    let has_frame = head.frame.is_some_and(|frame| frame.is_certain);
    let is_complete = !head.event.is_empty() && (has_frame || head.is_tracepoint());
    head.is_record
        || is_sample
        || is_complete
        || lines.take(MAX_CHAINLESS).any(begins_chain)
        || is_flat(first, &head)
}

/// Maximum number of lines (samples without a call chain) before the first call chain.
const MAX_CHAINLESS: usize = 64;

/// Start of the output of `perf script --header`.
const HEADER: &[u8] = b"# ========\n# captured on";

/// Start of the line that perf prints where it could not decode a trace of the processor.
const TRACE_ERROR: &[u8] = b" instruction trace error ";

/// Returns true for data of an event that a BPF program wrote: `BPF output: 0000: 52 61`, and the
/// lines of 8 bytes after it.
fn is_output_of_bpf(line: &[u8]) -> bool {
    let text = line.trim_ascii_start();
    let is_offset = |word: &[u8]| word.len() == 4 && word.iter().all(u8::is_ascii_hexdigit);
    let mut parts = text.splitn(2, |&c| c == b':');
    let begins_with_offset = parts.next().is_some_and(is_offset) && parts.next().is_some();
    text.starts_with(b"BPF output: ") || text.starts_with(b"BPF string: ") || begins_with_offset
}

/// Returns true if a sample without time and event is aligned in columns, as perf prints it. A
/// folded stack ends in a number instead.
fn is_flat(line: &[u8], head: &Head<'_>) -> bool {
    // A kernel address has all 16 digits, so there may be no padding before it.
    let is_aligned = line.starts_with(b" ") || line.windows(2).any(|pair| pair == b"  ");
    let last = line.trim_ascii_end().rsplit(u8::is_ascii_whitespace).next();
    let ends_in_number = last.is_some_and(|word| word.iter().all(u8::is_ascii_digit));
    let has_frame = head.frame.is_some_and(|frame| frame.is_certain);
    has_frame && is_aligned && !ends_in_number
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
        event_indices: HashMap::new(),
        open_sample: None,
        has_records: false,
    };
    while let Some(line) = lines.next()? {
        reader.read_line(line.text)?;
    }
    reader.close_sample();
    if reader.samples.is_empty() {
        return Err(Fault::whole(NO_SAMPLES));
    }
    Ok(reader.finish())
}

/// Fault of a file without a sample: only perf's header or side-band records (mmap, comm, fork).
const NO_SAMPLES: &str = "holds no samples of perf; perf script -i perf.data, without \
                          --header-only, prints those that perf record has taken";

/// Maximum number of events with columns of their own. Recordings of all tracepoints of a group have
/// more, whose samples are counted in one further column.
const MAX_EVENTS: usize = 16;

/// Sample whose frames are being read.
struct OpenSample {
    command: Vec<u8>,
    /// Name of the event as printed; empty if it is not.
    event_name: Vec<u8>,
    event: usize,
    period: Option<i64>,
    frames: Vec<OwnedFrame>,
    /// Set while the only frame is the text after the event in the sample's line. If a call chain
    /// follows, that text was another field, such as the address of the data.
    is_flat: bool,
}

struct OwnedFrame {
    name: Vec<u8>,
    is_kernel: bool,
}

impl From<FrameText<'_>> for OwnedFrame {
    fn from(frame: FrameText<'_>) -> Self {
        Self {
            name: frame.name.to_vec(),
            is_kernel: frame.is_kernel,
        }
    }
}

struct Reader {
    builder: NamedBuilder,
    /// Event and period of each stack.
    samples: Vec<(usize, Option<i64>)>,
    /// Events in the order of their first samples.
    events: Vec<EventName>,
    /// Index of each event by its name as printed.
    event_indices: HashMap<Vec<u8>, usize>,
    open_sample: Option<OpenSample>,
    /// Set once a side-band record was read.
    has_records: bool,
}

impl Reader {
    fn read_line(&mut self, text: &[u8]) -> Result<(), Fault> {
        if text.starts_with(b"#") {
            return Ok(());
        }
        if text.trim_ascii().is_empty() {
            self.close_sample();
            return Ok(());
        }
        let is_instruction = text.starts_with(b" insn:") || text.starts_with(b" ilen:");
        if text.starts_with(TRACE_ERROR) {
            return Ok(());
        }
        if text.starts_with(b"|")
            || is_instruction
            || frame::is_instruction(text)
            || text.starts_with(b" ") && is_output_of_bpf(text)
        {
            return self.skip_annotation();
        }
        // A frame of the current sample. Frames of a call chain are indented by a tab, or by spaces
        // where tabs have been replaced. simpleperf indents short addresses only, and puts a tab
        // after each.
        let is_indented = text.starts_with(b" ") || frame::begins_with_tabbed_address(text);
        let has_chain = self
            .open_sample
            .as_ref()
            .is_some_and(|sample| !sample.is_flat);
        let is_chained = text.starts_with(b"\t") || is_indented && has_chain;
        let found = if is_chained { frame::parse(text) } else { None };
        if let Some(head) = head::parse(text)
            .filter(|head| found.is_none() && is_plausible(text, head) || head.is_certain)
        {
            self.close_sample();
            self.has_records |= head.is_record;
            if !head.is_record {
                self.begin_sample(&head);
            }
        } else if let Some(frame) = found {
            if self.open_sample.is_none() {
                self.begin_sample(&Head::default());
            }
            if let Some(sample) = &mut self.open_sample {
                if std::mem::take(&mut sample.is_flat) {
                    sample.frames.clear();
                }
                sample.frames.push(frame.into());
            }
        } else if text.starts_with(b" ") || text.starts_with(b"\t") {
            return self.skip_annotation();
        } else {
            return Err(Fault::here("is neither an event nor a frame"));
        }
        Ok(())
    }

    /// Skips an annotation of the preceding frame, sample or record: a source line (`+srcline`), its
    /// text (`+srccode`), an instruction (`+insn`, `+disasm`), registers, branches, a control group,
    /// the namespaces of a process.
    fn skip_annotation(&self) -> Result<(), Fault> {
        if self.open_sample.is_none() && self.samples.is_empty() && !self.has_records {
            return Err(Fault::here("is neither an event nor a frame"));
        }
        Ok(())
    }

    fn begin_sample(&mut self, head: &Head<'_>) {
        self.open_sample = Some(OpenSample {
            command: head.command.to_vec(),
            event_name: head.event.to_vec(),
            event: self.event_index(head.event),
            period: head.period,
            frames: head.frame.into_iter().map(OwnedFrame::from).collect(),
            is_flat: head.frame.is_some(),
        });
    }

    /// Returns the index of an event's column.
    fn event_index(&mut self, name: &[u8]) -> usize {
        if let Some(&number) = self.event_indices.get(name) {
            return number;
        }
        let mut event = EventName::new(name);
        if self.events.len() >= MAX_EVENTS && !self.events.contains(&event) {
            event = EventName::others();
        }
        let known = self.events.iter().position(|other| *other == event);
        let number = known.unwrap_or(self.events.len());
        if known.is_none() {
            self.events.push(event);
        }
        // Names without columns are not kept: a file may have any number of them.
        if number < MAX_EVENTS {
            self.event_indices.insert(name.to_vec(), number);
        }
        number
    }

    fn close_sample(&mut self) {
        let Some(sample) = self.open_sample.take() else {
            return;
        };
        let frames = sample
            .frames
            .iter()
            .map(|frame| (frame.name.as_slice(), frame.is_kernel));
        // Without any frame and command, the event is all that is known.
        let root = match sample.command.as_slice() {
            [] if sample.frames.is_empty() => sample.event_name.as_slice(),
            command => command,
        };
        let command = (!root.is_empty()).then_some((root, false));
        self.builder.add_stack(frames.chain(command));
        self.samples.push((sample.event, sample.period));
    }

    fn finish(self) -> Profile {
        let mut profile = self.builder.profile;
        let columns = event::columns(&self.events, &self.samples);
        profile.values.clear();
        for &(event, period) in &self.samples {
            profile.values.push(1);
            let value = |(index, column): (usize, &event::Column)| {
                if index != event {
                    0
                } else if column.has_periods {
                    period.unwrap_or(0)
                } else {
                    1
                }
            };
            profile.values.extend(columns.iter().enumerate().map(value));
        }
        // Samples of different events cannot be added: one event is shown.
        let is_clock = |column: &event::Column| column.value_type.unit == "nanoseconds";
        if columns.len() > 1 || columns.iter().any(is_clock) {
            let samples = profile.values.chunks(1 + columns.len());
            let mut totals = vec![0_u128; columns.len()];
            for (&(event, _), values) in self.samples.iter().zip(samples) {
                totals[event] += u128::from(values[1 + event].unsigned_abs());
            }
            profile.default_type = 1 + event::shown(&self.events, &totals, &self.samples);
        }
        let types = columns.into_iter().map(|column| column.value_type);
        profile.sample_types.extend(types);
        profile
    }
}
