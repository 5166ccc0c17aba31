//! Parser for the first line of a sample, in all forms that `perf script` prints.
//!
//! The full form is `comm pid/tid [cpu] time: period event: address symbol+0xOFFSET (module)`. Each
//! part may be missing: `-F` selects the parts, samples with a call chain have their frames on the
//! following lines, and tracepoints have arguments instead of a frame. A command may contain spaces
//! and digits, so it ends before the first word that can only be another part.

use super::frame::{self, FrameText};

/// Parsed first line of a sample.
#[derive(Debug, Default)]
pub(super) struct Head<'a> {
    /// Name of the command. Empty: not printed.
    pub(super) command: &'a [u8],
    /// Event with its modifiers, without the colon: `cycles:u`. Empty: not printed.
    pub(super) event: &'a [u8],
    /// Number of events that the sample stands for.
    pub(super) period: Option<i64>,
    /// Frame of a sample without a call chain.
    pub(super) frame: Option<FrameText<'a>>,
    /// Set if the line is a side-band record (`PERF_RECORD_MMAP2`, ...) instead of a sample.
    pub(super) is_record: bool,
    /// Set if a time or an event is printed, so that the line cannot be any other kind of text.
    pub(super) is_certain: bool,
    /// Set if a time is printed.
    pub(super) has_time: bool,
    /// Set if a process or a processor is printed.
    pub(super) is_placed: bool,
}

impl Head<'_> {
    /// Returns true if the event is a tracepoint, such as `sched:sched_switch`. Its arguments
    /// follow, which may look like addresses.
    pub(super) fn is_tracepoint(&self) -> bool {
        let mut parts = self.event.splitn(2, |&c| c == b':');
        let group = parts.next().unwrap_or_default();
        let name = parts.next().unwrap_or_default();
        let is_word = |c: &u8| c.is_ascii_alphanumeric() || b"_-:".contains(c);
        !group.contains(&b'/')
            && name.first().is_some_and(u8::is_ascii_alphanumeric)
            && name.iter().all(is_word)
            && name.iter().any(|c| !b"ukhGHpPSDeWIb".contains(c))
    }
}

/// Cursor over the words of a line.
struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = &self.line[self.at..];
        let start = self.at + (rest.len() - rest.trim_ascii_start().len());
        let rest = &self.line[start..];
        let length = rest
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(rest.len());
        self.at = start + length;
        (length > 0).then(|| &rest[..length])
    }

    fn peek(&self) -> Option<&'a [u8]> {
        let mut ahead = Words { ..*self };
        ahead.next()
    }

    fn rest(&self) -> &'a [u8] {
        self.line[self.at..].trim_ascii()
    }
}

/// Parses the first line of a sample. Returns `None` for any other line.
pub(super) fn parse(line: &[u8]) -> Option<Head<'_>> {
    if line.starts_with(b"\t") {
        return None;
    }
    let line = without_guest(line);
    let command_end = command_end(line)?;
    let mut head = Head {
        command: line[..command_end].trim_ascii(),
        ..Head::default()
    };
    let mut words = Words {
        line,
        at: command_end,
    };
    let mut follows_process = false;
    while let Some(word) = words.next() {
        if word.starts_with(b"PERF_RECORD_") {
            head.is_record = true;
            return Some(head);
        }
        if is_event(word) {
            head.event = &word[..word.len() - 1];
            head.is_record = head.event == METRIC;
            head.is_certain = true;
            break;
        }
        if is_time(word) {
            head.is_certain = true;
            head.has_time = true;
        } else if is_number(word)
            && (head.is_certain || follows_process)
            && can_follow_period(&words, head.is_certain)
        {
            head.period = parse_number(word);
        } else if !follows_process && is_process_id(word, &words) {
            follows_process = true;
            head.is_placed = true;
        } else if is_processor(word) || words.is_bare_processor(word) {
            head.is_placed = true;
        } else if !is_date(word) && (!is_mode(word) || !head.is_placed) {
            words.at -= word.len();
            break;
        }
    }
    // Without an event, a tracepoint's arguments follow the time. perf's addresses have no `0x`.
    let is_frame = !(head.has_time && words.rest().starts_with(b"0x"));
    head.frame = if !head.event.is_empty() {
        frame::parse_after_event(words.rest(), head.is_tracepoint())
    } else if is_frame {
        frame::parse(words.rest())
    } else {
        None
    };
    let is_sample = head.has_time && head.is_placed || !head.event.is_empty();
    let is_whole = head.frame.is_some() || words.rest().is_empty() || is_sample;
    is_whole.then_some(head)
}

