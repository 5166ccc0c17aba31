//! `why`: explains the resident memory of a process on one screen.

use std::process::ExitCode;

use anyhow::anyhow;
use mem_agents::clock::now_ns;
use mem_agents::discovery::{Agent, Discovery};
use mem_agents::hotspot::JavaHeap;
use mem_agents::process;
use mem_agents::pymalloc::{self, PythonHeap};
use mem_agents::resident::{MAX_PAGES, Owners, resident_bytes};
use mem_agents::segment::Head;
use mem_agents::select::{Chosen, Selection};
use mem_agents::snapshot::Snapshot;
use mem_agents::target::is_running;
use mem_agents::text;
use mem_agents::thread_stacks::Stacks;
use mem_agents::unreadable;
use proc::Pages;
use profile::resident::{ByOwner, Heap, Part};
use profile::variance::half_width;
use serde::{Serialize, Serializer};
use shm_protocol::layout::BANK_HEADER_BYTES;

use crate::allocator;
use crate::allocator_stats;
use crate::cli::WhyArgs;
use crate::ledger::{self, MODIFIED, NonResident, Row};
use crate::python;
use crate::smaps::{self, Resident};
use crate::terminal::{diagnostic, json, result, warning};
use crate::top::heap::unseen;

/// Explanation for one process.
#[derive(Debug, Serialize)]
struct Answer {
    pid: i32,
    name: String,
    rss_bytes: u64,
    resident: Resident,
    /// Parts of the resident memory, which add up to `rss_bytes`.
    #[serde(serialize_with = "sizes")]
    parts: Vec<Part>,
    /// Breakdown of the heap by the allocator's statistics; `None` if there are no current ones.
    #[serde(serialize_with = "heap_sizes")]
    allocator: Option<Heap>,
    /// Reason why there are no statistics, if it is known.
    missing: Option<String>,
    /// True if the program keeps its own allocator, which has no statistics.
    system_allocator: bool,
    /// Estimated bytes in use, by the samples of the running session.
    sampled_live: Option<f64>,
    /// Half-width of the 95 % confidence interval of `sampled_live`.
    sampled_live_error: Option<f64>,
    /// Memory that does not count as resident.
    outside: NonResident,
}

/// Explanation for a process without the agent.
#[derive(Debug, Serialize)]
struct PlainAnswer {
    pid: i32,
    name: String,
    rss_bytes: u64,
    swap_bytes: u64,
    /// Parts of the resident memory, which add up to `rss_bytes`.
    #[serde(serialize_with = "ledger::sizes")]
    parts: Vec<Row>,
    /// Largest files and named mappings, which are in the parts too.
    largest: Vec<Row>,
    outside: NonResident,
    /// True if not all of glibc's heap was recognised: other parts contain the rest.
    is_heap_incomplete: bool,
}

/// Explanation for a process, with or without the agent.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AnyAnswer {
    WithAgent(Answer),
    Plain(PlainAnswer),
}

/// Serializes parts as a map from names to bytes.
fn sizes<S: Serializer>(parts: &[Part], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(parts.iter().map(|part| (part.name, part.bytes)))
}

/// Serializes a heap as a map, in the order of its fields.
fn heap_sizes<S: Serializer>(heap: &Option<Heap>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(heap) = heap else {
        return serializer.serialize_none();
    };
    serializer.collect_map([
        ("live", heap.live),
        ("fragmentation", heap.fragmentation),
        ("dirty", heap.dirty),
        ("metadata", heap.metadata),
        ("retained", heap.retained),
    ])
}

