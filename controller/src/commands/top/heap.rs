//! Numbers for `top`: from the running heap session, or from one that runs as long as the table is
//! shown.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mem_agents::discovery::{Agent, Discovery};
use mem_agents::dump;
use mem_agents::ended::Ended;
use mem_agents::offspring::Offspring;
use mem_agents::options::IntervalArgs;
use mem_agents::output::Output;
use mem_agents::segment::{Head, io_error};
use mem_agents::select::Selection;
use mem_agents::target::{self, Deadline, RENEWAL_INTERVAL, Target, is_running, uncollected};
use mem_agents::text;
use proc::rss_bytes;
use serde_json::{Value, json};
use shm_protocol::segment::Session;

use super::Feed;
use crate::cli::TopArgs;
use crate::terminal::{self, diagnostic, warning};
use crate::top::heap::{HeapNumbers, HeapTable};
use crate::top::model::Model;
use crate::top::screen::Title;

/// Session that is shown.
enum Source {
    /// Session that we have started.
    Own(Box<Target>),
    /// Session of another controller.
    Other(Box<Agent>),
}

impl Source {
    fn agent(&self) -> &Agent {
        match self {
            Self::Own(target) => &target.agent,
            Self::Other(agent) => agent,
        }
    }
}

/// Heap data of one process.
pub struct HeapFeed {
    source: Source,
    heap: HeapTable,
    /// True if only one table is printed. A session started for it is a probe, which keeps the
    /// profile of the previous session.
    is_brief: bool,
    /// Time at which the deadline of our session is extended next.
    renewal: Instant,
    /// Children that continue our session.
    offspring: Offspring,
    /// Time from the session's start to the last snapshot.
    covered: Duration,
    /// Prefix of dump names.
    output: PathBuf,
}

impl HeapFeed {
    /// Opens the process that was requested. Also returns its title.
    pub fn open(args: &TopArgs) -> anyhow::Result<(Self, String)> {
        let agent = find_agent(&Selection::from(args.select.clone()))?;
        let title = agent.title();
        let is_brief = args.once || args.json || !terminal::is_screen();
        let source = open_source(agent, &args.interval, is_brief)?;
        let mut offspring = Offspring::default();
        if let Source::Own(target) = &source {
            offspring.begin(target, args.interval.overhead_limit());
        }
        let feed = Self {
            source,
            offspring,
            heap: HeapTable::default(),
            is_brief,
            renewal: Instant::now() + RENEWAL_INTERVAL,
            covered: Duration::ZERO,
            output: args.output.output.clone(),
        };
        Ok((feed, title))
    }
}

fn find_agent(selection: &Selection) -> anyhow::Result<Agent> {
    let mut chosen = selection.choose(Discovery::new().scan());
    if let Some(failure) = chosen.failures.first() {
        bail!("{failure}");
    }
    let Some(agent) = chosen.agents.pop() else {
        bail!("no process carries the agent")
    };
    if !chosen.agents.is_empty() {
        let mut titles: Vec<String> = chosen
            .agents
            .iter()
            .take(10)
            .map(|agent| agent.title())
            .collect();
        titles.push(agent.title());
        bail!(
            "several processes carry the agent, choose one with -p: {}",
            titles.join(", ")
        );
    }
    Ok(agent)
}

/// Returns the running session, or starts one. If `is_brief`, that is a probe.
fn open_source(agent: Agent, interval: &IntervalArgs, is_brief: bool) -> anyhow::Result<Source> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head)?;
    if is_running(&header) {
        if header
            .session()
            .is_some_and(|session| session.interval == 0)
        {
            bail!(
                "{}: a session that samples CPU time only is running: mem_profiler stop -p {} ends it",
                agent.title(),
                agent.pid
            );
        }
        return Ok(Source::Other(Box::new(agent)));
    }
    let title = agent.title();
    let pid = agent.pid;
    if uncollected(&agent, &header).is_some() {
        bail!(
            "{title}: a session has left a profile, which another one would replace: mem_profiler dump -p {pid} \
             writes it"
        );
    }
    let with_title = |e: target::Error| anyhow::anyhow!("{title}: {e}");
    let target = Target::claim(agent).map_err(with_title)?;
    let mut target = target.with_max_overhead(interval.overhead_limit());
    let mut density = interval.initial_density();
    if is_brief {
        density.thinning = Session::PROBE;
    }
    target.prepare(density).map_err(with_title)?;
    if is_brief {
        // Marked before the start, so that the samples are not taken for a profile even if this
        // process is killed.
        let view = target.agent.segment.view();
        view.mark_collected(target.session.number)
            .map_err(io_error)?;
    }
    target
        .publish(Deadline::ns_after(None))
        .map_err(with_title)?;
    Ok(Source::Own(Box::new(target)))
}

