//! Facts at the end of a dump: one line `# NAME VALUE` each.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::{FACTS, FIRST_WITH_AGE_SPREADS, FIRST_WITH_LOSSES, FIRST_WITH_SEPARATE_SIZES};
use crate::identity::FileIdentity;
use crate::leaks::LeakCheck;
use crate::maps::hex;
use crate::marker::{HEAP_MARKERS, Marker};
use crate::moment;
use crate::overwritten;
use crate::printable::is_hidden;
use crate::profile::{
    BuildId, Cost, Function, IntervalPeriod, Line, Location, Mapping, Profile, Thread,
};
use crate::sampling;

/// Value of the fact `python_objects`: the agent does not see Python's small objects.
const HIDDEN: &str = "hidden";
/// Value of the fact `python_objects`: the agent sees Python's small objects.
const SEEN: &str = "seen";

/// Returns the dump version that the profile's contents require.
pub(crate) fn version(profile: &Profile) -> u32 {
    let mut details = profile.details.iter();
    if details.any(|detail| detail.live_samples() > 0 && detail.age_spread.is_some()) {
        FIRST_WITH_AGE_SPREADS
    } else if !profile.losses.is_empty() {
        FIRST_WITH_LOSSES
    } else if profile.split_by_size_class {
        FIRST_WITH_SEPARATE_SIZES
    } else {
        FIRST_WITH_SEPARATE_SIZES - 1
    }
}

/// Appends the facts of a heap profile, with the section's first line.
pub(crate) fn write(profile: &Profile, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(FACTS);
    buffer.extend_from_slice(version(profile).to_string().as_bytes());
    buffer.push(b'\n');
    let mut writer = Writer { buffer };
    writer.origin(profile);
    writer.session(profile);
    writer.moments(profile);
    profile.mappings.iter().for_each(|m| writer.module(m));
    writer.markers(&HEAP_MARKERS);
    writer.functions(profile);
    writer.locations(profile, |_| true);
}

/// Writer of facts.
pub(crate) struct Writer<'a> {
    pub(crate) buffer: &'a mut Vec<u8>,
}

