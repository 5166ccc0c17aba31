//! `recover`: writes the profiles of processes that died in a session.

use std::path::Path;
use std::process::ExitCode;

use mem_agents::claims::Claims;
use mem_agents::discovery::{Discovery, Found, Life, Refused};
use mem_agents::dump::{self, Written};
use mem_agents::ended::Ended;
use mem_agents::output::Output;
use mem_agents::segment::{Head, Refusal, io_error};
use mem_agents::select::{Selection, is_worth_warning};
use mem_agents::target::{uncollected, uncollected_cpu_session};
use mem_agents::text;

use crate::cli::DumpArgs;
use crate::cpu_session::{self, recovered};
use crate::session::Outcome;
use crate::terminal::{self, diagnostic, result, warning};

/// Writes the profiles of dead processes and removes their segments.
pub fn execute(args: DumpArgs) -> anyhow::Result<ExitCode> {
    terminal::set_quiet(args.quiet.quiet);
    let prefix = args.output.output;
    let output = Output::open(&prefix)?;
    let selection = Selection::from(args.select);
    let scan = Discovery::new().scan();
    let mut outcome = Outcome::default();
    if selection.names.is_empty() {
        let concerns_dead = |r: &Refused| r.live_pid.is_none() && is_worth_warning(r);
        let warnings = scan.refused.warnings(concerns_dead, true);
        warnings.iter().for_each(|line| warning(line));
    }
    let mut dead = scan.found;
    dead.retain(|found| found.life != Life::Running && selection.wants(found));
    let mut claims = Claims::of(&dead);
    let mut cpu_profiles = cpu_session::Outcome::default();
    for found in dead {
        let title = found.title();
        match recover_one(&prefix, &output, args.peak, found, &mut claims) {
            Ok(Recovered { peak, heap, cpu }) => {
                for written in peak.into_iter().chain(heap) {
                    super::report_dump(written, &mut outcome);
                }
                cpu_profiles.written.extend(cpu);
            }
            Err(error) => {
                diagnostic(&format!("{title}: {error}"));
                outcome.failures += 1;
            }
        }
    }
    if !cpu_profiles.written.is_empty() {
        super::cpu::print_files(&cpu_profiles, result);
    }
    let files = outcome.written.iter().map(|written| &*written.path);
    let cpu_files = cpu_profiles.written.iter().map(|written| &*written.path);
    if !super::make_pages(files.chain(cpu_files), args.page) {
        outcome.failures += 1;
    }
    let is_empty = outcome.written.is_empty();
    if is_empty && !cpu_profiles.written.is_empty() {
        return Ok(if outcome.failures == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    if is_empty && outcome.failures == 0 {
        diagnostic("nothing to recover: no dead process left a profile that has not been written");
        return Ok(ExitCode::FAILURE);
    }
    super::print_summary(&outcome.written);
    Ok(super::conclude(&outcome))
}

/// Files that were written for one process.
#[derive(Default)]
struct Recovered {
    peak: Option<Written>,
    heap: Option<Written>,
    cpu: Option<cpu_session::Written>,
}

/// Writes the profiles of one dead process and removes its segment.
fn recover_one(
    prefix: &Path,
    output: &Output,
    with_peak: bool,
    found: Found,
    claims: &mut Claims,
) -> anyhow::Result<Recovered> {
    let claim = claims.check(&found);
    let agent = &match found.open() {
        Ok(agent) => agent,
        Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Recovered::default());
        }
        Err(refusal) => return Err(refusal.into()),
    };
    let segment = &agent.segment;
    let mut head = Head::new();
    let header = segment.head(&mut head)?;
    let heap_session = uncollected(agent, &header);
    let Some(session) = heap_session.or_else(|| uncollected_cpu_session(agent, &header)) else {
        return Ok(Recovered::default());
    };
    // A segment that may still be in use is reported only if it has a profile.
    if let Err(doubt) = claim {
        let path = text::path(agent.path());
        anyhow::bail!("{path} is kept: {doubt}");
    }
    if !segment.lock()? {
        // Another controller is about to write the profile.
        return Ok(Recovered::default());
    }
    let ended = match Ended::of(agent, &header) {
        // The process was alive when its session ended.
        _ if header.ended().0 == session.number => Ended::Normally,
        ended => ended,
    };
    let mut peak = None;
    let mut heap = None;
    if let Some(session) = &heap_session {
        if with_peak {
            peak = Some(dump::write_peak(output, agent, session, None, ended)?);
        }
        heap = Some(dump::write_dead(
            output,
            agent,
            session,
            "recovered",
            ended,
        )?);
    }
    let mut full_head = Head::new();
    let cpu = recovered::write(prefix, agent, &session, &segment.full_head(&mut full_head)?)?;
    segment
        .view()
        .mark_collected(session.number)
        .map_err(io_error)?;
    segment.remove()?;
    Ok(Recovered { peak, heap, cpu })
}
