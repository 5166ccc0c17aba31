//! Engine of the agents. The agent in each process creates timers for its threads, and counts
//! stacks in its segment. The segment is read at the end of the session, even if the process has
//! exited, and earlier for live views.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use cpu::{Recording, Refusal};
use mem_agents::discovery::{Agent, Discovery, Found, Life};
use mem_agents::segment::{Entry, Head};
use mem_agents::target::{
    Deadline, Density, Polled, RENEWAL_INTERVAL, Target, is_running, uncollected,
};
use mem_agents::text;
use shm_protocol::cpu::{CpuSetting, CpuState};
use shm_protocol::layout::{PYTHON_DETECTED, PYTHON_NAMED};
use shm_protocol::segment::Session;

use super::member::{Member, SamplingFailure};
use super::signals;
use crate::family::Family;

/// Delay between stopping the sessions and reading the segments, for samples in progress.
const SETTLE_TIME: Duration = Duration::from_millis(5);
/// Time after its planned end at which a session ends by itself if its controller has not ended it.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// Message: a program that we started has no samples, because its agent never started a session.
const NOT_LOADED: &str = "it has not loaded the agent (static, another C library or machine, \
                          privileges): leave out --engine timers";

/// Message: an attached process has executed another program.
const EXECUTED: &str = "has executed another program, and its timers are gone: start another \
                        session, or it with cpu run --engine timers";

/// Search for the segments of a started program and its descendants.
struct SegmentSearch {
    discovery: Discovery,
    family: Family,
    /// Segments that need not be examined again.
    settled: HashSet<Entry>,
}

/// Engine of the agents.
pub struct Timers {
    rate: u32,
    members: Vec<Member>,
    /// Agents that were found when the first process was attached; `None` before.
    agents: Option<Vec<Found>>,
    /// Search for the segments of a program that we start.
    segment_search: Option<SegmentSearch>,
    /// Segments that programs left behind at an exec, with creation times. The next program's
    /// segment may have the same name and inode, once the process has removed the old one.
    replaced: HashSet<(Entry, u64)>,
    /// Time at which the agents' deadlines are renewed next.
    renewal: Instant,
    /// Reasons for missing samples, by pid.
    failure_reasons: HashMap<i32, String>,
    /// Warnings about single processes that were not taken yet.
    warnings: Vec<String>,
    /// Processes of the started program whose agents have started a session.
    with_session: HashSet<i32>,
    /// Processes of the started program that exited without a known session.
    without_session_at_exit: HashSet<i32>,
    /// True if a heap session of this program starts and stops the agents' sessions.
    shares_session: bool,
    /// True if the engine was used for any process.
    is_used: bool,
    /// Time at which the agents end their sessions by themselves. `None`: the session has no fixed
    /// length.
    end: Option<Instant>,
}

impl Timers {
    /// Creates the engine, without processes. If `shares_session`, a heap session of this program
    /// starts and stops the agents' sessions.
    pub fn new(rate: u32, shares_session: bool) -> Self {
        Self {
            rate,
            members: Vec::new(),
            agents: None,
            segment_search: None,
            replaced: HashSet::new(),
            renewal: Instant::now() + RENEWAL_INTERVAL,
            failure_reasons: HashMap::new(),
            warnings: Vec::new(),
            with_session: HashSet::new(),
            without_session_at_exit: HashSet::new(),
            shares_session,
            is_used: false,
            end: None,
        }
    }

    /// Lets the agents end their sessions by themselves shortly after `length`.
    pub fn set_session_length(&mut self, length: Option<Duration>) {
        self.end = length.map(|length| Instant::now() + length + STOP_GRACE);
    }

    /// Returns the deadline for segments, at which agents end their sessions by themselves.
    fn deadline(&self) -> u64 {
        let time_left = |end: Instant| end.saturating_duration_since(Instant::now());
        Deadline::ns_after(self.end.map(time_left))
    }

    /// Searches for the sessions that agents of a started program and of its children start by
    /// themselves.
    pub fn follow(&mut self, discovery: Discovery) {
        self.is_used = true;
        self.segment_search = Some(SegmentSearch {
            discovery,
            family: Family::new(),
            settled: HashSet::new(),
        });
    }

