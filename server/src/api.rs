//! `/api/…`: JSON for the live page and for scripts.

use mem_agents::discovery::Life;
use mem_agents::target::Target;
use mem_agents::values;
use serde_json::json;

use crate::history_file::Key;
use crate::process_list::ListedProcess;
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::server::Server;
use crate::sessions::{RequestedSettings, StartedSession};
use crate::snapshots::PendingSnapshot;

/// Returns all processes as `mem_profiler list --json` does, with their rates and an outline of
/// their history. With `?since=VERSION`, only those that have changed since that answer.
pub fn processes(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let since = request.number("since")?;
    let list =
        server
            .sources
            .process_list
            .read(&server.sources.agents, &server.sources.sessions, since);
    Ok(list.with_header("Cache-Control", "no-store".to_owned()))
}

/// Returns the memory of a process over time, its sessions, and the snapshots of its last one:
/// `?pid=`.
pub fn history(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let name = request.process();
    let pid = name.and_then(|name| name.parse::<i32>().ok());
    // Searching all processes would cost more than the answer.
    let process = match pid.and_then(|pid| server.sources.process_list.find(pid)) {
        Some(listed) => listed,
        None => {
            let agent = server.sources.agents.find_or_ended(name)?;
            ListedProcess {
                key: Key::of(&agent),
                file: agent.file,
            }
        }
    };
    let key = process.key;
    let history =
        server
            .sources
            .process_list
            .history(&server.sources.agents, &server.sources.sessions, key);
    let gone = || Reply::refusal(404, format!("{}: it has just begun or ended", key.pid));
    let mut history = history.ok_or_else(gone)?;
    history["snapshots"] = server.snapshots.list(process);
    history["uploads"] = server.uploads.list();
    Ok(Reply::json(&history).with_header("Cache-Control", "no-store".to_owned()))
}

/// Takes a snapshot of a process, for comparisons with later moments: `?pid=`.
pub fn mark(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = process_to_change(server, request)?;
    let taking = PendingSnapshot::begin(&server.snapshots, &server.sources, agent, true)?;
    Ok(taking.then(|mark| Ok(Reply::json(&mark).into())))
}

/// Starts a session: `?pid=&interval=&max_overhead=&thin=1&seconds=`. Without `seconds`, it runs
/// until it is stopped. Returns the settings in force: the server's limits take precedence over the
/// requested ones.
pub fn start(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let requested = RequestedSettings {
        interval: value(request, "interval", values::interval)?,
        max_overhead: value(request, "max_overhead", values::overhead)?,
        thin: request.is_on("thin"),
    };
    let length = value(request, "seconds", values::seconds)?;
    let agent = process_to_change(server, request)?;
    let title = agent.title();
    server.sources.process_list.expect_change(&agent);
    let started = server.sources.sessions.start(agent, requested, length);
    let StartedSession { settings, left } = started.map_err(|why| Reply::refusal(409, why))?;
    crate::say(&format!(
        "{title}: a client starts a session {}",
        settings.describe()
    ));
    Ok(Reply::json(&json!({
        "started": title,
        "interval": settings.density.interval,
        "max_overhead": settings.max_overhead,
        "thin": settings.is_thin(),
        "seconds_left": left.map(|left| left.as_secs_f64()),
    })))
}

/// Parses a parameter of a request, if present.
fn value<T>(
    request: &Request,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, Reply> {
    let parsed = request.value(name).map(parse).transpose();
    parsed.map_err(|why| Reply::refusal(400, format!("{name}: {why}")))
}

/// Stops a session: `?pid=`. With `others=1`, also stops one of another program, which then reports
/// that its session was ended.
pub fn stop(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let agent = process_to_change(server, request)?;
    let others = request.is_on("others");
    server.sources.process_list.expect_change(&agent);
    let stopped = server.sources.sessions.stop(&agent, others);
    stopped.map_err(|why| Reply::refusal(409, why))?;
    crate::say(&format!("{}: a client stops the session", agent.title()));
    Ok(Reply::json(&json!({ "stopped": agent.title() })))
}

/// Removes the profile that an ended process has left: `?pid=`.
pub fn forget(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let agent = server.sources.agents.find_or_ended(request.process())?;
    let title = agent.title();
    if agent.life != Life::Dead {
        return Err(Reply::refusal(
            409,
            format!("{title}: the process is running: only the profile of an ended one is removed"),
        ));
    }
    let failed = |error: &dyn std::fmt::Display| Reply::refusal(409, format!("{title}: {error}"));
    let target = Target::adopt(agent).map_err(|error| failed(&error))?;
    if let Some(target) = target {
        target.release().map_err(|error| failed(&error))?;
    }
    crate::say(&format!("{title}: a client removes the kept profile"));
    Ok(Reply::json(&json!({ "removed": title })))
}

/// Returns the process that the request names. Requests that only read may leave the name out if
/// there is one process; requests that change something may not.
fn process_to_change(
    server: &Server,
    request: &Request,
) -> Result<mem_agents::discovery::Agent, Reply> {
    let name = request.process();
    let name = name.ok_or_else(|| Reply::refusal(400, "which process? ?pid= or ?name="))?;
    server.sources.agents.find(Some(name))
}