/// Maximum length of a command in bytes, with room to spare: Linux has 15.
const MAX_COMMAND: usize = 64;

/// Event of the lines in which `-F +metric` prints what it has computed from the samples before.
const METRIC: &[u8] = b"metric";

/// Strips the machine and processor of a guest, which `-F +machine_pid,+vcpu` prints before the
/// command.
fn without_guest(line: &[u8]) -> &[u8] {
    let mut words = Words { line, at: 0 };
    let is_numbered = |word: Option<&[u8]>| word.is_some_and(is_number);
    let has_machine = match words.next().and_then(|word| word.strip_prefix(b"VM:")) {
        Some(b"") => is_numbered(words.next()),
        machine => is_numbered(machine),
    };
    if !has_machine {
        return line;
    }
    let before = words.at;
    let processor = words.next().and_then(|word| word.strip_prefix(b"VCPU:"));
    if !is_numbered(processor) {
        words.at = before;
    }
    &line[words.at..]
}

/// Returns the offset of the end of the command: before the first word from which the rest of the
/// line parses as the other parts. Returns `None` if there is no such word.
fn command_end(line: &[u8]) -> Option<usize> {
    let mut words = Words { line, at: 0 };
    let mut end = 0;
    loop {
        let before = words.at;
        let Some(word) = words.next() else {
            // The line has only the command, as with `-F comm,ip,sym`.
            return (end > 0).then_some(before);
        };
        if begins_parts(word, &words) {
            return Some(before);
        }
        end = words.at;
    }
}

/// Returns true if `word`, which `words` has just passed, is the first one after the command.
fn begins_parts(word: &[u8], words: &Words<'_>) -> bool {
    is_time(word) && words.peek().is_none_or(can_follow_time)
        || is_event(word) && !words.has_later_head(word)
        || is_processor(word) && words.peek().is_some_and(|next| is_time(next) || is_date(next))
        || is_date(word) && words.peek().is_some_and(is_time)
        || word.starts_with(b"PERF_RECORD_")
        || is_process_id(word, words)
        // With `-F comm,ip,sym`, the frame follows the command.
        || frame::is_address(word)
            && frame::parse(words.line_from(word)).is_some()
            && !words.has_later_head(word)
}

/// Returns true for what may follow the time: a period, an event, a frame.
fn can_follow_time(word: &[u8]) -> bool {
    is_number(word)
        || is_event(word)
        || frame::is_address(word)
        || word.starts_with(b"PERF_RECORD_")
}

/// Returns true if `word`, which `words` has just passed, is a process or thread ID. The words
/// after it decide, because a command may end in a number, and an address may have decimal digits
/// only.
fn is_process_id(word: &[u8], words: &Words<'_>) -> bool {
    if !is_process(word) {
        return false;
    }
    let mut ahead = Words { ..*words };
    let mut second = ahead.next();
    let mut third = ahead.next();
    if second.is_some_and(is_mode) {
        (second, third) = (third, ahead.next());
    }
    let Some(second) = second else {
        return true;
    };
    let is_before_event_or_frame =
        |next: &[u8]| is_event(next) || frame::is_later_address(next) && ahead.next().is_some();
    is_processor(second)
        || is_time(second)
        || is_event(second)
        || second.starts_with(b"PERF_RECORD_")
        || is_number(second) && third.is_none_or(is_before_event_or_frame)
        || frame::is_address(second) && third.is_some() && !words.has_later_head(word)
        || third.is_some_and(is_time) && words.begins_with_bare_processor()
}

