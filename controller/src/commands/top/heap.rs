//! The heap: uses the session that runs; if there is none, starts one for as long as it is shown.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::Feed;
use crate::cli::{IntervalArgs, TopArgs};
use crate::discovery::{Agent, Discovery};
use crate::dump;
use crate::ended::Ended;
use crate::offspring::Offspring;
use crate::output::Output;
use crate::segment::Head;
use crate::select::Selection;
use crate::target::{Deadline, RENEWAL, Target, is_running};
use crate::terminal::{diagnostic, warning};
use crate::text;
use crate::top::heap::{Heap, Live};
use crate::top::model::Model;
use crate::top::screen::Title;
use crate::triggers::rss_bytes;

/// The session that is shown.
enum Source {
    /// A session of ours.
    Own(Box<Target>),
    /// Somebody else's.
    Theirs(Box<Agent>),
}

impl Source {
    fn agent(&self) -> &Agent {
        match self {
            Self::Own(target) => &target.agent,
            Self::Theirs(agent) => agent,
        }
    }
}

/// Shows a session.
pub struct HeapFeed {
    source: Source,
    heap: Heap,
    renewal: Instant,
    /// Children that continue with a session of ours.
    offspring: Offspring,
    /// Prefix of the dumps' names.
    output: PathBuf,
}

impl HeapFeed {
    /// For the process that was requested, and its title.
    pub fn open(args: &TopArgs) -> anyhow::Result<(Self, String)> {
        let agent = only_one(&Selection::from(args.select.clone()))?;
        let title = agent.title();
        let source = look_at(agent, &args.interval)?;
        let mut offspring = Offspring::default();
        if let Source::Own(target) = &source {
            offspring.begin(target, args.interval.max_overhead);
        }
        let feed = Self {
            source,
            offspring,
            heap: Heap::default(),
            renewal: Instant::now() + RENEWAL,
            output: args.output.output.clone(),
        };
        Ok((feed, title))
    }
}

fn only_one(selection: &Selection) -> anyhow::Result<Agent> {
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

/// Looks at the running session, or starts one.
fn look_at(agent: Agent, interval: &IntervalArgs) -> anyhow::Result<Source> {
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
        return Ok(Source::Theirs(Box::new(agent)));
    }
    let title = agent.title();
    let target = Target::take(agent).map_err(|e| anyhow::anyhow!("{title}: {e}"))?;
    let mut target = target.limited(interval.max_overhead);
    let started = target
        .prepare(interval.first())
        .and_then(|()| target.publish(Deadline::ns_after(None)));
    started.map_err(|e| anyhow::anyhow!("{title}: {e}"))?;
    Ok(Source::Own(Box::new(target)))
}

impl Feed for HeapFeed {
    type Numbers = Live;

    fn process(&self) -> (i32, String) {
        let agent = self.source.agent();
        (agent.pid, text::escape(&agent.name))
    }

    fn refresh(
        &mut self,
        model: &mut Model<Live>,
        title: &mut Title,
        at_once: bool,
    ) -> anyhow::Result<bool> {
        if let Source::Own(target) = &mut self.source {
            let looked = target.look();
            target.take_warnings().iter().for_each(|line| warning(line));
            let of_children = self.offspring.tick(Instant::now());
            of_children.iter().for_each(|line| warning(line));
            looked?;
            if Instant::now() >= self.renewal {
                self.renewal = Instant::now() + RENEWAL;
                target.publish(Deadline::ns_after(None))?;
            }
        }
        let agent = self.source.agent();
        let mut head = Head::new();
        let header = agent.segment.full_head(&mut head)?;
        let session = header.session().context("there is no session")?;
        let running = is_running(&header);
        let left = if running {
            Deadline::of(session.deadline_ns).left()
        } else {
            "ended".to_owned()
        };
        title.session = match session.interval {
            1 => format!("every allocation, {left}"),
            interval => format!("every {interval} bytes, {left}"),
        };
        title.rss_bytes = rss_bytes(agent.pid);
        let snapshot = dump::snapshot(agent, &session, &header)?;
        self.heap.update(model, (&snapshot, &header), at_once);
        title.quality = self.heap.remark().unwrap_or_default();
        Ok(running && title.rss_bytes.is_some())
    }

    fn facts(&self) -> Option<(&'static str, Value)> {
        self.heap.remark().map(|text| ("remarks", json!([text])))
    }

    fn write(&mut self) -> String {
        let agent = self.source.agent();
        let mut head = Head::new();
        let mut write = || {
            let output = Output::open(&self.output)?;
            let header = agent.segment.head(&mut head)?;
            let session = header.session();
            let session = session.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            dump::write(&output, agent, (&session, None), ("on demand", Ended::Not))
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
        if target.stop().is_err() {
            diagnostic("the session could not be stopped: it ends by itself within a minute");
        }
        self.offspring.end(target.agent.file);
        // It was shown, which was its only purpose: it need not be recovered.
        let _ = target
            .agent
            .segment
            .view()
            .mark_collected(target.session.number);
    }
}
