//! `/api/…`: JSON for the live page and for scripts.

use mem_agents::values;
use serde_json::json;

use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::sessions::{RequestedSettings, Started};

/// Returns all processes as `mem_profiler list --json` does, with their rates and an outline of
/// their history. With `?since=VERSION`, only those that have changed since that answer.
pub fn processes(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let since = request.number("since")?;
    let list = server.board.read(&server.agents, &server.sessions, since);
    Ok(Reply::json(&list).with("Cache-Control", "no-store".to_owned()))
}

/// Returns the memory of a process over time, its sessions, and the snapshots of its last one:
/// `?pid=`.
pub fn history(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let agent = server.agents.one_or_ended(request.process())?;
    let history = server
        .board
        .history(&server.agents, &server.sessions, &agent);
    let gone = || {
        Reply::refusal(
            404,
            format!("{}: it has just begun or ended", agent.title()),
        )
    };
    let mut history = history.ok_or_else(gone)?;
    history["snapshots"] = server.snapshots.list(&agent);
    Ok(Reply::json(&history).with("Cache-Control", "no-store".to_owned()))
}

/// Takes a snapshot of a process that later moments can be compared with: `?pid=`.
pub fn mark(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let agent = process_to_change(server, request)?;
    server
        .snapshots
        .take(server, &agent, true)
        .map(|mark| Reply::json(&mark))
}

/// Starts a session: `?pid=&interval=&max_overhead=&thin=1&seconds=`. Without `seconds`, it runs
/// until it is stopped. Returns the settings that apply, because the server's limits hold for each
/// session.
pub fn start(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let requested = RequestedSettings {
        interval: value(request, "interval", values::interval)?,
        max_overhead: value(request, "max_overhead", values::overhead)?,
        thin: request.is_on("thin"),
    };
    let length = value(request, "seconds", values::seconds)?;
    let agent = process_to_change(server, request)?;
    let title = agent.title();
    let started = server.sessions.start(agent, requested, length);
    let Started { settings, left } = started.map_err(|why| Reply::refusal(409, why))?;
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

/// Stops a session: `?pid=`. With `others=1`, one of another program, too, which reports it.
pub fn stop(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let agent = process_to_change(server, request)?;
    let others = request.is_on("others");
    let stopped = server.sessions.stop(&agent, others);
    stopped.map_err(|why| Reply::refusal(409, why))?;
    crate::say(&format!("{}: a client stops the session", agent.title()));
    Ok(Reply::json(&json!({ "stopped": agent.title() })))
}

/// Returns the process that the request names. Requests that only read may leave the name out if
/// there is one process; requests that change something may not.
fn process_to_change(
    server: &Server,
    request: &Request,
) -> Result<mem_agents::discovery::Agent, Reply> {
    let name = request.process();
    let name = name.ok_or_else(|| Reply::refusal(400, "which process? ?pid= or ?name="))?;
    server.agents.one(Some(name))
}
