//! `/report`: the page of `mem_parser --html` for the present profile of a process.

use std::fs::File;
use std::io::BufWriter;
use std::time::Duration;

use mem_agents::live;
use tokio::sync::Semaphore;

use crate::job::Job;
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::server::Server;

/// Maximum time to make a page.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Content security policy in addition to the page's own, which allows only its scripts.
const POLICY: &str = "frame-ancestors 'self'; base-uri 'none'; form-action 'none'";

/// Maximum number of pages made at a time, each by a program of its own.
const MAX_JOBS: usize = 4;
/// Permits to make a page.
static JOBS: Semaphore = Semaphore::const_new(MAX_JOBS);

/// Serves the page for the last session of a process, running or not.
pub fn answer(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.agents.one(request.process())?;
    let permit = JOBS.try_acquire();
    let permit =
        permit.map_err(|_| Reply::refusal(503, "other reports are being made: try again"))?;
    let live = live::profile(&agent, "the live page");
    let live = live.map_err(|e| Reply::refusal(503, format!("{}: {e}", agent.title())))?;
    let live = live.ok_or_else(|| {
        let why = format!(
            "{}: nothing was sampled yet: start a session",
            agent.title()
        );
        Reply::refusal(404, why)
    })?;
    let mut profile = live.profile;
    server.name(&mut profile);
    let failed = |error: std::io::Error| Reply::refusal(500, error.to_string());
    let directory = tempfile::tempdir().map_err(failed)?;
    let file = File::create(directory.path().join("now.heap")).map_err(failed)?;
    let mut out = BufWriter::new(file);
    profile::dump::write(&profile, &mut out).map_err(failed)?;
    std::io::Write::flush(&mut out).map_err(failed)?;
    let job = Job::start("mem_parser", directory, REPORT_TIMEOUT, |command| {
        command.args(["--html", "-f", "now.heap", "-o", "page.html"]);
    })?;
    Ok(job.then(Duration::ZERO, move |job| {
        drop(permit);
        let page = std::fs::read(job.path().join("page.html"));
        let page = page.map_err(|error| Reply::refusal(500, error.to_string()))?;
        let reply = Reply::of("text/html; charset=utf-8", page);
        Ok(reply
            .with("Content-Security-Policy", POLICY.to_owned())
            .with("Cache-Control", "no-store".to_owned()))
    }))
}
