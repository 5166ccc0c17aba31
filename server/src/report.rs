//! `/report`: pages of `mem_parser --html` for a process: its present heap profile, the difference
//! of two moments, its CPU time, or both.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use httpdate::fmt_http_date;
use mem_agents::discovery::Agent;
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::history_file::Key;
use crate::job::{self, Job, Program};
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::server::Server;
use crate::writing::{Form, Order, Writing, Written};

/// Maximum time to make a page.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time that the CPU profiler may take in addition to the requested duration.
const CPU_TIMEOUT: Duration = Duration::from_secs(60);
/// Default duration of a CPU profile.
const CPU_LENGTH: Duration = Duration::from_secs(10);
/// Content security policy in addition to the page's own, which allows only its scripts.
const POLICY: &str = "frame-ancestors 'self'; base-uri 'none'; form-action 'none'";
/// Time for which a page of a running session is shown to other viewers, too.
const SHARED_FOR: Duration = Duration::from_secs(3);
/// Interval between looks at a page that another request makes.
const SHARED_WAIT: Duration = Duration::from_millis(50);
/// Maximum number of pages that are kept.
const MAX_KEPT: usize = 8;

/// Maximum number of pages made at a time, each by a program of its own.
const MAX_JOBS: usize = 4;
/// Permits to make a page.
static JOBS: Semaphore = Semaphore::const_new(MAX_JOBS);

/// Pages that several viewers share.
#[derive(Default)]
pub struct Reports {
    pages: Mutex<HashMap<Subject, Page>>,
}

/// Subject of a page: a process, and the moments that are shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    process: Key,
    /// Profile that is subtracted.
    from: Option<Base>,
    /// Snapshot that is shown; `None` for the present.
    to: Option<u64>,
}

/// Profile that is subtracted from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Base {
    /// Snapshot of the process.
    Snapshot(u64),
    /// Profile that a user has sent.
    Upload(u64),
    /// Profile of another process, which may have ended.
    Process(i32),
}

impl Base {
    /// Parses `ID` of a snapshot, `uID` of a profile that was sent, or `pPID`.
    fn parse(text: &str) -> Result<Self, Reply> {
        let parsed = match text.split_at_checked(1) {
            Some(("u", id)) => id.parse().ok().map(Self::Upload),
            Some(("p", pid)) => pid.parse().ok().map(Self::Process),
            _ => text.parse().ok().map(Self::Snapshot),
        };
        let why =
            "from must be the number of a moment, uNUMBER of a profile that was sent, or pPID";
        parsed.ok_or_else(|| Reply::refusal(400, why))
    }
}

/// A page, or the work on it.
enum Page {
    /// A request makes it, for as long as this is alive.
    Making(Weak<()>),
    Made(Arc<Made>),
}

/// A page that was made.
struct Made {
    at: Instant,
    /// Directory with the compressed page.
    directory: TempDir,
    /// Time of the profile, for the header `Last-Modified`.
    time: String,
}

/// File of a page in its directory.
const PAGE: &str = "page.html.gz";

impl Reports {
    fn pages(&self) -> MutexGuard<'_, HashMap<Subject, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a page that is recent enough.
    fn recent(&self, subject: &Subject) -> Option<Arc<Made>> {
        match self.pages().get(subject) {
            // Moments that have passed do not change.
            Some(Page::Made(made)) => {
                let is_recent = subject.to.is_some() || made.at.elapsed() < SHARED_FOR;
                is_recent.then(|| Arc::clone(made))
            }
            _ => None,
        }
    }

    /// Returns the right to make a page, unless another request is making it.
    fn claim(&self, subject: &Subject) -> Option<Arc<()>> {
        let mut pages = self.pages();
        // Those whose requests have failed, or whose clients have left.
        pages.retain(|_, page| !matches!(page, Page::Making(maker) if maker.strong_count() == 0));
        if let Some(Page::Making(maker)) = pages.get(subject)
            && maker.upgrade().is_some()
        {
            return None;
        }
        let claim = Arc::new(());
        pages.insert(subject.clone(), Page::Making(Arc::downgrade(&claim)));
        Some(claim)
    }