impl Writer<'_> {
    pub(crate) fn fact(&mut self, name: &str, value: &[u8]) {
        self.buffer.extend_from_slice(b"# ");
        self.buffer.extend_from_slice(name.as_bytes());
        self.buffer.push(b' ');
        escape(self.buffer, value);
        self.buffer.push(b'\n');
    }

    pub(crate) fn number(&mut self, name: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.fact(name, value.to_string().as_bytes());
        }
    }

    pub(crate) fn text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.fact(name, value.as_bytes());
        }
    }

    pub(crate) fn origin(&mut self, profile: &Profile) {
        let facts = &profile.facts;
        self.number("pid", facts.pid.map(u64::from));
        self.text("process", facts.process.as_deref());
        if let Some(exe) = &facts.exe {
            self.fact("exe", exe.as_os_str().as_bytes());
        }
        if !facts.exe_build_id.is_empty() {
            self.fact("exe_build_id", facts.exe_build_id.to_string().as_bytes());
        }
        if let Some(file) = &facts.exe_file {
            self.fact("exe_file", file.to_string().as_bytes());
        }
        for argument in &facts.command_line {
            self.fact("argument", argument.as_bytes());
        }
        self.text("boot_id", facts.boot_id.as_deref());
    }

    pub(crate) fn session(&mut self, profile: &Profile) {
        let facts = &profile.facts;
        self.number("start_unix_ns", facts.start_unix_ns);
        self.number("end_unix_ns", facts.end_unix_ns);
        self.number("end_boot_ns", facts.end_boot_ns);
        self.number("duration_ns", facts.duration_ns);
        self.number("peak_ns", facts.peak_ns);
        for period in &facts.intervals {
            self.fact("interval", interval_text(period).as_bytes());
        }
        if let Some(Cost {
            cpu_ns,
            spent_ns,
            error_ns,
        }) = facts.cost
        {
            let text = format!("{spent_ns} {error_ns} {cpu_ns}");
            self.fact("cost", text.as_bytes());
        }
        self.number("thinning", facts.thinning);
        self.text("runtime", facts.runtime.as_deref());
        self.text("python", facts.python.as_deref());
        let objects = facts
            .python_hides
            .map(|hides| if hides { HIDDEN } else { SEEN });
        self.text("python_objects", objects);
        for thread in &facts.threads {
            self.fact(
                "thread",
                format!("{} {}", thread.tid, thread.name).as_bytes(),
            );
        }
        for stack in &facts.overwritten_stacks {
            let addresses: Vec<String> = stack.iter().map(|at| format!("{at:#x}")).collect();
            self.fact("overwritten", addresses.join(" ").as_bytes());
        }
        self.number("sequence", facts.sequence);
        self.text("trigger", facts.trigger.as_deref());
        self.text("ended", facts.ended.as_deref());
        for (name, value) in &facts.counters {
            self.fact("counter", format!("{value} {name}").as_bytes());
        }
        for (name, value) in &facts.allocator {
            self.fact("allocator", format!("{value} {name}").as_bytes());
        }
        self.number("allocator_unix_ns", facts.allocator_unix_ns);
        for (name, value) in &facts.memory {
            self.fact("memory", format!("{value} {name}").as_bytes());
        }
        for (name, value) in facts.leak_check.iter().flat_map(LeakCheck::to_facts) {
            self.fact(name, value.as_bytes());
        }
        for comment in &profile.comments {
            self.fact("comment", comment.as_bytes());
        }
    }

    /// Writes the history of the session: its state at successive times.
    fn moments(&mut self, profile: &Profile) {
        for moment in &profile.moments {
            self.fact("moment", moment::fact_text(moment).as_bytes());
            if let Some(stacks) = &moment.stacks {
                self.fact("moment_stacks", moment::stacks_fact_text(stacks).as_bytes());
            }
        }
    }

    pub(crate) fn module(&mut self, m: &Mapping) {
        let id = if m.build_id.is_empty() {
            "-".into()
        } else {
            m.build_id.to_string()
        };
        let state = if m.past { "past" } else { "loaded" };
        let mut value = format!(
            "{:x} {:x} {:x} {id} {state} ",
            m.start, m.end, m.file_offset
        )
        .into_bytes();
        value.extend_from_slice(m.path.as_os_str().as_bytes());
        self.fact("module", &value);
    }

    /// Writes the address ranges of pseudo-frames such as `[truncated]`.
    pub(crate) fn markers(&mut self, markers: &[Marker]) {
        for marker in markers {
            let range = format!("{:x} {:x} {}", marker.address, marker.len, marker.name);
            self.fact("marker", range.as_bytes());
        }
    }

    pub(crate) fn functions(&mut self, profile: &Profile) {
        for f in &profile.functions {
            self.buffer.extend_from_slice(b"# function ");
            self.buffer
                .extend_from_slice(f.start_line.to_string().as_bytes());
            for text in [&f.name, &f.system_name, &f.file] {
                // A tab inside a string is escaped.
                self.buffer.push(b'\t');
                escape(self.buffer, text.as_bytes());
            }
            self.buffer.push(b'\n');
        }
    }

    /// Writes the source-level frames of the locations that `wants` selects.
    pub(crate) fn locations(&mut self, profile: &Profile, wants: impl Fn(&Location) -> bool) {
        let named = profile.locations.iter().filter(|l| l.line_count > 0);
        for location in named.filter(|l| wants(l)) {
            let mut value = format!("{:x}", location.address);
            for line in profile.lines_of(location) {
                value += &format!(" {}:{}:{}", line.function, line.line, line.column);
            }
            self.fact("location", value.as_bytes());
        }
    }
}

/// Formats `FROM_UNIX_NS BYTES`, followed by the overhead as a percentage if it was measured.
fn interval_text(period: &IntervalPeriod) -> String {
    let mut text = format!("{} {}", period.from_unix_ns, period.interval);
    if let Some(millionths) = period.overhead {
        let percent = millionths / 10_000;
        let rest = millionths % 10_000;
        text += &format!(" {percent}.{rest:04}%");
    }
    text
}

