//! `dump` and `stop`: the profile of a session now, without waiting for its end.

use std::process::ExitCode;

use shm_protocol::segment::Session;

use crate::cli::DumpArgs;
use crate::discovery::{Agent, Discovery};
use crate::dump::{self, Written};
use crate::ended::Ended;
use crate::live;
use crate::output::Output;
use crate::segment::{Head, io_error};
use crate::select::Selection;
use crate::session::Outcome;
use crate::target;
use crate::terminal::diagnostic;

/// Whether the sessions continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Let them continue.
    GoOn,
    /// End them.
    Stop,
}

/// Writes a dump for each session.
pub fn execute(args: DumpArgs, then: Then) -> anyhow::Result<ExitCode> {
    let output = Output::open(&args.output.output)?;
    let selection = Selection::from(args.select);
    let named = !selection.names.is_empty();
    let chosen = selection.choose(Discovery::new().scan());
    let mut outcome = Outcome {
        failures: chosen.failures.len(),
        ..Outcome::default()
    };
    chosen
        .failures
        .iter()
        .for_each(|failure| diagnostic(failure));
    let (with, without): (Vec<_>, Vec<_>) = chosen
        .agents
        .iter()
        .map(|agent| (agent, session_of(agent)))
        .partition(|(_, s)| s.is_some());
    if named || with.is_empty() {
        for (agent, _) in without {
            let title = agent.title();
            diagnostic(&format!(
                "{title}: nothing was sampled yet: start a session with mem_profiler -s"
            ));
            outcome.failures += 1;
        }
    }
    for (agent, session) in with {
        let Some((session, running)) = session else {
            continue;
        };
        match one(&output, agent, &session, running, then) {
            Ok(written) => super::report(written, &mut outcome),
            Err(error) => {
                diagnostic(&format!("{}: {error}", agent.title()));
                outcome.failures += 1;
            }
        }
    }
    super::summary(&outcome.written);
    Ok(super::conclude(&outcome))
}

/// The last session, if its data are there, and whether it runs.
fn session_of(agent: &Agent) -> Option<(Session, bool)> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head).ok()?;
    let session = live::session_of(agent, &header)?;
    let running = live::is_counting(&header, &session);
    Some((session, running))
}

fn one(
    output: &Output,
    agent: &Agent,
    session: &Session,
    running: bool,
    then: Then,
) -> anyhow::Result<Written> {
    if then == Then::Stop && running {
        agent.confirm()?;
        target::stop(agent, session)?;
    }
    let (trigger, ended) = match (then, running) {
        (Then::GoOn, true) => ("on demand", Ended::Not),
        (Then::GoOn, false) => ("on demand", Ended::InOrder),
        (Then::Stop, _) => ("stopped", Ended::InOrder),
    };
    let written = dump::write(output, agent, (session, None), (trigger, ended))?;
    if ended != Ended::Not {
        agent
            .segment
            .view()
            .mark_collected(session.number)
            .map_err(io_error)?;
    }
    Ok(written)
}
