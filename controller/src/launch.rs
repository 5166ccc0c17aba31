//! Starts a program with the agent, forwards signals to it, and passes on its exit status.

pub mod inherited;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::{Context, bail};
use mem_agents::discovery::HIDDEN_PREFIX;
use mem_agents::governor;
use mem_agents::segment::{Directory, RUN_PREFIX};
use mem_agents::siblings;
use mem_agents::target::{Density, ROLLING_LENGTH};
use mem_agents::text;
use mem_agents::waiting::{Received, Signals, unblock_all};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal};
use proc::Stat;
use shm_protocol::segment::DIR_VARIABLE;

use crate::python;

/// Signals that are forwarded to the program.
const FORWARDED: [Signal; 17] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
    Signal::SIGTRAP,
    Signal::SIGABRT,
    Signal::SIGURG,
    Signal::SIGCONT,
    Signal::SIGXCPU,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
];

/// Blocks the signals that end a session and the one that requests a dump. If the session starts a
/// program, also those that it forwards, and `SIGCHLD`.
pub fn block_signals(dump_signal: Option<Signal>, launches: bool) -> nix::Result<Signals> {
    let mut signals: Vec<Signal> = dump_signal.into_iter().collect();
    if launches {
        signals.extend(FORWARDED);
        signals.push(Signal::SIGCHLD);
    }
    Signals::block(&signals)
}

/// Environment variable: number of seccomp filters under which the agent may use timers.
pub const FILTERS_VARIABLE: &str = "MEM_PROFILER_FILTERS";

/// Program that we started.
pub struct LaunchedProgram {
    child: Child,
    /// Exit status; `None` while the program runs.
    pub status: Option<ExitStatus>,
    /// Name of the main thread when the program ended.
    pub last_name: Option<Vec<u8>>,
    /// Signal that requests a dump; it is not forwarded.
    dump_signal: Option<Signal>,
}

/// Request to sample a program from its first allocation.
pub struct Request<'a> {
    /// Interval and thinning.
    pub density: Density,
    /// Limit on the share of CPU time that sampling takes, from 0 to 1.
    pub max_overhead: Option<f64>,
    /// Directory of the segments, also of those of children.
    pub directory: &'a Path,
    /// Leak check, if one is requested.
    pub leak_check: Option<LeakCheck>,
    /// True if Python is to take every object from `malloc`.
    pub python_malloc: bool,
}

/// Leak check of a program that we start.
pub struct LeakCheck {
    /// Mode of gperftools' heap checker (`HEAPCHECK`).
    pub mode: String,
    /// True if the program waits at its exit until it has been checked.
    pub is_at_exit: bool,
}

impl LaunchedProgram {
    /// Starts `command` with the agent, which samples it from its first allocation.
    pub fn start(
        command: &[OsString],
        agent: &Path,
        request: Request,
        dump_signal: Option<Signal>,
    ) -> io::Result<Self> {
        let Request {
            density,
            max_overhead,
            directory,
            leak_check,
            python_malloc,
        } = request;
        let mut command = split_command(command)?;
        if python_malloc {
            command.env(python::VARIABLE, "malloc");
        }
        reserve_static_tls(&mut command);
        command
            .env("LD_PRELOAD", ld_preload_value(agent))
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_LEASE", lease_seconds())
            .env("MEM_PROFILER_INTERVAL", density.interval.to_string())
            .env(
                "MEM_PROFILER_MAX_OVERHEAD",
                governor::millionths(max_overhead).to_string(),
            )
            .env("MEM_PROFILER_THIN", density.thinning.to_string())
            .env(DIR_VARIABLE, directory);
        if let Some(check) = leak_check {
            command.env("HEAPCHECK", check.mode);
            if check.is_at_exit {
                command.env("MEM_PROFILER_LEAK_CHECK", std::process::id().to_string());
            }
        }
        Self::spawn(command, dump_signal)
    }

