//! Reading the text that `perf script` prints.

use std::io::Read;

use crate::error::Fault;
use crate::lines::Lines;
use crate::named::NamedBuilder;
use crate::profile::{Format, Profile, ValueType};
use crate::scan::Scan;

/// Whether a file that starts like this holds an event followed by a frame.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    let mut lines = start.split(|&c| c == b'\n');
    let is_comment = |line: &&[u8]| line.starts_with(b"#") || line.trim_ascii().is_empty();
    let Some(first) = lines.by_ref().find(|line| !is_comment(line)) else {
        return false;
    };
    event(first).is_some_and(|e| e.frame.is_some())
        || event(first).is_some() && lines.next().is_some_and(|line| frame(line).is_some())
}

/// The head of a sample.
struct Event<'a> {
    command: &'a [u8],
    period: Option<i64>,
    /// The only frame, when it stands on the same line.
    frame: Option<&'a [u8]>,
}

/// `comm pid[/tid] [cpu] time: [period] event: [frame]`; the command may hold
/// blanks, so the first word of digits is the process.
fn event(line: &[u8]) -> Option<Event<'_>> {
    if line.first().is_none_or(u8::is_ascii_whitespace) {
        return None;
    }
    let (command, mut rest) = split_at_process(line)?;
    // The time ends in a colon; before it stands perhaps the processor.
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
        period,
        frame,
    })
}

/// What comes before the first word that is a process, and what comes behind it.
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

/// The name of a frame `HEX symbol+0xOFFSET (module)`.
fn frame(line: &[u8]) -> Option<&[u8]> {
    let line = line.trim_ascii();
    let mut scan = Scan::new(line);
    scan.hex()?;
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
    Some(if unknown {
        module.rsplit(|&c| c == b'/').next().unwrap_or(module)
    } else {
        symbol
    })
}

/// Reads all samples.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let columns = vec![
        ValueType::new("samples", "count"),
        ValueType::new("period", "count"),
    ];
    let mut builder = NamedBuilder::new(Format::PerfScript, columns);
    builder.profile.default_type = 0;
    let mut open: Option<Open> = None;
    while let Some(line) = lines.next()? {
        let text = line.text;
        if text.starts_with(b"#") {
            continue;
        }
        if text.trim_ascii().is_empty() {
            close(&mut builder, open.take());
        } else if let Some(event) = event(text) {
            close(&mut builder, open.take());
            let mut sample = Open {
                command: event.command.to_vec(),
                period: event.period.unwrap_or(1),
                frames: Vec::new(),
            };
            sample
                .frames
                .extend(event.frame.and_then(frame).map(<[u8]>::to_vec));
            open = Some(sample);
        } else {
            let name = frame(text).ok_or_else(|| Fault::here("is neither an event nor a frame"))?;
            let sample = open
                .as_mut()
                .ok_or_else(|| Fault::here("is a frame without an event"))?;
            sample.frames.push(name.to_vec());
        }
    }
    close(&mut builder, open);
    Ok(builder.profile)
}

/// A sample whose frames are being read.
struct Open {
    command: Vec<u8>,
    period: i64,
    frames: Vec<Vec<u8>>,
}

fn close(builder: &mut NamedBuilder, sample: Option<Open>) {
    if let Some(sample) = sample {
        let names = sample.frames.iter().chain([&sample.command]);
        builder.stack(names.map(Vec::as_slice), &[1, sample.period]);
    }
}
