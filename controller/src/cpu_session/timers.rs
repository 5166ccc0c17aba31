//! The engine inside: the agent in each process gives its threads timers and counts in its segment,
//! from which stacks are read at the end, whether or not the process still exists, and before that
//! for live views.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use cpu::{Recording, Refusal};
use mem_agents::discovery::{Agent, Discovery, Found, Life};
use mem_agents::segment::{Entry, Head};
use mem_agents::target::{Deadline, Density, Look, RENEWAL, Target, is_running, uncollected};
use mem_agents::text;
use shm_protocol::cpu::{CpuSetting, CpuState};
use shm_protocol::layout::{PYTHON_MET, PYTHON_NAMED};
use shm_protocol::segment::Session;

use super::member::{Member, Trouble};
use super::signals;
use crate::family::Family;
use crate::terminal;

/// Delay after the stop, in which samples in progress are still counted.
const SETTLE: Duration = Duration::from_millis(5);
/// How much longer than its length a session may continue if its controller does not end it.
const GRACE: Duration = Duration::from_secs(1);
/// Why a program that we started has no samples, if its agent never began.
const NOT_LOADED: &str = "it has not loaded the agent (static, another C library or machine, \
                          privileges): leave out --engine timers";

/// What becomes of a process that was attached and executes another program.
const EXECUTED: &str = "has executed another program, and its timers are gone: start another \
                        session, or it with cpu run --engine timers";

/// The engine.
pub struct Timers {
    rate: u32,
    members: Vec<Member>,
    /// Agents that were found, before a process is attached.
    found: Option<Vec<Found>>,
    /// Where the processes of a program that we start are looked for.
    family: Option<(Discovery, Family, HashSet<Entry>)>,
    /// For programs that were replaced, segments that are still there, and when they were made: the
    /// next program's may have the same name and inode once the process has removed them.
    replaced: HashSet<(Entry, u64)>,
    renewal: Instant,
    /// Why there are no samples of processes that are over.
    troubles: HashMap<i32, String>,
    /// Processes of the program that we start whose agents began.
    begun: HashSet<i32>,
    /// Those that ended before that was seen.
    unbegun: HashSet<i32>,
    /// Whether the sessions are another's, which began them with ours.
    beside: bool,
    is_used: bool,
    /// When the session ends; `None`: that is not known.
    end: Option<Instant>,
}

impl Timers {
    /// For processes that carry the agent.
    pub fn new(rate: u32, beside: bool) -> Self {
        Self {
            rate,
            members: Vec::new(),
            found: None,
            family: None,
            replaced: HashSet::new(),
            renewal: Instant::now() + RENEWAL,
            troubles: HashMap::new(),
            begun: HashSet::new(),
            unbegun: HashSet::new(),
            beside,
            is_used: false,
            end: None,
        }
    }

    /// Makes sessions end by themselves some time after this.
    pub fn limit(&mut self, length: Option<Duration>) {
        self.end = length.map(|length| Instant::now() + length + GRACE);
    }

    /// When sessions end by themselves, as segments hold it.
    fn deadline(&self) -> u64 {
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        Deadline::ns_after(self.end.map(left))
    }

    /// Takes in what a program that we start, and its children, sample by themselves.
    pub fn follow(&mut self, discovery: Discovery) {
        self.is_used = true;
        self.family = Some((discovery, Family::new(), HashSet::new()));
    }

    /// Has a process sample itself from now on.
    pub fn attach(&mut self, pid: i32) -> Result<(), Refusal> {
        let refused = |why: String| Refusal::Agent { pid, why };
        let found = self
            .found
            .get_or_insert_with(|| Discovery::new().scan().found);
        let is_it = |found: &&Found| found.pid == pid && found.life == Life::Running;
        let Some(found) = found.iter().find(is_it) else {
            return Err(refused(
                "it was not started with the agent (mem_profiler cpu run --engine timers -- COMMAND \
                 does that)"
                    .to_owned(),
            ));
        };
        let agent = found.clone().open();
        let agent = agent.map_err(|error| refused(error.to_string()))?;
        let target = match self.beside {
            true => self.share(agent),
            false => self.begin(agent),
        };
        let target = target.map_err(|error| refused(error.to_string()))?;
        self.members.push(Member::of(target));
        self.is_used = true;
        Ok(())
    }

    fn begin(&self, agent: Agent) -> anyhow::Result<Target> {
        let mut head = Head::new();
        let header = agent.segment.head(&mut head)?;
        if is_running(&header) {
            anyhow::bail!(running(agent.pid, header.session().as_ref()));
        }
        if let Some(session) = uncollected(&agent, &header) {
            anyhow::bail!(
                "the heap profile of its session {} is not written yet: mem_profiler dump -p {} does \
                 that",
                session.number,
                agent.pid
            );
        }
        let mut target = Target::take(agent)?;
        target.session.cpu = setting(self.rate, target.agent.pid);
        target.prepare(Density::uniform(0))?;
        target.publish(self.deadline())?;
        Ok(target)
    }

