//! Taking processes into a session: those there at its start, and those that come later.

use std::time::Instant;

use mem_agents::cleaning::{Cleaned, remove_unused};
use mem_agents::clock::now_ns;
use mem_agents::discovery::{Agent, Found, Life};
use mem_agents::dump;
use mem_agents::ended::Ended;
use mem_agents::lineage::session_by_birth;
use mem_agents::segment::{Directory, Head, Refusal};
use mem_agents::select::Selection;
use mem_agents::target::{self, Deadline, NoRoom, Target, uncollected};
use mem_agents::text;
use proc::Stat;

use super::{GLANCE, Run, SEARCH};
use crate::cpu_session::timers;
use crate::session::member::Member;

/// Number of segments that are remembered as seen before those that are gone are forgotten.
const MAX_KNOWN: usize = 1 << 12;

/// Whether a process has ended, by its pid and start time.
fn is_gone((pid, start_time): (i32, u64)) -> bool {
    Stat::of(pid).is_none_or(|stat| stat.start_time != start_time || stat.is_dead())
}

/// How much memory the profiles of ended processes take, if they do.
fn kept(cleaned: &Cleaned) -> String {
    let who = match cleaned.kept {
        0 => return String::new(),
        1 => "the profile of an ended process takes".to_owned(),
        n => format!("{n} profiles of ended processes take"),
    };
    let size = text::bytes(cleaned.kept_bytes as f64);
    format!("; {who} {size}: mem_profiler recover writes out and removes what ended processes left")
}

impl Run {
    /// Claims processes for the session and saves what earlier sessions left in them.
    pub(super) fn take(&mut self, agents: Vec<Agent>) -> Vec<Target> {
        let mut taken = Vec::new();
        for agent in agents {
            let (title, process) = (agent.title(), (agent.pid, agent.entry.name.start_time));
            match Target::take(agent) {
                Ok(target) => {
                    let mut target = target.limited(self.settings.max_overhead);
                    if self.settings.cpu_rate != 0 {
                        let setting = timers::setting(self.settings.cpu_rate, target.agent.pid);
                        target.session.cpu = setting;
                    }
                    self.save_leftover(&target);
                    taken.push(target);
                }
                // It came and went: this one was not requested.
                Err(_) if self.settings.selection.names.is_empty() && is_gone(process) => {}
                Err(reason) => self.fail(&format!("{title}: {reason}")),
            }
        }
        taken
    }

