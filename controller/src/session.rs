//! A session over one or many processes: prepare all, start all, watch, stop all, write
//! a dump for each.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::discovery::{Agent, Discovery, Life};
use crate::dump::{self, Ended, Written};
use crate::output::Output;
use crate::segment::{Head, SegmentName};
use crate::select::Selection;
use crate::target::{End, Look, RENEWAL, Target, no_room, uncollected};
use crate::terminal::{Progress, Tally, result, tell};
use crate::waiting::{Signals, ends_session};

/// Time between looks while tables fill up quickly.
const FAST_LOOK: Duration = Duration::from_millis(20);
/// Time between looks otherwise.
const LOOK: Duration = Duration::from_millis(200);
/// Time between searches for new processes.
const SEARCH: Duration = Duration::from_secs(1);
/// How long a session without a process waits for a new one.
const ALONE: Duration = Duration::from_secs(2);
/// Lets samples that were under way at the stop be counted.
const SETTLE: Duration = Duration::from_millis(5);
/// CPU time above which a process without a single allocation is suspicious.
const IDLE_CPU_SECONDS: f64 = 0.1;

/// What a session is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Mean bytes between samples.
    pub interval: u64,
    /// Its length; without one it lasts until a signal.
    pub length: Option<Duration>,
    /// Where dumps go and how their names begin.
    pub prefix: PathBuf,
    /// The processes.
    pub selection: Selection,
}

/// How it went.
#[derive(Default)]
pub struct Outcome {
    /// The dumps.
    pub written: Vec<Written>,
    /// How many processes or dumps failed.
    pub failures: usize,
}

/// A session.
pub struct Run {
    settings: Settings,
    output: Output,
    discovery: Discovery,
    signals: Signals,
    progress: Progress,
    targets: Vec<Target>,
    known: HashSet<SegmentName>,
    outcome: Outcome,
    start: Instant,
}

impl Run {
    /// Makes sure that dumps can be written, before anything is started.
    pub fn new(settings: Settings) -> anyhow::Result<Self> {
        let output = Output::open(&settings.prefix)?;
        Ok(Self {
            output,
            discovery: Discovery::new(),
            signals: Signals::block(&[])?,
            progress: Progress::start(None),
            targets: Vec::new(),
            known: HashSet::new(),
            outcome: Outcome::default(),
            start: Instant::now(),
            settings,
        })
    }

    /// Runs the session to its end.
    pub fn run(mut self) -> anyhow::Result<Outcome> {
        let scan = self.discovery.scan();
        self.known
            .extend(scan.agents.iter().map(|a| a.segment.name));
        let chosen = self.settings.selection.choose(scan);
        chosen
            .failures
            .iter()
            .for_each(|failure| self.fail(failure));
        chosen
            .warnings
            .iter()
            .for_each(|warning| tell(&format!("warning: {warning}")));
        let taken = self.take(chosen.agents);
        self.check_room(&taken)?;
        self.begin(taken);
        if !self.targets.is_empty() {
            self.progress = Progress::start(self.settings.length);
            self.watch()?;
            self.end();
        }
        Ok(self.outcome)
    }

    fn fail(&mut self, message: &str) {
        self.outcome.failures += 1;
        self.progress.above(|| tell(message));
    }

    /// Takes processes for the session and saves what earlier sessions left in them.
    fn take(&mut self, agents: Vec<Agent>) -> Vec<Target> {
        let mut taken = Vec::new();
        for agent in agents {
            let title = agent.title();
            match Target::take(agent) {
                Ok(target) => {
                    self.save_leftover(&target);
                    taken.push(target);
                }
                Err(reason) => self.fail(&format!("{title}: {reason}")),
            }
        }
        taken
    }

