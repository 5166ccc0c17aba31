//! Finds the processes to serve: those that this user may profile, among the selected ones.

use mem_agents::discovery::{Agent, Discovery, Life};
use mem_agents::select::Selection;
use mem_agents::values;

use crate::reply::Reply;

/// Maximum number of matching processes that an error lists.
const MAX_LISTED: usize = 10;

/// The search for processes with the agent.
pub struct Agents {
    discovery: Discovery,
    selection: Selection,
}

impl Agents {
    /// Limits the search to a selection.
    pub fn new(selection: Selection) -> Self {
        Self {
            discovery: Discovery::new(),
            selection,
        }
    }

    /// Returns all live processes. Each is opened only when it is reached, because there may be
    /// more processes than file descriptors.
    pub fn all(&self) -> impl Iterator<Item = Agent> {
        let found = self.discovery.scan().found.into_iter();
        let live = found.filter(|found| found.life == Life::Running && self.selection.wants(found));
        live.filter_map(|found| found.open().ok())
    }

    /// Finds the process with this pid, name or pattern. Without `name`, finds the only process
    /// there is.
    pub fn one(&self, name: Option<&str>) -> Result<Agent, Reply> {
        let name = name.map(values::process).transpose();
        let name = name.map_err(|why| Reply::refusal(400, format!("the process: {why}")))?;
        let among = Selection {
            names: name.clone().into_iter().collect(),
            cgroup: self.selection.cgroup.clone(),
            user: self.selection.user,
        };
        let mut scan = self.discovery.scan();
        scan.found.retain(|found| self.selection.wants(found));
        let mut chosen = among.choose(scan);
        if chosen.agents.len() > 1 {
            let titles = chosen.agents.iter().take(MAX_LISTED);
            let titles = titles.map(|agent| agent.title());
            let titles: Vec<String> = titles.collect();
            return Err(Reply::refusal(
                400,
                format!(
                    "{} processes match: choose one with ?pid= or ?name=, or by the path /p/PID/...: \
                     {}",
                    chosen.agents.len(),
                    titles.join(", ")
                ),
            ));
        }
        chosen.agents.pop().ok_or_else(|| {
            let why = chosen.failures.first().map(String::as_str);
            Reply::refusal(404, why.unwrap_or("no process carries the agent"))
        })
    }
}
