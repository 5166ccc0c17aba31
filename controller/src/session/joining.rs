//! Adds processes to a session, at its start and later.

use std::time::{Duration, Instant};

use mem_agents::cleaning::{Cleaned, remove_unused};
use mem_agents::clock::now_ns;
use mem_agents::discovery::{Agent, Found, Life};
use mem_agents::dump;
use mem_agents::ended::Ended;
use mem_agents::lineage::{is_alive, self_started_session};
use mem_agents::preload;
use mem_agents::segment::{Directory, Head, Refusal};
use mem_agents::select::Selection;
use mem_agents::target::{self, Deadline, NoRoom, Target, uncollected};
use mem_agents::text;
use proc::Stat;

use super::{NAME_CHECK_INTERVAL, Run, SCAN_INTERVAL, Unverified};
use crate::cpu_session::timers;
use crate::family::Newcomer;
use crate::rounds::Rounds;
use crate::session::member::Member;

/// Maximum number of programs without the agent that are named.
pub(super) const MAX_NAMED: usize = 3;

/// Maximum time for which a new process is expected to execute a program.
const MAX_FORK_TIME: Duration = Duration::from_secs(1);

/// Time to wait for other controllers that hold a new process. The session's other processes are
/// not polled in that time.
const LOCK_TIMEOUT_WHILE_RUNNING: Duration = Duration::from_millis(300);

/// Number of examined segments above which deleted ones are forgotten.
const MAX_EXAMINED: usize = 1 << 12;

/// Returns true if the process with this pid and start time has exited.
fn is_gone(pid: i32, start_time: u64) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.start_time != start_time || stat.is_dead())
}

/// Describes how much memory the profiles of dead processes occupy; empty if there are none.
fn describe_kept(cleaned: &Cleaned) -> String {
    let subject = match cleaned.kept {
        0 => return String::new(),
        1 => "the profile of an ended process takes".to_owned(),
        n => format!("{n} profiles of ended processes take"),
    };
    let size = text::bytes(cleaned.kept_bytes as f64);
    format!(
        "; {subject} {size}: mem_profiler recover writes out and removes what ended processes left"
    )
}

/// Space that the sessions of one file system need for their first tables.
struct SpaceNeed<'a> {
    /// A directory of the file system.
    directory: &'a Directory,
    bytes: u64,
}

impl SpaceNeed<'_> {
    fn is_short(&self) -> bool {
        let free = self.directory.free_bytes();
        free.is_ok_and(|free| free < self.bytes)
    }
}

impl Run {
    /// Claims processes for the session, and writes profiles that earlier sessions left in them.
    /// Waits for other controllers for `timeout`, for all processes together.
    pub(super) fn claim(&mut self, agents: Vec<Agent>, timeout: Duration) -> Vec<Target> {
        let deadline = Instant::now() + timeout;
        let mut targets = Vec::new();
        for agent in agents {
            let title = agent.title();
            let pid = agent.pid;
            let entry = agent.entry;
            let start_time = entry.name.start_time;
            match Target::claim_before(agent, deadline) {
                Ok(target) => {
                    let mut target = target.with_max_overhead(self.settings.max_overhead);
                    if self.settings.cpu_rate != 0 {
                        let setting = timers::cpu_setting(self.settings.cpu_rate, target.agent.pid);
                        target.session.cpu = setting;
                    }
                    self.write_leftover(&target);
                    targets.push(target);
                }
                // The process has exited, and was not requested by name.
                Err(_) if self.settings.selection.names.is_empty() && is_gone(pid, start_time) => {}
                // The next search tries again.
                Err(reason) if self.start_ns.is_some() && reason.is_passing() => {
                    self.examined.remove(&entry);
                    if self.postponed.insert(entry) {
                        self.reporter
                            .diagnostic(&format!("{title} joins the session later: {reason}"));
                    }
                }
                Err(reason) => self.fail(&format!("{title}: {reason}")),
            }
        }
        targets
    }