    /// The session that the one beside has begun.
    fn share(&self, agent: Agent) -> anyhow::Result<Target> {
        let mut head = Head::new();
        let session = agent.segment.head(&mut head)?.session();
        let session = session.filter(|session| session.cpu.rate == u64::from(self.rate));
        match session {
            Some(session) => Ok(Target::share(agent, session)?),
            None => anyhow::bail!("its session is over"),
        }
    }

    /// The processes that sample themselves.
    pub fn pids(&self) -> Vec<i32> {
        self.members.iter().map(|member| member.pid).collect()
    }

    /// What keeps processes from being sampled.
    pub fn troubled(&self) -> Vec<(i32, Trouble)> {
        let all = self.members.iter().map(|m| (m.pid, m.trouble()));
        all.filter(|(_, trouble)| *trouble != Trouble::None)
            .collect()
    }

    /// Why nothing was sampled of processes.
    pub fn take_troubles(&mut self) -> HashMap<i32, String> {
        std::mem::take(&mut self.troubles)
    }

    /// Whether any process has sampled itself.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Releases a process that another engine samples from now on.
    pub fn release(&mut self, pid: i32, recording: &mut Recording) {
        if let Some(at) = self.members.iter().position(|member| member.pid == pid) {
            let member = self.members.swap_remove(at);
            self.stop(&member);
            self.take_in(member, recording);
        }
    }

    /// Looks after the sessions, and notes how far they are.
    pub fn collect(&mut self, recording: &mut Recording) {
        if Instant::now() >= self.renewal && !self.beside && self.end.is_none() {
            self.renewal = Instant::now() + RENEWAL;
            for member in &mut self.members {
                // At its end it is read nevertheless.
                let _ = member.target.publish(Deadline::ns_after(None));
            }
        }
        self.adopt(recording);
        let mut at = 0;
        while at < self.members.len() {
            let member = &mut self.members[at];
            let looked = member.target.look();
            for warning in member.target.take_warnings() {
                terminal::warning(&warning);
            }
            match looked {
                // What a program that we start executes continues by itself.
                Ok(_) if self.family.is_none() && member.has_executed() => {
                    member.target.agent.life = Life::Replaced;
                    let title = member.target.agent.title();
                    terminal::warning(&format!("{title} {EXECUTED}"));
                    self.over(at, recording);
                }
                // Somebody has ended its session: what a program that we start counts is read at
                // its end.
                Ok(Look::Stopped) if self.family.is_none() && !self.beside => {
                    if member.target.is_cut_short() {
                        terminal::warning(&format!(
                            "{}: another program has ended its session after {}: its profile is of that time only",
                            member.target.agent.title(),
                            text::short_time(member.target.lasted()),
                        ));
                    }
                    self.over(at, recording);
                }
                Ok(Look::Counting | Look::Stopped) => {
                    member.note(recording);
                    at += 1;
                }
                Ok(Look::Dead) => self.over(at, recording),
                Err(error) => {
                    let member = self.members.swap_remove(at);
                    self.troubles
                        .insert(member.pid, format!("its segment became unusable: {error}"));
                }
            }
        }
        for pid in recording.look() {
            if !self.members.iter().any(|member| member.pid == pid) {
                if !is_foreign(recording, pid) {
                    self.unbegun.insert(pid);
                }
                recording.ended(pid);
            }
        }
    }

    /// A member's process is gone, or executes another program, which may have no agent, or none
    /// yet.
    fn over(&mut self, at: usize, recording: &mut Recording) {
        let mut member = self.members.swap_remove(at);
        let pid = member.pid;
        member.target.settle_life();
        let goes_on = self.family.is_some() && member.target.agent.life == Life::Replaced;
        self.take_in(member, recording);
        match goes_on {
            true => recording.executed(pid),
            false => recording.ended(pid),
        }
    }

    /// Takes in sessions that agents of the program's processes began by themselves.
    fn adopt(&mut self, recording: &mut Recording) {
        let Some((discovery, family, known)) = &mut self.family else {
            return;
        };
        if nix::unistd::geteuid().is_root() {
            family.look();
        }
        if !discovery.has_new(known) {
            return;
        }
        let scan = discovery.scan_except(known);
        known.extend(&scan.settled);
        let mut new = Vec::new();
        for found in scan.found {
            let (entry, life) = (found.entry, found.life);
            if !family.has(&found) {
                if life != Life::Running {
                    known.insert(entry);
                }
                continue;
            }
            let agent = found.open().ok();
            let is_new = |agent: &Agent| !self.replaced.contains(&(entry, agent.created_ns));
            // `None`: not begun yet, or it is gone; the next search asks again.
            let adopted = agent.filter(is_new).map_or(Ok(None), Target::adopt);
            if let Ok(Some(target)) = adopted {
                known.insert(entry);
                new.push(target);
            }
        }
        // Programs that a process has executed come in their order.
        for target in new {
            self.adopted(target, recording);
        }
    }

