//! Selects agents by the user's criteria, and explains why a name matches none.

use std::collections::BTreeSet;
use std::path::PathBuf;

use proc::{Stat, Status};

use crate::agent_file;
use crate::cgroup;
use crate::descriptors;
use crate::discovery::{Agent, Found, Life, Refused, Scan};
use crate::missing_segment;
use crate::preload;
use crate::process;
use crate::program;
use crate::segment::Refusal;
use crate::siblings;
use crate::text;
use crate::unreadable;
use shm_protocol::pattern;
use shm_protocol::snapshot::Invalid;

/// Criteria by which the user selects processes.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Pids, names and patterns. Empty: all processes that we may profile.
    pub names: Vec<String>,
    /// Control group to which processes must belong; `None`: any.
    pub cgroup: Option<PathBuf>,
    /// User id of the processes; `None`: any.
    pub user: Option<u32>,
}

/// Result of a selection.
#[derive(Default)]
pub struct Chosen {
    /// Selected agents, without duplicates.
    pub agents: Vec<Agent>,
    /// Error messages, one for each name without an agent.
    pub failures: Vec<String>,
    /// Other warnings.
    pub warnings: Vec<String>,
}

/// Returns the advice to preload the agent, for the end of a message.
fn preload_advice() -> String {
    format!("start it with {}", siblings::preload())
}

impl Selection {
    /// Returns true if an agent is selected.
    pub fn wants(&self, agent: &Found) -> bool {
        let uid = nix::unistd::geteuid();
        let named = self.names.iter().any(|name| matches(name, agent));
        let ours = uid.is_root() || agent.uid == uid.as_raw();
        (named || self.names.is_empty() && (ours || self.user.is_some()))
            && self.user.is_none_or(|user| agent.uid == user)
            && self
                .cgroup
                .as_ref()
                .is_none_or(|path| cgroup::contains(path, agent.pid))
    }

    /// Opens the selected live agents.
    pub fn choose(&self, scan: Scan) -> Chosen {
        let mut chosen = Chosen {
            agents: Vec::new(),
            failures: Vec::new(),
            warnings: Vec::new(),
        };
        let live: Vec<Found> = scan
            .found
            .into_iter()
            .filter(|a| a.life == Life::Running)
            .collect();
        for name in &self.names {
            if !live.iter().any(|agent| matches(name, agent)) {
                chosen
                    .failures
                    .push(self.explain(name, &scan.refused.first));
            }
        }
        if self.names.is_empty() {
            let is_live = |r: &Refused| r.live_pid.is_some() && r.is_own;
            let concerns_live = |r: &Refused| is_live(r) && is_worth_warning(r);
            let concerns_dead = |r: &Refused| !is_live(r) && is_worth_warning(r);
            chosen
                .failures
                .extend(scan.refused.warnings(concerns_live, false));
            chosen
                .warnings
                .extend(scan.refused.warnings(concerns_dead, true));
        }
        for found in live.into_iter().filter(|found| self.wants(found)) {
            let title = found.title();
            match found.open() {
                Ok(agent) => chosen.agents.push(agent),
                // The process has exited since the scan.
                Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(reason) => chosen.failures.push(format!("{title}: {reason}")),
            }
        }
        if chosen.agents.is_empty() && chosen.failures.is_empty() {
            chosen.failures.push(self.explain_nobody());
        }
        chosen
    }

    /// Removes the names that match only processes without the agent. Returns these processes, each
    /// once.
    pub fn take_without_agent(&mut self, scan: &Scan) -> Vec<i32> {
        let mut taken = BTreeSet::new();
        let names = std::mem::take(&mut self.names);
        let is_running = |found: &&Found| found.life == Life::Running;
        self.names = names
            .into_iter()
            .filter(|name| {
                if scan
                    .found
                    .iter()
                    .filter(is_running)
                    .any(|found| matches(name, found))
                {
                    return true;
                }
                let pids = match name.parse::<i32>() {
                    Ok(pid) if process::absence(pid).is_none() => BTreeSet::from([pid]),
                    Ok(_) => BTreeSet::new(),
                    Err(_) => processes_called(name),
                };
                let plain = pids.into_iter().filter(|pid| self.is_without_agent(*pid));
                let plain: Vec<i32> = plain.collect();
                taken.extend(&plain);
                plain.is_empty()
            })
            .collect();
        taken.into_iter().collect()
    }

