//! `self-check`: makes a leak check that a program requests itself, by `HEAPCHECK` or a function of
//! gperftools or LeakSanitizer. The agent starts this command and waits for the answer
//! (`agent/src/request.rs`).
//!
//! The agent sends all but the first line of the previous answer, if there is one: losses in it are
//! not reported again.
//!
//! The answer is `lost BYTES OBJECTS CODE`, where CODE is LeakSanitizer's exit code, then `session
//! NUMBER`, then a line `NODE SAMPLES OBJECTS BYTES` for each stack with losses.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use mem_agents::live::session_of;
use mem_agents::output::Output;
use mem_agents::segment::Head;
use mem_agents::text;
use mem_leaks::{
    Amount, Check, Earlier, Leaks, LsanOptions, Method, Plan, Report, Scope, Variables,
};
use shm_protocol::NodeId;

use super::leaks::write_dump;
use crate::agent_request;
use crate::cli::{SelfCheckArgs, Style, SuppressionArgs};
use crate::terminal::{diagnostic, report, warning};

/// Maximum size of the earlier answer, in bytes: some two million stacks.
const MAX_EARLIER_BYTES: u64 = 64 << 20;
/// Variable with the directory for dumps of gperftools' heap checker.
const DUMP_DIRECTORY: &str = "HEAP_CHECK_DUMP_DIRECTORY";

/// First word of an answer.
const LOST: &str = "lost";

/// Losses by stack.
type Losses = HashMap<NodeId, Amount>;

