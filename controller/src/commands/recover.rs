//! `recover`: the profiles of processes that died in a session.

use std::process::ExitCode;

use crate::claims::Claims;
use crate::cli::DumpArgs;
use crate::discovery::{Discovery, Found, Life, Refused};
use crate::dump::{self, Written};
use crate::ended::Ended;
use crate::output::Output;
use crate::segment::{Head, Refusal, io_error};
use crate::select::{Selection, is_ours};
use crate::session::Outcome;
use crate::target::uncollected;
use crate::terminal::{diagnostic, warning};
use crate::text;

/// Writes what dead processes left, and removes their segments.
pub fn execute(args: DumpArgs) -> anyhow::Result<ExitCode> {
    let output = Output::open(&args.output.output)?;
    let selection = Selection::from(args.select);
    let scan = Discovery::new().scan();
    let mut outcome = Outcome::default();
    if selection.names.is_empty() {
        let gone = |r: &Refused| r.live_pid.is_none() && is_ours(r);
        let warnings = scan.refused.warnings(gone, true);
        warnings.iter().for_each(|line| warning(line));
    }
    let mut gone = scan.found;
    gone.retain(|found| found.life != Life::Running && selection.wants(found));
    let mut claims = Claims::of(&gone);
    for found in gone {
        let title = found.title();
        match one(&output, found, &mut claims) {
            Ok(Some(written)) => super::report(written, &mut outcome),
            Ok(None) => {}
            Err(error) => {
                diagnostic(&format!("{title}: {error}"));
                outcome.failures += 1;
            }
        }
    }
    if outcome.written.is_empty() && outcome.failures == 0 {
        diagnostic("nothing to recover: no dead process left a profile that was not written out");
        return Ok(ExitCode::FAILURE);
    }
    super::summary(&outcome.written);
    Ok(super::conclude(&outcome))
}

fn one(output: &Output, found: Found, claims: &mut Claims) -> anyhow::Result<Option<Written>> {
    let claim = claims.check(&found);
    let agent = &match found.open() {
        Ok(agent) => agent,
        Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(refusal) => return Err(refusal.into()),
    };
    let segment = &agent.segment;
    let mut head = Head::new();
    let header = segment.head(&mut head)?;
    let Some(session) = uncollected(agent, &header) else {
        return Ok(None);
    };
    // Only what holds a profile is worth a word.
    if let Err(doubt) = claim {
        let path = text::path(agent.path());
        anyhow::bail!("{path} is kept: {doubt}");
    }
    if !segment.lock()? {
        // Its controller is about to write it.
        return Ok(None);
    }
    let ended = match Ended::of(agent, &header) {
        // It ended, but only after its session's time was over.
        _ if header.ended().0 == session.number => Ended::InOrder,
        ended => ended,
    };
    let written = dump::write_dead(output, agent, &session, ("recovered", ended))?;
    segment
        .view()
        .mark_collected(session.number)
        .map_err(io_error)?;
    segment.remove()?;
    Ok(Some(written))
}
