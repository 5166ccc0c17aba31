//! `dump` and `stop`: write the current profile of a session.

use std::path::Path;
use std::process::ExitCode;

use mem_agents::discovery::{Agent, Discovery};
use mem_agents::dump::{self, Written};
use mem_agents::ended::Ended;
use mem_agents::live;
use mem_agents::output::Output;
use mem_agents::segment::{Head, io_error};
use mem_agents::select::Selection;
use mem_agents::target::{self, is_running, uncollected_cpu_session};
use shm_protocol::segment::Session;

use crate::cli::DumpArgs;
use crate::cpu_session::{self, recovered};
use crate::session::Outcome;
use crate::terminal::{self, diagnostic, result};

/// Action on the sessions after the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDump {
    /// The sessions continue.
    Continue,
    /// The sessions are ended.
    Stop,
}

/// Writes a dump for each session.
pub fn execute(args: DumpArgs, then: AfterDump) -> anyhow::Result<ExitCode> {
    terminal::quiet(args.quiet.quiet);
    let prefix = args.output.output;
    let output = Output::open(&prefix)?;
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
    let sessions: Vec<Sessions> = chosen.agents.iter().map(Sessions::of).collect();
    let no_session = sessions.iter().all(Sessions::is_none);
    let mut profiles = cpu_session::Outcome::default();
    for (agent, sessions) in chosen.agents.iter().zip(sessions) {
        // Some other process has a session, and this one was not named.
        if sessions.is_none() && !named && !no_session {
            continue;
        }
        let written = if let Some(refusal) = sessions.refusal(then) {
            Err(anyhow::anyhow!(refusal))
        } else {
            if args.peak
                && let Some((session, running)) = sessions.heap
            {
                write_peak(&output, agent, session, running, &mut outcome);
            }
            write_one(&prefix, &output, agent, sessions, then)
        };
        match written {
            Ok((heap, time)) => {
                profiles.written.extend(time);
                heap.into_iter()
                    .for_each(|written| super::report(written, &mut outcome));
            }
            Err(error) => {
                diagnostic(&format!("{}: {error}", agent.title()));
                outcome.failures += 1;
            }
        }
    }
    if !profiles.written.is_empty() {
        super::cpu::name_files(&profiles, result);
    }
    if outcome.written.is_empty() && outcome.failures == 0 && !no_session {
        return Ok(ExitCode::SUCCESS);
    }
    super::summary(&outcome.written);
    let files = outcome.written.iter().map(|written| &*written.path);
    let cpu_files = profiles.written.iter().map(|written| &*written.path);
    if !super::pages(files.chain(cpu_files), args.page) {
        outcome.failures += 1;
    }
    Ok(super::conclude(&outcome))
}

/// Last sessions of a process whose data still exist.
#[derive(Default)]
struct Sessions {
    /// Session that sampled the heap, and whether it is running.
    heap: Option<(Session, bool)>,
    /// Session with unwritten CPU samples, and whether it is running.
    time: Option<(Session, bool)>,
}

impl Sessions {
    fn of(agent: &Agent) -> Self {
        let mut head = Head::new();
        let Ok(header) = agent.segment.head(&mut head) else {
            return Self::default();
        };
        let heap = live::session_of(agent, &header);
        let last = header.session().filter(|session| session.cpu.rate != 0);
        let time = if is_running(&header) {
            last.map(|session| (session, true))
        } else {
            uncollected_cpu_session(agent, &header).map(|session| (session, false))
        };
        Self {
            heap: heap.map(|session| (session, live::is_counting(&header, &session))),
            time,
        }
    }

    fn running(&self) -> Option<Session> {
        let all = [self.heap, self.time].into_iter().flatten();
        let mut running = all.filter(|(_, running)| *running);
        running.next().map(|(session, _)| session)
    }

    fn is_none(&self) -> bool {
        self.heap.is_none() && self.time.is_none()
    }

    /// Explains why there is nothing to write, if that is so.
    fn refusal(&self, then: AfterDump) -> Option<&'static str> {
        match (&self.heap, &self.time, then) {
            (None, None, _) => {
                Some("nothing was sampled yet: start a session with mem_profiler -s")
            }
            (None, Some((_, true)), AfterDump::Continue) => Some(
                "its session samples CPU time only: mem_profiler stop ends that and writes its profile",
            ),
            _ => None,
        }
    }
}

/// Writes the high-water mark of a session. `running` is true if the session continues.
fn write_peak(
    output: &Output,
    agent: &Agent,
    session: Session,
    running: bool,
    outcome: &mut Outcome,
) {
    let ended = if running { Ended::Not } else { Ended::Normally };
    match dump::write_peak(output, agent, &session, None, ended) {
        Ok(written) => super::report(written, outcome),
        Err(error) => {
            diagnostic(&format!("{}: high-water mark: {error}", agent.title()));
            outcome.failures += 1;
        }
    }
}

/// Writes the dump of a session, and its CPU profile unless another process writes that.
fn write_one(
    prefix: &Path,
    output: &Output,
    agent: &Agent,
    sessions: Sessions,
    then: AfterDump,
) -> anyhow::Result<(Option<Written>, Option<cpu_session::Written>)> {
    let is_attended = agent.segment.is_locked();
    if then == AfterDump::Stop
        && let Some(session) = sessions.running()
    {
        agent.confirm()?;
        target::stop(agent, &session)?;
    }
    let heap = sessions.heap.map(|(session, running)| {
        let (trigger, ended) = match (then, running) {
            (AfterDump::Continue, true) => ("on demand", Ended::Not),
            (AfterDump::Continue, false) => ("on demand", Ended::Normally),
            (AfterDump::Stop, _) => ("stopped", Ended::Normally),
        };
        let written = dump::write(output, agent, &session, None, trigger, ended)?;
        if ended != Ended::Not {
            mark_collected(agent, &session)?;
        }
        anyhow::Ok(written)
    });
    let heap = heap.transpose()?;
    let is_over = |&(_, running): &(Session, bool)| then == AfterDump::Stop || !running;
    let Some((session, _)) = sessions.time.filter(is_over) else {
        return Ok((heap, None));
    };
    if is_attended {
        let title = agent.title();
        diagnostic(&format!(
            "{title}: its CPU profile is written by mem_profiler {}, whose session this was",
            session.controller_pid
        ));
        return Ok((heap, None));
    }
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let time = recovered::write(prefix, agent, &session, &header)?;
    mark_collected(agent, &session)?;
    Ok((heap, time))
}

fn mark_collected(agent: &Agent, session: &Session) -> anyhow::Result<()> {
    let marked = agent.segment.view().mark_collected(session.number);
    Ok(marked.map_err(io_error)?)
}
