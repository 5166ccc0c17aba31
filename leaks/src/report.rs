//! Report on a leak check, as text for users and as JSON for programs.

use std::collections::HashMap;
use std::time::Duration;

use mem_agents::clock::{Time, now_ns};
use mem_agents::collect;
use mem_agents::discovery::Agent;
use mem_agents::dump::end_of;
use mem_agents::live::is_counting;
use mem_agents::names::Symbols;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use profile::LeakCheck;
use serde::Serialize;
use shm_protocol::NodeId;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use super::calls;
use super::frame::{Frame, Part, own_part};
use super::notes::notes;
use super::{Base, Check, Earlier, Leak, UsedSuppression};

/// Maximum number of frames shown of a stack.
const MAX_FRAMES: usize = 32;
/// Maximum number of objects that are listed.
const MAX_LISTED: usize = 100_000;

/// Report on one process.
#[derive(Debug, Serialize)]
pub struct Report {
    pid: i32,
    name: String,
    /// Sampling interval in bytes; with 1, every allocation is known.
    interval: u64,
    /// Length of the session. Objects from before it are unknown.
    session_seconds: f64,
    /// Time since the end of the session; null if it is still running or has just ended.
    ended_seconds_ago: Option<f64>,
    /// Number of samples of the session.
    samples: u64,
    /// Size of a leak of small objects that is sampled with a probability of 95 %.
    least_seen_bytes: f64,
    lost_bytes: f64,
    /// Half the width of the 95 % confidence interval of `lost_bytes`; 0 if every allocation is
    /// known.
    lost_bytes_margin: f64,
    lost_objects: f64,
    /// Number of samples among the lost objects.
    pub lost_samples: u64,
    /// Estimated size of the live heap, in bytes.
    pub live_bytes: f64,
    /// Earlier check. `lost_…` and `leaks` do not include its losses.
    base: Option<BaseLosses>,
    /// Losses by stack: direct leaks and cycles first, then by size.
    leaks: Vec<Entry>,
    /// Number of stacks with losses. `leaks` may have fewer.
    stacks: usize,
    /// Known leaks, which the fields above do not include.
    suppressed: Vec<Suppressed>,
    threads: usize,
    pause_ms: f64,
    searched_bytes: u64,
    search_seconds: f64,
    /// True if the copy searched its own memory.
    searched_by_copy: bool,
    /// Number of searches while the process ran; null if it was stopped and searched once.
    running_searches: Option<u32>,
    /// Remarks on the completeness of the check.
    pub notes: Vec<String>,
    /// Error from looking up names.
    #[serde(skip)]
    names_error: Option<String>,
    /// Path of the dump, if one was written.
    pub dump: Option<String>,
    /// Path of the dump's page, if one was made.
    pub page: Option<String>,
    /// Address and size of each lost object, if they are to be listed.
    #[serde(skip)]
    objects: Vec<(u64, u64)>,
}

/// Losses of an earlier check.
#[derive(Debug, Serialize)]
struct BaseLosses {
    dump: String,
    /// Age in seconds.
    seconds: Option<f64>,
    lost_bytes: f64,
    lost_objects: f64,
}

/// Suppression that has matched. Counts the objects whose stacks match, but not the objects that
/// are reachable only from them.
#[derive(Debug, Serialize)]
struct Suppressed {
    template: String,
    bytes: f64,
    objects: f64,
}

/// Losses of one stack.
#[derive(Debug, Serialize)]
struct Entry {
    /// `direct`, `cycle` or `indirect`.
    kind: &'static str,
    bytes: f64,
    margin: f64,
    objects: f64,
    /// Size of sampled objects that only these objects keep alive. Exact if every allocation is
    /// known; otherwise a lower bound.
    kept_bytes: f64,
    kept_objects: f64,
    /// Address of one of the objects.
    example: String,
    /// Functions, innermost first.
    stack: Vec<String>,
    /// Calls that tell the stack from others with the same functions: file and offset.
    calls: Vec<String>,
    /// Functions of `stack` with their source lines.
    frames: Vec<Frame>,
}

