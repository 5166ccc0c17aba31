//! `push`: sends the profiles of a session to a receiver at regular intervals.
//!
//! A child process, `mem_profiler`, runs the session. It periodically writes a dump of each target
//! into a directory, the spool. Dumps are sent in the order in which they were written, and deleted
//! when the receiver has accepted them. Nothing is lost while the receiver is unavailable, as long
//! as the spool has room. Nothing is lost if this program ends, either: when it starts again, it
//! sends the dumps that it finds in the spool.
//!
//! Guarantees: a profile's totals are unchanged, even if it has to be folded for the receiver.
//! Redirects are not followed. The wait between attempts doubles up to a minute, unless the
//! receiver requests another. Dropped profiles are reported, and the state is printed once a
//! minute. Memory use does not grow over time.
//!
//! Limits: `http://` only; for `https://`, use a proxy or collector on this machine. A receiver
//! gets a profile twice if it accepted it but its answer was lost.

mod client;
mod feed;
mod increments;
mod pace;
mod receiver;
mod spool;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use clap::Args;
use mem_agents::siblings;
use mem_agents::values;
use profile::printable;

use crate::naming::FunctionNames;
use client::{Answer, Client};
use feed::Feed;
use increments::Increments;
use pace::Pace;
use receiver::{Labels, Prepared, Receiver};
use spool::Spool;

/// Interval between checks of the spool.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval between status messages.
const STATUS_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum time to send what is left in the spool when the session has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time to send the remaining dumps that another program has named. There is no spool in
/// which they could wait.
const FEED_DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of `push`.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// The receiver's protocol
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    pub to: Receiver,

    /// The receiver: http://HOST:PORT, without the protocol's own path
    #[arg(value_name = "URL")]
    pub url: String,

    /// How often each process's profile is sent
    #[arg(long, value_name = "TIME", default_value = "15s")]
    pub every: String,

    /// A label of each profile, such as service_name=checkout [default service_name: the process's]
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub label: Vec<(String, String)>,

    /// Process, by pid, name or pattern (redis*); may be given several times
    /// [default: all of this user; as root, of all users]
    #[arg(short, long = "process", value_name = "PID|NAME")]
    pub processes: Vec<String>,

    /// Mean bytes between samples
    #[arg(short = 'c', long, value_name = "BYTES", default_value = "64K")]
    pub interval: String,

    /// Send only addresses and build ids, for receivers that symbolize profiles themselves
    #[arg(long)]
    pub no_symbols: bool,

    /// Directory for profiles waiting to be sent [default: one that is removed at the end]
    #[arg(long, value_name = "DIRECTORY")]
    pub spool: Option<PathBuf>,

    /// Size limit of the spool in MiB; beyond it, the oldest profiles are dropped
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub spool_size: u64,

    /// Compress requests to OTLP receivers; profiles for other receivers are always compressed
    #[arg(long)]
    pub gzip: bool,

    /// How long a receiver may take to answer
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::seconds)]
    pub timeout: Duration,

    /// Print only what goes wrong
    #[arg(short, long)]
    pub quiet: bool,

    /// Send these dumps and exit, without a session
    #[arg(long, value_name = "DUMP", num_args = 1..)]
    pub dumps: Vec<PathBuf>,

    /// For `--push` of a session: send the dumps that are named on stdin, and end with it
    #[arg(long, hide = true)]
    pub feed: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE, as in service_name=checkout".to_owned()),
    }
}

/// Set by the signal handler to end the program.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn request_end(_: libc::c_int) {
    ENDING.store(true, Ordering::Relaxed);
}

/// Runs the command.
pub fn execute(args: PushArgs) -> anyhow::Result<()> {
    let client = Client::new(args.to, &args.url, args.gzip, args.timeout)?;
    let program = std::env::current_exe().context("this program's own path is not known")?;
    let mut sender = Sender {
        client,
        naming: (!args.no_symbols).then(|| FunctionNames::new(program)),
        labels: Labels::new(&args.label),
        increments: Increments::default(),
        pace: Pace::default(),
        counts: SentCounts::default(),
        is_quiet: args.quiet,
    };
    if !args.dumps.is_empty() {
        return sender.send_all(&args.dumps);
    }
    if args.feed {
        return sender.send_fed(&Feed::begin()?);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, request_end as *const () as libc::sighandler_t) };
    }
    let spool = Spool::open(args.spool.clone(), args.spool_size << 20)?;
    let session = start_session(&args, spool.directory())?;
    sender.run(session, &spool)
}