/// Prints an explanation for each selected process, or for a control group as a whole.
pub fn execute(args: WhyArgs) -> anyhow::Result<ExitCode> {
    let mut selection = Selection::from(args.select);
    if let (true, Some(path)) = (selection.names.is_empty(), &selection.cgroup) {
        return super::why_group::execute(path, args.json);
    }
    let scan = Discovery::new().scan();
    let was_named = !selection.names.is_empty();
    let plain = selection.take_without_agent(&scan);
    let chosen = if was_named && selection.names.is_empty() {
        Chosen::default()
    } else {
        selection.choose(scan)
    };
    let mut failures = chosen.failures.clone();
    let mut answers = Vec::new();
    let start = now_ns();
    let missing = allocator_stats::refresh(&chosen.agents);
    for (agent, missing) in chosen.agents.iter().zip(missing) {
        match agent_answer(agent, start, missing) {
            Ok(answer) => answers.push(AnyAnswer::WithAgent(answer)),
            Err(error) => failures.push(format!("{}: {error}", agent.title())),
        }
    }
    for pid in plain {
        match plain_answer(pid) {
            Ok(answer) => answers.push(AnyAnswer::Plain(answer)),
            Err(error) => failures.push(format!("{}: {error}", process::title(pid))),
        }
    }
    failures.iter().for_each(|failure| diagnostic(failure));
    if args.json {
        json(&answers)?;
    } else {
        for answer in &answers {
            match answer {
                AnyAnswer::WithAgent(answer) => print(answer),
                AnyAnswer::Plain(answer) => print_plain(answer),
            }
        }
        let agents = chosen.agents.iter();
        let warnings =
            allocator::warnings(agents.clone().map(|agent| (agent.pid, &agent.name[..])));
        warnings.iter().for_each(|line| warning(line));
        super::warn_of_stopped(&chosen.agents);
        if let Some(hint) = python::hint(agents.map(|agent| (agent.pid, &agent.name[..]))) {
            diagnostic(&hint);
        }
    }
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Builds the explanation for a process without the agent.
fn plain_answer(pid: i32) -> anyhow::Result<PlainAnswer> {
    let ledger = ledger::process::read(pid).map_err(|error| {
        let path = proc::path_of_memory(pid, "smaps");
        anyhow!(unreadable::explain(&path, &error))
    })?;
    Ok(PlainAnswer {
        pid,
        name: process::name(pid),
        rss_bytes: ledger.total(),
        swap_bytes: ledger.swap,
        parts: ledger.parts,
        largest: ledger.largest,
        outside: NonResident::read(pid),
        is_heap_incomplete: ledger.is_heap_incomplete,
    })
}

/// Builds the explanation for a process with the agent. Statistics from before `start` are not
/// current. `missing` is the reason why there are none.
fn agent_answer(agent: &Agent, start: u64, missing: Option<String>) -> anyhow::Result<Answer> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head)?;
    let allocator = allocator_stats::since(&header, start).map(|stats| heap(&stats));
    let stacks = Stacks::of(agent.pid);
    let maps = proc::maps(agent.pid).unwrap_or_default();
    let owners = Owners::find(agent.pid, &header, &maps, &stacks);
    let runtimes = owners
        .as_ref()
        .map(|owners| Runtimes::read(agent.pid, &maps, owners));
    let by_owner = owners.and_then(|owners| owners.resident(agent.pid));
    let resident = smaps::read(agent.pid, &stacks);
    let resident = resident.map_err(|error| {
        let path = proc::path_of_memory(agent.pid, "smaps");
        anyhow!(unreadable::explain(&path, &error))
    })?;
    let sampled = sampled_live(agent);
    Ok(Answer {
        pid: agent.pid,
        name: text::escape(&agent.name),
        rss_bytes: resident.total(),
        parts: parts(
            &resident,
            by_owner,
            runtimes.unwrap_or_default(),
            allocator.as_ref(),
        ),
        resident,
        system_allocator: header.system_allocator(),
        sampled_live: sampled.map(|(live, _)| live),
        sampled_live_error: sampled.map(|(_, error)| error),
        outside: NonResident::read(agent.pid),
        missing: missing.filter(|_| allocator.is_none()),
        allocator,
    })
}

/// Resident memory of heaps of runtimes, among the program's own mappings, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Runtimes {
    python: PythonHeap,
    java: u64,
}

impl Runtimes {
    /// Reads the heaps of a process. `maps` is the text of its maps.
    fn read(pid: i32, maps: &[u8], owners: &Owners) -> Self {
        let python = pymalloc::read(pid, &owners.own_mappings);
        let java = JavaHeap::find(pid, maps, &[]).and_then(|heap| {
            let own = owners.own_mappings.iter();
            let ranges: Vec<_> = own
                .map(|own| own.start.max(heap.range.start)..own.end.min(heap.range.end))
                .filter(|range| range.start < range.end)
                .collect();
            resident_bytes(&mut Pages::with_limit(pid, MAX_PAGES), &ranges)
        });
        Self {
            python: python.unwrap_or_default(),
            java: java.unwrap_or(0),
        }
    }
}