    /// A controller that was killed, or an agent that started by itself, left a session
    /// that nobody wrote out: the next but one would overwrite it.
    fn save_leftover(&mut self, target: &Target) {
        let agent = &target.agent;
        let mut head = Head::new();
        let Ok(header) = agent.segment.head(&mut head) else {
            return;
        };
        let Some(session) = uncollected(agent, &header) else {
            return;
        };
        if let Err(reason) = target.stop() {
            return self.fail(&format!("{}: {reason}", agent.title()));
        }
        match dump::write(
            &self.output,
            agent,
            &session,
            ("left by an earlier session", Ended::InOrder),
        ) {
            Ok(written) => {
                // Worst case it is written once more.
                let _ = agent.segment.view().mark_collected(session.number);
                tell(&format!(
                    "{}: an earlier session had left its data: written too",
                    agent.title()
                ));
                self.report(written);
            }
            Err(error) => self.fail(&format!(
                "{}: an earlier session's data: {error}",
                agent.title()
            )),
        }
    }

    /// All sessions together must fit into the shared folder, or none is started.
    fn check_room(&self, taken: &[Target]) -> anyhow::Result<()> {
        let mut folders: Vec<(&crate::segment::Folder, u64)> = Vec::new();
        for target in taken {
            let folder = &target.agent.segment.folder;
            match folders
                .iter_mut()
                .find(|(f, _)| f.identity.0 == folder.identity.0)
            {
                Some((_, bytes)) => *bytes += target.first_bytes(),
                None => folders.push((folder, target.first_bytes())),
            }
        }
        for (folder, needs) in folders {
            let free = folder.free_bytes().unwrap_or(u64::MAX);
            if free < needs {
                anyhow::bail!(no_room(
                    &folder.path.display().to_string(),
                    needs,
                    Some(free)
                ));
            }
        }
        Ok(())
    }

    /// Prepares all, which takes time, then starts all, which takes microseconds each.
    fn begin(&mut self, taken: Vec<Target>) {
        let mut ready = Vec::new();
        for mut target in taken {
            match target.prepare(self.settings.interval) {
                Ok(()) => ready.push(target),
                Err(reason) => self.fail(&format!("{}: {reason}", target.agent.title())),
            }
        }
        if self.targets.is_empty() {
            self.start = Instant::now();
        }
        let deadline = End::deadline_ns(self.time_left());
        for mut target in ready {
            match target.publish(deadline) {
                Ok(()) => self.targets.push(target),
                Err(reason) => self.fail(&format!("{}: {reason}", target.agent.title())),
            }
        }
    }

    fn time_left(&self) -> Option<Duration> {
        self.settings
            .length
            .map(|length| length.saturating_sub(self.start.elapsed()))
    }

    /// Watches until time is over, a signal comes, or nobody is left.
    fn watch(&mut self) -> anyhow::Result<()> {
        let mut search = Instant::now() + SEARCH;
        let mut renewal = Instant::now() + RENEWAL;
        let mut company = Instant::now();
        while self.time_left().is_none_or(|left| !left.is_zero()) {
            if self.wait()?.into_iter().any(ends_session) {
                return Ok(());
            }
            self.look();
            let now = Instant::now();
            if now >= search {
                search = now + SEARCH;
                self.join_new();
            }
            if self.settings.length.is_none() && now >= renewal {
                renewal = now + RENEWAL;
                self.prolong();
            }
            match self.targets.is_empty() {
                false => company = now,
                true if now - company >= ALONE => return Ok(()),
                true => {}
            }
            self.show();
        }
        Ok(())
    }

    fn wait(&self) -> nix::Result<Vec<Signal>> {
        let busy =
            self.start.elapsed() < Duration::from_secs(1) || self.targets.iter().any(|t| t.growing);
        let pause = if busy { FAST_LOOK } else { LOOK };
        let pause = self.time_left().map_or(pause, |left| left.min(pause));
        let fds: Vec<_> = self.targets.iter().filter_map(Target::pidfd).collect();
        self.signals.wait(&fds, pause)
    }

    fn look(&mut self) {
        let mut at = 0;
        while at < self.targets.len() {
            let ended = match self.targets[at].look() {
                Ok(Look::Counting) => false,
                Ok(Look::Dead) => true,
                // At the deadline the agent may be a moment faster than we are.
                Ok(Look::Stopped) => self.time_left().is_none_or(|left| left > FAST_LOOK),
                Err(error) => {
                    let title = self.targets[at].agent.title();
                    self.fail(&format!("{title}: its segment became unusable: {error}"));
                    self.targets.swap_remove(at);
                    continue;
                }
            };
            if ended {
                let target = self.targets.swap_remove(at);
                self.finish(target);
            } else {
                at += 1;
            }
        }
    }

