//! `/report`: pages of `mem_parser --html` for a process: its present heap profile, the difference
//! of two moments, its CPU time, or both.

use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use httpdate::fmt_http_date;
use mem_agents::discovery::Agent;
use tempfile::TempDir;
use tokio::sync::SemaphorePermit;

use crate::history_file::Key;
use crate::job::{self, Job, Program};
use crate::pages::{Base, FinishedPage, Subject};
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::server::Server;
use crate::writing::{Form, ProfileWrite, WriteSpec, Written};

/// Maximum time to make a page.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time that the CPU profiler may take in addition to the requested duration.
const CPU_TIMEOUT: Duration = Duration::from_secs(60);
/// Default duration of a CPU profile.
const CPU_LENGTH: Duration = Duration::from_secs(10);
/// Interval between checks for a page that another request is making.
const SHARED_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Serves a page: `?pid=`, and for a difference `&from=BASE`, or `&from=BASE&to=ID`. `download=1`
/// sends it as a file.
pub fn answer(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find_or_ended(request.process())?;
    let subject = Subject {
        process: Key::of(&agent),
        from: request.value("from").map(Base::parse).transpose()?,
        to: request.number("to")?,
    };
    let name = request.is_on("download").then(|| file_name(&agent, "html"));
    find_or_make(server.clone(), agent, subject, name)
}

/// Returns a name for a file about a process: its name and pid. Replaces characters that are
/// special in file names or headers.
pub fn file_name(agent: &Agent, extension: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let name = String::from_utf8_lossy(&agent.name);
    let name: String = name
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect();
    format!("{name}.{}.{extension}", agent.pid)
}

/// Sends a page that another request has made, waits for one that is being made, or makes it.
fn find_or_make(
    server: Server,
    agent: Agent,
    subject: Subject,
    name: Option<String>,
) -> Result<Step, Reply> {
    if let Some(page) = server.reports.recent(&subject) {
        return page.reply(name.as_deref()).map(Step::Done);
    }
    let Some(claim) = server.reports.claim(&subject) else {
        let wait = move || match find_or_make(server, agent, subject, name) {
            Ok(step) => step,
            Err(refusal) => Step::Done(refusal),
        };
        return Ok(Step::Later(SHARED_POLL_INTERVAL, Box::new(wait)));
    };
    let job = PageJob {
        permit: job::permit()?,
        claim,
        directory: job::directory()?,
        server,
        agent,
        subject,
        name,
    };
    job.begin()
}

/// File of the profile that a page shows, in the directory of a job.
const SHOWN_FILE: &str = "now.heap";
/// File of the profile that is subtracted.
const BASE_FILE: &str = "from";

/// A page that is being made.
struct PageJob {
    permit: SemaphorePermit<'static>,
    claim: Arc<()>,
    directory: Arc<TempDir>,
    server: Server,
    agent: Agent,
    subject: Subject,
    /// Name of the file, for a download.
    name: Option<String>,
}

impl PageJob {
    /// Writes the profile that is shown, then the one that is subtracted, then the page.
    fn begin(self) -> Result<Step, Reply> {
        if let Some(id) = self.subject.to {
            let time = self.copy(SHOWN_FILE, &self.server.snapshots.open(&self.agent, id)?)?;
            return self.write_base(time);
        }
        let write =
            ProfileWrite::begin(&self.server.sources, &self.agent, PRESENT, &self.directory)?;
        Ok(write.then(|written| self.write_base(written.time())))
    }

    fn write_base(self, time: SystemTime) -> Result<Step, Reply> {
        match self.subject.from {
            Some(Base::Snapshot(id)) => {
                self.copy(BASE_FILE, &self.server.snapshots.open(&self.agent, id)?)?;
            }
            Some(Base::Upload(id)) => {
                self.copy(BASE_FILE, &self.server.uploads.open(id)?)?;
            }
            Some(Base::Process(pid)) => {
                let other = self
                    .server
                    .sources
                    .agents
                    .find_or_ended(Some(&pid.to_string()))?;
                let spec = WriteSpec {
                    file: BASE_FILE,
                    ..PRESENT
                };
                let write =
                    ProfileWrite::begin(&self.server.sources, &other, spec, &self.directory)?;
                return Ok(write.then(move |_| self.render(time)));
            }
            None => {}
        }
        self.render(time)
    }

    /// Copies a profile into the directory, and returns the time at which it was written.
    fn copy(&self, name: &str, mut profile: &File) -> Result<SystemTime, Reply> {
        let copy = File::create(self.directory.path().join(name));
        let copied = copy.and_then(|mut copy| io::copy(&mut profile, &mut copy));
        let time = copied
            .and_then(|_| profile.metadata())
            .and_then(|metadata| metadata.modified());
        time.map_err(|error| Reply::temporary_file_error(&error))
    }

