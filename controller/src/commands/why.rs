//! `why`: one screen that answers why the resident memory is what it is.

use std::process::ExitCode;

use heap_format::resident::{Heap, Part};
use serde::{Serialize, Serializer};
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
    #[serde(serialize_with = "figures")]
    allocator: Option<Heap>,
    /// Seconds since the allocator's figures were taken.
    age_seconds: Option<f64>,
    /// Whether the program keeps its own allocator, which nobody can ask.
    system_allocator: bool,
    /// Bytes in use by the samples of the last session.
    sampled_live: Option<f64>,
}

/// The heap in the order of its fields.
fn figures<S: Serializer>(heap: &Option<Heap>, serializer: S) -> Result<S::Ok, S::Error> {
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
        allocator: taken.as_ref().map(|(_, stats)| heap(stats)),
        age_seconds: taken.map(|(at, _)| now.saturating_sub(at) as f64 / 1e9),
    })
}

/// Bytes allocated since the last session began and still in use, by its samples.
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
    for Part {
        name,
        bytes,
        remark,
    } in parts(answer)
    {
        let share = bytes as f64 / total.max(1) as f64;
        let bar = "#".repeat((share * BAR as f64).round() as usize);
        let size = text::bytes(bytes as f64);
        let line = format!(
            "  {name:<22} {size:>10} {:>5.1}%  {bar:<BAR$}  {remark}",
            share * 100.0
        );
        result(line.trim_end());
    }
    print_notes(answer);
}

/// Lines on where the heap's parts are from, or why there are none.
fn print_notes(answer: &Answer) {
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

/// The heap by the allocator's statistics.
fn heap(stats: &[(&'static str, u64)]) -> Heap {
    Heap::of(|name| {
        let stat = stats.iter().find(|(n, _)| *n == name);
        stat.map_or(0, |(_, bytes)| *bytes)
    })
}

/// The parts of what is resident, largest group first as people ask: heap, then the rest.
fn parts(answer: &Answer) -> Vec<Part> {
    let resident = &answer.resident;
    let (mut parts, mut anonymous) = (Vec::new(), resident.anonymous);
    if let Some(heap) = &answer.allocator {
        let (mut heap, rest) = heap.within(anonymous);
        heap[0].remark = "objects in use: mem_profiler tells by whom";
        parts.extend(heap);
        anonymous = rest;
    }
    let other = match answer.allocator {
        Some(_) => "other anonymous",
        None => "anonymous",
    };
    let outside = [
        ("agent", resident.agent, "this profiler: its table and code"),
        (
            "stacks",
            resident.stacks,
            "of threads that wait in a system call",
        ),
        (
            "code",
            resident.code,
            "executable pages of files, shared with others",
        ),
        (
            "files",
            resident.files,
            "other mapped files and shared memory",
        ),
        (
            other,
            anonymous,
            "mapped by the program itself, stacks of running threads",
        ),
    ];
    parts.extend(outside.map(|(name, bytes, remark)| Part {
        name,
        bytes,
        remark,
    }));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_what_is_resident_whatever_the_allocator_claims() {
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
                allocator: Some(Heap::of(|_| figure)),
                age_seconds: None,
                system_allocator: false,
                sampled_live: None,
            };
            let sum: u64 = parts(&answer).iter().map(|part| part.bytes).sum();
            assert_eq!(sum, answer.rss_bytes, "{figure}");
        }
    }
}