    fn add(&self, subject: Subject, made: Made) -> Arc<Made> {
        let made = Arc::new(made);
        let mut pages = self.pages();
        pages.insert(subject, Page::Made(Arc::clone(&made)));
        while pages.len() > MAX_KEPT {
            let oldest = pages.iter().filter_map(|(subject, page)| match page {
                Page::Made(made) => Some((made.at, subject.clone())),
                Page::Making(_) => None,
            });
            let Some((_, oldest)) = oldest.min_by_key(|(at, _)| *at) else {
                break;
            };
            pages.remove(&oldest);
        }
        made
    }
}

impl Made {
    fn reply(&self, name: Option<&str>) -> Result<Reply, Reply> {
        let failed = |error: io::Error| Reply::failure(&error);
        let page = self.directory.path().join(PAGE);
        let mut reply = Reply::gzipped_file("text/html; charset=utf-8", &page)
            .map_err(failed)?
            .with("Content-Security-Policy", POLICY.to_owned())
            .with("Cache-Control", "no-store".to_owned())
            .with("Last-Modified", self.time.clone());
        if let Some(name) = name {
            reply = reply.with(
                "Content-Disposition",
                format!("attachment; filename=\"{name}\""),
            );
        }
        Ok(reply)
    }
}

/// Serves a page: `?pid=`, and for a difference `&from=BASE`, or `&from=BASE&to=ID`. `download=1`
/// sends it as a file.
pub fn answer(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.agents.one_or_ended(request.process())?;
    let subject = Subject {
        process: Key::of(&agent),
        from: request.value("from").map(Base::parse).transpose()?,
        to: request.number("to")?,
    };
    let name = request.is_on("download").then(|| file_name(&agent, "html"));
    step(server.clone(), agent, subject, name)
}

/// Returns a name for a file about a process: its name and pid, without what a file system or a
/// header would take amiss.
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
fn step(
    server: Server,
    agent: Agent,
    subject: Subject,
    name: Option<String>,
) -> Result<Step, Reply> {
    if let Some(made) = server.reports.recent(&subject) {
        return made.reply(name.as_deref()).map(Step::Done);
    }
    let Some(claim) = server.reports.claim(&subject) else {
        let wait = move || match step(server, agent, subject, name) {
            Ok(step) => step,
            Err(refusal) => Step::Done(refusal),
        };
        return Ok(Step::Later(SHARED_WAIT, Box::new(wait)));
    };
    let work = Work {
        permit: permit()?,
        claim,
        directory: job::directory()?,
        server,
        agent,
        subject,
        name,
    };
    work.begin()
}

/// File of the profile that a page shows, in the directory of a job.
const NOW: &str = "now.heap";
/// File of the profile that is subtracted.
const BASE: &str = "from";

/// A page that is being made.
struct Work {
    permit: SemaphorePermit<'static>,
    claim: Arc<()>,
    directory: Arc<TempDir>,
    server: Server,
    agent: Agent,
    subject: Subject,
    /// Name of the file, for a download.
    name: Option<String>,
}

impl Work {
    /// Writes the profile that is shown, then the one that is subtracted, then the page.
    fn begin(self) -> Result<Step, Reply> {
        if let Some(id) = self.subject.to {
            let time = self.copy(NOW, &self.server.snapshots.open(&self.agent, id)?)?;
            return self.write_base(time);
        }
        let writing = Writing::begin(&self.server, &self.agent, PRESENT, &self.directory)?;
        Ok(writing.then(|written| self.write_base(written.time())))
    }

