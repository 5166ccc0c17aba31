//! `why`: one screen that answers why the resident memory is what it is.

use std::process::ExitCode;

use serde::Serialize;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::snapshot::Header;

use crate::cli::WhyArgs;
use crate::discovery::{Agent, Discovery};
use crate::segment::Head;
use crate::select::Selection;
use crate::smaps::{self, Resident};
use crate::terminal::{diagnostic, json, result};
use crate::text;

/// Width of the bars.
const BAR: usize = 30;

/// The answer for one process.
#[derive(Debug, Serialize)]
struct Answer {
    pid: i32,
    name: String,
    rss_bytes: u64,
    resident: Resident,
    /// The allocator's own figures, if a session ever asked for them.
    allocator: Option<Allocator>,
    /// Seconds since the allocator's figures were taken.
    age_seconds: Option<f64>,
    /// Whether the program keeps its own allocator, which nobody can ask.
    system_allocator: bool,
    /// What the samples of the last session tell of bytes in use.
    sampled_live: Option<f64>,
}

/// jemalloc's figures, as parts of what is resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Allocator {
    /// Objects of the program.
    live: u64,
    /// Between objects: rounding to size classes is counted as live, holes are here.
    fragmentation: u64,
    /// Pages that were freed and not given back yet.
    dirty: u64,
    /// The allocator's own bookkeeping.
    metadata: u64,
    /// Address space kept for reuse; not resident.
    retained: u64,
}

