//! Writes the dumps that `HEAPPROFILE` requests, `PREFIX.0001.heap` and so on: at intervals, when
//! the process asks for one, at its exit, and if it is killed.
//!
//! The agent starts this command in a constructor of the process, and receives our pid and the name
//! of a socket. It opens a new connection for each request, because programs may close descriptors
//! that they have not opened.
//!
//! The socket's name is derived from the process's pid and start time. After an `exec`, the command
//! that watches the new program therefore finds this one and continues with its prefix. So the
//! dumps of a program that a wrapper script executes carry on the script's numbering.

use std::env;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use mem_agents::discovery::{Agent, Life};
use mem_agents::ended::Ended;
use mem_agents::live;
use mem_agents::segment::Head;
use mem_agents::target::uncollected;
use mem_agents::text;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::snapshot::Totals;

use super::intervals::{Intervals, Progress};
use super::{profile, write_profile};
use crate::agent_request::{self, AgentSocket};
use crate::terminal::{diagnostic, warning};

/// Interval at which the session's totals are read, in ms.
const POLL_INTERVAL_MS: u16 = 50;
/// Timeout for reading a request and for writing its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of a request, in bytes.
const MAX_REQUEST_BYTES: u64 = 512;
/// Number of polls between checks for an `exec`.
const EXEC_CHECK_EVERY: u32 = 20;
/// Allocated bytes below which a child gets no dump, as with `run --min`.
const MIN_CHILD_BYTES: f64 = (1 << 20) as f64;

/// Request to end and to hand over the prefix, from the command that watches the process's next
/// program.
const HAND_OVER: &str = "hand over";