/// Returns the bytes allocated since the start of the running session and still in use, with the
/// half-width of their 95 % confidence interval.
fn sampled_live(agent: &Agent) -> Option<(f64, f64)> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head).ok()?;
    if !is_running(&header) {
        return None;
    }
    let session = header.session().filter(|session| session.interval > 0)?;
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    let last = bank.intervals().last();
    let interval = last.map_or(session.interval, |period| period.interval);
    let sums = Snapshot::read_sums(&agent.segment, &session).ok()?;
    let now = shm_protocol::clock::tick_of(now_ns())
        .wrapping_sub(shm_protocol::clock::tick_of(session.start_ns));
    let (mut live, mut variance) = (0.0, 0.0);
    for record in &sums {
        let sums = record.sums(now);
        live += (sums.alloc_bytes - sums.free_bytes).max(0.0);
        variance += sums.live_variance;
    }
    Some((live, half_width(live, variance).max(unseen(interval))))
}

fn print(answer: &Answer) {
    let total = answer.rss_bytes;
    print_title(&answer.name, answer.pid, total, answer.resident.swap);
    for part in &answer.parts {
        let note = part.note(|bytes| text::bytes(bytes as f64));
        ledger::print_row(part.name, part.bytes, total, &note);
    }
    print_notes(answer);
    print_non_resident(answer.outside);
}

fn print_plain(answer: &PlainAnswer) {
    let total = answer.rss_bytes;
    print_title(&answer.name, answer.pid, total, answer.swap_bytes);
    ledger::print_rows(&answer.parts, total);
    if answer.is_heap_incomplete {
        result("  Not all of glibc's heap could be read: other rows contain the rest.");
    }
    if !answer.largest.is_empty() {
        result("  Largest files and named mappings among them:");
        ledger::print_list(&answer.largest);
    }
    print_non_resident(answer.outside);
    result(&format!(
        "  The process runs without the agent. Which stacks it grows by: mem_profiler rss -p {}",
        answer.pid
    ));
}

fn print_title(name: &str, pid: i32, total: u64, swap: u64) {
    let swap = match swap {
        0 => String::new(),
        swap => format!(", and {} swapped out", text::bytes(swap as f64)),
    };
    let size = text::bytes(total as f64);
    result(&format!("{name} ({pid}): {size} resident{swap}"));
}

fn print_non_resident(outside: NonResident) {
    let mut parts = vec![
        format!("{} of page tables", text::bytes(outside.page_tables as f64)),
        format!(
            "{} of kernel stacks",
            text::bytes(outside.kernel_stacks as f64)
        ),
    ];
    if outside.huge_pages > 0 {
        let bytes = text::bytes(outside.huge_pages as f64);
        parts.push(format!("{bytes} of reserved huge pages"));
    }
    result(&format!("  Not in it: {}.", parts.join(", ")));
}

/// Prints notes on the heap's parts, or why there are none.
fn print_notes(answer: &Answer) {
    if let Some(allocator) = &answer.allocator {
        let retained = text::bytes(allocator.retained as f64);
        result(&format!(
            "  The allocator keeps another {retained} of address space, which is not resident."
        ));
    } else if answer.system_allocator {
        result("  No breakdown of the heap: the program keeps its own allocator,");
        result("  which publishes nothing (MEM_PROFILER_ALLOCATOR=system).");
        if let Some(live) = answer.sampled_live {
            let error = match answer.sampled_live_error.unwrap_or_default() {
                0.0 => String::new(),
                half => format!(" \u{b1} {}", text::bytes(half)),
            };
            result(&format!(
                "  By its samples {}{error} allocated in this session are in use.",
                text::bytes(live)
            ));
        }
    } else {
        let missing = answer.missing.as_deref();
        let subject = match answer.parts.first() {
            Some(part) if part.name == "live heap" => {
                "Holes between live objects are not told apart"
            }
            _ => "No breakdown of the heap",
        };
        result(&format!(
            "  {subject}: the allocator's current figures are not known:"
        ));
        result(&format!("  {}.", missing.unwrap_or("why is not known")));
    }
}

