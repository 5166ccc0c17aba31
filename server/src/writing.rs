//! Writes profiles of processes into files. A large one is built by a child process, `mem_server
//! write`, so that this server stays small however many stacks a process has.
//!
//! The child gets function names from the server, which caches them for all processes: it writes
//! the code of the profile to the file `code`, and continues when the server reports that the file
//! `names` is complete.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use flate2::Compression;
use flate2::write::GzEncoder;
use mem_agents::clock::Time;
use mem_agents::discovery::Agent;
use mem_agents::live::{self, Live, Recorded};
use mem_agents::segment::Head;
use mem_agents::select::Selection;
use mem_agents::timeline::Timeline;
use profile::Profile;
use profile::merge::{self, Base};
use profile::moment::{Moment, StackBytes};
use serde::{Deserialize, Serialize};
use shm_protocol::layout::BANK_HEADER_BYTES;
use tempfile::TempDir;

use crate::agents::Agents;
use crate::encoding;
use crate::history_file::Key;
use crate::job::{Failure, Job, POLL_INTERVAL, Program};
use crate::naming;
use crate::process;
use crate::reply::{Reply, Step};
use crate::sources::Sources;

/// Maximum time for a child to write a profile.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Address space that a child may use, in bytes.
const MAX_CHILD_BYTES: u64 = 8 << 30;
/// CPU time that a child may use, in seconds.
const MAX_CHILD_CPU_SECONDS: u64 = 120;
/// File with the code whose names a child requests.
const CODE: &str = "code";
/// File with the names.
const NAMES: &str = "names";
/// File with the moments that the server has recorded.
const MOMENTS: &str = "moments";

/// Format of a profile's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A dump.
    Dump,
    /// A compressed dump.
    Gzip,
    /// `profile.proto` that shows live bytes.
    Live,
    /// `profile.proto` that shows allocated bytes.
    Allocated,
    /// Growth as gperftools writes it, with addresses.
    Growth,
    /// A dump without names of code, for a comparison with a later one.
    Unnamed,
}

impl Form {
    /// Returns true if the form has names of code.
    fn has_names(self) -> bool {
        !matches!(self, Self::Growth | Self::Unnamed)
    }

    /// Returns the form of `profile.proto` that shows a column.
    pub fn for_column(column: &str) -> Self {
        match column {
            "alloc_space" => Self::Allocated,
            _ => Self::Live,
        }
    }
}

/// Earlier profile of the same session: a dump in the job's directory.
#[derive(Clone, Copy)]
pub struct Since {
    /// Name of its file.
    pub file: &'static str,
    /// Time of the profile, in ns of the segment's clock.
    pub at_ns: u64,
}

/// Specification of a profile to write.
#[derive(Clone, Copy)]
pub struct WriteSpec {
    /// Cause, for the profile's metadata.
    pub trigger: &'static str,
    /// Name of the file in the job's directory.
    pub file: &'static str,
    /// Format of the file.
    pub form: Form,
    /// True if the session must be running.
    pub must_run: bool,
    /// Earlier profile, if only the changes since then are to be written.
    pub since: Option<Since>,
}

/// Facts about a profile that was written.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Written {
    /// Number of the session.
    pub session: u64,
    /// Time of the profile, in ns of the segment's clock.
    pub at_ns: u64,
    /// Live bytes.
    pub live_bytes: f64,
}

impl Written {
    /// Returns the time of the profile.
    pub fn time(&self) -> std::time::SystemTime {
        let unix_ns = Time::now().at(self.at_ns).unix_ns;
        std::time::UNIX_EPOCH + Duration::from_nanos(unix_ns)
    }
}

/// Writing of a profile, which may be in progress.
pub enum ProfileWrite {
    /// The file is complete.
    Done(Written),
    /// A child is writing it.
    InChild(ChildWrite),
}

/// A child that writes a profile.
pub struct ChildWrite {
    job: Job,
    sources: Sources,
    title: String,
    has_names: bool,
}