/// Writes dumps until the process exits.
pub fn execute(mut socket: AgentSocket, agent: Agent, prefix: PathBuf) -> anyhow::Result<ExitCode> {
    agent_request::detach_from_program()?;
    let intervals = Intervals::read(|name| env::var(name).ok(), warning);
    let requests = RequestSocket::open(agent.pid)?;
    let pid = agent.pid;
    let mut watch = Watch {
        is_child: belongs_to_child(&prefix, pid),
        agent,
        prefix,
        dumps: 0,
        is_replaced: false,
        progress: Progress::new(intervals),
    };
    if let Some(earlier) = &requests.earlier {
        watch.prefix.clone_from(&earlier.prefix);
        watch.dumps = earlier.dumps;
        watch.is_child = earlier.is_child;
    }
    let pidfd = proc::pidfd(pid).context("the process has exited")?;
    agent_request::reply(
        &mut socket,
        format!("{} {}\n", std::process::id(), requests.name).as_bytes(),
    )?;
    // After the reply, the agent does not take the end of the socket for a failure.
    drop(ManuallyDrop::into_inner(socket));
    for round in 0u32.. {
        let mut descriptors = [
            PollFd::new(requests.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(pidfd.as_fd(), PollFlags::POLLIN),
        ];
        // `poll` fails if a signal interrupts it.
        let _ = poll(&mut descriptors, PollTimeout::from(POLL_INTERVAL_MS));
        while let Ok((stream, _)) = requests.listener.accept() {
            if watch.serve(stream) == AfterRequest::End {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if has_exited(pid, &pidfd) {
            watch.finish_dead();
            break;
        }
        if round % EXEC_CHECK_EVERY == 0 {
            watch.check_exec();
        }
        watch.dump_if_due();
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true if a prefix belongs to a forked child, to whose name the pid is appended.
fn belongs_to_child(prefix: &Path, pid: i32) -> bool {
    let name = prefix.as_os_str().to_string_lossy();
    name.ends_with(&format!("_{pid}"))
}

fn has_exited(pid: i32, pidfd: &impl AsFd) -> bool {
    let mut descriptors = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    let readable = poll(&mut descriptors, PollTimeout::ZERO);
    readable.is_ok_and(|count| count > 0) || proc::Stat::of(pid).is_none()
}

/// Action after a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterRequest {
    Continue,
    End,
}

/// The process and its dumps.
struct Watch {
    agent: Agent,
    prefix: PathBuf,
    /// Number of dumps so far.
    dumps: u32,
    /// True for a forked child, whose prefix ends in its pid.
    is_child: bool,
    /// True once the process has executed another program.
    is_replaced: bool,
    progress: Progress,
}

impl Watch {
    /// Checks whether the process has executed another program. If it has, nothing more is written
    /// here: the new program's agent, if it has one, starts a command of its own.
    fn check_exec(&mut self) {
        let maps = proc::maps(self.agent.pid).unwrap_or_default();
        self.is_replaced |= !maps.is_empty() && self.agent.confirm().is_err();
    }

    /// Writes a dump if one is due.
    fn dump_if_due(&mut self) {
        let now = Instant::now();
        let Some(totals) = self.totals() else { return };
        let Some(reason) = self.progress.dump_reason(&totals, now) else {
            return;
        };
        self.check_exec();
        if !self.is_replaced {
            self.progress.record_dump(&totals, now);
            self.write(&reason);
        }
    }

    /// Returns the totals of the running session.
    fn totals(&self) -> Option<Totals> {
        if self.is_replaced {
            return None;
        }
        let mut head = Head::new();
        let header = self.agent.segment.head(&mut head).ok()?;
        let session = live::session_of(&self.agent, &header)?;
        if !live::is_counting(&header, &session) {
            return None;
        }
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = self.agent.segment.bank(session.number, &mut buffer);
        bank.ok().map(|bank| bank.totals())
    }

    /// Writes a dump of the running process.
    fn write(&mut self, reason: &str) {
        let written = profile(&self.agent, reason);
        self.write_numbered(written);
    }

    /// Writes a profile under the next number.
    fn write_numbered(&mut self, built: anyhow::Result<::profile::Profile>) {
        self.dumps += 1;
        let path = self.path();
        if let Err(error) = built.and_then(|profile| write_profile(profile, &path)) {
            warning(&format!("{}: no dump: {error:#}", text::path(&path)));
            self.dumps -= 1;
        }
    }

    /// Returns the path of the last dump.
    fn path(&self) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(format!(".{:04}.heap", self.dumps));
        PathBuf::from(name)
    }

    /// Answers a request.
    fn serve(&mut self, mut stream: UnixStream) -> AfterRequest {
        let Some(request) = self.read_request(&stream) else {
            return AfterRequest::Continue;
        };
        let mut after = AfterRequest::Continue;
        let mut answer = String::new();
        match request.split_once(' ') {
            Some(("dump", reason)) => {
                self.write(&format!("the program: {}", text::escape(reason.as_bytes())))
            }
            _ if request == HAND_OVER => {
                let dumps = self.dumps;
                let prefix = self.prefix.to_string_lossy();
                let child = u8::from(self.is_child);
                answer = format!("{dumps} {child} {prefix}");
                self.discard();
                after = AfterRequest::End;
            }
            _ if request == "exit" => {
                self.finish();
                after = AfterRequest::End;
            }
            _ => return after,
        }
        // An error means that the process has exited.
        let _ = agent_request::reply(&mut stream, answer.as_bytes());
        if request == HAND_OVER {
            // Left open until this process ends. The kernel then closes it after the listening
            // socket, so the other command takes its end to mean that the socket's name is free.
            std::mem::forget(stream);
        }
        after
    }

    /// Reads a request of the process, or of the command that takes over.
    fn read_request(&self, stream: &UnixStream) -> Option<String> {
        let peer = getsockopt(stream, PeerCredentials).ok()?;
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT)).ok()?;
        let mut request = String::new();
        let mut limited = stream.take(MAX_REQUEST_BYTES);
        limited.read_to_string(&mut request).ok()?;
        let is_same_user = peer.uid() == nix::unistd::geteuid().as_raw();
        let is_allowed = peer.pid() == self.agent.pid || is_same_user && request == HAND_OVER;
        is_allowed.then_some(request)
    }

    /// Writes the last dump of a process that is exiting.
    fn finish(&mut self) {
        let Some(totals) = self.totals() else { return };
        if self.is_worth_it(&totals) {
            self.write("exit");
            self.print_next_command();
        }
    }

    /// Writes the last dump of a process that has been killed, and removes its segment.
    fn finish_dead(&mut self) {
        self.agent.life = Life::Dead;
        let mut head = Head::new();
        let header = self.agent.segment.full_head(&mut head);
        let totals = header.ok().and_then(|header| {
            let session = uncollected(&self.agent, &header)?;
            let mut buffer = [0; BANK_HEADER_BYTES];
            let bank = self.agent.segment.bank(session.number, &mut buffer).ok()?;
            Some(bank.totals())
        });
        let is_worth_it = totals.is_some_and(|totals| self.is_worth_it(&totals));
        if is_worth_it && !self.is_replaced {
            let built = live::last_profile(&self.agent, "end of the process", Ended::Gone);
            let built = built
                .map_err(anyhow::Error::from)
                .and_then(|built| built.context("there is no session"));
            self.write_numbered(built);
            self.print_next_command();
        }
        self.discard();
    }

    fn is_worth_it(&self, totals: &Totals) -> bool {
        !self.is_child || totals.alloc_bytes >= MIN_CHILD_BYTES
    }

    /// Prints how to read the last dump.
    fn print_next_command(&self) {
        if !self.is_child && self.dumps > 0 {
            let path = text::shell_word(self.path());
            diagnostic(&format!(
                "{} of {}; next: mem_parser {path}",
                text::count(u64::from(self.dumps), "heap profile", "heap profiles"),
                self.agent.title()
            ));
        }
    }

    /// Removes the segment of a program that no longer runs.
    fn discard(&self) {
        // An error leaves the segment to `mem_profiler clean`.
        let _ = self.agent.segment.remove();
    }
}

/// State of the command that watched the process's earlier program.
struct Earlier {
    prefix: PathBuf,
    dumps: u32,
    is_child: bool,
}

/// Socket for requests.
struct RequestSocket {
    listener: UnixListener,
    name: String,
    earlier: Option<Earlier>,
}

impl RequestSocket {
    /// Binds the socket of a process. Takes over from the command that watched its earlier program.
    fn open(pid: i32) -> anyhow::Result<Self> {
        let start = proc::Stat::of(pid)
            .context("the process has exited")?
            .start_time;
        let preferred = format!("mem-profiler-heap-{pid}-{start}");
        let address = SocketAddr::from_abstract_name(&preferred)?;
        let earlier = UnixStream::connect_addr(&address).ok().and_then(take_over);
        // Somebody else may have taken the name.
        let fallback = format!("{preferred}-{}", std::process::id());
        for name in [preferred, fallback] {
            let address = SocketAddr::from_abstract_name(&name)?;
            if let Ok(listener) = UnixListener::bind_addr(&address) {
                listener.set_nonblocking(true)?;
                return Ok(Self {
                    listener,
                    name,
                    earlier,
                });
            }
        }
        anyhow::bail!("no socket for the program's requests")
    }
}

/// Asks an earlier command for its prefix, and waits until it has ended.
fn take_over(mut stream: UnixStream) -> Option<Earlier> {
    let peer = getsockopt(&stream, PeerCredentials).ok()?;
    if peer.uid() != nix::unistd::geteuid().as_raw() {
        return None;
    }
    stream.set_read_timeout(Some(REQUEST_TIMEOUT)).ok()?;
    stream.write_all(HAND_OVER.as_bytes()).ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    let mut answer = Vec::new();
    // The stream ends when the command does, and its socket's name is free then.
    stream.read_to_end(&mut answer).ok()?;
    let text = String::from_utf8(answer.get(size_of::<u64>()..)?.to_vec()).ok()?;
    let mut words = text.splitn(3, ' ');
    let dumps = words.next()?.parse().ok()?;
    let is_child = words.next()? == "1";
    let prefix = PathBuf::from(words.next()?);
    Some(Earlier {
        prefix,
        dumps,
        is_child,
    })
}