    /// Starts `command` with the agent, which samples CPU time from the start, with segments in
    /// `directory`. `filters` is the number of seccomp filters that are known to allow the agent's
    /// system calls.
    pub fn start_with_timers(
        command: &[OsString],
        agent: &Path,
        rate: u32,
        filters: Option<u32>,
        directory: &Path,
    ) -> io::Result<Self> {
        let mut command = split_command(command)?;
        reserve_static_tls(&mut command);
        command
            .env("LD_PRELOAD", ld_preload_value(agent))
            .env("MEM_PROFILER_CPU", rate.to_string())
            .env("MEM_PROFILER_LEASE", lease_seconds())
            .env(DIR_VARIABLE, directory);
        if let Some(filters) = filters {
            command.env(FILTERS_VARIABLE, filters.to_string());
        }
        Self::spawn(command, None)
    }

    /// Starts `command` without the agent.
    pub fn start_plain(command: &[OsString]) -> io::Result<Self> {
        Self::spawn(split_command(command)?, None)
    }

    /// Starts `command` without the agent. Calls `prepare` with its pid before it is executed, while
    /// it is still a copy of this process.
    pub fn start_prepared(command: &[OsString], prepare: impl FnOnce(i32)) -> io::Result<Self> {
        let mut command = split_command(command)?;
        let (mut pid_reader, mut pid_writer) = io::pipe()?;
        let (mut go_reader, mut go_writer) = io::pipe()?;
        let wait = move || {
            // SAFETY: `getpid` only returns a number.
            let pid = unsafe { libc::getpid() };
            pid_writer.write_all(&pid.to_ne_bytes())?;
            go_reader.read_exact(&mut [0])
        };
        // SAFETY: `wait` calls only `getpid`, `read` and `write`, which are async-signal-safe.
        unsafe { command.pre_exec(wait) };
        std::thread::scope(|scope| {
            // Returns only after the exec. If it fails before, the closure and with it the writing
            // end of the first pipe are dropped.
            let spawning = scope.spawn(|| Self::spawn(command, None));
            let mut pid = [0; size_of::<i32>()];
            if pid_reader.read_exact(&mut pid).is_ok() {
                prepare(i32::from_ne_bytes(pid));
                // Fails if the child was killed, which `spawn` reports.
                let _ = go_writer.write_all(&[1]);
            }
            spawning
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
        })
    }

    fn spawn(mut command: Command, dump_signal: Option<Signal>) -> io::Result<Self> {
        report_exits_only();
        // SAFETY: `restore` calls only async-signal-safe functions.
        unsafe { command.pre_exec(inherited::restore) };
        Ok(Self {
            child: command.spawn()?,
            status: None,
            last_name: None,
            dump_signal,
        })
    }

    /// Returns the pid of the program.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Checks whether the program has exited.
    pub fn poll_exit(&mut self) {
        // `waitpid` would take ptrace stops from a tracing thread of ours, so it is called only
        // after the exit.
        if self.status.is_none() && child_has_exited(self.pid()) {
            self.last_name = Stat::of(self.pid()).map(|stat| stat.comm);
            self.status = self.child.try_wait().ok().flatten();
        }
    }

    /// Forwards a signal, or records that the program has exited.
    pub fn handle_signal(&mut self, received: Received) {
        if received.signal == Signal::SIGCHLD {
            self.poll_exit();
        } else if self.status.is_none()
            && !received.from_terminal
            && Some(received.signal) != self.dump_signal
        {
            // The program may have exited just now; the error is ignored.
            let pid = nix::unistd::Pid::from_raw(self.pid());
            let _ = nix::sys::signal::kill(pid, received.signal);
        }
    }
}

/// Makes `SIGCHLD` report only exits, not stops.
fn report_exits_only() {
    // Sets the default action explicitly. If our parent ignored the signal, exit statuses would be
    // lost.
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::SA_NOCLDSTOP, SigSet::empty());
    // SAFETY: the new action has no handler, and this program installs none for SIGCHLD.
    let _ = unsafe { nix::sys::signal::sigaction(Signal::SIGCHLD, &action) };
}