/// Creates the report on a check. Shows at most `max_stacks` stacks.
pub fn report(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    check: &Check,
    max_stacks: usize,
    earlier: Option<Earlier<'_>>,
) -> Report {
    let total = check.leaks.total;
    let shown = check.leaks.leaks.iter().take(max_stacks.max(1));
    let overwritten = check.snapshot.overwritten.iter();
    let overwritten = overwritten.chain(check.overwritten.keys()).copied();
    let leaves = shown.clone().map(|leak| leak.node).chain(overwritten);
    let (names, names_error) = names(agent, header, &check.snapshot, leaves);
    let calls = calls::differing_calls(agent, header, &check.snapshot, &names);
    let now = now_ns();
    let end = end_of(session, header).ns;
    let seconds = |ns: u64| ns as f64 / 1e9;
    Report {
        pid: agent.pid,
        name: text::escape(&agent.name),
        interval: check.snapshot.least_interval.max(1),
        session_seconds: seconds(end.saturating_sub(session.start_ns)),
        ended_seconds_ago: Some(seconds(now.saturating_sub(end)))
            .filter(|ago| *ago >= 1.0 && !is_counting(header, session)),
        samples: check.snapshot.totals.samples,
        least_seen_bytes: least_seen(check.snapshot.largest_interval()),
        lost_bytes: total.bytes,
        lost_bytes_margin: total.margin(),
        lost_objects: total.objects,
        lost_samples: total.samples,
        live_bytes: check.snapshot.totals.live_bytes,
        base: match earlier {
            Some(Earlier::Dump(base)) => Some(base_losses(base)),
            Some(Earlier::SameSession(_)) | None => None,
        },
        leaks: shown.map(|leak| entry(leak, &names, &calls)).collect(),
        stacks: check.leaks.leaks.len(),
        suppressed: check.used.iter().map(suppressed).collect(),
        threads: check.pause.threads,
        pause_ms: check.pause.stopped.as_secs_f64() * 1e3,
        searched_bytes: check.scanned,
        search_seconds: check.search.as_secs_f64(),
        searched_by_copy: check.searched_by_copy == Ok(true),
        running_searches: check.searches,
        dump: None,
        page: None,
        objects: check.objects.clone(),
        notes: notes(check, &names),
        names_error,
    }
}

/// Returns the size of a leak of small objects that is sampled with a probability of 95 %, since
/// exp(-3) is 5 %.
fn least_seen(interval: u64) -> f64 {
    if interval <= 1 {
        1.0
    } else {
        3.0 * interval as f64
    }
}

fn base_losses(base: &Base) -> BaseLosses {
    let age = base.age_ns(&Time::now());
    BaseLosses {
        dump: base.name.clone(),
        seconds: age.map(|age| age as f64 / 1e9),
        lost_bytes: base.total.bytes,
        lost_objects: base.total.objects,
    }
}

fn suppressed(used: &UsedSuppression) -> Suppressed {
    Suppressed {
        template: used.template.clone(),
        bytes: used.sum.bytes,
        objects: used.sum.objects,
    }
}

fn entry(
    leak: &Leak,
    stacks: &HashMap<NodeId, Vec<Frame>>,
    calls: &HashMap<NodeId, Vec<String>>,
) -> Entry {
    let frames = stacks.get(&leak.node).cloned().unwrap_or_default();
    Entry {
        kind: leak.loss.word(),
        bytes: leak.lost.bytes,
        margin: leak.lost.margin(),
        objects: leak.lost.objects,
        kept_bytes: leak.kept.bytes,
        kept_objects: leak.kept.objects,
        example: format!("{:#x}", leak.example),
        stack: frames.iter().map(|frame| frame.function.clone()).collect(),
        calls: calls.get(&leak.node).cloned().unwrap_or_default(),
        frames,
    }
}

