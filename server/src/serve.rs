//! `serve`: listens, and maintains the sessions.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mem_agents::segment::Head;
use mem_agents::select::Selection;
use mem_agents::target::is_running;
use mem_agents::text;
use mem_agents::waiting::Signals;

use crate::address::Address;
use crate::agents::Agents;
use crate::cli::ServeArgs;
use crate::guard::{self, Guard};
use crate::http::{self, Listener, TICK};
use crate::naming::FunctionNames;
use crate::server::Server;
use crate::sessions::{RequestedSettings, Sessions, Settings};
use crate::socket::{self, Socket};
use crate::sources::Sources;

/// Interval between searches for new processes to sample.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between checks for histories and snapshots that are due.
const OBSERVATION_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between checks while no session runs.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Maximum number of worker threads.
const MAX_WORKERS: usize = 16;

/// Serves until a signal arrives.
pub fn execute(args: ServeArgs) -> anyhow::Result<()> {
    let token = args.token_file.as_deref().map(guard::token).transpose()?;
    let loopback = match &args.listen {
        Address::Tcp(address) => address.ip().is_loopback(),
        Address::Unix(_) => true,
    };
    ensure!(
        loopback || token.is_some(),
        "{} can be reached from other machines: require a token (--token-file FILE), or listen on \
         127.0.0.1 or unix:PATH",
        display_address(&args.listen)
    );
    raise_file_limit();
    use_little_memory();
    let signals = Signals::block(&[])?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(MAX_WORKERS)
        .thread_stack_size(4 << 20)
        .build()?;
    let guard = Guard {
        token,
        loopback: matches!(args.listen, Address::Tcp(_)) && loopback,
    };
    let interval = &args.interval;
    let settings = Settings::new(
        interval.initial_density().interval,
        interval.overhead_limit(),
        interval.thin,
    );
    let sessions = Sessions::new(settings, interval.max_overhead.is_none());
    let agents = Agents::new(Selection::from(args.select));
    // A child that runs this same program, even if its file was replaced, looks up function names.
    let names = FunctionNames::new("/proc/self/exe".into());
    let server = Server::new(Sources::new(agents, Arc::clone(&sessions), names));
    let _entered = runtime.enter();
    // No other user may read files of this program.
    // SAFETY: umask takes an integer; no other thread creates files yet.
    unsafe { libc::umask(0o077) };
    let OpenListener {
        listener,
        address,
        socket,
    } = listen(&args.listen)?;
    if !args.quiet {
        // Serves even if nobody reads this line.
        let _ = writeln!(io::stdout().lock(), "serving at {address}");
    }
    let observer = Observer::start(server.clone());
    let process_list = Arc::clone(&server.sources.process_list);
    let session_server = server.clone();
    runtime.block_on(async {
        let maintenance = tokio::task::spawn_blocking(move || {
            maintain_sessions(&session_server, args.sample, &signals)
        });
        let end = async {
            // Done when a signal has arrived. The join cannot fail, because a panic aborts.
            let _ = maintenance.await;
        };
        http::serve(listener, server, guard, end).await;
    });
    sessions.end();
    observer.stop();
    process_list.end();
    if let Some(socket) = socket {
        socket.remove();
    }
    // Does not wait for clients that wait for a profile.
    runtime.shutdown_background();
    Ok(())
}

fn display_address(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", text::path(path)),
    }
}

/// A listening socket.
struct OpenListener {
    listener: Listener,
    /// Address for display.
    address: String,
    /// Unix socket to remove at the end.
    socket: Option<Socket>,
}

/// Listens on an address.
fn listen(address: &Address) -> anyhow::Result<OpenListener> {
    match address {
        Address::Tcp(requested) => {
            let listener =
                TcpListener::bind(requested).map_err(|error| bind_error(*requested, error))?;
            listener.set_nonblocking(true)?;
            let bound_address = listener.local_addr()?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            Ok(OpenListener {
                listener: Listener::Tcp(listener),
                address: format!("http://{bound_address}/"),
                socket: None,
            })
        }
        Address::Unix(path) => {
            let (listener, socket) = socket::bind(path).with_context(|| text::path(path))?;
            listener.set_nonblocking(true)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            Ok(OpenListener {
                listener: Listener::Unix(listener),
                address: display_address(address),
                socket: Some(socket),
            })
        }
    }
}

fn bind_error(address: SocketAddr, error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "{address} is in use by another program: choose another port with --listen"
        ),
        _ => anyhow::anyhow!("{address}: {error}"),
    }
}

/// Thread that updates histories and snapshots, also while no client requests them.
struct Observer {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Observer {
    fn start(server: Server) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || {
            while !is_stopped.load(Ordering::Relaxed) {
                server
                    .sources
                    .process_list
                    .tick(&server.sources.agents, &server.sources.sessions);
                server.snapshots.tick(&server.sources);
                std::thread::park_timeout(OBSERVATION_INTERVAL);
            }
        });
        Self { stopped, thread }
    }

    fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // The join cannot fail, because a panic aborts.
        let _ = self.thread.join();
    }
}

/// Extends and ends sessions until a signal arrives. With `sample_new`, starts a session in each
/// new process.
fn maintain_sessions(server: &Server, sample_new: bool, signals: &Signals) {
    let mut last_search: Option<Instant> = None;
    loop {
        if sample_new && last_search.is_none_or(|time| time.elapsed() >= SEARCH_INTERVAL) {
            last_search = Some(Instant::now());
            sample_all(server);
        }
        server.sources.sessions.tick();
        let interval = if server.sources.sessions.is_idle() {
            IDLE_TICK
        } else {
            TICK
        };
        match signals.wait(&[], interval) {
            Ok(received) if received.iter().any(|signal| signal.ends_session()) => return,
            Ok(_) => {}
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

/// Starts a session in each process that has none.
fn sample_all(server: &Server) {
    let mut head = Head::new();
    for agent in server.sources.agents.all() {
        let is_idle = |agent: &mem_agents::discovery::Agent, head: &mut Head| {
            agent
                .segment
                .head(head)
                .is_ok_and(|header| !is_running(&header))
        };
        if is_idle(&agent, &mut head) {
            // Another controller may have been faster, or the agent cannot sample, as `list` shows.
            let _ = server
                .sources
                .sessions
                .start(agent, RequestedSettings::default(), None);
        }
    }
}

/// Makes all threads allocate from one arena. With an arena each, every thread would keep the
/// memory of the largest answer that it has ever built.
fn use_little_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes integers; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

/// Raises the limit on file descriptors: each connection and each segment takes one.
fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a complete rlimit, which outlives both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(1 << 16);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_network_addresses_or_paths() {
        let tcp = |text: &str| Ok(Address::Tcp(text.parse().unwrap()));
        assert_eq!("127.0.0.1:1".parse(), tcp("127.0.0.1:1"));
        assert_eq!("localhost:80".parse(), tcp("127.0.0.1:80"));
        assert_eq!("[::1]:80".parse(), tcp("[::1]:80"));
        assert_eq!("unix:/a b".parse(), Ok(Address::Unix("/a b".into())));
        for wrong in ["", "unix:", "1.2.3.4", "host:80", ":80", "127.0.0.1:99999"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
