//! `leaks --path`: explains what keeps an object alive.

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;

use mem_agents::discovery::Agent;
use mem_agents::dump;
use mem_agents::live::session_of;
use mem_agents::segment::Head;
use mem_agents::select::Chosen;
use mem_agents::text;
use mem_leaks::{Chain, Frame, Holder, Link, Options, Part, Wanted, own_part};
use serde::Serialize;
use shm_protocol::NodeId;

use super::method;
use crate::cli::LeaksArgs;
use crate::terminal::{diagnostic, json, result, warning};

/// Maximum number of objects shown at each end of a chain.
const MAX_LINKS: usize = 12;
/// Maximum number of frames shown of an object's stack.
const MAX_FRAMES: usize = 3;

/// Prints an explanation for each selected process.
pub fn execute(chosen: &Chosen, path: &str, args: &LeaksArgs) -> ExitCode {
    let mut failures = chosen.failures.len();
    let mut answers = Vec::new();
    for agent in &chosen.agents {
        match explain(agent, path, args) {
            Ok(answer) if args.json => answers.push(answer),
            Ok(answer) => print(&answer),
            Err(error) => {
                diagnostic(&format!("{}: {error:#}", agent.title()));
                failures += 1;
            }
        }
    }
    if args.json && json(&answers).is_err() {
        failures += 1;
    }
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Objects of one process that match the request, with what keeps them alive.
#[derive(Debug, Serialize)]
struct Answer {
    pid: i32,
    name: String,
    objects: Vec<HeldObject>,
}

/// Object, and what keeps it alive.
#[derive(Debug, Serialize)]
struct HeldObject {
    address: String,
    bytes: u64,
    /// Functions that allocated the object, innermost first; empty if it was not sampled.
    stack: Vec<String>,
    /// Functions of `stack` with their source lines.
    frames: Vec<Frame>,
    /// Name of the root; null if nothing leads to the object.
    root: Option<String>,
    /// Size of the sampled objects that only this root keeps alive.
    root_alone_bytes: f64,
    root_alone_objects: f64,
    root_alone_samples: u64,
    /// Objects on the way from the root to this object.
    chain: Vec<Step>,
}

/// Object in a chain.
#[derive(Clone, Debug, Serialize)]
struct Step {
    address: String,
    bytes: u64,
    /// Offset of the pointer to the next object; null for the last.
    offset: Option<u64>,
    stack: Vec<String>,
    frames: Vec<Frame>,
}

/// Finds the objects that `path` denotes and what keeps them alive.
fn explain(agent: &Agent, path: &str, args: &LeaksArgs) -> anyhow::Result<Answer> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let session = session_of(agent, &header).ok_or_else(|| {
        anyhow::anyhow!("nothing was sampled yet: start a session with mem_profiler -s 60 -c 1")
    })?;
    // Names are looked up before the process is stopped, since that takes time.
    let snapshot = dump::snapshot(agent, &session, &header)?;
    let leaves = snapshot.records().iter().map(|record| record.node);
    let wanted = match address(path) {
        Some(address) => Wanted::Address(address),
        None => {
            let (names, _) = mem_leaks::names(agent, &header, &snapshot, leaves);
            let matches =
                |frames: &Vec<Frame>| frames.iter().any(|frame| frame.function.contains(path));
            let matching = names.iter().filter(|(_, frames)| matches(frames));
            let matching: HashSet<NodeId> = matching.map(|(node, _)| *node).collect();
            anyhow::ensure!(
                !matching.is_empty(),
                "no stack of the session has {path:?} in it"
            );
            Wanted::Stacks(matching)
        }
    };
    let options = args.search.apply_to(Options::default());
    let method = method(args);
    let holders = mem_leaks::holders(agent, &header, &session, method, &options, &wanted)?;
    anyhow::ensure!(!holders.is_empty(), "there is no live object of {path}");
    let snapshot = dump::snapshot(agent, &session, &header)?;
    let chains = holders.iter().filter_map(|holder| holder.chain.as_ref());
    let links = chains.flat_map(|chain| shown_links(&chain.links).into_iter().flatten());
    let link_nodes = links.filter_map(|link| link.node);
    let nodes = link_nodes.chain(holders.iter().filter_map(|holder| holder.node));
    let (names, warnings) = mem_leaks::names(
        agent,
        &header,
        &snapshot,
        nodes.collect::<Vec<_>>().into_iter(),
    );
    warnings.iter().for_each(|line| warning(line));
    if args.gentle.is_some() {
        warning(&format!(
            "{}: it was not stopped: pointers that were being moved, or that only a register \
             holds, may be missing; search again to be sure",
            agent.title()
        ));
    }
    Ok(Answer {
        pid: agent.pid,
        name: text::escape(&agent.name),
        objects: holders
            .iter()
            .map(|holder| held_object(holder, &names))
            .collect(),
    })
}