    /// Returns true for a process of the chosen user and control group whose memory can be read and
    /// does not contain the agent.
    fn is_without_agent(&self, pid: i32) -> bool {
        let uid = Status::of(pid).map(|status| status.uid());
        let group = self.cgroup.as_ref();
        let maps = proc::maps(pid).unwrap_or_default();
        self.user.is_none_or(|user| uid == Some(user))
            && group.is_none_or(|path| cgroup::contains(path, pid))
            && !maps.is_empty()
            && agent_file::mapped(pid, &maps).is_none()
    }

    /// Returns an error message for each name that matches no process of a scan, running or dead.
    pub fn unknown(&self, scan: &Scan) -> Vec<String> {
        let unknown = |name: &&String| !scan.found.iter().any(|found| matches(name, found));
        let names = self.names.iter().filter(unknown);
        names
            .map(|name| self.explain(name, &scan.refused.first))
            .collect()
    }

    /// Explains why a process that carries the agent is not listed, if there is one. Ignores those
    /// that are left out, or use another directory, by their environment.
    pub fn unlisted(&self) -> Option<String> {
        let is_wanted = |pid: &i32| {
            !missing_segment::is_left_out(*pid) && missing_segment::other_directory(*pid).is_none()
        };
        let pid = self.carriers().find(is_wanted)?;
        Some(explain_process(pid, &process::title(pid)))
    }

    /// Explains why no process was selected if no name was given.
    fn explain_nobody(&self) -> String {
        let who = if nix::unistd::geteuid().is_root() {
            "no process"
        } else {
            "no process of yours"
        };
        let cgroup = self.cgroup.as_deref();
        if let Some(path) = cgroup.filter(|path| !cgroup::Group::at(path).exists()) {
            let path = text::path(path);
            return format!("{path}: there is no such control group: see /proc/PID/cgroup");
        }
        if let Some(shortage) = descriptors::shortage() {
            return shortage;
        }
        let (elsewhere, here): (Vec<i32>, Vec<i32>) = self
            .carriers()
            .partition(|pid| missing_segment::other_directory(*pid).is_some());
        // A start script may leave out most processes by `MEM_PROFILER_ONLY`, on purpose. So
        // explains another one first.
        let is_named = |pid: &&i32| !missing_segment::is_left_out(**pid);
        if let Some(pid) = here.iter().find(is_named).or(here.first()) {
            return explain_process(*pid, &process::title(*pid));
        }
        let filtered = self.user.is_some() || self.cgroup.is_some();
        let among = if filtered { " among those chosen" } else { "" };
        let elsewhere = elsewhere.first().map_or_else(String::new, |pid| {
            format!(
                " (those with another MEM_PROFILER_DIR, as {}, aside)",
                process::title(*pid)
            )
        });
        format!(
            "{who}{among} carries the agent{elsewhere}: {} PROGRAM, then try again",
            preload_advice()
        )
    }