/// Starts the session in a child process.
fn start_session(args: &PushArgs, directory: &Path) -> anyhow::Result<Child> {
    let profiler = siblings::program("mem_profiler");
    let mut command = Command::new(&profiler);
    // Quiet: files that will be deleted are not announced, but errors are printed.
    command.args(["--quiet", "-c", &args.interval, "--every", &args.every]);
    command.arg("-o");
    command.arg(directory.join(spool::PREFIX));
    for process in &args.processes {
        command.args(["-p", process]);
    }
    let path_text = printable::path(&profiler);
    // In its own process group, so that Ctrl-C reaches only this program, which ends the session.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
        .spawn()
        .with_context(|| format!("{path_text} cannot be started"))
}

/// Counts of profiles.
#[derive(Debug, Default)]
struct SentCounts {
    sent: u64,
    bytes: u64,
    dropped: u64,
}

/// Result of sending a profile.
enum Fate {
    /// The receiver has accepted the profile, or will never accept it.
    Done,
    /// To be retried later.
    Retry,
}

/// Sender of profiles.
struct Sender {
    client: Client,
    naming: Option<FunctionNames>,
    labels: Labels,
    increments: Increments,
    pace: Pace,
    counts: SentCounts,
    /// Set if only what goes wrong is printed.
    is_quiet: bool,
}

impl Sender {
    /// Sends existing dumps. Fails if one of them is not accepted.
    fn send_all(&mut self, dumps: &[PathBuf]) -> anyhow::Result<()> {
        for dump in dumps {
            while let Fate::Retry = self.send(dump)? {
                if self.pace.failures() >= 5 {
                    bail!(
                        "the receiver does not accept profiles; {} were sent",
                        self.counts.sent
                    );
                }
                std::thread::sleep(self.pace.remaining());
            }
        }
        if self.counts.dropped > 0 {
            bail!(
                "{} of {} profiles were not accepted",
                self.counts.dropped,
                dumps.len()
            );
        }
        self.inform(&format!("{} profiles sent", self.counts.sent));
        Ok(())
    }

    /// Sends the dumps that another program names, and does not delete them.
    fn send_fed(&mut self, feed: &Feed) -> anyhow::Result<()> {
        let mut waiting = VecDeque::new();
        let mut end = None;
        loop {
            let timeout = if waiting.is_empty() {
                STATUS_INTERVAL
            } else {
                self.pace.remaining()
            };
            if !feed.collect(&mut waiting, timeout) && end.is_none() {
                end = Some(Instant::now() + FEED_DRAIN_TIMEOUT);
            }
            while waiting.len() > feed::MAX_PENDING_NAMES {
                self.counts.dropped += 1;
                waiting.pop_front();
            }
            if self.pace.remaining().is_zero()
                && let Some(dump) = waiting.front()
                && let Fate::Done = self.send(dump)?
            {
                waiting.pop_front();
            }
            let Some(end) = end else {
                continue;
            };
            if waiting.is_empty() || Instant::now() >= end {
                break;
            }
            std::thread::sleep(self.pace.remaining().min(POLL_INTERVAL));
        }
        let SentCounts { sent, dropped, .. } = self.counts;
        let lost = waiting.len() as u64 + dropped;
        if lost > 0 {
            bail!("{lost} of {} profiles were not accepted", sent + lost);
        }
        self.inform(&format!("{sent} profiles sent"));
        Ok(())
    }