/// Parses an address: hexadecimal, with the prefix 0x.
fn address(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Returns the links at both ends of a chain, which are printed with names.
fn shown_links(links: &[Link]) -> [&[Link]; 2] {
    if links.len() <= 2 * MAX_LINKS {
        return [links, &[]];
    }
    [&links[..MAX_LINKS], &links[links.len() - MAX_LINKS..]]
}

fn held_object(holder: &Holder, names: &HashMap<NodeId, Vec<Frame>>) -> HeldObject {
    let frames = |node: Option<NodeId>| {
        let named = node.and_then(|node| names.get(&node).cloned());
        named.unwrap_or_default()
    };
    let step = |link: &Link| Step {
        address: format!("{:#x}", link.at),
        bytes: link.bytes,
        offset: link.offset,
        stack: functions(&frames(link.node)),
        frames: frames(link.node),
    };
    let chain = holder.chain.as_ref();
    let alone = chain.map(|chain| chain.alone).unwrap_or_default();
    HeldObject {
        address: format!("{:#x}", holder.at),
        bytes: holder.bytes,
        stack: functions(&frames(holder.node)),
        frames: frames(holder.node),
        root: chain.map(|chain: &Chain| chain.root.clone()),
        root_alone_bytes: alone.bytes,
        root_alone_objects: alone.objects,
        root_alone_samples: alone.samples,
        chain: chain.map_or(Vec::new(), |chain| chain.links.iter().map(step).collect()),
    }
}

fn functions(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(|frame| frame.function.clone()).collect()
}

fn print(answer: &Answer) {
    for object in &answer.objects {
        let bytes = |bytes: u64| text::bytes(bytes as f64);
        let title = format!("{} ({})", answer.name, answer.pid);
        let size = bytes(object.bytes);
        let address = &object.address;
        result(&format!(
            "{title}: {size} at {address}, {}",
            origin(&object.frames)
        ));
        let Some(root) = &object.root else {
            result("  nothing leads to it: it is lost");
            continue;
        };
        result(&format!("  {root}"));
        let omitted = object.chain.len().saturating_sub(2 * MAX_LINKS);
        for (index, step) in object.chain.iter().enumerate() {
            if omitted > 0 && index == MAX_LINKS {
                result(&format!("  … {omitted} more"));
            }
            if omitted > 0 && (MAX_LINKS..MAX_LINKS + omitted).contains(&index) {
                continue;
            }
            let offset = step
                .offset
                .map_or(String::new(), |offset| format!(" + {offset}"));
            let size = bytes(step.bytes);
            let address = format!("{}{offset}", step.address);
            result(&format!(
                "  → {address:<24} {size:>9}, {}",
                origin(&step.frames)
            ));
        }
        result(&loss_without_root(object));
    }
}

/// Describes the objects that would be lost without the object's root.
fn loss_without_root(object: &HeldObject) -> String {
    let bytes = object.root_alone_bytes;
    let objects = object.root_alone_objects;
    let samples = object.root_alone_samples;
    let all = text::count(objects.round() as u64, "object", "objects");
    match samples {
        0 => "  Other pointers lead there, too.".to_owned(),
        // As many samples as objects: every allocation was sampled.
        _ if samples as f64 == objects => {
            format!(
                "  Without it, {} in {all} would be lost.",
                text::bytes(bytes)
            )
        }
        _ => format!(
            "  Without it, about {} in about {all} would be lost, as {} show{}.",
            text::bytes(bytes),
            text::count(samples, "sample", "samples"),
            if samples == 1 { "s" } else { "" }
        ),
    }
}

/// Describes where an object was allocated: the user's own code, then the library function that it
/// called.
fn origin(frames: &[Frame]) -> String {
    if frames.is_empty() {
        return "not sampled".to_owned();
    }
    let (parts, through) = own_part(frames);
    let named = parts.iter().take(MAX_FRAMES).map(|part| match part {
        Part::Libraries(called) => format!("({called})"),
        Part::Own(frame) => match frame.place() {
            Some(place) => format!("{} ({place})", frame.function),
            None => frame.function.clone(),
        },
    });
    let named: Vec<String> = named.collect();
    let through = through.map_or(String::new(), |called| format!(" (through {called})"));
    format!("from {}{through}", named.join(" ← "))
}