/// Makes the check and sends the answer.
pub fn execute(args: SelfCheckArgs) -> anyhow::Result<ExitCode> {
    let mut socket = agent_request::socket(args.socket)?;
    let earlier = read_earlier_losses(&mut socket)?;
    let agent = agent_request::find_agent(args.pid)?;
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let session = session_of(&agent, &header).context("nothing was sampled yet")?;
    let earlier = earlier.filter(|(number, _)| *number == session.number);
    let variable = |name: &str| std::env::var(name).ok();
    let variables = Variables::read(variable, args.mode == "as-is");
    let variables = variables.map_err(anyhow::Error::msg)?;
    let program_options = mem_leaks::declared_options(agent.pid, &header);
    let environment_options = variable("LSAN_OPTIONS").unwrap_or_default();
    let lsan = LsanOptions::read([&*program_options, &*environment_options]);
    let is_lsan = args.style == Style::Sanitizer;
    if is_lsan && !lsan.detect_leaks {
        agent_request::reply(&mut socket, format!("{LOST} 0 0 0\n").as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (options, max_stacks) = if is_lsan {
        (lsan.search(), lsan.max_stacks())
    } else {
        (variables.options.clone(), variables.max_stacks)
    };
    let plan = Plan {
        method: variables.method(agent.pid, Method::CopiedIfPossible),
        scope: scope_of_mode(&args.mode),
        options: &options,
        suppressions: &SuppressionArgs::default().read_with(&lsan),
        identify: variables.identify && !is_lsan,
        base: earlier
            .as_ref()
            .map(|(_, losses)| Earlier::SameSession(losses)),
    };
    let check = mem_leaks::check(&agent, &header, &session, &plan)?;
    let mut result = mem_leaks::report(&agent, &header, &session, &check, max_stacks, None);
    if is_lsan && !lsan.print_suppressions {
        result.hide_suppressed();
    }
    if args.style != Style::Silent {
        let (objects, bytes) = reachable_amount(&check, &result);
        print(&args, &result, &check.leaks, objects, bytes);
        if variables.test_alignment && !is_lsan && result.lost_samples > 0 {
            report(&[mem_leaks::test_alignment(&agent, &header, &session, &plan)?]);
        }
        let directory = std::env::var_os(DUMP_DIRECTORY).map(PathBuf::from);
        if result.lost_samples > 0
            && let Some(directory) = directory
        {
            let output = Output::open(&directory.join(""));
            let dump = output.map_err(anyhow::Error::from);
            match dump.and_then(|output| write_dump(&output, &agent, &header, &check, &result)) {
                Ok(dump) => diagnostic(&text::path(dump)),
                // The result of the check is valid without the dump.
                Err(error) => warning(&format!("no dump of the check: {error:#}")),
            }
        }
    }
    let answer = format_answer(&check, session.number, lsan.exit_code)?;
    agent_request::reply(&mut socket, answer.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of objects and bytes that are reachable.
fn reachable_amount(check: &Check, result: &Report) -> (f64, f64) {
    let records = check.snapshot.records().iter();
    let sums = records.map(|record| record.sums(0));
    let live: f64 = sums
        .map(|sums| sums.alloc_objects - sums.free_objects)
        .sum();
    let lost = check.amounts.values();
    let (objects, bytes) = lost.fold((0.0, 0.0), |sum, lost| {
        (sum.0 + lost.objects, sum.1 + lost.bytes)
    });
    (live - objects, result.live_bytes - bytes)
}

/// Formats the answer.
fn format_answer(check: &Check, session: u64, code: i32) -> Result<String, std::fmt::Error> {
    let mut answer = String::new();
    let total = check.leaks.total;
    let bytes = total.bytes.round();
    let objects = total.objects.round();
    // An exit code has eight bits.
    let code = code & 0xff;
    writeln!(answer, "{LOST} {bytes} {objects} {code}\nsession {session}")?;
    for (node, lost) in &check.amounts {
        let Amount {
            samples,
            objects,
            bytes,
        } = lost;
        writeln!(answer, "{node} {samples} {objects} {bytes}")?;
    }
    Ok(answer)
}

/// Reads the earlier answer: session number and losses. Returns `None` if there is none.
fn read_earlier_losses(socket: &mut UnixStream) -> anyhow::Result<Option<(u64, Losses)>> {
    let mut text = String::new();
    socket.take(MAX_EARLIER_BYTES).read_to_string(&mut text)?;
    let mut lines = text.lines();
    let number = lines
        .next()
        .and_then(|line| line.strip_prefix("session ")?.parse().ok());
    let losses = lines.filter_map(|line| {
        let mut words = line.split(' ');
        let node = words.next()?.parse().ok()?;
        let amount = Amount {
            samples: words.next()?.parse().ok()?,
            objects: words.next()?.parse().ok()?,
            bytes: words.next()?.parse().ok()?,
        };
        Some((node, amount))
    });
    Ok(number.map(|number| (number, losses.collect())))
}

/// Returns which objects count as lost in a mode of gperftools.
fn scope_of_mode(mode: &str) -> Scope {
    match mode {
        "draconian" => return Scope::Unfreed,
        "" | "1" | "minimal" | "normal" | "strict" | "as-is" | "local" => {}
        _ => warning(&format!(
            "HEAPCHECK={}: no such mode; normal is used instead (the modes are minimal, normal, strict, \
             draconian, as-is and local)",
            text::escape(mode.as_bytes())
        )),
    }
    Scope::Unreachable
}

/// Prints the result of a check.
fn print(
    args: &SelfCheckArgs,
    result: &Report,
    leaks: &Leaks,
    reachable_objects: f64,
    reachable_bytes: f64,
) {
    let name = text::escape(args.name.as_bytes());
    let bytes = leaks.total.bytes.round();
    let objects = leaks.total.objects.round();
    let is_clean = leaks.total.samples == 0;
    result.warnings().for_each(|line| warning(&line));
    let gperftools = args.style == Style::Gperftools;
    if is_clean && gperftools {
        report(&[format!(
            "No leaks found for check \"{name}\" (but no 100% guarantee that there aren't any): \
             found {:.0} reachable heap objects of {:.0} bytes",
            reachable_objects.max(0.0),
            reachable_bytes.max(0.0)
        )]);
    }
    if is_clean {
        return;
    }
    if gperftools {
        report(&[format!(
            "Leak check {name} detected leaks of {bytes} bytes in {objects} objects"
        )]);
    }
    report(&result.lines());
    if !gperftools {
        report(&[format!(
            "SUMMARY: mem-profiler: {bytes} byte(s) leaked in {objects} allocation(s)."
        )]);
    }
}
