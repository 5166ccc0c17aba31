//! Starting a program with the agent, forwarding signals to it, and passing on how it ends.

pub mod inherited;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::{Context, bail};
use mem_agents::discovery::{HIDDEN_PREFIX, RUN_PREFIX};
use mem_agents::segment::Directory;
use mem_agents::target::{Density, ROLLING};
use mem_agents::text;
use mem_agents::waiting::{Received, unblock_all};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal};
use shm_protocol::segment::DIR_VARIABLE;

use crate::python;

/// Signals that are passed on to the program.
pub const FORWARDED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
];

/// Tells the agent under how many seccomp filters timers are allowed.
pub const FILTERS_VARIABLE: &str = "MEM_PROFILER_FILTERS";

/// File name of the agent.
const AGENT: &str = "libmem_agent.so";

/// A program that we started.
pub struct Launched {
    child: Child,
    /// How it ended, once it has.
    pub status: Option<ExitStatus>,
    /// Not passed on: it asks us for a dump.
    dump_signal: Option<Signal>,
}

impl Launched {
    /// Starts `command` with the agent, which samples this densely from its
    /// first allocation, its segments and its children's in `directory`. `leak_check`: gperftools'
    /// mode of its checks, and whether at its exit it waits for one. `python_malloc`: Python takes each
    /// object from `malloc`.
    pub fn start(
        command: &[OsString],
        agent: &Path,
        density: Density,
        directory: &Path,
        (dump_signal, leak_check): (Option<Signal>, Option<(String, bool)>),
        python_malloc: bool,
    ) -> io::Result<Self> {
        let mut command = program(command)?;
        if python_malloc {
            command.env(python::VARIABLE, "malloc");
        }
        command
            .env("LD_PRELOAD", preload(agent))
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_LEASE", lease_seconds())
            .env("MEM_PROFILER_INTERVAL", density.interval.to_string())
            .env("MEM_PROFILER_THIN", density.thinning.to_string())
            .env(DIR_VARIABLE, directory);
        if let Some((mode, _)) = &leak_check {
            command.env("HEAPCHECK", mode);
        }
        if leak_check.is_some_and(|(_, waits)| waits) {
            command.env("MEM_PROFILER_LEAK_CHECK", std::process::id().to_string());
        }
        Self::spawn(command, dump_signal)
    }

    /// Starts `command` with the agent, which samples its CPU time and its children's at this rate
    /// from its start, with segments in `directory`. `filters`: how many seccomp filters are known to
    /// let its system calls pass.
    pub fn start_timed(
        command: &[OsString],
        agent: &Path,
        (rate, filters): (u32, Option<u32>),
        directory: &Path,
    ) -> io::Result<Self> {
        let mut command = program(command)?;
        command
            .env("LD_PRELOAD", preload(agent))
            .env("MEM_PROFILER_CPU", rate.to_string())
            .env("MEM_PROFILER_LEASE", lease_seconds())
            .env(DIR_VARIABLE, directory);
        if let Some(filters) = filters {
            command.env(FILTERS_VARIABLE, filters.to_string());
        }
        Self::spawn(command, None)
    }

    /// Starts `command` as it is.
    pub fn start_plain(command: &[OsString]) -> io::Result<Self> {
        Self::spawn(program(command)?, None)
    }

    fn spawn(mut command: Command, dump_signal: Option<Signal>) -> io::Result<Self> {
        hear_of_ends_only();
        // SAFETY: only async-signal-safe functions of the C library.
        unsafe { command.pre_exec(inherited::restore) };
        Ok(Self {
            child: command.spawn()?,
            status: None,
            dump_signal,
        })
    }

    /// The program's pid.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Asks whether the program has ended.
    pub fn ask(&mut self) {
        // If a thread of ours traces it, waiting would take its stops from that, and for its end.
        if self.status.is_none() && has_ended(self.pid()) {
            self.status = self.child.try_wait().ok().flatten();
        }
    }