    fn write_base(self, time: SystemTime) -> Result<Step, Reply> {
        match self.subject.from {
            Some(Base::Snapshot(id)) => {
                self.copy(BASE, &self.server.snapshots.open(&self.agent, id)?)?;
            }
            Some(Base::Upload(id)) => {
                self.copy(BASE, &self.server.uploads.open(id)?)?;
            }
            Some(Base::Process(pid)) => {
                let other = self.server.agents.one_or_ended(Some(&pid.to_string()))?;
                let order = Order {
                    file: BASE,
                    ..PRESENT
                };
                let writing = Writing::begin(&self.server, &other, order, &self.directory)?;
                return Ok(writing.then(move |_| self.make(time)));
            }
            None => {}
        }
        self.make(time)
    }

    /// Copies a profile into the directory, and returns the time at which it was written.
    fn copy(&self, name: &str, mut profile: &File) -> Result<SystemTime, Reply> {
        let copy = File::create(self.directory.path().join(name));
        let copied = copy.and_then(|mut copy| io::copy(&mut profile, &mut copy));
        let time = copied
            .and_then(|_| profile.metadata())
            .and_then(|metadata| metadata.modified());
        time.map_err(|error| Reply::failure(&error))
    }

    fn make(self, time: SystemTime) -> Result<Step, Reply> {
        let base = self.subject.from;
        let job = Job::start(
            Program::Parser,
            &self.directory,
            REPORT_TIMEOUT,
            |command| {
                command.args(["--html", "-f", NOW, "-o", "page.html"]);
                if base.is_some() {
                    command.args(["--base", BASE]);
                }
                if matches!(base, Some(Base::Upload(_) | Base::Process(_))) {
                    // The user has chosen a profile of another session. Its names are in it.
                    command.arg("--force");
                }
            },
        )?;
        Ok(job.then(Duration::ZERO, move |job| {
            let made = keep(job.path(), fmt_http_date(time));
            let made = made.map_err(|error| Reply::failure(&error))?;
            drop((self.permit, self.claim));
            let made = self.server.reports.add(self.subject, made);
            made.reply(self.name.as_deref())
        }))
    }
}

/// The present profile of a process, for the parser: one of many stacks is large as text.
const PRESENT: Order = Order {
    trigger: "the live page",
    file: NOW,
    form: Form::Gzip,
    must_run: false,
    since: None,
};

/// Returns the right to have a profile read by another program.
pub fn permit() -> Result<SemaphorePermit<'static>, Reply> {
    let permit = JOBS.try_acquire();
    permit.map_err(|_| Reply::refusal(503, "other reports are being made: try again"))
}

/// Moves a page from the directory of its job to one of its own, compressed.
fn keep(job: &Path, time: String) -> io::Result<Made> {
    let directory = tempfile::tempdir()?;
    let mut page = BufReader::new(File::open(job.join("page.html"))?);
    let packed = File::create(directory.path().join(PAGE))?;
    let mut packed = GzEncoder::new(packed, Compression::fast());
    io::copy(&mut page, &mut packed)?;
    packed.finish()?;
    Ok(Made {
        at: Instant::now(),
        directory,
        time,
    })
}

/// Serves a page of the CPU time of a process in the next seconds: `?pid=&seconds=`. With `heap=1`,
/// its heap profile is beside it.
pub fn cpu(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.agents.one(request.process())?;
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
    let failed = |error: io::Error| Reply::failure(&error);
    let profile = crate::profiles::file_of(job)?;
    let permit = permit()?;
    let directory = job::directory()?;
    fs::copy(profile, directory.path().join("now.cpu")).map_err(failed)?;
    if !with_heap {
        return draw_cpu(&directory, permit, with_heap);
    }
    let writing = Writing::begin(server, agent, PRESENT, &directory)?;
    Ok(writing.then(move |_| draw_cpu(&directory, permit, with_heap)))
}