    /// Writes the profile of an earlier session that nobody has written, left by a controller that
    /// was killed or by an agent that started by itself. The session after the next would overwrite
    /// it.
    fn write_leftover(&mut self, target: &Target) {
        let agent = &target.agent;
        let mut head = Head::new();
        let Ok(header) = agent.segment.head(&mut head) else {
            return;
        };
        let Some(session) = uncollected(agent, &header) else {
            return;
        };
        if let Err(reason) = target::stop(agent, &session) {
            return self.fail(&format!("{}: {reason}", agent.title()));
        }
        let trigger = "left by an earlier session";
        match dump::write(
            &self.output,
            agent,
            &session,
            None,
            trigger,
            Ended::Normally,
        ) {
            Ok(written) => {
                // If this fails, the profile is written once more.
                let _ = agent.segment.view().mark_collected(session.number);
                let title = agent.title();
                self.reporter.diagnostic(&format!(
                    "{title}: an earlier session had left its data: written too"
                ));
                self.report(written);
            }
            Err(error) => {
                self.fail(&format!(
                    "{}: an earlier session's data: {error}",
                    agent.title()
                ));
            }
        }
    }

    /// Checks that all sessions together fit into the shared directory. If they do not, segments of
    /// dead processes without a profile are removed first. If that is not enough, no session is
    /// started.
    pub(super) fn check_space(&mut self, targets: &[Target]) -> anyhow::Result<()> {
        let mut filesystems: Vec<SpaceNeed<'_>> = Vec::new();
        for target in targets {
            let directory = &target.agent.segment.directory;
            let device = directory.identity.0;
            let bytes = target.first_bytes();
            match filesystems
                .iter_mut()
                .find(|need| need.directory.identity.0 == device)
            {
                Some(need) => need.bytes += bytes,
                None => filesystems.push(SpaceNeed { directory, bytes }),
            }
        }
        if !filesystems.iter().any(SpaceNeed::is_short) {
            return Ok(());
        }
        let cleaned = remove_unused(&self.discovery, &Selection::default(), false);
        for failure in &cleaned.failures {
            self.reporter.failure(failure);
        }
        let Some(need) = filesystems.iter().find(|need| need.is_short()) else {
            return Ok(());
        };
        let no_room = NoRoom {
            directory: need.directory.path.clone(),
            needs: need.bytes,
            free: need.directory.free_bytes().ok(),
        };
        let mut message = no_room.to_string();
        message.push_str(&describe_kept(&cleaned));
        anyhow::bail!(message)
    }

    /// Prepares all targets, which takes time, then starts all, which takes microseconds each.
    pub(super) fn start_sessions(&mut self, targets: Vec<Target>) {
        let mut ready = Vec::new();
        for mut target in targets {
            match target.prepare(self.settings.density) {
                Ok(()) => ready.push(target),
                Err(reason) => self.fail(&format!("{}: {reason}", target.agent.title())),
            }
        }
        if self.start_ns.is_none() {
            self.start = Instant::now();
            self.start_ns = Some(now_ns());
        }
        let left = self.time_left();
        let deadline = Deadline::ns_after(left);
        for mut target in ready {
            match target.publish(deadline) {
                Ok(()) => {
                    self.lineage.add(&target.agent);
                    let member = Member::new(target, &self.settings.triggers, left);
                    self.members.push(member);
                }
                Err(reason) => self.fail(&format!("{}: {reason}", target.agent.title())),
            }
        }
    }

    /// Searches for new processes: often for new names in the shared directory, less often
    /// everywhere.
    pub(super) fn search(&mut self, now: Instant) {
        let is_due = self.child.is_some() || now - self.last_names_check >= NAME_CHECK_INTERVAL;
        if !is_due {
            return;
        }
        self.last_names_check = now;
        if self.child.is_some() {
            self.family.poll();
        }
        if now - self.last_search >= SCAN_INTERVAL || self.discovery.has_new(&self.examined) {
            self.last_search = now;
            self.join_new();
        }
        // After joining, so that a program without the agent is reported before its children.
        self.watch_newcomers(now);
    }