/// Returns the frames of stacks, innermost first, by leaf node, and an error from looking them up.
pub fn names(
    agent: &Agent,
    header: &Header<'_>,
    snapshot: &Snapshot,
    leaves: impl Iterator<Item = NodeId>,
) -> (HashMap<NodeId, Vec<Frame>>, Option<String>) {
    let mut symbols = Symbols::new(agent.pid);
    let mut stacks: HashMap<NodeId, Stack> = HashMap::new();
    for leaf in leaves {
        let mut addresses = Vec::new();
        let is_complete = snapshot.frames(leaf, &mut addresses);
        let stack = Stack {
            addresses,
            is_complete,
        };
        stacks.insert(leaf, stack);
    }
    let all = stacks.values().flat_map(|stack| &stack.addresses).copied();
    symbols.resolve(all, true, |addresses| {
        collect::profile_of_addresses(header, agent.pid, addresses, snapshot.codes())
    });
    let error = symbols.take_error();
    let named = stacks.into_iter().map(|(leaf, stack)| {
        let found = symbols
            .frames_with_lines(&stack.addresses)
            .unwrap_or_default();
        let frames = found.iter().map(|frame| Frame {
            function: symbols.name(frame.function).to_owned(),
            file: text::escape(frame.file.as_bytes()),
            line: frame.line,
            is_system: symbols.is_system(frame.function),
        });
        let mut frames: Vec<Frame> = frames.collect();
        if stack.addresses.is_empty() {
            frames.push(Frame::named("[table full]"));
        } else if !stack.is_complete {
            frames.push(Frame::named("[truncated]"));
        }
        (leaf, frames)
    });
    (named.collect(), error)
}

/// Stack of a leaf node, before its functions are looked up.
struct Stack {
    addresses: Vec<u64>,
    /// False if outer frames are missing.
    is_complete: bool,
}

impl Report {
    /// Formats the report as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.summary()];
        let is_exact = self.interval == 1;
        self.leaks
            .iter()
            .for_each(|entry| entry.add_to(&mut lines, is_exact));
        if self.stacks > self.leaks.len() {
            let shown = self.leaks.len();
            let all = self.stacks;
            lines.push(String::new());
            lines.push(format!("These are {shown} of {all} stacks, the largest."));
        }
        if !self.suppressed.is_empty() {
            // LeakSanitizer's format.
            lines.push(String::new());
            lines.push("Suppressions used:".to_owned());
            lines.push("  count      bytes template".to_owned());
            let used = self.suppressed.iter();
            lines.extend(used.map(|used| {
                let objects = used.objects;
                let bytes = used.bytes;
                format!("{objects:7.0} {bytes:10.0} {}", used.template)
            }));
        }
        lines.extend(self.object_lines());
        lines
    }

    /// Formats a line for each lost object, in the format of gperftools, if the objects are to be
    /// listed.
    fn object_lines(&self) -> impl Iterator<Item = String> {
        let objects = self.objects.iter().take(MAX_LISTED);
        let lines = objects.map(|(at, bytes)| format!("leaked {bytes} byte object {at:#x}"));
        let more = self.objects.len().saturating_sub(MAX_LISTED);
        lines.chain((more > 0).then(|| format!("and {more} more")))
    }

    /// Removes the list of matching suppressions.
    pub fn hide_suppressed(&mut self) {
        self.suppressed.clear();
    }

    /// Returns remarks and errors as lines of text.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let notes = self.notes.iter();
        let notes = notes.map(|note| format!("{} ({}): {note}", self.name, self.pid));
        self.names_error.iter().cloned().chain(notes)
    }

    /// Returns the data about the check for a dump.
    pub fn to_dump(&self) -> LeakCheck {
        let rounded = |number: f64| number.round() as u64;
        let stopped = self.running_searches.is_none();
        let suppressed = self.suppressed.iter().map(|used| profile::Suppressed {
            objects: rounded(used.objects),
            bytes: rounded(used.bytes),
            template: used.template.clone(),
        });
        LeakCheck {
            live_bytes: rounded(self.live_bytes),
            pause_ns: stopped.then_some(rounded(self.pause_ms * 1e6)),
            searches: self.running_searches.unwrap_or(1),
            searched_bytes: self.searched_bytes,
            notes: self.notes.clone(),
            suppressed: suppressed.collect(),
        }
    }

    /// Formats the total loss.
    fn summary(&self) -> String {
        let title = format!("{} ({})", self.name, self.pid);
        let time = |seconds: f64| match Duration::from_secs_f64(seconds) {
            short if short < Duration::from_secs(1) => text::short_time(short),
            long => text::duration(long),
        };
        let since = match &self.base {
            None => match self.ended_seconds_ago {
                None => format!(
                    "of what it allocated in the last {}",
                    time(self.session_seconds)
                ),
                Some(ago) => format!(
                    "of what it allocated in a session of {} that ended {} ago",
                    time(self.session_seconds),
                    time(ago)
                ),
            },
            Some(base) => format!(
                "since {}{}, which has {} in {}",
                base.dump,
                base.seconds
                    .map_or(String::new(), |age| format!(", {} ago", time(age))),
                text::bytes(base.lost_bytes),
                count(base.lost_objects)
            ),
        };
        match self.lost_samples {
            0 if self.interval == 1 => format!("{title}: no leaks, {since}"),
            0 => format!(
                "{title}: no sign of a leak in {}, {since}; one of less than {} may have no sample",
                text::count(self.samples, "sample", "samples"),
                text::bytes(self.least_seen_bytes),
            ),
            _ => format!(
                "{title}: {}{} lost in {}, {since}; {}{} is live",
                text::bytes(self.lost_bytes),
                margin(self.lost_bytes_margin, self.interval == 1),
                objects(self.lost_objects, self.interval == 1),
                about(self.interval == 1),
                text::bytes(self.live_bytes),
            ),
        }
    }

    /// Formats the cost of the check.
    pub fn cost(&self) -> String {
        let bytes = text::bytes;
        let title = format!("{} ({})", self.name, self.pid);
        let threads = text::count(self.threads as u64, "thread", "threads");
        let searched = bytes(self.searched_bytes as f64);
        if let Some(times) = self.running_searches {
            return format!(
                "{title}: not stopped ({threads}); searched {} in {:.1} s, {searched} the last time",
                text::count(times.into(), "time", "times"),
                self.search_seconds,
            );
        }
        format!(
            "{title}: stopped for {:.1} ms ({threads}); {searched} searched in {:.2} s",
            self.pause_ms, self.search_seconds
        )
    }
}