/// Returns true if a child has exited. Consumes neither the exit status nor ptrace stops, which
/// `waitid` may report here, too.
fn child_has_exited(pid: i32) -> bool {
    // SAFETY: `siginfo_t` is plain data, and all zero bits are a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is a local that waitid fills.
    let result = unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, options) };
    let exit_codes = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
    result == 0 && exit_codes.contains(&info.si_code)
}

/// Splits a command into program and arguments.
fn split_command(command: &[OsString]) -> io::Result<Command> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Returns how long sessions that agents start by themselves last unless they are extended. They
/// must not outlive this program by much.
fn lease_seconds() -> String {
    ROLLING_LENGTH.as_secs().to_string()
}

/// Reserves static thread-local storage for the agent in a program that runs under `LD_AUDIT`.
/// glibc then sizes the static block before it knows of preloaded libraries, and would refuse to
/// start the program.
fn reserve_static_tls(command: &mut Command) {
    const VARIABLE: &str = "GLIBC_TUNABLES";
    const NAME: &str = "glibc.rtld.optional_static_tls";
    if std::env::var_os("LD_AUDIT").is_none_or(|auditors| auditors.is_empty()) {
        return;
    }
    let tunables = std::env::var_os(VARIABLE).unwrap_or_default();
    if tunables
        .as_bytes()
        .windows(NAME.len())
        .any(|part| part == NAME.as_bytes())
    {
        return;
    }
    let mut value = tunables;
    if !value.is_empty() {
        value.push(":");
    }
    // The agent takes 2 KiB.
    value.push(format!("{NAME}=4096"));
    command.env(VARIABLE, value);
}

/// Returns the value of `LD_PRELOAD`: our agent, followed by the present value.
fn ld_preload_value(agent: &Path) -> OsString {
    let mut value = agent.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        value.push(":");
        value.push(others);
    }
    value
}

/// Finds the agent's file: the requested one, or a file next to this program or in `../lib`.
pub fn find_agent(requested: Option<&Path>) -> anyhow::Result<PathBuf> {
    let candidates = match requested {
        Some(path) => vec![path.to_owned()],
        None => siblings::agent_places(),
    };
    let Some(agent) = candidates.iter().find_map(|path| path.canonicalize().ok()) else {
        let tried: Vec<String> = candidates.iter().map(text::path).collect();
        bail!(
            "the agent is not at {}: name it with --agent",
            tried.join(", ")
        );
    };
    if agent
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b" :\t".contains(b))
    {
        let name = text::path(&agent);
        bail!("{name}: the loader cannot preload a path with blanks or colons: move the agent");
    }
    Ok(agent)
}

/// Creates a private directory for the segments of a run.
pub fn make_directory(shared: &Path) -> anyhow::Result<PathBuf> {
    let time = shm_protocol::clock::unix_ns();
    let path = shared.join(format!("{RUN_PREFIX}{}.{time}", std::process::id()));
    if !nix::unistd::geteuid().is_root() {
        create_directory(&path, 0o700)?;
        mark_attended(&path)?;
        return Ok(path);
    }
    // A program that root starts may become any user, and its children create segments too. So
    // everyone may write to the inner directory. Its name cannot be guessed or listed: only the
    // program, its children, and users who may inspect them know it.
    let outer = create_directory(&path, 0o711)?;
    let mut name = [0; 16];
    let mut random = std::fs::File::open("/dev/urandom").context("/dev/urandom")?;
    random.read_exact(&mut name).context("/dev/urandom")?;
    let name = format!("{HIDDEN_PREFIX}{:032x}", u128::from_ne_bytes(name));
    // The descriptor makes sure that the directory just created is used.
    let outer = PathBuf::from(format!("/proc/self/fd/{}", outer.as_raw_fd()));
    create_directory(&outer.join(&name), 0o1733)?;
    let hidden = path.join(name);
    mark_attended(&hidden)?;
    Ok(hidden)
}

