//! `leaks`: which objects of a live process no pointer leads to any more.

mod holders;

use std::collections::HashMap;
use std::process::ExitCode;

use serde::Serialize;
use shm_protocol::NodeId;
use shm_protocol::clock::unix_ns;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use crate::cli::LeaksArgs;
use crate::collect::{self, Metadata};
use crate::discovery::{Agent, Discovery};
use crate::leaks::{self, Check, Leak, Loss, Means};
use crate::names::Symbols;
use crate::output::Output;
use crate::parallel_writer;
use crate::segment::Head;
use crate::select::Selection;
use crate::snapshot::Snapshot;
use crate::terminal::{diagnostic, json, result, warning};
use crate::text;

/// Frames of a stack that are shown.
const FRAMES: usize = 32;

/// Checks each process chosen.
pub fn execute(args: LeaksArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.as_deref().map(Output::open).transpose()?;
    let selection = Selection::from(args.select.clone());
    let named = !selection.names.is_empty();
    let chosen = selection.choose(Discovery::new().scan());
    let failures = chosen.failures.iter();
    failures.for_each(|failure| diagnostic(failure));
    let mut failures = chosen.failures.len();
    let (mut reports, mut leaky) = (Vec::new(), false);
    if let Some(path) = &args.path {
        return Ok(holders::execute(&chosen, path, &args));
    }
    for agent in &chosen.agents {
        match one(agent, &args, output.as_ref(), named) {
            Ok(Some(report)) => {
                leaky |= report.lost_samples > 0;
                if !args.json {
                    print(&report, args.max);
                }
                reports.push(report);
            }
            Ok(None) => {}
            Err(error) => {
                diagnostic(&format!("{}: {error:#}", agent.title()));
                failures += 1;
            }
        }
    }
    if reports.is_empty() && failures == 0 {
        diagnostic("no process has a session: start one with mem_profiler -s");
        failures += 1;
    }
    if args.json {
        json(&reports)?;
    }
    Ok(match failures > 0 || (leaky && args.exit_code) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// What was found in one process.
#[derive(Debug, Serialize)]
struct Report {
    pid: i32,
    name: String,
    /// Mean bytes between samples; 1: every allocation is known.
    interval: u64,
    /// How long the session has gone on: older objects are not known.
    session_seconds: f64,
    lost_bytes: f64,
    /// Half the width of the 95 % interval of `lost_bytes`; 0 where every allocation is known.
    lost_bytes_margin: f64,
    lost_objects: f64,
    lost_samples: u64,
    live_bytes: f64,
    /// By stack; those that are lost by themselves first, then the largest.
    leaks: Vec<Entry>,
    threads: usize,
    pause_ms: f64,
    searched_bytes: u64,
    search_seconds: f64,
    /// The dump, if one was written.
    dump: Option<String>,
}

/// What one stack lost.
#[derive(Debug, Serialize)]
struct Entry {
    /// `direct`, `cycle` or `indirect`.
    kind: &'static str,
    bytes: f64,
    margin: f64,
    objects: f64,
    /// Lost only with these.
    kept_bytes: f64,
    kept_objects: f64,
    /// Functions, innermost first.
    stack: Vec<String>,
}

fn one(
    agent: &Agent,
    args: &LeaksArgs,
    output: Option<&Output>,
    named: bool,
) -> anyhow::Result<Option<Report>> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let Some(session) = session_of(agent, &header) else {
        anyhow::ensure!(
            !named,
            "nothing was sampled yet: start a session with mem_profiler -s 60 -c 1 -p {}, which \
             knows what is allocated from then on, or the program with mem_profiler run -c 1",
            agent.pid
        );
        return Ok(None);
    };
    let means = means(args);
    let check = leaks::check(agent, &header, &session, means)?;
    if check.left_out > 0 {
        warning(&format!(
            "{}: {} parts of its heap cannot be read: what only they point to is taken for lost",
            agent.title(),
            check.left_out
        ));
    }
    let dump = output
        .map(|output| write(output, agent, &header, &check))
        .transpose()?;
    let mut report = report(agent, &header, &session, &check, args.max);
    report.dump = dump;
    Ok(Some(report))
}

fn means(args: &LeaksArgs) -> Means {
    match args.stop {
        true => Means::Stopped,
        false => Means::Copied,
    }
}

/// The last session, if its table is there.
fn session_of(agent: &Agent, header: &Header<'_>) -> Option<Session> {
    let session = header.session()?;
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    (bank.session() == session.number).then_some(session)
}

/// Writes what is lost as a dump.
fn write(
    output: &Output,
    agent: &Agent,
    header: &Header<'_>,
    check: &Check,
) -> anyhow::Result<String> {
    let mut metadata = Metadata::of_live(agent.pid, &agent.name);
    metadata.trigger = "leak check".to_owned();
    let detail = |record: &shm_protocol::snapshot::RecordView| {
        check.leaks.detail(record.node, record.size_class)
    };
    let (mut profile, _) = collect::profile_of(&check.snapshot, header, &metadata, detail);
    let path = output.write(&agent.name, agent.pid, |number, file| {
        profile.facts.sequence = Some(number);
        parallel_writer::write(&heap_format::dump::Text::new(profile)?, file)
    })?;
    Ok(text::path(path))
}

fn report(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    check: &Check,
    most: usize,
) -> Report {
    let total = check.leaks.total;
    let shown = check.leaks.leaks.iter().take(most.max(1));
    let leaves = shown.clone().map(|leak| leak.node);
    let names = names(agent, header, &check.snapshot, leaves);
    let age = unix_ns().saturating_sub(session.start_unix_ns);
    Report {
        pid: agent.pid,
        name: text::escape(&agent.name),
        interval: check.snapshot.least_interval.max(1),
        session_seconds: age as f64 / 1e9,
        lost_bytes: total.bytes,
        lost_bytes_margin: total.margin(),
        lost_objects: total.objects,
        lost_samples: total.samples,
        live_bytes: check.snapshot.totals.live_bytes,
        leaks: shown.map(|leak| entry(leak, &names)).collect(),
        threads: check.pause.threads,
        pause_ms: check.pause.stopped.as_secs_f64() * 1e3,
        searched_bytes: check.scanned,
        search_seconds: check.search.as_secs_f64(),
        dump: None,
    }
}

fn entry(leak: &Leak, names: &HashMap<NodeId, Vec<String>>) -> Entry {
    Entry {
        kind: match leak.loss {
            Loss::Direct => "direct",
            Loss::Cycle => "cycle",
            Loss::Indirect => "indirect",
        },
        bytes: leak.lost.bytes,
        margin: leak.lost.margin(),
        objects: leak.lost.objects,
        kept_bytes: leak.kept.bytes,
        kept_objects: leak.kept.objects,
        stack: names.get(&leak.node).cloned().unwrap_or_default(),
    }
}

/// The functions of stacks, innermost first, by their leaf.
fn names(
    agent: &Agent,
    header: &Header<'_>,
    snapshot: &Snapshot,
    leaves: impl Iterator<Item = NodeId>,
) -> HashMap<NodeId, Vec<String>> {
    let mut symbols = Symbols::new(agent.pid);
    let stacks: HashMap<NodeId, (Vec<u64>, bool)> = leaves
        .map(|leaf| {
            let mut addresses = Vec::new();
            let whole = snapshot.addresses(leaf, &mut addresses);
            (leaf, (addresses, whole))
        })
        .collect();
    let all = stacks.values().flat_map(|(stack, _)| stack.iter().copied());
    symbols.resolve(all, true, |addresses| {
        collect::code(header, agent.pid, addresses)
    });
    if let Some(trouble) = symbols.trouble() {
        warning(&trouble);
    }
    let named = stacks.into_iter().map(|(leaf, (stack, whole))| {
        let frames = symbols.frames(&stack).unwrap_or_default();
        let frames = frames.iter().map(|frame| symbols.name(*frame).to_owned());
        let mut names: Vec<String> = frames.collect();
        if stack.is_empty() {
            names.push("[table full]".to_owned());
        } else if !whole {
            names.push("[truncated]".to_owned());
        }
        (leaf, names)
    });
    named.collect()
}

fn print(report: &Report, most: usize) {
    let bytes = text::bytes;
    let exact = report.interval == 1;
    let title = format!("{} ({})", report.name, report.pid);
    let margin = |margin: f64| match exact {
        true => String::new(),
        false => format!(" ± {}", bytes(margin)),
    };
    let since = format!(
        "of what it allocated in the last {}",
        text::duration(std::time::Duration::from_secs_f64(report.session_seconds))
    );
    match report.lost_samples {
        0 => result(&format!("{title}: no leaks, {since}")),
        _ => result(&format!(
            "{title}: {}{} lost in {} objects, {since}; {} is live",
            bytes(report.lost_bytes),
            margin(report.lost_bytes_margin),
            count(report.lost_objects),
            bytes(report.live_bytes),
        )),
    }
    for entry in &report.leaks {
        let kept = match entry.kept_objects > 0.0 {
            true => format!(
                ", and with {} {} in {}",
                if entry.objects > 1.0 { "them" } else { "it" },
                bytes(entry.kept_bytes),
                count(entry.kept_objects)
            ),
            false => String::new(),
        };
        let kind = match entry.kind {
            "cycle" => "Leak of a cycle",
            "indirect" => "Indirect leak",
            _ => "Direct leak",
        };
        let (size, objects) = (bytes(entry.bytes), count(entry.objects));
        let margin = margin(entry.margin);
        let plural = if entry.objects == 1.0 { "" } else { "s" };
        result("");
        result(&format!(
            "{kind}: {size}{margin} in {objects} object{plural}{kept}, from"
        ));
        for frame in entry.stack.iter().take(FRAMES) {
            result(&format!("    {frame}"));
        }
        if entry.stack.len() > FRAMES {
            result(&format!("    … {} more", entry.stack.len() - FRAMES));
        }
    }
    if report.leaks.len() >= most {
        result(&format!("\nThe {most} largest; more with --max."));
    }
    diagnostic(&format!(
        "{title}: stopped for {:.1} ms ({} threads); {} searched in {:.2} s",
        report.pause_ms,
        report.threads,
        bytes(report.searched_bytes as f64),
        report.search_seconds
    ));
    if let Some(dump) = &report.dump {
        result(dump);
    }
}

/// A number of objects, which may be an estimate.
fn count(objects: f64) -> String {
    format!("{objects:.0}")
}