    /// Returns the selected processes that carry the agent, with or without a segment.
    fn carriers(&self) -> impl Iterator<Item = i32> + '_ {
        let us = nix::unistd::geteuid();
        let is_wanted = move |pid: &i32| {
            let uid = Status::of(*pid).map(|status| status.uid());
            let user = self.user.or((!us.is_root()).then_some(us.as_raw()));
            let group = self.cgroup.as_ref();
            user.is_none_or(|user| uid == Some(user))
                && group.is_none_or(|path| cgroup::contains(path, *pid))
        };
        let carries = |pid: &i32| {
            let maps = proc::maps(*pid).unwrap_or_default();
            agent_file::mapped(*pid, &maps).is_some()
        };
        let us = std::process::id() as i32;
        let all = proc::all_pids().into_iter().filter(move |pid| *pid != us);
        all.filter(move |pid| is_wanted(pid) && carries(pid))
    }

    /// Explains why a name has no agent.
    fn explain(&self, name: &str, refused: &[Refused]) -> String {
        let pids = match name.parse::<i32>() {
            Ok(pid) => match process::absence(pid) {
                Some(why) => return why,
                None => BTreeSet::from([pid]),
            },
            Err(_) => processes_called(name),
        };
        let escaped = text::escape(name.as_bytes());
        let Some(&pid) = pids.first() else {
            return format!("{escaped}: no process has this name");
        };
        let title = if name.parse::<i32>().is_ok() {
            escaped
        } else {
            format!("{escaped} ({pid})")
        };
        let concerns_process = |r: &&Refused| r.live_pid.is_some_and(|p| pids.contains(&p));
        if let Some(refusal) = refused.iter().find(concerns_process) {
            let path = text::path(&refusal.path);
            return format!("{title}: {path} cannot be used: {}", refusal.reason);
        }
        explain_process(pid, &title)
    }
}

/// Returns true if a pid, name or pattern matches the agent.
pub fn matches(name: &str, agent: &Found) -> bool {
    if let Ok(pid) = name.parse::<i32>() {
        return pid == agent.pid;
    }
    let name = name.as_bytes();
    pattern::covers(name, &agent.name) || pattern::covers(name, &agent.comm)
}

/// Explains why a running process has no usable agent.
fn explain_process(pid: i32, title: &str) -> String {
    let us = nix::unistd::geteuid();
    let uid = Status::of(pid).map(|s| s.uid());
    if let Some(uid) = uid.filter(|uid| !us.is_root() && *uid != us.as_raw()) {
        let user = process::user_name(uid);
        let allowed = if uid == 0 {
            "root".to_owned()
        } else {
            format!("{user} or root")
        };
        return format!(
            "{title}: the process belongs to user {user}: run mem_profiler as {allowed}"
        );
    }
    let Some(maps) = proc::maps(pid) else {
        return format!(
            "{title}: {}; whether the process carries the agent is not known",
            unreadable::maps(pid)
        );
    };
    if maps.is_empty() {
        return format!(
            "{title}: it has no memory of its own, as it is a thread of the kernel, or is just \
             ending"
        );
    }
    if agent_file::mapped(pid, &maps).is_some() {
        let reason = missing_segment::reason(pid);
        return format!("{title}: the process carries the agent, but {reason}");
    }
    if let Some(failure) = preload::failure(pid) {
        return format!("{title}: the process runs without the agent: {failure}");
    }
    let exe = proc::directory(pid).join("exe");
    if program::is_go(&exe) {
        return format!(
            "{title}: the process runs without the agent: mem_profiler go -p {pid} writes the \
             heap profile that Go's runtime keeps"
        );
    }
    if let Some(obstacle) = program::obstacle(&exe) {
        return format!("{title}: the process runs without the agent: {obstacle}");
    }
    format!(
        "{title}: the process runs without the agent: {}",
        preload_advice()
    )
}

/// Returns the processes that match a name or pattern, except this one.
pub fn processes_called(name: &str) -> BTreeSet<i32> {
    let is_match = |pid: &i32| {
        let Some(stat) = Stat::of(*pid).filter(|s| !s.is_dead()) else {
            return false;
        };
        let exe = || proc::exe(*pid).unwrap_or_default();
        pattern::covers(name.as_bytes(), &stat.comm)
            || pattern::covers(name.as_bytes(), text::base_name(&exe()))
    };
    let us = std::process::id() as i32;
    proc::all_pids()
        .into_iter()
        .filter(|pid| *pid != us)
        .filter(is_match)
        .collect()
}

/// Returns true if a refused segment is worth a warning when no process was named. A new file
/// without content is not, since its process is still creating it.
pub fn is_worth_warning(refused: &Refused) -> bool {
    let is_being_created =
        refused.young && matches!(refused.reason, Refusal::Content(Invalid::NoMagic));
    !is_being_created
}