/// Parses the cost: `SPENT_NS ERROR_NS CPU_NS`.
fn cost(text: &str) -> Option<Cost> {
    let mut words = text.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(Cost {
        spent_ns: number()?,
        error_ns: number()?,
        cpu_ns: number()?,
    })
}

/// Parses what [`interval_text`] formats.
fn interval(text: &str) -> Option<IntervalPeriod> {
    let mut words = text.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let from_unix_ns = number()?;
    let interval = number()?;
    let overhead = match words.next() {
        None => None,
        Some(share) => {
            let percent: f64 = share.strip_suffix('%')?.parse().ok()?;
            // The cast saturates.
            Some((percent * 10_000.0).round() as u32)
        }
    };
    Some(IntervalPeriod {
        from_unix_ns,
        interval,
        overhead,
    })
}

/// Appends text, with backslashes, control characters and bytes that are not UTF-8 as `\xNN`.
fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || is_hidden(c) {
                let mut bytes = [0; 4];
                c.encode_utf8(&mut bytes)
                    .bytes()
                    .for_each(|b| hex_escape(out, b));
            } else {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        chunk.invalid().iter().for_each(|&b| hex_escape(out, b));
    }
}

fn hex_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
}

/// Reverses [`escape`]. Leaves other backslashes unchanged.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&c, tail)) = rest.split_first() {
        let escaped = match rest {
            [b'\\', b'x', a, b, ..] => hex(&[*a, *b]),
            _ => None,
        };
        match escaped {
            Some(byte) => {
                out.push(byte as u8);
                rest = &rest[4..];
            }
            None => {
                out.push(c);
                rest = tail;
            }
        }
    }
    out
}

fn string(value: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(value)).into_owned()
}

fn path(value: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(unescape(value)))
}

/// Reader of facts. Stores most of them in the profile; the fields are those that can only be
/// assigned once all lines have been read.
#[derive(Default)]
pub(crate) struct FactsReader {
    pub(crate) modules: Vec<Mapping>,
    pub(crate) functions: Vec<Function>,
    /// Lookup address and lines of each symbolized location.
    pub(crate) symbols: Vec<(u64, Vec<Line>)>,
}

impl FactsReader {
    /// Reads one line, without its `# `. The error is a description for users.
    pub(crate) fn read_line(&mut self, profile: &mut Profile, line: &[u8]) -> Result<(), String> {
        let end = line.iter().position(|&c| c == b' ').unwrap_or(line.len());
        let (name, value) = line.split_at(end);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let accepted = match name {
            b"module" => self.module(value),
            b"function" => self.function(value),
            b"location" => self.location(value),
            b"comment" => {
                profile.comments.push(string(value));
                Some(())
            }
            b"moment" => moment::read_fact(&mut profile.moments, value),
            b"moment_stacks" => {
                let count = profile.stacks.len();
                moment::read_stacks_fact(&mut profile.moments, count, value)
            }
            _ => fact(&mut profile.facts, name, value),
        };
        let name = String::from_utf8_lossy(name);
        accepted.ok_or_else(|| format!("the value of \u{201c}{name}\u{201d} is malformed"))
    }

    fn module(&mut self, value: &[u8]) -> Option<()> {
        let mut fields = value.splitn(6, |&c| c == b' ');
        let mut number = || hex(fields.next()?);
        let start = number()?;
        let end = number()?;
        let file_offset = number()?;
        let id = fields.next()?;
        let build_id = match id {
            b"-" => BuildId::default(),
            id => BuildId::from_hex(std::str::from_utf8(id).ok()?)?,
        };
        let past = fields.next()? == b"past";
        let path = path(fields.next()?);
        self.modules.push(Mapping {
            start,
            end,
            file_offset,
            build_id,
            path,
            past,
        });
        Some(())
    }

    fn function(&mut self, value: &[u8]) -> Option<()> {
        let mut fields = value.split(|&c| c == b'\t');
        let start_line = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let mut text = || fields.next().map(string);
        let name = text()?;
        let system_name = text()?;
        let file = text()?;
        self.functions.push(Function {
            name,
            system_name,
            file,
            start_line,
        });
        Some(())
    }