    /// Starts to watch new descendants, to find out whether they load the agent.
    fn watch_newcomers(&mut self, now: Instant) {
        for Newcomer { pid, parent } in self.family.take_newcomers() {
            let is_parent = |member: &Member| member.target.agent.pid == parent;
            if let Some(index) = self.members.iter().position(is_parent)
                && self.has_lost_agent(index)
            {
                self.end_membership(index);
            }
            let name = Stat::of(parent).map_or_else(Vec::new, |stat| stat.comm);
            self.unverified.push(Unverified {
                pid,
                title: format!("{} ({parent})", text::escape(&name)),
                first_seen: Some(now),
            });
        }
    }

    /// Adds new processes to the session.
    pub(super) fn join_new(&mut self) {
        let scan = self.discovery.scan_except(&self.examined);
        scan.forget_gone(&mut self.examined, MAX_EXAMINED);
        self.examined.extend(&scan.settled);
        if self.child.is_some() {
            return scan.found.into_iter().for_each(|found| self.adopt(found));
        }
        // Each segment is examined once, whether it is selected or not.
        self.examined.extend(scan.found.iter().map(|a| a.entry));
        // Whether the new program is selected or not, the profile of the earlier one ends.
        let running = |found: &&Found| found.life == Life::Running;
        for found in scan.found.iter().filter(running) {
            self.end_earlier_programs(found);
        }
        let new = self.join_children(scan.found);
        if new.is_empty() {
            return;
        }
        let targets = self.claim(new, LOCK_TIMEOUT_WHILE_RUNNING);
        if let Err(error) = self.check_space(&targets) {
            return self.fail(&error.to_string());
        }
        self.start_sessions(targets);
    }

    /// Adds children that have not been seen yet, at the end of the session. Returns true if there
    /// were new segments.
    pub(super) fn join_last(&mut self) -> bool {
        let examined_before = self.examined.len();
        let scan = self.discovery.scan_except(&self.examined);
        match self.child {
            Some(_) => scan.found.into_iter().for_each(|found| self.adopt(found)),
            None => drop(self.join_children(scan.found)),
        }
        self.examined.len() != examined_before
    }

    /// Takes over children of our processes, which continue the session by themselves and may have
    /// exited already. Returns the other running processes that are selected.
    fn join_children(&mut self, all: Vec<Found>) -> Vec<Agent> {
        let is_selected = |found: &Found| self.settings.selection.wants(found);
        let (selected, mut unselected): (Vec<_>, Vec<_>) = all.into_iter().partition(is_selected);
        let others = selected
            .into_iter()
            .filter_map(|found| self.join_child(found));
        // Profiles of other sessions' dead processes do not belong to this session.
        let others = others.filter(|agent| agent.life == Life::Running).collect();
        // Repeats, since a child may itself have children.
        loop {
            let (children, remaining) = self.lineage.split(unselected);
            if children.is_empty() {
                self.lineage.forget_ended();
                return others;
            }
            for found in children {
                self.join_child(found);
            }
            unselected = remaining;
        }
    }

    /// Takes over a process if its session is ours; otherwise returns its agent.
    fn join_child(&mut self, found: Found) -> Option<Agent> {
        // The process has exited, or the file is not a segment.
        let agent = found.open().ok()?;
        if !self.continues_our_session(&agent) {
            return Some(agent);
        }
        if agent.life != Life::Running || agent.confirm().is_ok() {
            self.take_over(agent);
        } else if !is_alive(agent.pid) {
            // The process has exited since the scan. The next search finds its segment.
            self.examined.remove(&agent.entry);
        }
        None
    }

    /// Returns true if an agent started its session by itself, as those of children that were
    /// forked during our session do.
    fn continues_our_session(&self, agent: &Agent) -> bool {
        let session = self.start_ns.and_then(|ns| self_started_session(agent, ns));
        session.is_some_and(|session| {
            session.interval == self.settings.density.interval
                || self.settings.max_overhead.is_some()
        })
    }

    /// Adds a process whose session was taken over. If it has exited, writes its dump.
    fn add_adopted(&mut self, target: Target) {
        self.end_earlier_programs(&target.agent);
        self.lineage.add(&target.agent);
        let member = Member::new(target, &self.settings.triggers, self.time_left());
        match member.target.agent.life {
            Life::Running => self.members.push(member),
            _ if self.child.is_none() && self.is_empty(&member.target) => {
                self.release(&member.target);
            }
            _ => self.finish(member),
        }
    }