impl ProfileWrite {
    /// Begins to write the profile of a process's last session into a directory.
    pub fn begin(
        sources: &Sources,
        agent: &Agent,
        spec: WriteSpec,
        directory: &Arc<TempDir>,
    ) -> Result<Self, Reply> {
        let recorded = sources.process_list.recorded(agent);
        if has_large_profile(agent) {
            let job = start_child(agent, spec, recorded.as_ref(), directory);
            return Ok(Self::InChild(ChildWrite {
                job: job?,
                sources: sources.clone(),
                title: agent.title(),
                has_names: false,
            }));
        }
        let live = live::profile(agent, spec.trigger, recorded.as_ref());
        let live = live.map_err(|e| Reply::refusal(503, format!("{}: {e}", agent.title())))?;
        let mut live = usable_profile(live, spec).ok_or_else(|| {
            Reply::refusal(
                404,
                format!("{}: {}", agent.title(), missing_profile_message(spec)),
            )
        })?;
        if let Some(since) = spec.since {
            let earlier = directory.path().join(since.file);
            let result = keep_changes(&mut live, &earlier, since.at_ns);
            result.map_err(|e| Reply::refusal(503, format!("{}: {e:#}", agent.title())))?;
        }
        if spec.form.has_names() {
            sources.symbolize(&mut live.profile);
        }
        let written = write(live, &directory.path().join(spec.file), spec.form);
        let written = written.map_err(|error| Reply::temporary_file_error(&error))?;
        Ok(Self::Done(written))
    }

    /// Continues with `next` when the file is complete.
    pub fn then(self, next: impl FnOnce(Written) -> Result<Step, Reply> + Send + 'static) -> Step {
        match self {
            Self::Done(written) => next(written).unwrap_or_else(Step::Done),
            Self::InChild(mut child) => Step::Later(
                POLL_INTERVAL,
                Box::new(move || match child.poll() {
                    None => Self::InChild(child).then(next),
                    Some(Ok(written)) => Self::Done(written).then(next),
                    Some(Err(refusal)) => refusal.into(),
                }),
            ),
        }
    }

    /// Waits until the file is complete.
    pub fn wait(self) -> Result<Written, Reply> {
        match self {
            Self::Done(written) => Ok(written),
            Self::InChild(mut child) => loop {
                if let Some(result) = child.poll() {
                    return result;
                }
                std::thread::sleep(POLL_INTERVAL);
            },
        }
    }
}

impl ChildWrite {
    /// Returns the result when the child has ended. Before that, replies to its request for names.
    fn poll(&mut self) -> Option<Result<Written, Reply>> {
        let directory = self.job.path().to_owned();
        if !self.has_names && directory.join(CODE).exists() {
            self.has_names = true;
            let named = name_code(&self.sources, &directory);
            // Without names, code is shown by its addresses.
            let word = if named.is_ok() {
                "named\n"
            } else {
                "unnamed\n"
            };
            self.job.write_input(word);
        }
        Some(match self.job.poll()? {
            Ok(()) => {
                read_result(&directory).map_err(|error| self.refusal(500, &error.to_string()))
            }
            Err(Failure::TooLong) => Err(self.refusal(503, "reading its profile takes too long")),
            Err(Failure::Message(message)) => {
                let message = message.trim_start_matches("mem_server: ");
                Err(self.refusal(503, message))
            }
        })
    }

    fn refusal(&self, status: u16, why: &str) -> Reply {
        Reply::refusal(status, format!("{}: {why}", self.title))
    }
}

/// Returns the number of records of a process's last session; 0 if it cannot be read.
fn records(agent: &Agent) -> usize {
    let mut head = Head::new();
    let mut buffer = [0; BANK_HEADER_BYTES];
    let header = agent.segment.head(&mut head).ok();
    let session = header.and_then(|header| header.profiled());
    let bank = session.and_then(|session| agent.segment.bank(session.number, &mut buffer).ok());
    bank.map_or(0, |bank| bank.records())
}

/// Returns true if the last session of a process has more stacks than this server reads itself.
pub fn has_large_profile(agent: &Agent) -> bool {
    process::is_large(records(agent))
}

/// Returns the profile, unless the session must be running and is not.
fn usable_profile(live: Option<Live>, spec: WriteSpec) -> Option<Live> {
    live.filter(|live| live.running || !spec.must_run)
}

/// Returns the message if there is no profile.
fn missing_profile_message(spec: WriteSpec) -> &'static str {
    if spec.must_run {
        "no session is running: start one"
    } else {
        "nothing was sampled yet: start a session"
    }
}

