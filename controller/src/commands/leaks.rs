//! `leaks`: finds the objects of a live process that no pointer leads to.

mod holders;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mem_agents::collect::{self, Metadata};
use mem_agents::discovery::{Agent, Discovery};
use mem_agents::live::session_of;
use mem_agents::output::Output;
use mem_agents::parallel_writer;
use mem_agents::segment::Head;
use mem_agents::select::Selection;
use mem_agents::target::obstacle;
use mem_agents::text;
use mem_leaks::{Base, Check, Earlier, Method, Options, Plan, Report, Scope, Suppressions};
use shm_protocol::snapshot::Header;

use crate::cli::{LeaksArgs, PageArgs};
use crate::page;
use crate::terminal::{self, diagnostic, json, result, warning};

/// Checks each selected process.
pub fn execute(args: LeaksArgs) -> anyhow::Result<ExitCode> {
    terminal::set_quiet(args.quiet);
    if args.json {
        terminal::suppress_results();
    }
    let suppressions = match args.path {
        None => args.suppression.read(),
        Some(_) => Suppressions::default(),
    };
    let base = args.base.as_deref().map(Base::open).transpose()?;
    let output = args.prefix().as_deref().map(Output::open).transpose()?;
    let selection = Selection::from(args.select.clone());
    let is_named = !selection.names.is_empty();
    let chosen = selection.choose(Discovery::new().scan());
    chosen
        .failures
        .iter()
        .for_each(|failure| diagnostic(failure));
    let mut failures = chosen.failures.len();
    let mut reports = Vec::new();
    let mut has_leaks = false;
    if let Some(path) = &args.path {
        return Ok(holders::execute(&chosen, path, &args));
    }
    let plan = Plan {
        method: method(&args),
        scope: Scope::Unreachable,
        options: &args.search.apply_to(Options::default()),
        suppressions: &suppressions,
        identify: false,
        base: base.as_ref().map(Earlier::Dump),
    };
    super::warn_of_stopped(&chosen.agents);
    for agent in &chosen.agents {
        match check_process(agent, &plan, args.max, output.as_ref(), is_named) {
            Ok(Some(CheckedProcess { mut report, dump })) => {
                has_leaks |= report.lost_samples > 0;
                print(&report);
                if let Some(dump) = dump {
                    failures += usize::from(!add_page(&mut report, &dump, args.page));
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
    let is_failure = failures > 0 || (has_leaks && args.exit_code);
    Ok(if is_failure {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Prints a report. With `--json`, prints only its warnings: the reports follow as one array.
fn print(report: &Report) {
    report.warnings().for_each(|line| warning(&line));
    report.lines().iter().for_each(|line| result(line));
    report.dump.iter().for_each(|dump| result(dump));
    if terminal::shows_results() {
        diagnostic(&report.cost());
    }
}

/// Makes the page of a report's dump if it was requested. Returns false if that failed.
fn add_page(report: &mut Report, dump: &Path, page_args: PageArgs) -> bool {
    let is_made = super::make_pages(std::iter::once(dump), page_args);
    if is_made && (page_args.html || page_args.open) {
        report.page = Some(text::path(page::path_for(dump)));
    }
    is_made
}

/// Result of checking one process.
struct CheckedProcess {
    report: Report,
    /// The dump, if one was written.
    dump: Option<PathBuf>,
}

/// Checks one process. Returns `None` if it has no session and was not named by the user.
fn check_process(
    agent: &Agent,
    plan: &Plan<'_>,
    max_stacks: usize,
    output: Option<&Output>,
    is_named: bool,
) -> anyhow::Result<Option<CheckedProcess>> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let Some(session) = session_of(agent, &header) else {
        anyhow::ensure!(
            !is_named,
            "nothing was sampled yet: mem_profiler -s 60 -c 1 -p {} knows what is allocated from then on; run -c 1, everything",
            agent.pid
        );
        return Ok(None);
    };
    // A process that cannot be sampled would seem to have no leaks.
    if let Some(obstacle) = obstacle(agent, &header) {
        return Err(obstacle.into());
    }
    let check = mem_leaks::check(agent, &header, &session, plan)?;
    let mut report = mem_leaks::report(agent, &header, &session, &check, max_stacks, plan.base);
    let dump = output
        .map(|output| write_dump(output, agent, &header, &check, &report))
        .transpose()?;
    report.dump = dump.as_deref().map(text::path);
    Ok(Some(CheckedProcess { report, dump }))
}

fn method(args: &LeaksArgs) -> Method {
    match (args.gentle, args.stop) {
        (Some(times), _) => Method::Running(times),
        (None, true) => Method::Stopped,
        (None, false) => Method::Copied,
    }
}

/// Writes the lost objects as a dump.
pub fn write_dump(
    output: &Output,
    agent: &Agent,
    header: &Header<'_>,
    check: &Check,
    report: &Report,
) -> anyhow::Result<PathBuf> {
    let mut metadata = Metadata::of_live(agent.pid, &agent.name);
    metadata.trigger = mem_leaks::TRIGGER.to_owned();
    let details = |record: &shm_protocol::snapshot::RecordView| {
        check.leaks.details(record.node, record.size_class)
    };
    let (mut profile, _) = collect::profile_of(&check.snapshot, header, &metadata, details);
    profile.facts.leak_check = Some(report.to_dump());
    let path = output.write(&agent.name, agent.pid, |number, file| {
        profile.facts.sequence = Some(number);
        parallel_writer::write(&profile::dump::Text::new(profile)?, file)
    })?;
    Ok(path)
}