    /// Starts the parser, which makes the page.
    fn render(self, time: SystemTime) -> Result<Step, Reply> {
        let base = self.subject.from;
        let job = Job::start(
            Program::Parser,
            &self.directory,
            REPORT_TIMEOUT,
            |command| {
                command.args(["--html", "-f", SHOWN_FILE, "-o", "page.html"]);
                if base.is_some() {
                    command.args(["--base", BASE_FILE]);
                }
                if matches!(base, Some(Base::Upload(_) | Base::Process(_))) {
                    // The user has chosen a profile of another session. Its names are in it.
                    command.arg("--force");
                }
            },
        )?;
        Ok(job.then(Duration::ZERO, move |job| {
            let made = FinishedPage::store(job.path(), fmt_http_date(time));
            let made = made.map_err(|error| Reply::temporary_file_error(&error))?;
            drop((self.permit, self.claim));
            let made = self.server.reports.add(self.subject, made);
            made.reply(self.name.as_deref())
        }))
    }
}

/// Present profile of a process, for the parser. Compressed, since a profile of many stacks is
/// large as text.
const PRESENT: WriteSpec = WriteSpec {
    trigger: "the live page",
    file: SHOWN_FILE,
    form: Form::Gzip,
    must_run: false,
    since: None,
};

/// Serves a page of the CPU time of a process in the next seconds: `?pid=&seconds=`. With `heap=1`,
/// its heap profile is beside it.
pub fn cpu(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let length = request.seconds()?.unwrap_or(CPU_LENGTH);
    let with_heap = request.is_on("heap");
    let directory = job::directory()?;
    let timeout = length + CPU_TIMEOUT;
    let job = Job::start(Program::Profiler, &directory, timeout, |command| {
        command.args(["cpu", "-p", &agent.pid.to_string(), "-o", "./cpu", "-s"]);
        command.arg(length.as_secs().to_string());
    })?;
    let server = server.clone();
    Ok(job.then_next(length, move |job| {
        let step = cpu_page(&server, &agent, job, with_heap);
        step.unwrap_or_else(Step::Done)
    }))
}

/// Makes a page of the CPU profile in the directory of a job.
fn cpu_page(server: &Server, agent: &Agent, job: &Job, with_heap: bool) -> Result<Step, Reply> {
    let failed = |error: io::Error| Reply::temporary_file_error(&error);
    let profile = crate::profiles::find_profile(job)?;
    let permit = job::permit()?;
    let directory = job::directory()?;
    fs::copy(profile, directory.path().join("now.cpu")).map_err(failed)?;
    if !with_heap {
        return draw_cpu(&directory, permit, with_heap);
    }
    let write = ProfileWrite::begin(&server.sources, agent, PRESENT, &directory)?;
    Ok(write.then(move |_| draw_cpu(&directory, permit, with_heap)))
}

/// Makes a page of the CPU profile in a directory, and of the heap profile beside it.
fn draw_cpu(
    directory: &Arc<TempDir>,
    permit: SemaphorePermit<'static>,
    with_heap: bool,
) -> Result<Step, Reply> {
    let job = Job::start(Program::Parser, directory, REPORT_TIMEOUT, |command| {
        if with_heap {
            command.arg(SHOWN_FILE);
        }
        command.args(["now.cpu", "--html", "-o", "page.html"]);
    })?;
    Ok(job.then(Duration::ZERO, move |job| {
        drop(permit);
        let made = FinishedPage::store(job.path(), fmt_http_date(SystemTime::now()));
        let made = made.map_err(|error| Reply::temporary_file_error(&error))?;
        made.reply(None)
    }))
}

/// Serves the objects of a process that no pointer leads to, as text: `?pid=`.
pub fn lost(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find(request.process())?;
    let directory = job::directory()?;
    let job =
        Job::start_keeping_output(Program::Profiler, &directory, REPORT_TIMEOUT, |command| {
            command.args(["leaks", "-p", &agent.pid.to_string()]);
        })?;
    Ok(job.then(Duration::ZERO, |job| {
        let text = fs::read(job.path().join(Job::OUTPUT));
        let text = text.map_err(|error| Reply::temporary_file_error(&error))?;
        Ok(Reply::text(text).with_header("Cache-Control", "no-store".to_owned()))
    }))
}

/// Serves the present profile of a process as a dump: `?pid=`, and for an earlier moment `&at=ID`.
pub fn dump(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.sources.agents.find_or_ended(request.process())?;
    let failed = |error: io::Error| Reply::temporary_file_error(&error);
    if let Some(id) = request.number("at")? {
        let snapshot = server.snapshots.open(&agent, id)?;
        let reply = Reply::open_file(&file_name(&agent, "heap.gz"), snapshot);
        return Ok(reply.into());
    }
    let directory = job::directory()?;
    let spec = WriteSpec {
        form: Form::Dump,
        ..PRESENT
    };
    let write = ProfileWrite::begin(&server.sources, &agent, spec, &directory)?;
    Ok(write.then(move |_: Written| {
        let dump = File::open(directory.path().join(SHOWN_FILE)).map_err(failed)?;
        Ok(Reply::open_file(&file_name(&agent, "heap"), dump).into())
    }))
}