    fn location(&mut self, value: &[u8]) -> Option<()> {
        let mut words = std::str::from_utf8(value).ok()?.split(' ');
        let address = hex(words.next()?.as_bytes())?;
        let line = |word: &str| {
            let mut numbers = word.split(':').map(|n| n.parse::<u32>().ok());
            let function = numbers.next()??;
            let line = numbers.next()??;
            let column = numbers.next()??;
            ((function as usize) < self.functions.len()).then_some(Line {
                function,
                line,
                column,
            })
        };
        let lines = words.map(line).collect::<Option<Vec<Line>>>()?;
        self.symbols.push((address, lines));
        Some(())
    }
}

/// Reads a fact about the origin or the session. Ignores unknown names.
pub(crate) fn fact(facts: &mut crate::profile::Facts, name: &[u8], value: &[u8]) -> Option<()> {
    let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
    let named = || {
        let text = string(value);
        let (count, name) = text.split_once(' ')?;
        Some((name.to_owned(), count.parse::<u64>().ok()?))
    };
    match name {
        b"pid" => facts.pid = Some(number()?.try_into().ok()?),
        b"process" => facts.process = Some(string(value)),
        b"exe" => facts.exe = Some(path(value)),
        b"exe_build_id" => {
            facts.exe_build_id = BuildId::from_hex(std::str::from_utf8(value).ok()?)?;
        }
        b"exe_file" => facts.exe_file = FileIdentity::parse(std::str::from_utf8(value).ok()?),
        b"argument" => facts.command_line.push(string(value)),
        b"boot_id" => facts.boot_id = Some(string(value)),
        b"start_unix_ns" => facts.start_unix_ns = Some(number()?),
        b"end_unix_ns" => facts.end_unix_ns = Some(number()?),
        b"end_boot_ns" => facts.end_boot_ns = Some(number()?),
        b"duration_ns" => facts.duration_ns = Some(number()?),
        b"peak_ns" => facts.peak_ns = Some(number()?),
        b"interval" => facts
            .intervals
            .push(interval(std::str::from_utf8(value).ok()?)?),
        b"cost" => facts.cost = Some(cost(std::str::from_utf8(value).ok()?)?),
        b"thinning" => facts.thinning = Some(number()?),
        b"runtime" => facts.runtime = Some(string(value)),
        b"python" => facts.python = Some(string(value)),
        b"python_objects" => {
            facts.python_hides = match string(value).as_str() {
                HIDDEN => Some(true),
                SEEN => Some(false),
                _ => None,
            };
        }
        b"thread" => {
            let (name, tid) = named()?;
            facts.threads.push(Thread {
                tid: tid.try_into().ok()?,
                name,
            });
        }
        b"overwritten" => {
            let text = std::str::from_utf8(value).ok()?;
            let addresses = text.split(' ').take(overwritten::MAX_FRAMES);
            let address = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
            let stack: Option<Vec<u64>> = addresses.map(address).collect();
            if facts.overwritten_stacks.len() < overwritten::MAX_OVERWRITTEN {
                facts.overwritten_stacks.push(stack?);
            }
        }
        b"sequence" => facts.sequence = Some(number()?),
        b"trigger" => facts.trigger = Some(string(value)),
        b"ended" => facts.ended = Some(string(value)),
        b"counter" => facts.counters.extend([named()?]),
        b"allocator" => facts.allocator.extend([named()?]),
        b"allocator_unix_ns" => facts.allocator_unix_ns = Some(number()?),
        b"memory" => facts.memory.extend([named()?]),
        b"leak_check" | b"leak_note" | b"leak_suppressed" => {
            LeakCheck::read_fact(&mut facts.leak_check, name, &string(value))?;
        }
        _ if name.starts_with(sampling::PREFIX) => {
            let name = &name[sampling::PREFIX.len()..];
            let sampling = facts.cpu.get_or_insert_default();
            sampling::fact(sampling, name, number, || string(value))?;
        }
        _ => {}
    }
    Some(())
}