impl Allocator {
    fn of(stats: &[(&'static str, u64); 6]) -> Self {
        let of = |name: &str| {
            stats
                .iter()
                .find(|(n, _)| *n == name)
                .map_or(0, |(_, bytes)| *bytes)
        };
        let (allocated, active) = (of("allocated"), of("active"));
        let used = active.saturating_add(of("metadata"));
        Self {
            live: allocated,
            fragmentation: active.saturating_sub(allocated),
            dirty: of("resident").saturating_sub(used),
            metadata: of("metadata"),
            retained: of("retained"),
        }
    }
}

/// Answers for each process chosen.
pub fn execute(args: WhyArgs) -> anyhow::Result<ExitCode> {
    let chosen = Selection::from(args.select).choose(Discovery::new().scan());
    chosen
        .failures
        .iter()
        .for_each(|failure| diagnostic(failure));
    let mut failures = chosen.failures.len();
    let mut answers = Vec::new();
    for agent in &chosen.agents {
        match answer(agent) {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                diagnostic(&format!("{}: {error}", agent.title()));
                failures += 1;
            }
        }
    }
    if args.json {
        json(&answers)?;
    } else {
        answers.iter().for_each(print);
    }
    Ok(if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn answer(agent: &Agent) -> anyhow::Result<Answer> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head)?;
    let taken = header.allocator_stats();
    let resident = smaps::read(agent.pid, &smaps::stack_pointers(agent.pid))?;
    let now = crate::clock::now_ns();
    Ok(Answer {
        pid: agent.pid,
        name: text::escape(&agent.name),
        rss_bytes: resident.total(),
        resident,
        system_allocator: header.system_allocator(),
        sampled_live: sampled_live(agent, &header),
        allocator: taken.as_ref().map(|(_, stats)| Allocator::of(stats)),
        age_seconds: taken.map(|(at, _)| now.saturating_sub(at) as f64 / 1e9),
    })
}

/// What was allocated since the last session began and is still in use, by its samples.
fn sampled_live(agent: &Agent, header: &Header<'_>) -> Option<f64> {
    let mut buffer = [0; BANK_HEADER_BYTES];
    let session = header.session()?;
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    (bank.session() == session.number).then(|| bank.totals().live_bytes)
}

fn print(answer: &Answer) {
    let total = answer.rss_bytes;
    let swap = match answer.resident.swap {
        0 => String::new(),
        swap => format!(", and {} swapped out", text::bytes(swap as f64)),
    };
    let size = text::bytes(total as f64);
    result(&format!(
        "{} ({}): {size} resident{swap}",
        answer.name, answer.pid
    ));
    for (name, bytes, remark) in parts(answer) {
        let share = bytes as f64 / total.max(1) as f64;
        let bar = "#".repeat((share * BAR as f64).round() as usize);
        let size = text::bytes(bytes as f64);
        let line = format!(
            "  {name:<22} {size:>10} {:>5.1}%  {bar:<BAR$}  {remark}",
            share * 100.0
        );
        result(line.trim_end());
    }
    match (&answer.allocator, answer.age_seconds) {
        (Some(allocator), Some(age)) => {
            let retained = text::bytes(allocator.retained as f64);
            result(&format!(
                "  The allocator keeps {retained} of address space besides, which is not resident."
            ));
            if age > 5.0 {
                result(&format!(
                    "  Its figures are {age:.0} s old: they are refreshed while a session runs."
                ));
            }
        }
        _ if answer.system_allocator => {
            result(
                "  The heap is not told apart: the program keeps its own allocator \
                 (MEM_PROFILER_ALLOCATOR=system), which does not tell of itself.",
            );
            if let Some(live) = answer.sampled_live {
                result(&format!(
                    "  By the samples about {} that were allocated since the last session began \
                     are in use.",
                    text::bytes(live)
                ));
            }
        }
        _ => result(
            "  The heap is not told apart yet: its allocator publishes its figures while a session \
             runs (mem_profiler -s 2), and jemalloc only.",
        ),
    }
}

/// The parts of what is resident, largest group first as people ask: heap, then the rest.
fn parts(answer: &Answer) -> Vec<(&'static str, u64, &'static str)> {
    let resident = &answer.resident;
    let mut parts = Vec::new();
    let mut anonymous = resident.anonymous;
    if let Some(heap) = &answer.allocator {
        // The allocator counts pages that it never touched as resident too, bookkeeping
        // above all: no part can be larger than what the kernel says is there.
        for (name, bytes, remark) in [
            (
                "live heap",
                heap.live,
                "objects in use: mem_profiler tells by whom",
            ),
            (
                "fragmentation",
                heap.fragmentation,
                "holes between live objects",
            ),
            (
                "dirty pages",
                heap.dirty,
                "freed, not given back to the system yet",
            ),
            (
                "allocator metadata",
                heap.metadata,
                "bookkeeping of the allocator",
            ),
        ] {
            let part = bytes.min(anonymous);
            anonymous -= part;
            parts.push((name, part, remark));
        }
    }
    parts.push(("agent", resident.agent, "this profiler: its table and code"));
    parts.push((
        "stacks",
        resident.stacks,
        "of threads that wait in a system call",
    ));
    parts.push((
        "code",
        resident.code,
        "executable pages of files, shared with others",
    ));
    parts.push((
        "files",
        resident.files,
        "other mapped files and shared memory",
    ));
    let name = if answer.allocator.is_some() {
        "other anonymous"
    } else {
        "anonymous"
    };
    parts.push((
        name,
        anonymous,
        "mapped by the program itself, stacks of running threads",
    ));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocators_figures_split_what_is_resident() {
        let stats = [
            ("allocated", 100),
            ("active", 130),
            ("metadata", 20),
            ("resident", 170),
            ("mapped", 400),
            ("retained", 50),
        ];
        let allocator = Allocator::of(&stats);
        assert_eq!((allocator.live, allocator.fragmentation), (100, 30));
        assert_eq!(
            (allocator.dirty, allocator.metadata, allocator.retained),
            (20, 20, 50)
        );
    }

    #[test]
    fn parts_add_up_to_what_is_resident_whatever_the_allocator_claims() {
        let stats = [
            "allocated",
            "active",
            "metadata",
            "resident",
            "mapped",
            "retained",
        ];
        for figure in [0, 10, u64::MAX] {
            let resident = Resident {
                code: 5,
                anonymous: 30,
                ..Resident::default()
            };
            let answer = Answer {
                pid: 1,
                name: String::new(),
                rss_bytes: resident.total(),
                resident,
                allocator: Some(Allocator::of(&stats.map(|name| (name, figure)))),
                age_seconds: None,
                system_allocator: false,
                sampled_live: None,
            };
            let sum: u64 = parts(&answer).iter().map(|(_, bytes, _)| bytes).sum();
            assert_eq!(sum, answer.rss_bytes, "{figure}");
        }
    }
}
