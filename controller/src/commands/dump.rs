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
pub fn execute(args: DumpArgs, after: AfterDump) -> anyhow::Result<ExitCode> {
    terminal::set_quiet(args.quiet.quiet);
    let prefix = args.output.output;
    let output = Output::open(&prefix)?;
    let selection = Selection::from(args.select);
    let was_named = !selection.names.is_empty();
    let chosen = selection.choose(Discovery::new().scan());
    let mut outcome = Outcome {
        failures: chosen.failures.len(),
        ..Outcome::default()
    };
    chosen
        .failures
        .iter()
        .for_each(|failure| diagnostic(failure));
    let sessions: Vec<Sessions> = chosen.agents.iter().map(Sessions::read).collect();
    let have_no_sessions = sessions.iter().all(Sessions::is_none);
    let mut cpu_profiles = cpu_session::Outcome::default();
    for (agent, sessions) in chosen.agents.iter().zip(sessions) {
        // A process without a session is reported if the user named it, or if no process has one.
        if sessions.is_none() && !was_named && !have_no_sessions {
            continue;
        }
        let written = if let Some(refusal) = sessions.refusal(after) {
            Err(anyhow::anyhow!(refusal))
        } else {
            if args.peak
                && let Some(heap) = &sessions.heap
            {
                write_peak(&output, agent, heap, &mut outcome);
            }
            write_one(&prefix, &output, agent, sessions, after)
        };
        match written {
            Ok(files) => {
                cpu_profiles.written.extend(files.cpu);
                files
                    .heap
                    .into_iter()
                    .for_each(|written| super::report_dump(written, &mut outcome));
            }
            Err(error) => {
                diagnostic(&format!("{}: {error}", agent.title()));
                outcome.failures += 1;
            }
        }
    }
    if !cpu_profiles.written.is_empty() {
        super::cpu::print_files(&cpu_profiles, result);
    }
    if outcome.written.is_empty() && outcome.failures == 0 && !have_no_sessions {
        return Ok(ExitCode::SUCCESS);
    }
    super::print_summary(&outcome.written);
    let files = outcome.written.iter().map(|written| &*written.path);
    let cpu_files = cpu_profiles.written.iter().map(|written| &*written.path);
    if !super::make_pages(files.chain(cpu_files), args.page) {
        outcome.failures += 1;
    }
    Ok(super::conclude(&outcome))
}

/// Session whose data still exist.
struct LastSession {
    session: Session,
    is_running: bool,
}

/// Last sessions of a process whose data still exist.
#[derive(Default)]
struct Sessions {
    /// Session that sampled the heap.
    heap: Option<LastSession>,
    /// Session with unwritten CPU samples.
    cpu: Option<LastSession>,
}

/// Files that were written for one process.
struct Files {
    heap: Option<Written>,
    cpu: Option<cpu_session::Written>,
}

impl Sessions {
    fn read(agent: &Agent) -> Self {
        let mut head = Head::new();
        let Ok(header) = agent.segment.head(&mut head) else {
            return Self::default();
        };
        let heap = live::session_of(agent, &header);
        let is_running = is_running(&header);
        let cpu = if is_running {
            header.session().filter(|session| session.cpu.rate != 0)
        } else {
            uncollected_cpu_session(agent, &header)
        };
        Self {
            heap: heap.map(|session| LastSession {
                session,
                is_running: live::is_counting(&header, &session),
            }),
            cpu: cpu.map(|session| LastSession {
                session,
                is_running,
            }),
        }
    }

    fn running(&self) -> Option<Session> {
        let mut sessions = [&self.heap, &self.cpu].into_iter().flatten();
        let running = sessions.find(|last| last.is_running);
        running.map(|last| last.session)
    }

    fn is_none(&self) -> bool {
        self.heap.is_none() && self.cpu.is_none()
    }

    /// Explains why there is nothing to write, if that is so.
    fn refusal(&self, after: AfterDump) -> Option<&'static str> {
        match (&self.heap, &self.cpu) {
            (None, None) => Some("nothing was sampled yet: start a session with mem_profiler -s"),
            (None, Some(cpu)) if cpu.is_running && after == AfterDump::Continue => Some(
                "its session samples CPU time only: mem_profiler stop ends that and writes its profile",
            ),
            _ => None,
        }
    }
}

/// Writes the high-water mark of a session.
fn write_peak(output: &Output, agent: &Agent, last: &LastSession, outcome: &mut Outcome) {
    let ended = if last.is_running {
        Ended::Not
    } else {
        Ended::Normally
    };
    match dump::write_peak(output, agent, &last.session, None, ended) {
        Ok(written) => super::report_dump(written, outcome),
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
    after: AfterDump,
) -> anyhow::Result<Files> {
    let is_attended = agent.segment.is_locked();
    if after == AfterDump::Stop
        && let Some(session) = sessions.running()
    {
        agent.confirm()?;
        target::stop(agent, &session)?;
    }
    let mut heap = None;
    if let Some(LastSession {
        session,
        is_running,
    }) = sessions.heap
    {
        let (trigger, ended) = match (after, is_running) {
            (AfterDump::Continue, true) => ("on demand", Ended::Not),
            (AfterDump::Continue, false) => ("on demand", Ended::Normally),
            (AfterDump::Stop, _) => ("stopped", Ended::Normally),
        };
        heap = Some(dump::write(output, agent, &session, None, trigger, ended)?);
        if ended != Ended::Not {
            mark_collected(agent, &session)?;
        }
    }
    let has_ended = |last: &LastSession| after == AfterDump::Stop || !last.is_running;
    let Some(LastSession { session, .. }) = sessions.cpu.filter(has_ended) else {
        return Ok(Files { heap, cpu: None });
    };
    if is_attended {
        let title = agent.title();
        diagnostic(&format!(
            "{title}: its CPU profile is written by mem_profiler {}, whose session this was",
            session.controller_pid
        ));
        return Ok(Files { heap, cpu: None });
    }
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let cpu = recovered::write(prefix, agent, &session, &header)?;
    mark_collected(agent, &session)?;
    Ok(Files { heap, cpu })
}

fn mark_collected(agent: &Agent, session: &Session) -> anyhow::Result<()> {
    let marked = agent.segment.view().mark_collected(session.number);
    Ok(marked.map_err(io_error)?)
}