    /// Ends the membership of earlier programs of a process.
    fn end_earlier_programs(&mut self, agent: &Found) {
        let is_earlier = |member: &Member| {
            let other = &member.target.agent;
            let is_other = other.entry != agent.entry;
            is_other && other.process() == agent.process() && other.created_ns <= agent.created_ns
        };
        while let Some(index) = self.members.iter().position(is_earlier) {
            self.end_membership(index);
        }
    }

    /// Ends the membership of a process that has executed another program.
    pub(super) fn end_membership(&mut self, index: usize) {
        let mut member = self.members.swap_remove(index);
        member.target.agent.life = Life::Replaced;
        self.finish(member);
    }

    /// Takes over a session that an agent started by itself, if the process is a descendant.
    fn adopt(&mut self, found: Found) {
        let entry = found.entry;
        let title = found.title();
        if !self.family.contains(&found) {
            // A running process may be recognised, or have its segment mapped, at a later search.
            if found.life != Life::Running {
                self.examined.insert(entry);
                self.family.refused += 1;
            }
            return;
        }
        match found.open() {
            Ok(agent) => self.take_over(agent),
            // The file has been removed since the scan.
            Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(reason) => {
                self.examined.insert(entry);
                self.fail(&format!("{title}: {reason}"));
            }
        }
    }

    /// Takes over the session of an agent.
    fn take_over(&mut self, agent: Agent) {
        let entry = agent.entry;
        let title = agent.title();
        if self.replaced.contains(&(entry, agent.created_ns)) {
            return;
        }
        match Target::adopt(agent) {
            Ok(Some(target)) => {
                self.examined.insert(entry);
                self.add_adopted(target.with_max_overhead(self.settings.max_overhead));
            }
            // The session has not started yet. The next search tries again.
            Ok(None) => {}
            Err(reason) => {
                self.examined.insert(entry);
                self.fail(&format!("{title}: {reason}"));
            }
        }
    }

    /// Returns true if a member has executed another program, so that its agent is gone. For
    /// processes of a program that we started, only if the new program does not load the agent.
    pub(super) fn has_lost_agent(&self, index: usize) -> bool {
        let member = &self.members[index];
        let loads_agent =
            || self.child.is_some() && preload::absence(member.target.agent.pid).is_none();
        member.has_executed() && !loads_agent()
    }

    /// Warns about programs without the agent that processes of the started program have executed.
    pub(super) fn warn_of_lost_agents(&mut self) {
        for unverified in std::mem::take(&mut self.unverified) {
            let Unverified {
                pid,
                title,
                first_seen,
            } = &unverified;
            let is_member = |member: &Member| member.target.agent.pid == *pid;
            if self.members.iter().any(is_member) || proc::has_exited(*pid) {
                continue;
            }
            let Some(reason) = preload::absence(*pid) else {
                // The agent may still be loaded. A new process may not have executed a program yet,
                // but soon will, if ever.
                if first_seen.is_none_or(|time| time.elapsed() < MAX_FORK_TIME) {
                    self.unverified.push(unverified);
                }
                continue;
            };
            self.lost_agents += 1;
            if self.lost_agents > MAX_NAMED {
                continue;
            }
            let name = Stat::of(*pid).map_or_else(Vec::new, |stat| stat.comm);
            let name = text::escape(&name);
            self.reporter.warning(&if first_seen.is_some() {
                format!("{title} has started {name} ({pid}), which is not sampled: {reason}")
            } else {
                format!("{title} has executed {name}, which is not sampled: {reason}")
            });
        }
    }

    /// Warns about further programs that were not named.
    pub(super) fn warn_of_more_lost_agents(&mut self) {
        let unnamed = self.lost_agents.saturating_sub(MAX_NAMED);
        if unnamed > 0 {
            let programs = text::count(unnamed as u64, "more program", "more programs");
            self.reporter.warning(&format!(
                "{programs} without the agent, which are not sampled"
            ));
        }
    }
}
