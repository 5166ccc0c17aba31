//! `self-profile`: executes a program's calls of gperftools' `HeapProfilerStart` and related
//! functions. The agent starts this command and waits for the answer (`agent/src/request.rs`). The
//! answer is empty unless the program asked for a dump as text.

mod intervals;
mod watch;

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use mem_agents::discovery::Agent;
use mem_agents::live::{self, session_of};
use mem_agents::parallel_writer;
use mem_agents::segment::Head;
use mem_agents::target::{self, Density, Target};
use mem_agents::text;
use mem_agents::values;
use profile::Profile;
use profile::dump::Text;

use crate::agent_request;
use crate::cli::{Action, SelfProfileArgs};

/// Executes the request and sends the answer.
pub fn execute(args: SelfProfileArgs) -> anyhow::Result<ExitCode> {
    let mut socket = agent_request::socket(args.socket)?;
    let agent = agent_request::find_agent(args.pid)?;
    let mut answer = Vec::new();
    match args.action {
        Action::Start => start(agent)?,
        Action::Stop => stop(&agent)?,
        Action::Dump => {
            let file = args.file.context("a dump needs a name")?;
            write_dump(&agent, &file, &args.reason)?;
        }
        Action::Watch => {
            let prefix = args.file.context("dumps need a prefix")?;
            return watch::execute(socket, agent, prefix);
        }
        Action::Text => profile::dump::write(&profile(&agent, &args.reason)?, &mut answer)?,
    }
    agent_request::reply(&mut socket, &answer)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a session without a deadline, which continues without a controller.
fn start(agent: Agent) -> anyhow::Result<()> {
    let interval = match env::var("MEM_PROFILER_INTERVAL") {
        Ok(text) => values::interval(&text).map_err(anyhow::Error::msg)?,
        Err(_) => 1,
    };
    agent.confirm()?;
    let mut target = Target::claim(agent)?;
    Ok(target.start_alone(Density::uniform(interval))?)
}

/// Ends the session and discards its profile.
fn stop(agent: &Agent) -> anyhow::Result<()> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let session = session_of(agent, &header).context("there is no session")?;
    agent.confirm()?;
    target::stop(agent, &session)?;
    let marked = agent.segment.view().mark_collected(session.number);
    Ok(marked.map_err(mem_agents::segment::io_error)?)
}

fn profile(agent: &Agent, reason: &str) -> anyhow::Result<Profile> {
    let trigger = match reason {
        "" => "the program".to_owned(),
        reason => format!("the program: {}", text::escape(reason.as_bytes())),
    };
    let live = live::profile(agent, &trigger, None)?;
    Ok(live.context("there is no session")?.profile)
}

/// Writes a dump to exactly this path. Readers see either the old file or the complete new one.
fn write_dump(agent: &Agent, path: &Path, reason: &str) -> anyhow::Result<()> {
    write_profile(profile(agent, reason)?, path)
}

fn write_profile(profile: Profile, path: &Path) -> anyhow::Result<()> {
    let name = path.file_name().context("a dump needs a name")?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let file_for_error = || text::path(path);
    let file = File::create_new(&temporary).with_context(file_for_error)?;
    let written = Text::new(profile)
        .and_then(|text| parallel_writer::write(&text, &file))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The file may not exist any more.
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(file_for_error)
}