    /// Starts a session in which the process samples itself.
    pub fn attach(&mut self, pid: i32) -> Result<(), Refusal> {
        let refusal = |why: String| Refusal::Agent { pid, why };
        let agents = self
            .agents
            .get_or_insert_with(|| Discovery::new().scan().found);
        let is_of_process = |agent: &&Found| agent.pid == pid && agent.life == Life::Running;
        let Some(found) = agents.iter().find(is_of_process) else {
            return Err(refusal(
                "it was not started with the agent (mem_profiler cpu run --engine timers -- COMMAND \
                 does that)"
                    .to_owned(),
            ));
        };
        let agent = found.clone().open();
        let agent = agent.map_err(|error| refusal(error.to_string()))?;
        let target = if self.shares_session {
            self.join_session(agent)
        } else {
            self.start_session(agent)
        };
        let target = target.map_err(|error| refusal(error.to_string()))?;
        self.members.push(Member::new(target));
        self.is_used = true;
        Ok(())
    }

    /// Starts a session that samples CPU time alone.
    fn start_session(&self, agent: Agent) -> anyhow::Result<Target> {
        let mut head = Head::new();
        let header = agent.segment.head(&mut head)?;
        if is_running(&header) {
            anyhow::bail!(explain_running(agent.pid, header.session().as_ref()));
        }
        if let Some(session) = uncollected(&agent, &header) {
            anyhow::bail!(
                "the heap profile of its session {} is not written yet: mem_profiler dump -p {} does \
                 that",
                session.number,
                agent.pid
            );
        }
        let mut target = Target::claim(agent)?;
        target.session.cpu = cpu_setting(self.rate, target.agent.pid);
        target.prepare(Density::uniform(0))?;
        target.publish(self.deadline())?;
        Ok(target)
    }

    /// Joins the session that the heap session of this program has started.
    fn join_session(&self, agent: Agent) -> anyhow::Result<Target> {
        let mut head = Head::new();
        let session = agent.segment.head(&mut head)?.session();
        let session = session.filter(|session| session.cpu.rate == u64::from(self.rate));
        match session {
            Some(session) => Ok(Target::observe(agent, session)?),
            None => anyhow::bail!("its session is over"),
        }
    }

    /// Returns the pids of the processes that sample themselves.
    pub fn pids(&self) -> Vec<i32> {
        self.members.iter().map(|member| member.pid).collect()
    }

    /// Returns the processes that do not sample themselves, with the reasons.
    pub fn failures(&self) -> Vec<(i32, SamplingFailure)> {
        let members = self.members.iter();
        members
            .filter_map(|member| Some((member.pid, member.failure()?)))
            .collect()
    }

    /// Takes the reasons for missing samples, by pid.
    pub fn take_failure_reasons(&mut self) -> HashMap<i32, String> {
        std::mem::take(&mut self.failure_reasons)
    }

    /// Takes the warnings since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Returns true if the engine was used for any process.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Stops the session of a process that another engine takes over.
    pub fn release(&mut self, pid: i32, recording: &mut Recording) {
        if let Some(index) = self.members.iter().position(|member| member.pid == pid) {
            let member = self.members.swap_remove(index);
            self.stop(&member);
            self.collect_final(member, recording);
        }
    }