impl<'a> Words<'a> {
    /// Returns the rest of the line, beginning with `word`, which is the last word that was read.
    fn line_from(&self, word: &[u8]) -> &'a [u8] {
        &self.line[self.at - word.len()..]
    }

    /// Returns true if a process ID and a time, or a processor and a time, come later, so that
    /// `word` belongs to the command: `C1: 2`. A tracepoint's arguments may contain a process ID
    /// and words that look like events.
    fn has_later_head(&self, word: &[u8]) -> bool {
        let event = Head {
            event: word.strip_suffix(b":").unwrap_or(word),
            ..Head::default()
        };
        let mut words = Words { ..*self };
        while let Some(next) = words.next().filter(|_| words.at < self.at + MAX_COMMAND) {
            let mut ahead = Words { ..words };
            let mut following = ahead.next();
            if following.is_some_and(is_mode) {
                following = ahead.next();
            }
            if is_process(next) && following.is_some_and(is_processor) {
                following = ahead.next();
            }
            let is_timed = following.is_some_and(|part| is_time(part) || is_date(part));
            if is_timed && (is_process(next) || is_processor(next)) {
                return true;
            }
            let is_counted = is_process(next) && following.is_some_and(is_number);
            if !event.is_tracepoint() && is_counted && ahead.next().is_some_and(is_event) {
                return true;
            }
        }
        false
    }

    /// Returns true if the next word is the number of a processor without brackets, as
    /// `--Latency` prints it. It is aligned in three columns, process IDs in at least five.
    fn begins_with_bare_processor(&self) -> bool {
        const WIDTH: usize = 1 + 3;
        let ahead = self.peek().filter(|word| is_number(word));
        ahead.is_some_and(|word| {
            let end = word.as_ptr().addr() + word.len() - self.line.as_ptr().addr();
            end - self.at == WIDTH
        })
    }

    /// Returns true if `word`, which was just passed, is the number of a processor without
    /// brackets: a time follows it.
    fn is_bare_processor(&self, word: &[u8]) -> bool {
        is_number(word) && self.peek().is_some_and(is_time)
    }
}

/// Returns true if the rest of `words` can follow a period: it is an event, or, if a time precedes
/// the period, anything that may follow an event.
fn can_follow_period(words: &Words<'_>, follows_time: bool) -> bool {
    let mut ahead = Words { ..*words };
    match ahead.next() {
        None => follows_time,
        Some(next) if is_event(next) => true,
        Some(next) => {
            let is_address = frame::is_address(next) && follows_time;
            (is_address || frame::is_later_address(next)) && ahead.next().is_some()
        }
    }
}

fn is_number(word: &[u8]) -> bool {
    word.iter().all(u8::is_ascii_digit)
}

fn parse_number(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Matches `pid`, `tid` or `pid/tid`. perf prints -1 for an unknown thread.
fn is_process(word: &[u8]) -> bool {
    word.split(|&c| c == b'/').all(|part| {
        let digits = part.strip_prefix(b"-").unwrap_or(part);
        !digits.is_empty() && is_number(digits)
    })
}

/// Matches `[003]`.
fn is_processor(word: &[u8]) -> bool {
    let inner = word.strip_prefix(b"[").and_then(|w| w.strip_suffix(b"]"));
    inner.is_some_and(|digits| !digits.is_empty() && is_number(digits))
}

/// Maximum length of the letters for the mode of the processor.
const MAX_MODE_LETTERS: usize = 4;

/// Matches the letters that `-F +misc` prints: user, kernel, hypervisor, guest, exact address.
fn is_mode(word: &[u8]) -> bool {
    word.len() <= MAX_MODE_LETTERS && word.iter().all(|c| b"KUHGghEMFSp".contains(c))
}

/// Matches `12345.678901:` and the time of day that `-F +tod` prints: `12:00:01.580611:`.
fn is_time(word: &[u8]) -> bool {
    let Some(number) = word.strip_suffix(b":") else {
        return false;
    };
    let mut parts = number.split(|&c| c == b'.');
    let is_part = |part: &[u8]| !part.is_empty() && is_number(part);
    let is_clock = |part: &[u8]| {
        let mut fields = part.split(|&c| c == b':');
        matches!(fields.clone().count(), 1 | 3) && fields.all(is_part)
    };
    parts.next().is_some_and(is_clock)
        && parts.next().is_some_and(is_part)
        && parts.next().is_none()
}

/// Matches `2026-05-01`, which `-F +tod` prints before the time of day.
fn is_date(word: &[u8]) -> bool {
    let mut parts = word.split(|&c| c == b'-');
    let mut has = |length: usize| {
        parts
            .next()
            .is_some_and(|part| part.len() == length && is_number(part))
    };
    has(4) && has(2) && has(2) && parts.next().is_none()
}

/// Matches `cycles:`, `cpu_core/cycles/u:` and `sched:sched_switch:`.
fn is_event(word: &[u8]) -> bool {
    word.ends_with(b":")
        && word.first().is_some_and(u8::is_ascii_alphanumeric)
        && !is_time(word)
        && !word.starts_with(b"PERF_RECORD_")
        && !is_number(&word[..word.len() - 1])
        // Such a word is part of a folded stack.
        && !word.contains(&b';')
}