/// Makes a page of the CPU profile in a directory, and of the heap profile beside it.
fn draw_cpu(
    directory: &Arc<TempDir>,
    permit: SemaphorePermit<'static>,
    with_heap: bool,
) -> Result<Step, Reply> {
    let next = Job::start(Program::Parser, directory, REPORT_TIMEOUT, |command| {
        if with_heap {
            command.arg(NOW);
        }
        command.args(["now.cpu", "--html", "-o", "page.html"]);
    })?;
    Ok(next.then(Duration::ZERO, move |job| {
        drop(permit);
        let made = keep(job.path(), fmt_http_date(SystemTime::now()));
        let made = made.map_err(|error| Reply::failure(&error))?;
        made.reply(None)
    }))
}

/// Serves the objects of a process that no pointer leads to, as text: `?pid=`.
pub fn lost(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.agents.one(request.process())?;
    let directory = job::directory()?;
    let job =
        Job::start_keeping_output(Program::Profiler, &directory, REPORT_TIMEOUT, |command| {
            command.args(["leaks", "-p", &agent.pid.to_string()]);
        })?;
    Ok(job.then(Duration::ZERO, |job| {
        let text = fs::read(job.path().join(Job::OUTPUT));
        let text = text.map_err(|error| Reply::failure(&error))?;
        Ok(Reply::text(text).with("Cache-Control", "no-store".to_owned()))
    }))
}

/// Serves the present profile of a process as a dump: `?pid=`, and for an earlier moment `&at=ID`.
pub fn dump(server: &Server, request: &Request) -> Result<Step, Reply> {
    let agent = server.agents.one_or_ended(request.process())?;
    let failed = |error: io::Error| Reply::failure(&error);
    if let Some(id) = request.number("at")? {
        let snapshot = server.snapshots.open(&agent, id)?;
        let reply = Reply::open_file(&file_name(&agent, "heap.gz"), snapshot);
        return Ok(reply.into());
    }
    let directory = job::directory()?;
    let order = Order {
        form: Form::Dump,
        ..PRESENT
    };
    let writing = Writing::begin(server, &agent, order, &directory)?;
    Ok(writing.then(move |_: Written| {
        let dump = File::open(directory.path().join(NOW)).map_err(failed)?;
        Ok(Reply::open_file(&file_name(&agent, "heap"), dump).into())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(created_ns: u64) -> Subject {
        Subject {
            process: Key { pid: 1, created_ns },
            from: None,
            to: None,
        }
    }

    fn made() -> Made {
        Made {
            at: Instant::now(),
            directory: tempfile::tempdir().unwrap(),
            time: String::new(),
        }
    }

    #[test]
    fn a_page_is_made_by_one_request_at_a_time() {
        let reports = Reports::default();
        let claim = reports.claim(&subject(1)).unwrap();
        assert!(reports.claim(&subject(1)).is_none());
        assert!(reports.claim(&subject(2)).is_some());
        // Its client has left.
        drop(claim);
        assert!(reports.claim(&subject(3)).is_some());
        assert_eq!(reports.pages().len(), 1);
        let claim = reports.claim(&subject(1));
        assert!(claim.is_some() && reports.recent(&subject(1)).is_none());
        reports.add(subject(1), made());
        assert!(reports.recent(&subject(1)).is_some());
    }

    #[test]
    fn bases_are_moments_or_other_profiles() {
        let parse = |text| Base::parse(text).ok();
        assert_eq!(parse("12"), Some(Base::Snapshot(12)));
        assert_eq!(parse("u3"), Some(Base::Upload(3)));
        assert_eq!(parse("p4"), Some(Base::Process(4)));
        for wrong in ["", "u", "x1", "-1", "u-1", "1u", "é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_oldest_pages_are_dropped() {
        let reports = Reports::default();
        for number in 0..30 {
            reports.add(subject(number), made());
        }
        assert_eq!(reports.pages().len(), MAX_KEPT);
        assert!(reports.recent(&subject(29)).is_some());
        assert!(reports.recent(&subject(0)).is_none());
    }
}