    /// Renews deadlines, finds new and ended sessions, and updates the totals of processes.
    pub fn collect(&mut self, recording: &mut Recording) {
        if Instant::now() >= self.renewal && !self.shares_session && self.end.is_none() {
            self.renewal = Instant::now() + RENEWAL_INTERVAL;
            for member in &mut self.members {
                // On failure the session ends early, and is still read at the end.
                let _ = member.target.publish(Deadline::ns_after(None));
            }
        }
        self.adopt(recording);
        let mut index = 0;
        while index < self.members.len() {
            let member = &mut self.members[index];
            let result = member.target.poll();
            self.warnings.append(&mut member.target.take_warnings());
            match result {
                // Only for attached processes: in a started program, the agent is loaded again at
                // each exec.
                Ok(_) if self.segment_search.is_none() && member.has_executed() => {
                    member.target.agent.life = Life::Replaced;
                    let title = member.target.agent.title();
                    self.warnings.push(format!("{title} {EXECUTED}"));
                    self.end_member(index, recording);
                }
                // Another program has ended the session. For a started program, the segment is
                // read when the process exits.
                Ok(Polled::Stopped) if self.segment_search.is_none() && !self.shares_session => {
                    if member.target.is_cut_short() {
                        self.warnings.push(format!(
                            "{}: another program has ended its session after {}: its profile is of that time only",
                            member.target.agent.title(),
                            text::short_time(member.target.lasted()),
                        ));
                    }
                    self.end_member(index, recording);
                }
                Ok(Polled::Counting | Polled::Stopped) => {
                    member.update_totals(recording);
                    index += 1;
                }
                Ok(Polled::Dead) => self.end_member(index, recording),
                Err(error) => {
                    let member = self.members.swap_remove(index);
                    self.failure_reasons
                        .insert(member.pid, format!("its segment became unusable: {error}"));
                }
            }
        }
        for pid in recording.poll_exited() {
            if !self.members.iter().any(|member| member.pid == pid) {
                if !is_foreign(recording, pid) {
                    self.without_session_at_exit.insert(pid);
                }
                recording.handle_exit(pid);
            }
        }
    }

    /// Removes a member whose process has exited, or has executed another program, which may have
    /// no agent, or none yet.
    fn end_member(&mut self, index: usize, recording: &mut Recording) {
        let mut member = self.members.swap_remove(index);
        let pid = member.pid;
        member.target.update_life();
        let continues = self.segment_search.is_some() && member.target.agent.life == Life::Replaced;
        self.collect_final(member, recording);
        if continues {
            recording.handle_exec(pid);
        } else {
            recording.handle_exit(pid);
        }
    }

    /// Takes over new sessions that agents of the started program's processes started by themselves.
    fn adopt(&mut self, recording: &mut Recording) {
        let Some(search) = &mut self.segment_search else {
            return;
        };
        let settled = &mut search.settled;
        if nix::unistd::geteuid().is_root() {
            search.family.poll();
        }
        if !search.discovery.has_new(settled) {
            return;
        }
        let scan = search.discovery.scan_except(settled);
        settled.extend(&scan.settled);
        let mut new = Vec::new();
        for found in scan.found {
            let entry = found.entry;
            let life = found.life;
            if !search.family.contains(&found) {
                if life != Life::Running {
                    settled.insert(entry);
                }
                continue;
            }
            let agent = found.open().ok();
            let is_new = |agent: &Agent| !self.replaced.contains(&(entry, agent.created_ns));
            // `None`: the session has not started yet, or the segment is gone. The next search
            // looks again.
            let adopted = agent.filter(is_new).map_or(Ok(None), Target::adopt);
            if let Ok(Some(target)) = adopted {
                settled.insert(entry);
                new.push(target);
            }
        }
        // The scan returns a process's successive programs in order.
        for target in new {
            self.add_adopted(target, recording);
        }
    }

    fn add_adopted(&mut self, mut target: Target, recording: &mut Recording) {
        if target.agent.life == Life::Running {
            // The deadline ends the session if this controller dies. Publishing fails only if the
            // process has exited.
            let _ = target.publish(Deadline::ns_after(None));
        }
        let pid = target.agent.pid;
        self.with_session.insert(pid);
        if let Some(index) = self.members.iter().position(|member| member.pid == pid) {
            // The process has executed another program.
            let mut earlier = self.members.swap_remove(index);
            earlier.target.agent.life = Life::Replaced;
            self.collect_final(earlier, recording);
            recording.handle_exec(pid);
        } else if recording.process(pid).is_none() {
            recording.add_new(pid);
        }
        let is_over = target.agent.life != Life::Running;
        let mut member = Member::new(target);
        member.start_cpu_ns = 0;
        self.members.push(member);
        if is_over {
            self.end_member(self.members.len() - 1, recording);
        }
    }