    /// Passes a signal on, or notes that the program has ended.
    pub fn signal(&mut self, received: Received) {
        if received.signal == Signal::SIGCHLD {
            self.ask();
        } else if self.status.is_none()
            && !received.from_terminal
            && Some(received.signal) != self.dump_signal
        {
            // It may have ended just now: then there is nobody to tell.
            let pid = nix::unistd::Pid::from_raw(self.pid());
            let _ = nix::sys::signal::kill(pid, received.signal);
        }
    }
}

/// `SIGCHLD` comes when a child ends, and not whenever it is stopped to be examined.
fn hear_of_ends_only() {
    // By default, and not ignored, whoever started us: how a child ended would be lost.
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::SA_NOCLDSTOP, SigSet::empty());
    // SAFETY: no handler is installed, and none of ours is replaced.
    let _ = unsafe { nix::sys::signal::sigaction(Signal::SIGCHLD, &action) };
}

/// Whether a child has ended. Nothing is taken from those who wait for it, nor from those who trace
/// it: the kernel reports a traced child's stops even if only exits were requested.
fn has_ended(pid: i32) -> bool {
    // SAFETY: plain numbers and a union of them, all of which may be zero.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is ours to fill.
    let got = unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, options) };
    let ends = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
    got == 0 && ends.contains(&info.si_code)
}

/// The program and its arguments.
fn program(command: &[OsString]) -> io::Result<Command> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// How long the sessions that agents begin by themselves last unless they are extended: they must
/// not outlive this program by more, and their environment does.
fn lease_seconds() -> String {
    ROLLING.as_secs().to_string()
}

/// Our agent before what is preloaded anyway.
fn preload(agent: &Path) -> OsString {
    let mut value = agent.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        value.push(":");
        value.push(others);
    }
    value
}

/// The agent's file: the one given, or one next to this program or in `../lib`.
pub fn find_agent(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where is this program?")?;
    let here = own.parent().unwrap_or(Path::new("/"));
    let candidates = match given {
        Some(given) => vec![given.to_owned()],
        None => vec![
            here.join(AGENT),
            here.join("../lib").join(AGENT),
            here.join("../lib/mem-profiler").join(AGENT),
        ],
    };
    let Some(found) = candidates.iter().find_map(|path| path.canonicalize().ok()) else {
        let tried: Vec<String> = candidates.iter().map(text::path).collect();
        bail!(
            "the agent is not at {}: name it with --agent",
            tried.join(", ")
        );
    };
    if found
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b" :\t".contains(b))
    {
        let shown = text::path(&found);
        bail!("{shown}: the loader cannot preload a path with blanks or colons: move the agent");
    }
    Ok(found)
}

/// Makes a directory of its own for the segments of a run.
pub fn make_directory(shared: &Path) -> anyhow::Result<PathBuf> {
    let time = shm_protocol::clock::unix_ns();
    let path = shared.join(format!("{RUN_PREFIX}{}.{time}", std::process::id()));
    if !nix::unistd::geteuid().is_root() {
        make_one(&path, 0o700)?;
        attend(&path)?;
        return Ok(path);
    }
    // A program that root starts may become any user, and its children make segments too.
    // So others may write there, but only those who are given its name can find it: our
    // program, its children, and those who may inspect them.
    let outer = make_one(&path, 0o711)?;
    let mut name = [0; 16];
    let mut random = std::fs::File::open("/dev/urandom").context("/dev/urandom")?;
    io::Read::read_exact(&mut random, &mut name).context("/dev/urandom")?;
    let name = format!("{HIDDEN_PREFIX}{:032x}", u128::from_ne_bytes(name));
    // In the very directory that was just made.
    let outer = PathBuf::from(format!("/proc/self/fd/{}", outer.as_raw_fd()));
    make_one(&outer.join(&name), 0o1733)?;
    let hidden = path.join(name);
    attend(&hidden)?;
    Ok(hidden)
}