/// Reduces a profile to what has changed since an earlier one of its session.
fn keep_changes(live: &mut Live, earlier: &Path, earlier_ns: u64) -> anyhow::Result<()> {
    let earlier = profile::open(earlier)?;
    // Goes through a dump: stacks are equal only if their code is described in the same way.
    let mut dump = Vec::new();
    profile::dump::write(&live.profile, &mut dump)?;
    let present = profile::read(&dump, "the present profile")?;
    let mut changed = merge::change_within_session(&earlier, &present, Base::Difference)?;
    let length = live.at_ns.saturating_sub(earlier_ns);
    let end = changed.facts.end_unix_ns;
    changed.facts.start_unix_ns = end.map(|end| end.saturating_sub(length));
    changed.facts.duration_ns = Some(length);
    live.profile = changed;
    Ok(())
}

/// Writes a profile.
fn write(live: Live, path: &Path, form: Form) -> io::Result<Written> {
    let written = Written {
        session: live.session.number,
        at_ns: live.at_ns,
        live_bytes: live.totals.live_bytes,
    };
    let mut out = BufWriter::new(File::create_new(path)?);
    match form {
        Form::Dump | Form::Unnamed => profile::dump::write(&live.profile, &mut out)?,
        Form::Gzip => {
            let mut packed = GzEncoder::new(&mut out, Compression::fast());
            profile::dump::write(&live.profile, &mut packed)?;
            packed.finish()?;
        }
        Form::Live => out.write_all(&encoding::heap(live.profile, "inuse_space")?)?,
        Form::Allocated => out.write_all(&encoding::heap(live.profile, "alloc_space")?)?,
        Form::Growth => out.write_all(encoding::growth(&live.profile).as_bytes())?,
    }
    out.flush()?;
    Ok(written)
}

fn start_child(
    agent: &Agent,
    spec: WriteSpec,
    recorded: Option<&Recorded>,
    directory: &Arc<TempDir>,
) -> Result<Job, Reply> {
    if let Some(recorded) = recorded {
        let sent = serde_json::to_vec(&SentTimeline::new(recorded)).unwrap_or_default();
        // If this fails, the profile has no earlier moments.
        let _ = fs::write(directory.path().join(MOMENTS), sent);
    }
    for file in [CODE, NAMES] {
        // The directory may have files of an earlier child.
        let _ = fs::remove_file(directory.path().join(file));
    }
    Job::start_with_input(Program::Server, directory, WRITE_TIMEOUT, |command| {
        let form = spec.form.to_possible_value();
        let form = form.map_or_else(String::new, |form| form.get_name().to_owned());
        command.args(["write", "--trigger", spec.trigger, "--form", &form]);
        if spec.must_run {
            command.arg("--must-run");
        }
        if let Some(since) = spec.since {
            command.args([
                "--since",
                since.file,
                "--since-ns",
                &since.at_ns.to_string(),
            ]);
        }
        command.args(["--created", &agent.created_ns.to_string()]);
        command.args([&agent.pid.to_string(), spec.file]);
    })
}

/// Names the code that a child has put into its directory.
fn name_code(sources: &Sources, directory: &Path) -> io::Result<()> {
    let code = BufReader::new(File::open(directory.join(CODE))?);
    let mut code = profile::read_from(code, CODE).map_err(io::Error::other)?;
    sources.symbolize(&mut code);
    let mut out = BufWriter::new(File::create_new(directory.join(NAMES))?);
    profile::pprof::write(&code, &mut out)?;
    out.flush()
}

/// Returns what a child has reported about its profile.
fn read_result(directory: &Path) -> io::Result<Written> {
    let output = fs::read(directory.join(Job::OUTPUT))?;
    Ok(serde_json::from_slice(&output)?)
}

/// Moments as the child gets them.
#[derive(Serialize, Deserialize)]
struct SentTimeline {
    session: u64,
    moments: Vec<SentMoment>,
}

#[derive(Serialize, Deserialize)]
struct SentMoment {
    at_ns: u64,
    live: u64,
    allocated: u64,
    resident: Option<u64>,
    /// Stack and live bytes.
    stacks: Option<Vec<[u64; 2]>>,
}

impl SentTimeline {
    fn new(recorded: &Recorded) -> Self {
        let sent = |moment: &Moment| SentMoment {
            at_ns: moment.at_ns,
            live: moment.live,
            allocated: moment.allocated,
            resident: moment.resident,
            stacks: moment.stacks.as_ref().map(|stacks| {
                let stacks = stacks.iter();
                stacks.map(|held| [held.stack.into(), held.bytes]).collect()
            }),
        };
        Self {
            session: recorded.session,
            moments: recorded.timeline.moments().map(sent).collect(),
        }
    }