impl Entry {
    /// Adds the lines of one stack.
    fn add_to(&self, lines: &mut Vec<String>, is_exact: bool) {
        // Without a sample of every object, the amount kept alive would be too small.
        let kept = if self.kept_objects > 0.0 && is_exact {
            format!(
                ", and with {} {} in {}",
                if self.objects > 1.0 { "them" } else { "it" },
                text::bytes(self.kept_bytes),
                count(self.kept_objects)
            )
        } else {
            String::new()
        };
        let kind = match self.kind {
            "cycle" => "Leak of a cycle",
            "indirect" => "Indirect leak",
            _ => "Direct leak",
        };
        let size = text::bytes(self.bytes);
        let margin = margin(self.margin, is_exact);
        let objects = objects(self.objects, is_exact);
        lines.push(String::new());
        lines.push(format!("{kind}: {size}{margin} in {objects}{kept}, from"));
        let (own, through) = own_part(&self.frames);
        for part in own.iter().take(MAX_FRAMES) {
            match part {
                Part::Own(frame) => {
                    lines.push(format!("    {}", frame.function));
                    lines.extend(frame.place().map(|place| format!("      at {place}")));
                }
                Part::Libraries(called) => lines.push(format!("    (through {called})")),
            }
        }
        if own.len() > MAX_FRAMES {
            lines.push(format!("    … {} more", own.len() - MAX_FRAMES));
        }
        lines.extend(through.map(|called| format!("    (through {called})")));
        if !self.calls.is_empty() {
            lines.push(format!("  by the call at {}", self.calls.join(", ")));
        }
        lines.push(format!("  one is at {}", self.example));
    }
}

/// Formats the margin of an estimate; empty for exact values.
fn margin(bytes: f64, is_exact: bool) -> String {
    if is_exact {
        String::new()
    } else {
        format!(" ± {}", text::bytes(bytes))
    }
}

/// Returns the word that marks a number without a margin as an estimate; empty for exact values.
fn about(is_exact: bool) -> &'static str {
    if is_exact { "" } else { "about " }
}

/// Formats a number of objects with its noun.
fn objects(objects: f64, is_exact: bool) -> String {
    let count = count(objects);
    let noun = if count == "1" { "object" } else { "objects" };
    format!("{}{count} {noun}", about(is_exact))
}

/// Formats a number of objects, which may be an estimate.
fn count(objects: f64) -> String {
    format!("{objects:.0}")
}