    /// Stops all sessions and reads their segments.
    pub fn finish(&mut self, recording: &mut Recording) {
        self.adopt(recording);
        if self.segment_search.is_some() {
            let pids = self.without_session_at_exit.drain().chain(recording.pids());
            let without_session = pids.filter(|pid| !self.with_session.contains(pid));
            for pid in without_session.filter(|pid| !is_foreign(recording, *pid)) {
                self.failure_reasons.insert(pid, NOT_LOADED.to_owned());
            }
        }
        let members = std::mem::take(&mut self.members);
        members.iter().for_each(|member| self.stop(member));
        std::thread::sleep(SETTLE_TIME);
        for member in members {
            self.collect_final(member, recording);
        }
    }

    fn stop(&mut self, member: &Member) {
        if self.shares_session {
            return;
        }
        if let Err(error) = member.target.stop() {
            self.warnings
                .push(format!("{}: {error}", member.target.agent.title()));
        }
    }

    /// Returns the reason why a process is not sampled, if that is known.
    pub fn failure_reason(&self, pid: i32) -> Option<String> {
        let member = self.members.iter().find(|member| member.pid == pid);
        match member {
            Some(member) => member.failure().map(|failure| failure.reason().to_owned()),
            None => self.failure_reasons.get(&pid).cloned(),
        }
    }

    /// Reads the segments' counts so far, for live views.
    pub fn collect_live(&mut self, recording: &mut Recording) {
        for member in &mut self.members {
            if let Err(error) = member.read(recording) {
                self.failure_reasons.insert(member.pid, error.to_string());
            }
        }
    }

    /// Reads a process's segment for the last time, and releases it.
    fn collect_final(&mut self, mut member: Member, recording: &mut Recording) {
        member.target.update_life();
        let pid = member.pid;
        if let Err(error) = member.read(recording) {
            self.failure_reasons.insert(pid, error.to_string());
        }
        let failure = match member.totals.state {
            // The session is over, so the minimum of CPU time in `failure` does not apply.
            CpuState::Unnoticed => Some(SamplingFailure::Unnoticed),
            _ => member.failure(),
        };
        if let Some(failure) = failure {
            self.failure_reasons
                .insert(pid, failure.reason().to_owned());
        }
        if self.shares_session {
            return;
        }
        let agent = &member.target.agent;
        match (member.target.release(), &mut self.segment_search) {
            (Err(error), _) => {
                let path = mem_agents::text::path(agent.segment.path());
                self.warnings.push(format!("{path}: {error}"));
            }
            // The next program of the process may have a segment of the same name and inode.
            (Ok(is_removed), Some(search)) if agent.life != Life::Running => {
                search.settled.remove(&agent.entry);
                if !is_removed {
                    self.replaced.insert((agent.entry, agent.created_ns));
                }
            }
            _ => {}
        }
    }
}

/// Formats the message for a process that has a session already; an agent has one at a time.
fn explain_running(pid: i32, session: Option<&Session>) -> String {
    match session {
        Some(session) if session.cpu.rate == 0 => format!(
            "a heap session of it is running, and its agent has one session at a time: mem_profiler stop -p {pid}, or mem_profiler both -p {pid}"
        ),
        _ => format!("a session of it is running: mem_profiler stop -p {pid} ends it"),
    }
}

/// Returns true if all of these processes have agents that see Python lines.
pub fn agents_see_python_lines(pids: &[i32]) -> bool {
    let agents = Discovery::new().scan().found;
    let sees_lines = |pid: i32| {
        let mut agents = agents.iter();
        let agent = agents.find(|agent| agent.pid == pid && agent.life == Life::Running)?;
        let agent = agent.clone().open().ok()?;
        let mut head = Head::new();
        let (_, detection) = agent.segment.head(&mut head).ok()?.python()?;
        Some(matches!(detection, PYTHON_DETECTED | PYTHON_NAMED))
    };
    !pids.is_empty() && pids.iter().all(|pid| sees_lines(*pid) == Some(true))
}

/// Returns true if a process's program is for another architecture. The recording reports such
/// processes itself.
fn is_foreign(recording: &mut Recording, pid: i32) -> bool {
    let process = recording.process(pid);
    process.is_some_and(|process| process.foreign().is_some())
}

/// Returns the settings for a process's agent, with the signals that it must not use.
pub fn cpu_setting(rate: u32, pid: i32) -> CpuSetting {
    CpuSetting {
        rate: rate.into(),
        avoid: signals::in_use(pid),
    }
}