    fn into_recorded(self) -> Recorded {
        let parse_held = |pair: [u64; 2]| {
            Some(StackBytes {
                stack: pair[0].try_into().ok()?,
                bytes: pair[1],
            })
        };
        let moments = self.moments.into_iter().map(|sent| Moment {
            at_ns: sent.at_ns,
            live: sent.live,
            allocated: sent.allocated,
            resident: sent.resident,
            stacks: sent
                .stacks
                .map(|stacks| stacks.into_iter().filter_map(parse_held).collect()),
        });
        Recorded {
            session: self.session,
            timeline: Timeline::of(moments.collect()),
        }
    }
}

/// Options of the child.
#[derive(Args, Clone, Debug)]
pub struct WriteArgs {
    /// Cause, for the profile's metadata
    #[arg(long)]
    trigger: String,
    /// Format
    #[arg(long, value_enum)]
    form: Form,
    /// Only a session that is running
    #[arg(long)]
    must_run: bool,
    /// Dump of an earlier moment of the session; only the changes since are written
    #[arg(long, requires = "since_ns")]
    since: Option<PathBuf>,
    /// Time of that dump, in ns of the segment's clock
    #[arg(long, default_value_t = 0)]
    since_ns: u64,
    /// Creation time of the segment, in ns
    #[arg(long)]
    created: u64,
    /// The process
    pid: i32,
    /// The file, in the present directory
    file: PathBuf,
}

/// Runs `mem_server write`: writes the profile of a process.
pub fn run_child(args: &WriteArgs) -> anyhow::Result<()> {
    limit_resources();
    let agents = Agents::new(Selection::default());
    let agent = agents.find_or_ended(Some(&args.pid.to_string()));
    let agent = agent.ok().filter(|agent| {
        let key = Key::of(agent);
        key.created_ns == args.created
    });
    let agent = agent.context("the process has ended")?;
    let sent = fs::read(MOMENTS).ok();
    let sent = sent.and_then(|sent| serde_json::from_slice::<SentTimeline>(&sent).ok());
    let recorded = sent.map(SentTimeline::into_recorded);
    let live = live::profile(&agent, &args.trigger, recorded.as_ref())?;
    let live = live.filter(|live| live.running || !args.must_run);
    let mut live = live.context("its session is over")?;
    if let Some(since) = &args.since {
        keep_changes(&mut live, since, args.since_ns)?;
    }
    if args.form.has_names() {
        request_names(&mut live.profile)?;
    }
    let written = write(live, &args.file, args.form);
    let written = written.with_context(|| {
        let place = std::env::temp_dir();
        format!("its profile cannot be written in {}", place.display())
    })?;
    Ok(serde_json::to_writer(io::stdout(), &written)?)
}

/// Asks the server for the names of a profile's code.
fn request_names(profile: &mut Profile) -> anyhow::Result<()> {
    let Some(code) = naming::unnamed(profile) else {
        return Ok(());
    };
    const PART: &str = "code.part";
    let mut out = BufWriter::new(File::create_new(PART)?);
    profile::dump::write(&code, &mut out)?;
    out.flush()?;
    fs::rename(PART, CODE)?;
    let mut word = String::new();
    io::stdin().read_line(&mut word)?;
    match word.trim() {
        "named" => {
            let named = BufReader::new(File::open(NAMES)?);
            let named = profile::read_from(named, NAMES)?;
            naming::apply(profile, &named);
            Ok(())
        }
        "unnamed" => Ok(()),
        _ => bail!("the server has ended"),
    }
}

/// Limits the resources of this process, since the profile is untrusted.
fn limit_resources() {
    for (resource, value) in [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_AS, MAX_CHILD_BYTES),
        (libc::RLIMIT_CPU, MAX_CHILD_CPU_SECONDS),
    ] {
        let limit = libc::rlimit {
            rlim_cur: value,
            rlim_max: value,
        };
        // SAFETY: `limit` is a complete rlimit. Failure means that a lower limit is in force,
        // which is good enough.
        unsafe { libc::setrlimit(resource, &raw const limit) };
    }
}