/// Converts the allocator's statistics.
fn heap(stats: &[(&'static str, u64)]) -> Heap {
    Heap::from_statistics(|name| {
        let stat = stats.iter().find(|(stat_name, _)| *stat_name == name);
        stat.map_or(0, |(_, bytes)| *bytes)
    })
}

/// Lists the parts of the resident memory: heap first, then the rest.
fn parts(
    resident: &Resident,
    owners: Option<ByOwner>,
    runtimes: Runtimes,
    allocator: Option<&Heap>,
) -> Vec<Part> {
    let Some(mut owners) = owners else {
        return parts_by_statistics(resident, allocator);
    };
    let variables = owners.limit(resident.anonymous.saturating_add(resident.stacks));
    let mut parts = owners.heap_parts(allocator);
    parts.extend(non_heap_parts(&Resident {
        agent: resident.agent.saturating_add(owners.agent),
        stacks: owners.stacks,
        ..*resident
    }));
    let python = runtimes.python.limited(owners.own_mappings);
    let java = runtimes.java.min(owners.own_mappings - python.total());
    let own_mappings = owners.own_mappings - python.total() - java;
    if python.total() > 0 {
        parts.extend([
            part("Python objects", python.in_use, pymalloc::IN_USE_REMARK),
            part("Python holes", python.holes, pymalloc::HOLES_REMARK),
            part("Python free", python.free, pymalloc::FREE_REMARK),
        ]);
    }
    if java > 0 {
        parts.push(part("Java heap", java, "objects, and what is free"));
    }
    parts.push(part(
        "own mappings",
        own_mappings,
        "the program's, other stacks",
    ));
    parts.push(part("variables", variables, "of program and libraries"));
    parts
}

/// Like [`parts`], if addresses do not show which memory belongs to the heap.
fn parts_by_statistics(resident: &Resident, allocator: Option<&Heap>) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut anonymous = resident.anonymous;
    if let Some(heap) = allocator {
        let (heap_parts, other) = heap.within(anonymous);
        parts.extend(heap_parts);
        anonymous = other;
    }
    let (other, remark) = match allocator {
        Some(_) => ("other anonymous", "own mappings, variables"),
        None => ("anonymous", "heap, own mappings, variables"),
    };
    parts.extend(non_heap_parts(resident));
    parts.push(part(other, anonymous, remark));
    parts
}

/// Lists the parts that are certainly outside the heap.
fn non_heap_parts(resident: &Resident) -> Vec<Part> {
    let mut parts = vec![
        part("agent", resident.agent, "this profiler"),
        part("stacks", resident.stacks, "of threads that wait"),
        part("code", resident.code, "executable pages of files"),
        part("files", resident.files, "other files, shared memory"),
    ];
    if resident.modified > 0 {
        parts.push(part("modified files", resident.modified, MODIFIED));
    }
    parts
}

fn part(name: &'static str, bytes: u64, remark: &'static str) -> Part {
    Part {
        name,
        bytes,
        counted: None,
        remark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_resident_memory_for_any_statistics() {
        for figure in [0, 10, u64::MAX] {
            let resident = Resident {
                code: 5,
                anonymous: 30,
                ..Resident::default()
            };
            let heap = Heap::from_statistics(|_| figure);
            let owners = ByOwner {
                heap_in_use: figure,
                own_mappings: 7,
                agent: 3,
                ..ByOwner::default()
            };
            let python = PythonHeap {
                in_use: 1,
                holes: figure,
                free: 2,
            };
            let runtimes = Runtimes {
                python,
                java: figure,
            };
            for owners in [None, Some(owners)] {
                let parts = parts(&resident, owners, runtimes, Some(&heap));
                let sum: u64 = parts.iter().map(|part| part.bytes).sum();
                assert_eq!(sum, resident.total(), "{figure}");
            }
        }
    }
}
