//! `recover`: the profiles of processes that died in a session.

use std::process::ExitCode;

use crate::cli::DumpArgs;
use crate::discovery::{Agent, Discovery, Life};
use crate::dump::{self, Written};
use crate::ended::Ended;
use crate::output::Output;
use crate::segment::{Head, io_error};
use crate::select::Selection;
use crate::session::Outcome;
use crate::target::uncollected;
use crate::terminal::{result, tell};

/// Writes what dead processes left, and removes their segments.
pub fn execute(args: DumpArgs) -> anyhow::Result<ExitCode> {
    let output = Output::open(&args.output.output)?;
    let selection = Selection::from(args.select);
    let scan = Discovery::new().scan();
    let mut outcome = Outcome::default();
    for refused in scan
        .refused
        .iter()
        .filter(|r| r.live_pid.is_none() && selection.names.is_empty())
    {
        tell(&format!(
            "warning: {} cannot be used: {}",
            refused.path.display(),
            refused.reason
        ));
    }
    let gone = scan
        .agents
        .iter()
        .filter(|a| a.life != Life::Running && selection.wants(a));
    for agent in gone {
        match one(&output, agent) {
            Ok(Some(written)) => {
                result(&written.line());
                outcome.written.push(written);
            }
            Ok(None) => {}
            Err(error) => {
                tell(&format!("{}: {error}", agent.title()));
                outcome.failures += 1;
            }
        }
    }
    if outcome.written.is_empty() && outcome.failures == 0 {
        tell("nothing to recover: no dead process left a profile that was not written out");
        return Ok(ExitCode::FAILURE);
    }
    super::summary(&outcome.written);
    Ok(super::conclude(&outcome))
}

fn one(output: &Output, agent: &Agent) -> std::io::Result<Option<Written>> {
    let segment = &agent.segment;
    let mut head = Head::new();
    let header = segment.head(&mut head).map_err(std::io::Error::other)?;
    let Some(session) = uncollected(agent, &header) else {
        return Ok(None);
    };
    if !segment.lock()? {
        // Its controller is about to write it.
        return Ok(None);
    }
    let ended = match Ended::of(agent, &header) {
        // It ended, but only after its session's time was over.
        _ if header.expired().0 == session.number => Ended::InOrder,
        ended => ended,
    };
    let written = dump::write_dead(output, agent, &session, ("recovered", ended))?;
    segment
        .view()
        .mark_collected(session.number)
        .map_err(io_error)?;
    segment.folder.remove(segment)?;
    Ok(Some(written))
}