/// Marks the sessions in a directory as attended by this process, for `list`.
fn mark_attended(path: &Path) -> anyhow::Result<()> {
    Directory::attend(path).with_context(|| text::path(path))
}

/// Creates a directory with exactly these permissions. They are set through its descriptor, so a
/// replaced path has no effect.
fn create_directory(path: &Path, mode: u32) -> anyhow::Result<std::fs::File> {
    let make = || {
        std::fs::DirBuilder::new().mode(0o700).create(path)?;
        let directory = std::fs::File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(path)?;
        let metadata = directory.metadata()?;
        let is_ours =
            metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o077 == 0;
        if !is_ours {
            return Err(io::Error::other("another user has replaced it"));
        }
        directory.set_permissions(PermissionsExt::from_mode(mode))?;
        Ok(directory)
    };
    make().map_err(|error| {
        anyhow::anyhow!(
            "{}: {error}: set MEM_PROFILER_DIR to a directory on a tmpfs that you may write",
            text::path(path)
        )
    })
}

/// Returns the exit code that shells use for a program that could not be started.
pub fn start_failure_code(error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(127),
        _ => ExitCode::from(126),
    }
}

/// Exits as the program did: with its exit code, or by the same signal.
pub fn exit_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal().and_then(|s| Signal::try_from(s).ok()) {
        kill_self(signal);
        return ExitCode::from(128u8.saturating_add(signal as u8));
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}

fn kill_self(signal: Signal) {
    // A core dump of this process would be of no use.
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the new action has no handler. No other code depends on the old one, since this
    // process ends here.
    let _ = unsafe { nix::sys::signal::sigaction(signal, &default) };
    let _ = nix::sys::signal::raise(signal);
    let _ = unblock_all();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// Returns true if a child is stopped by ptrace. `options` are further options of waitid(2).
    fn is_stopped(pid: i32, options: i32) -> bool {
        // SAFETY: `siginfo_t` is plain data, and all-zero bytes are a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL | options;
        // SAFETY: `info` is a local that waitid fills.
        let result =
            unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, options) };
        result == 0 && info.si_code == libc::CLD_TRAPPED
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + DEADLINE;
        while !holds() {
            assert!(Instant::now() < end, "waited {DEADLINE:?} for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops a process, reports the stop, and waits for `go_on`. Then reports whether the stop is
    /// still pending.
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
        go_on.recv_timeout(DEADLINE).unwrap();
        stopped.send(is_stopped(pid, 0)).unwrap();
    }

    #[test]
    fn a_ptrace_stop_does_not_count_as_exit_and_stays_pending() {
        let mut child = LaunchedProgram::start_plain(&["sleep".into(), "1000".into()]).unwrap();
        let pid = child.pid();
        let (stopped, was_stopped) = channel();
        let (go, go_on) = channel();
        let tracer = std::thread::spawn(move || stop(pid, &stopped, &go_on));
        assert!(was_stopped.recv_timeout(DEADLINE).unwrap());
        for _ in 0..3 {
            child.poll_exit();
            assert_eq!(child.status, None);
        }
        go.send(()).unwrap();
        assert!(was_stopped.recv_timeout(DEADLINE).unwrap());
        tracer.join().unwrap();
        // SAFETY: `kill` takes numbers only, and `pid` is our child.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        until("its end", || {
            child.poll_exit();
            child.status.is_some()
        });
        assert_eq!(child.status.and_then(|s| s.signal()), Some(libc::SIGKILL));
    }

    #[test]
    fn the_exit_code_is_polled() {
        let command = ["sh", "-c", "exit 7"].map(OsString::from);
        let mut child = LaunchedProgram::start_plain(&command).unwrap();
        until("its end", || {
            child.poll_exit();
            child.status.is_some()
        });
        assert_eq!(child.status.and_then(|s| s.code()), Some(7));
    }
}
