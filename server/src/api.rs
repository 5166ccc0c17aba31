//! `/api/…`: for the live page and for scripts.

use std::time::Duration;

use mem_controller::target::Density;
use mem_controller::values;
use serde_json::json;

use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::sessions::Settings;

/// Every process as in `mem_profiler list --json`, with its rates and its last minutes.
pub fn processes(server: &Server) -> Result<Reply, Reply> {
    Ok(
        Reply::json(&server.board.read(&server.agents, &server.sessions))
            .with("Cache-Control", "no-store".to_owned()),
    )
}

/// Starts a session: `?pid=&interval=&seconds=`, without seconds until it is stopped.
pub fn start(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let bad = |name: &str, why: String| Reply::refusal(400, format!("{name}: {why}"));
    let mut asked = None;
    if let Some(text) = request.value("interval") {
        let interval = values::interval(text).map_err(|why| bad("interval", why))?;
        asked = Some(Settings {
            density: Density::uniform(interval),
            max_overhead: None,
        });
    }
    let length: Option<Duration> = request
        .value("seconds")
        .map(values::seconds)
        .transpose()
        .map_err(|why| bad("seconds", why))?;
    let agent = named(server, request)?;
    let title = agent.title();
    let started = server.sessions.start(agent, asked, length);
    started.map_err(|why| Reply::refusal(409, why))?;
    Ok(Reply::json(&json!({ "started": title })))
}

/// Stops a session: `?pid=`.
pub fn stop(server: &Server, request: &Request) -> Result<Reply, Reply> {
    let agent = named(server, request)?;
    let stopped = server.sessions.stop(&agent);
    stopped.map_err(|why| Reply::refusal(409, why))?;
    Ok(Reply::json(&json!({ "stopped": agent.title() })))
}

/// The process that is named: none is chosen for who changes something.
fn named(server: &Server, request: &Request) -> Result<mem_controller::discovery::Agent, Reply> {
    let name = request.process();
    let name = name.ok_or_else(|| Reply::refusal(400, "which process? ?pid= or ?name="))?;
    server.agents.one(Some(name))
}