    fn adopted(&mut self, mut target: Target, recording: &mut Recording) {
        if target.agent.life == Life::Running {
            // If no controller is left to end it, it ends by itself. If it cannot be told, its
            // process has ended.
            let _ = target.publish(Deadline::ns_after(None));
        }
        let pid = target.agent.pid;
        self.begun.insert(pid);
        if let Some(at) = self.members.iter().position(|member| member.pid == pid) {
            // It executes another program by now.
            let mut earlier = self.members.swap_remove(at);
            earlier.target.agent.life = Life::Replaced;
            self.take_in(earlier, recording);
            recording.executed(pid);
        } else if recording.process(pid).is_none() {
            recording.add_newborn(pid);
        }
        let is_over = target.agent.life != Life::Running;
        let mut member = Member::of(target);
        member.clock = 0;
        self.members.push(member);
        if is_over {
            self.over(self.members.len() - 1, recording);
        }
    }

    /// Ends all sessions, and takes in what they counted.
    pub fn finish(&mut self, recording: &mut Recording) {
        self.adopt(recording);
        if self.family.is_some() {
            let all = self.unbegun.drain().chain(recording.pids());
            let could = all.filter(|pid| !self.begun.contains(pid));
            for pid in could.filter(|pid| !is_foreign(recording, *pid)) {
                self.troubles.insert(pid, NOT_LOADED.to_owned());
            }
        }
        self.members.iter().for_each(|member| self.stop(member));
        std::thread::sleep(SETTLE);
        for member in std::mem::take(&mut self.members) {
            self.take_in(member, recording);
        }
    }

    fn stop(&self, member: &Member) {
        if self.beside {
            return;
        }
        if let Err(error) = member.target.stop() {
            terminal::warning(&format!("{}: {error}", member.target.agent.title()));
        }
    }

    /// What keeps a process from being sampled, if that is known.
    pub fn trouble(&self, pid: i32) -> Option<String> {
        let member = self.members.iter().find(|member| member.pid == pid);
        match member {
            Some(member) => member.trouble().reason().map(str::to_owned),
            None => self.troubles.get(&pid).cloned(),
        }
    }

    /// Takes in what the processes have counted so far, for live views.
    pub fn show(&mut self, recording: &mut Recording) {
        for member in &mut self.members {
            if let Err(error) = member.read(recording) {
                self.troubles.insert(member.pid, error.to_string());
            }
        }
    }

    /// Reads what a process has counted, and gives its segment back.
    fn take_in(&mut self, mut member: Member, recording: &mut Recording) {
        member.target.settle_life();
        let pid = member.pid;
        if let Err(error) = member.read(recording) {
            self.troubles.insert(pid, error.to_string());
        }
        let trouble = match member.counted.state {
            // However little time it used: this is why there is nothing.
            CpuState::Unnoticed => Trouble::Unnoticed,
            _ => member.trouble(),
        };
        if let Some(why) = trouble.reason() {
            self.troubles.insert(pid, why.to_owned());
        }
        if self.beside {
            return;
        }
        let agent = &member.target.agent;
        match (member.target.release(), &mut self.family) {
            (Err(error), _) => {
                let path = mem_agents::text::path(agent.segment.path());
                terminal::warning(&format!("{path}: {error}"));
            }
            // The next program that it executes may have a file of this name, at this inode.
            (Ok(is_removed), Some((_, _, known))) if agent.life != Life::Running => {
                known.remove(&agent.entry);
                if !is_removed {
                    self.replaced.insert((agent.entry, agent.created_ns));
                }
            }
            _ => {}
        }
    }
}

/// The message for a process that an agent samples already: it has one session at a time.
fn running(pid: i32, session: Option<&Session>) -> String {
    match session {
        Some(session) if session.cpu.rate == 0 => format!(
            "a heap session of it is running, and its agent has one session at a time: \
             mem_profiler stop -p {pid} ends it; mem_profiler both -p {pid} samples heap and CPU \
             time together instead"
        ),
        _ => format!("a session of it is running: mem_profiler stop -p {pid} ends it"),
    }
}

/// Whether all of these processes carry agents that name lines of Python.
pub fn name_lines(pids: &[i32]) -> bool {
    let found = Discovery::new().scan().found;
    let names = |pid: i32| {
        let mut agents = found.iter();
        let found = agents.find(|found| found.pid == pid && found.life == Life::Running)?;
        let agent = found.clone().open().ok()?;
        let mut head = Head::new();
        let (_, judgement) = agent.segment.head(&mut head).ok()?.python()?;
        Some(matches!(judgement, PYTHON_MET | PYTHON_NAMED))
    };
    !pids.is_empty() && pids.iter().all(|pid| names(*pid) == Some(true))
}

/// Whether a process runs another machine's program, which the recording reports.
fn is_foreign(recording: &mut Recording, pid: i32) -> bool {
    let process = recording.process(pid);
    process.is_some_and(|process| process.foreign().is_some())
}

/// What is read of a process: signals that it uses must not be touched.
pub fn setting(rate: u32, pid: i32) -> CpuSetting {
    CpuSetting {
        rate: rate.into(),
        avoid: signals::in_use(pid),
    }
}