    /// Sends what the session writes, until it ends or a signal arrives.
    fn run(&mut self, mut session: Child, spool: &Spool) -> anyhow::Result<()> {
        let mut status_at = Instant::now();
        let mut is_stopping = false;
        let status = loop {
            if let Some(status) = session.try_wait()? {
                break status;
            }
            if ENDING.load(Ordering::Relaxed) && !is_stopping {
                is_stopping = true;
                // SAFETY: kill takes integers; the child is not reaped, so the pid is still its
                // own.
                unsafe { libc::kill(session.id().cast_signed(), libc::SIGINT) };
            }
            if let Err(error) = self.send_waiting(spool) {
                // SAFETY: kill takes integers; the child is not reaped, so the pid is still its
                // own. It writes its last dumps, which stay in the spool.
                unsafe { libc::kill(session.id().cast_signed(), libc::SIGINT) };
                session.wait()?;
                return Err(error);
            }
            if status_at.elapsed() >= STATUS_INTERVAL {
                status_at = Instant::now();
                self.print_status(spool);
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        let end = Instant::now() + DRAIN_TIMEOUT;
        while !spool.waiting().is_empty() && Instant::now() < end {
            self.send_waiting(spool)?;
            std::thread::sleep(self.pace.remaining().min(POLL_INTERVAL));
        }
        self.print_status(spool);
        spool.close();
        if !status.success() && !is_stopping {
            bail!("the session failed: mem_profiler: {status}");
        }
        Ok(())
    }

    /// Sends the files in the spool until the receiver rejects one.
    fn send_waiting(&mut self, spool: &Spool) -> anyhow::Result<()> {
        for dropped in spool.shrink() {
            self.counts.dropped += 1;
            print(&format!(
                "the spool is full: {} is dropped",
                printable::path(&dropped)
            ));
        }
        for dump in spool.waiting() {
            if !self.pace.remaining().is_zero() {
                break;
            }
            match self.send(&dump)? {
                Fate::Done => spool.remove(&dump),
                Fate::Retry => break,
            }
        }
        Ok(())
    }

    /// Sends one dump. Halves the number of samples while the receiver finds it too large.
    fn send(&mut self, dump: &Path) -> anyhow::Result<Fate> {
        let path_text = printable::path(dump);
        let profile = match profile::open(dump) {
            Ok(profile) => profile,
            Err(error) => return Ok(self.drop_profile(&error.to_string())),
        };
        let mut prepared = Prepared::new(
            profile,
            self.naming.as_ref(),
            &self.labels,
            self.client.receiver(),
        )?;
        if self.client.receiver().wants_increments() {
            self.increments.apply(&mut prepared);
        }
        let mut max_samples = receiver::MAX_SAMPLES;
        loop {
            let body = prepared.body(self.client.receiver(), &mut max_samples)?;
            match self.client.post(&body) {
                Answer::Accepted => {
                    self.increments.accepted(&prepared);
                    self.counts.sent += 1;
                    self.counts.bytes += body.len() as u64;
                    self.pace.succeeded();
                    return Ok(Fate::Done);
                }
                Answer::TooLarge if max_samples > receiver::MIN_SAMPLES => max_samples /= 2,
                Answer::TooLarge => {
                    return Ok(
                        self.drop_profile(&format!("{path_text}: too large for the receiver"))
                    );
                }
                Answer::Refused(why) => {
                    return Ok(self.drop_profile(&format!("{path_text}: {why}")));
                }
                Answer::Later(why, after) => {
                    if self.pace.failed(after) {
                        print(&format!("{why}; profiles wait in the spool"));
                    }
                    return Ok(Fate::Retry);
                }
                Answer::Skewed(why) => bail!(why),
            }
        }
    }

    fn drop_profile(&mut self, why: &str) -> Fate {
        self.counts.dropped += 1;
        print(&format!("{why}; the profile is dropped"));
        Fate::Done
    }

    /// Prints a message that is no failure.
    fn inform(&self, message: &str) {
        if !self.is_quiet {
            print(message);
        }
    }

    fn print_status(&self, spool: &Spool) {
        let SentCounts {
            sent,
            bytes,
            dropped,
        } = self.counts;
        let waiting = spool.waiting().len();
        let kib = bytes.div_ceil(1024);
        self.inform(&format!(
            "{sent} profiles sent ({kib} KiB), {waiting} waiting, {dropped} dropped"
        ));
    }
}

fn print(message: &str) {
    crate::say(&printable::text(message));
}

/// Returns the current time, in ns since the Unix epoch.
fn now_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