    fn join_new(&mut self) {
        let scan = self.discovery.scan_except(&self.known);
        let wanted =
            |agent: &Agent| agent.life == Life::Running && self.settings.selection.wants(agent);
        let new: Vec<Agent> = scan.agents.into_iter().filter(wanted).collect();
        if new.is_empty() {
            return;
        }
        self.known.extend(new.iter().map(|a| a.segment.name));
        let taken = self.take(new);
        if let Err(error) = self.check_room(&taken) {
            return self.fail(&error.to_string());
        }
        self.begin(taken);
    }

    fn prolong(&mut self) {
        let deadline = End::deadline_ns(None);
        for target in &mut self.targets {
            if let Err(reason) = target.publish(deadline) {
                tell(&format!("warning: {}: {reason}", target.agent.title()));
            }
        }
    }

    fn show(&self) {
        let mut tally = Tally {
            processes: self.targets.len(),
            ..Tally::default()
        };
        let running = self
            .targets
            .iter()
            .map(|t| (t.totals.samples, t.totals.alloc_bytes));
        let written = self
            .outcome
            .written
            .iter()
            .map(|w| (w.samples, w.alloc_bytes));
        for (samples, bytes) in running.chain(written) {
            tally.samples = tally.samples.saturating_add(samples);
            tally.bytes += bytes;
        }
        self.progress.show(self.start.elapsed(), &tally);
    }

    /// Stops all together, then writes one after the other.
    fn end(&mut self) {
        for target in &self.targets {
            if let Err(reason) = target.stop() {
                tell(&format!("warning: {}: {reason}", target.agent.title()));
            }
        }
        std::thread::sleep(SETTLE);
        for target in std::mem::take(&mut self.targets) {
            self.finish(target);
        }
        self.progress.finish();
    }

    /// Writes the dump of a target whose session is over.
    fn finish(&mut self, mut target: Target) {
        target.settle_life();
        let mut head = Head::new();
        let header = target.agent.segment.head(&mut head);
        let ended = header.map_or(Ended::Died, |header| Ended::of(&target.agent, &header));
        match dump::write(
            &self.output,
            &target.agent,
            &target.session,
            ("end of session", ended),
        ) {
            Ok(written) => {
                self.warn_idle(&target, &written);
                self.release(&target);
                self.report(written);
            }
            Err(error) => {
                let title = target.agent.title();
                let fetch = match target.agent.life {
                    Life::Running => format!("mem_profiler dump -p {} -o PREFIX", target.agent.pid),
                    _ => "mem_profiler recover -o PREFIX".to_owned(),
                };
                self.fail(&format!(
                    "{title}: {error}; its profile is kept: {fetch} writes it"
                ));
            }
        }
    }

    /// The dump is safe: forget the session, and the segment where nobody uses it.
    fn release(&self, target: &Target) {
        let segment = &target.agent.segment;
        let done = segment
            .view()
            .mark_collected(target.session.number)
            .map_err(crate::segment::io_error);
        let done = match target.agent.life {
            Life::Running => done,
            _ => segment.folder.remove(segment).or_else(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            }),
        };
        if let Err(error) = done {
            tell(&format!("warning: {}: {error}", segment.path().display()));
        }
    }

    fn warn_idle(&self, target: &Target, written: &Written) {
        let cpu = target.cpu_seconds();
        if written.threads == 0 && target.agent.life == Life::Running && cpu > IDLE_CPU_SECONDS {
            self.progress.above(|| {
                tell(&format!(
                    "warning: {}: 0 calls seen in {cpu:.1} s of CPU time: the agent is loaded, but \
                     the program seems to allocate through a static or own allocator",
                    written.title
                ));
            });
        }
    }

    fn report(&mut self, written: Written) {
        let remark = written.ended.remark(&written.title);
        let path = written.path.display();
        self.progress.above(|| match remark.as_str() {
            "" => result(&path.to_string()),
            remark => result(&format!("{path} ({remark})")),
        });
        self.outcome.written.push(written);
    }
}