/// Lets `list` see that we look after the sessions in a directory.
fn attend(path: &Path) -> anyhow::Result<()> {
    Directory::attend(path).with_context(|| text::path(path))
}

/// Makes a directory with these permissions, whatever the mask is. They are those of the directory
/// that was made, whatever others put at its path meanwhile.
fn make_one(path: &Path, mode: u32) -> anyhow::Result<std::fs::File> {
    let make = || {
        std::fs::DirBuilder::new().mode(0o700).create(path)?;
        let directory = std::fs::File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(path)?;
        let found = directory.metadata()?;
        let is_ours = found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o077 == 0;
        if !is_ours {
            return Err(io::Error::other("another user has replaced it"));
        }
        directory.set_permissions(PermissionsExt::from_mode(mode))?;
        Ok(directory)
    };
    make().with_context(|| text::path(path))
}

/// The exit code for a program that could not be started, as shells give it.
pub fn start_failure(error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(127),
        _ => ExitCode::from(126),
    }
}

/// Ends as the program ended: with its exit code, or by the signal that killed it.
pub fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal().and_then(|s| Signal::try_from(s).ok()) {
        die_of(signal);
        return ExitCode::from(128u8.saturating_add(signal as u8));
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}

fn die_of(signal: Signal) {
    // The program has left a core if one was wanted: ours would say nothing.
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler of ours is replaced that anybody relies on: we end here.
    let _ = unsafe { nix::sys::signal::sigaction(signal, &default) };
    let _ = nix::sys::signal::raise(signal);
    let _ = unblock_all();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Waits for a stop of a child; `options`: how.
    fn is_stopped(pid: i32, options: i32) -> bool {
        // SAFETY: plain numbers and a union of them, all of which may be zero.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL | options;
        // SAFETY: `info` is ours to fill.
        let got = unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, options) };
        got == 0 && info.si_code == libc::CLD_TRAPPED
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + LONG;
        while !is_so() {
            assert!(Instant::now() < end, "waited {LONG:?} for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops a process until something comes; then says whether that could still be seen.
    fn stop(pid: i32, stopped: &Sender<bool>, go_on: &Receiver<()>) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: both requests take numbers only.
        let is_ours = unsafe {
            libc::ptrace(libc::PTRACE_SEIZE, pid, none, none) == 0
                && libc::ptrace(libc::PTRACE_INTERRUPT, pid, none, none) == 0
        };
        assert!(is_ours, "{}", io::Error::last_os_error());
        until("the stop", || is_stopped(pid, libc::WNOWAIT));
        stopped.send(true).unwrap();
        go_on.recv_timeout(LONG).unwrap();
        stopped.send(is_stopped(pid, 0)).unwrap();
    }

    #[test]
    fn a_stop_by_ptrace_is_no_end_and_is_left_for_the_tracer() {
        let mut child = Launched::start_plain(&["sleep".into(), "1000".into()]).unwrap();
        let pid = child.pid();
        let (stopped, was_stopped) = channel();
        let (go, go_on) = channel();
        let tracer = std::thread::spawn(move || stop(pid, &stopped, &go_on));
        assert!(was_stopped.recv_timeout(LONG).unwrap());
        for _ in 0..3 {
            child.ask();
            assert_eq!(child.status, None);
        }
        go.send(()).unwrap();
        assert!(was_stopped.recv_timeout(LONG).unwrap());
        tracer.join().unwrap();
        // SAFETY: takes numbers only.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        until("its end", || {
            child.ask();
            child.status.is_some()
        });
        assert_eq!(child.status.and_then(|s| s.signal()), Some(libc::SIGKILL));
    }

    #[test]
    fn an_exit_code_is_asked_for() {
        let command = ["sh", "-c", "exit 7"].map(OsString::from);
        let mut child = Launched::start_plain(&command).unwrap();
        until("its end", || {
            child.ask();
            child.status.is_some()
        });
        assert_eq!(child.status.and_then(|s| s.code()), Some(7));
    }
}