    /// A controller that was killed, or an agent that started by itself, left a session that was
    /// not written: the next but one would overwrite it.
    fn save_leftover(&mut self, target: &Target) {
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
        match dump::write(&self.output, agent, &session, None, trigger, Ended::InOrder) {
            Ok(written) => {
                // Worst case it is written once more.
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

    /// All sessions together must fit into the shared directory, or none is started. Where they do
    /// not, what dead processes left, and is no longer needed, is removed first.
    pub(super) fn check_room(&mut self, taken: &[Target]) -> anyhow::Result<()> {
        let mut directories: Vec<(&Directory, u64)> = Vec::new();
        for target in taken {
            let directory = &target.agent.segment.directory;
            match directories
                .iter_mut()
                .find(|(f, _)| f.identity.0 == directory.identity.0)
            {
                Some((_, bytes)) => *bytes += target.first_bytes(),
                None => directories.push((directory, target.first_bytes())),
            }
        }
        let is_short = |(directory, needs): &&(&Directory, u64)| {
            directory.free_bytes().is_ok_and(|free| free < *needs)
        };
        if directories.iter().find(is_short).is_none() {
            return Ok(());
        }
        let cleaned = remove_unused(&self.discovery, &Selection::default(), false);
        for failure in &cleaned.failures {
            self.reporter.failure(failure);
        }
        let Some((directory, needs)) = directories.iter().find(is_short) else {
            return Ok(());
        };
        let no_room = NoRoom {
            directory: directory.path.clone(),
            needs: *needs,
            free: directory.free_bytes().ok(),
        };
        let mut message = no_room.to_string();
        message.push_str(&kept(&cleaned));
        anyhow::bail!(message)
    }

    /// Prepares all, which takes time, then starts all, which takes microseconds each.
    pub(super) fn begin(&mut self, taken: Vec<Target>) {
        let mut ready = Vec::new();
        for mut target in taken {
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

    /// Looks for new processes: frequently for new names, and occasionally everywhere.
    pub(super) fn search(&mut self, now: Instant) {
        let due = self.child.is_some() || now - self.last_glance >= GLANCE;
        if !due {
            return;
        }
        self.last_glance = now;
        if self.child.is_some() && nix::unistd::geteuid().is_root() {
            self.family.look();
        }
        if now - self.last_search >= SEARCH || self.discovery.has_new(&self.known) {
            self.last_search = now;
            self.join_new();
        }
    }

    /// Takes new processes into the session.
    pub(super) fn join_new(&mut self) {
        let scan = self.discovery.scan_except(&self.known);
        scan.forget_gone(&mut self.known, MAX_KNOWN);
        self.known.extend(&scan.settled);
        if self.child.is_some() {
            return scan.found.into_iter().for_each(|found| self.adopt(found));
        }
        // Looked at once, whether wanted or not.
        self.known.extend(scan.found.iter().map(|a| a.entry));
        let new = self.join_children(scan.found);
        if new.is_empty() {
            return;
        }
        new.iter()
            .for_each(|agent| self.retire_earlier_image(agent));
        let taken = self.take(new);
        if let Err(error) = self.check_room(&taken) {
            return self.fail(&error.to_string());
        }
        self.begin(taken);
    }

    /// Takes in, at the session's end, the children that have not been seen yet. Whether there were
    /// any.
    pub(super) fn join_last(&mut self) -> bool {
        let known = self.known.len();
        let scan = self.discovery.scan_except(&self.known);
        match self.child {
            Some(_) => scan.found.into_iter().for_each(|found| self.adopt(found)),
            None => drop(self.join_children(scan.found)),
        }
        self.known.len() != known
    }

    /// Takes over what children of our processes count: they continue with the session by
    /// themselves, and may have ended before anybody looked. Gives those that are requested
    /// besides.
    fn join_children(&mut self, all: Vec<Found>) -> Vec<Agent> {
        let wants = |found: &Found| self.settings.selection.wants(found);
        let (wanted, mut rest): (Vec<_>, Vec<_>) = all.into_iter().partition(wants);
        let wanted = wanted
            .into_iter()
            .filter_map(|found| self.join_child(found));
        // Leftovers of other sessions are not ours to take.
        let others = wanted.filter(|agent| agent.life == Life::Running).collect();
        // Children of children, too.
        loop {
            let (children, strangers) = self.lineage.split(rest);
            if children.is_empty() {
                self.lineage.forget_ended();
                return others;
            }
            for found in children {
                self.join_child(found);
            }
            rest = strangers;
        }
    }

    /// Takes over what a process counts, if its session is ours; gives it back if not.
    fn join_child(&mut self, found: Found) -> Option<Agent> {
        // It has ended, or is none.
        let agent = found.open().ok()?;
        if !self.is_ours_by_birth(&agent) {
            return Some(agent);
        }
        if agent.life != Life::Running || agent.confirm().is_ok() {
            self.take_over(agent);
        }
        None
    }

    /// Whether an agent started its session by itself, as one forked in ours does.
    fn is_ours_by_birth(&self, agent: &Agent) -> bool {
        let session = self.start_ns.and_then(|ns| session_by_birth(agent, ns));
        session.is_some_and(|session| {
            session.interval == self.settings.density.interval
                || self.settings.max_overhead.is_some()
        })
    }

    fn adopted(&mut self, target: Target) {
        self.retire_earlier_image(&target.agent);
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

    /// A new image of a process ends the session of the one before.
    fn retire_earlier_image(&mut self, agent: &Agent) {
        let earlier = |member: &Member| {
            let other = &member.target.agent;
            let is_other = other.entry != agent.entry;
            is_other && other.process() == agent.process() && other.created_ns <= agent.created_ns
        };
        while let Some(at) = self.members.iter().position(earlier) {
            let mut member = self.members.swap_remove(at);
            member.target.agent.life = Life::Replaced;
            self.finish(member);
        }
    }

    /// Takes over a session that an agent started by itself.
    fn adopt(&mut self, found: Found) {
        let (entry, title) = (found.entry, found.title());
        if !self.family.has(&found) {
            // Its process may be seen, or have it mapped, a moment later.
            if found.life != Life::Running {
                self.known.insert(entry);
                self.family.strangers += 1;
            }
            return;
        }
        match found.open() {
            Ok(agent) => self.take_over(agent),
            // It has been removed in the meantime.
            Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(reason) => {
                self.known.insert(entry);
                self.fail(&format!("{title}: {reason}"));
            }
        }
    }

    fn take_over(&mut self, agent: Agent) {
        let (entry, title) = (agent.entry, agent.title());
        if self.replaced.contains(&(entry, agent.created_ns)) {
            return;
        }
        match Target::adopt(agent) {
            Ok(Some(target)) => {
                self.known.insert(entry);
                self.adopted(target.limited(self.settings.max_overhead));
            }
            // Not started yet: the next search asks again.
            Ok(None) => {}
            Err(reason) => {
                self.known.insert(entry);
                self.fail(&format!("{title}: {reason}"));
            }
        }
    }
}