impl HeapFeed {
    /// Returns remarks on what the numbers cover.
    fn remarks(&self) -> Vec<String> {
        let coverage = match &self.source {
            Source::Own(_) if self.is_brief => Some(format!(
                "of the last {} only; growth is what was allocated then and kept",
                text::short_time(self.covered)
            )),
            _ => None,
        };
        coverage.into_iter().chain(self.heap.remark()).collect()
    }
}

impl Feed for HeapFeed {
    type Numbers = HeapNumbers;

    fn process(&self) -> (i32, String) {
        let agent = self.source.agent();
        (agent.pid, text::escape(&agent.name))
    }

    /// Returns false for our own session: rates relative to a first snapshot would lack what was
    /// allocated before it.
    fn has_baseline(&self) -> bool {
        matches!(self.source, Source::Other(_))
    }

    fn refresh(
        &mut self,
        model: &mut Model<HeapNumbers>,
        title: &mut Title,
        at_once: bool,
    ) -> anyhow::Result<bool> {
        if let Source::Own(target) = &mut self.source {
            let result = target.poll();
            target.take_warnings().iter().for_each(|line| warning(line));
            let warnings = self.offspring.tick(Instant::now());
            warnings.iter().for_each(|line| warning(line));
            result?;
            if Instant::now() >= self.renewal {
                self.renewal = Instant::now() + RENEWAL_INTERVAL;
                target.publish(Deadline::ns_after(None))?;
            }
        }
        let agent = self.source.agent();
        let mut head = Head::new();
        let header = agent.segment.full_head(&mut head)?;
        let session = header.session().context("there is no session")?;
        let running = is_running(&header);
        title.rss_bytes = rss_bytes(agent.pid);
        let snapshot = dump::snapshot(agent, &session, &header)?;
        let covered_ns = snapshot.end_ns.saturating_sub(snapshot.session.start_ns);
        self.covered = Duration::from_nanos(covered_ns);
        self.heap.update(model, &snapshot, &header, at_once);
        let end_note = match &self.source {
            _ if !running => ", ended".to_owned(),
            Source::Other(_) => format!(", {}", Deadline::of(session.deadline_ns).left()),
            Source::Own(_) if self.is_brief => String::new(),
            Source::Own(_) => ", while this is shown".to_owned(),
        };
        let last_period = snapshot.intervals.last();
        title.session = match last_period.map_or(session.interval, |period| period.interval) {
            1 => format!("every allocation{end_note}"),
            interval => {
                let now = if interval == session.interval {
                    ""
                } else {
                    " now"
                };
                // Without samples, the error is not known.
                let error = match snapshot.totals.samples {
                    0 => String::new(),
                    _ => format!(
                        ", live \u{b1} {}, growth \u{b1} {}/s",
                        text::bytes(self.heap.live_error),
                        text::bytes(self.heap.growth_error)
                    ),
                };
                format!("every {interval} bytes{now}{error}{end_note}")
            }
        };
        title.quality = self.remarks().join("; ");
        Ok(running && title.rss_bytes.is_some())
    }

    fn facts(&self) -> Option<(&'static str, Value)> {
        let remarks = self.remarks();
        (!remarks.is_empty()).then(|| ("remarks", json!(remarks)))
    }

    fn write(&mut self) -> String {
        let agent = self.source.agent();
        let mut head = Head::new();
        let mut write = || {
            let output = Output::open(&self.output)?;
            let header = agent.segment.head(&mut head)?;
            let session = header.session();
            let session = session.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            dump::write(&output, agent, &session, None, "on demand", Ended::Not)
        };
        match write() {
            Ok(written) => {
                written.warnings.iter().for_each(|line| warning(line));
                format!("wrote {}", written.line())
            }
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for HeapFeed {
    fn drop(&mut self) {
        let Source::Own(target) = &self.source else {
            return;
        };
        let stopped = if self.is_brief {
            // Keeps the end time of the previous session.
            target.agent.segment.view().stop().is_ok()
        } else {
            target.stop().is_ok()
        };
        if !stopped {
            diagnostic("the session could not be stopped: it ends by itself within a minute");
        }
        self.offspring.end(target.agent.file);
        if self.is_brief {
            return;
        }
        // The session served only for display; its profile need not be recovered.
        let _ = target
            .agent
            .segment
            .view()
            .mark_collected(target.session.number);
    }
}
