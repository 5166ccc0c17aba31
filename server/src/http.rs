//! The HTTP server: hyper on one tokio thread, with limits on everything that clients can consume.
//!
//! Guarantees:
//! - A connection is closed if it does not complete a request within `REQUEST_TIMEOUT`, or reads
//!   nothing of a response for `writes::STALL_TIMEOUT`. A request's head has at most
//!   `MAX_HEAD_BYTES`, its body `MAX_BODY_BYTES`.
//! - At most `MAX_CONNECTIONS` connections are open. One more evicts the oldest idle one, so that
//!   idle connections cannot lock clients out.
//! - Large answers that are being sent take at most `MAX_SENDING_KIB` of memory; files are read
//!   while they are sent.
//! - At most `MAX_WAITING` requests wait for a session or for another program.
//! - A few threads do the work. If a client has left, only the current step of its work is
//!   completed.

// Decision 43: a server of its own, on hyper.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::Instant;

use crate::content::Content;
use crate::guard::Guard;
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::server::Server;
use crate::writes::TimedWrites;

/// Maximum time for a request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a request's head, in bytes.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Maximum size of a request's body (addresses to name), in bytes.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Maximum number of requests that wait while a session samples.
const MAX_WAITING: usize = 64;
/// Maximum size of all large answers that are being sent from memory, in KiB: clients may read as
/// slowly as they like.
const MAX_SENDING_KIB: usize = 16 << 10;
/// Maximum size of an answer that does not count towards `MAX_SENDING_KIB`, in bytes.
const MAX_UNCOUNTED_BYTES: usize = 64 << 10;
/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 512;
/// Maximum number of wrong tokens per minute that are answered immediately.
const MAX_GUESSES: u32 = 10;
/// Delay of the answers to further wrong tokens.
const GUESS_DELAY: Duration = Duration::from_secs(1);
/// Pause after `accept` has failed for lack of resources.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Interval between checks of sessions and of waiting clients.
pub const TICK: Duration = Duration::from_millis(100);

/// Listening socket.
pub enum Listener {
    /// The network, mostly loopback.
    Tcp(TcpListener),
    /// Unix socket.
    Unix(UnixListener),
}

/// State shared by all connections.
struct Shared {
    server: Server,
    guard: Guard,
    /// Permits to use a worker thread.
    work_permits: Semaphore,
    /// Permits to wait while a session samples.
    waiting_permits: Semaphore,
    /// Permits to keep a KiB of an answer in memory until it is sent.
    sending_permits: Arc<Semaphore>,
    /// Wrong tokens of the last minute.
    guesses: Guesses,
    /// Open connections by number, in order of age.
    connections: Mutex<BTreeMap<u64, Connection>>,
}

/// Wrong tokens that clients have sent.
#[derive(Default)]
struct Guesses {
    /// Beginning of the present minute, and the number of wrong tokens in it.
    recent: Mutex<Option<(Instant, u32)>>,
}

impl Guesses {
    /// Counts a wrong token, and reports some of them. Returns true if there are so many that the
    /// answer should be delayed.
    fn count_wrong_token(&self) -> bool {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = Duration::from_secs(60);
        let (since, earlier) = recent
            .filter(|(since, _)| since.elapsed() < minute)
            .unwrap_or((Instant::now(), 0));
        let count = earlier.saturating_add(1);
        *recent = Some((since, count));
        if count == 1 || count == MAX_GUESSES + 1 {
            let delayed = if count > MAX_GUESSES {
                "; further ones are answered late"
            } else {
                ""
            };
            crate::say(&format!(
                "a request with a wrong token was refused, {count} within a minute{delayed}"
            ));
        }
        count > MAX_GUESSES
    }
}

/// An open connection.
struct Connection {
    abort: AbortHandle,
    /// True while a request is processed.
    is_busy: Arc<AtomicBool>,
}

impl Shared {
    /// Evicts an idle connection if there are too many. Returns false if all are busy.
    fn make_room(&self) -> bool {
        let mut open = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if open.len() < MAX_CONNECTIONS {
            return true;
        }
        self.server.counts.evicted.fetch_add(1, Ordering::Relaxed);
        let is_idle =
            |(_, connection): &(&u64, &Connection)| !connection.is_busy.load(Ordering::Relaxed);
        let oldest = open.iter().find(is_idle).map(|(number, _)| *number);
        let Some(oldest) = oldest else {
            return false;
        };
        if let Some(connection) = open.remove(&oldest) {
            connection.abort.abort();
        }
        true
    }

    fn add(&self, number: u64, connection: Connection) {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.insert(number, connection);
    }

    fn remove(&self, number: u64) {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connections.remove(&number);
    }
}

/// Serves until `end` completes.
pub async fn serve(
    listener: Listener,
    server: Server,
    guard: Guard,
    end: impl Future<Output = ()>,
) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let shared = Arc::new(Shared {
        server,
        guard,
        work_permits: Semaphore::new(threads.clamp(2, 8)),
        waiting_permits: Semaphore::new(MAX_WAITING),
        sending_permits: Arc::new(Semaphore::new(MAX_SENDING_KIB)),
        guesses: Guesses::default(),
        connections: Mutex::default(),
    });
    let local = LocalSet::new();
    let accepting = local.run_until(async move {
        let mut number = 0;
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    number += 1;
                    spawn_connection(&shared, stream, number);
                }
                // Usually out of descriptors: some will be closed soon.
                Err(error) if is_out_of_resources(&error) => {
                    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                }
                // The client has already left.
                Err(_) => {}
            }
        }
    });
    wait_for_either(accepting, end).await;
}

/// Returns true if `accept` failed for lack of resources, so that an immediate retry would fail
/// too.
fn is_out_of_resources(error: &io::Error) -> bool {
    let resources = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error
        .raw_os_error()
        .is_none_or(|code| resources.contains(&code))
}

/// Waits until one of the two futures is done.
async fn wait_for_either(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let mut first = std::pin::pin!(first);
    let mut second = std::pin::pin!(second);
    std::future::poll_fn(|context| {
        match (second.as_mut().poll(context), first.as_mut().poll(context)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
}

/// A connection's two directions.
trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin {
    /// Returns the other end of the connection.
    fn client(&self) -> Client;
}

impl Stream for TcpStream {
    /// Treats a client that has shut down its sending side as one that has left, because they look
    /// the same.
    fn client(&self) -> Client {
        Client {
            descriptor: self.as_raw_fd(),
            left_event: libc::POLLRDHUP,
        }
    }
}

impl Stream for UnixStream {
    fn client(&self) -> Client {
        Client {
            descriptor: self.as_raw_fd(),
            left_event: libc::POLLHUP,
        }
    }
}

/// The other end of an open connection.
#[derive(Clone, Copy)]
struct Client {
    descriptor: RawFd,
    /// Poll event that signals that the client has left.
    left_event: libc::c_short,
}

impl Client {
    fn has_left(self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.descriptor,
            events: self.left_event,
            revents: 0,
        };
        // SAFETY: `poll` is one initialised pollfd, which outlives the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0 && poll.revents & (self.left_event | libc::POLLHUP | libc::POLLERR) != 0
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without this, Nagle's algorithm delays small responses.
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Starts a task that serves a connection.
fn spawn_connection(shared: &Arc<Shared>, stream: Box<dyn Stream>, number: u64) {
    if !shared.make_room() {
        return;
    }
    let is_busy = Arc::new(AtomicBool::new(false));
    let task = serve_connection(Arc::clone(shared), stream, number, Arc::clone(&is_busy));
    let abort = tokio::task::spawn_local(task).abort_handle();
    shared.add(number, Connection { abort, is_busy });
}

/// Serves the requests of a connection.
async fn serve_connection(
    shared: Arc<Shared>,
    stream: Box<dyn Stream>,
    number: u64,
    is_busy: Arc<AtomicBool>,
) {
    let client = stream.client();
    let io = TimedWrites::new(TokioIo::new(stream));
    let shared_for_requests = Arc::clone(&shared);
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared_for_requests);
        let is_busy = Arc::clone(&is_busy);
        async move {
            let reply = answer(&shared, request, client, &is_busy).await;
            Ok::<_, Infallible>(response(&shared, reply))
        }
    });
    let result = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        // More than a head may have. `read` checks its exact size.
        .max_buf_size(2 * MAX_HEAD_BYTES)
        // A client may shut down its sending side and still wait for its answer.
        .half_close(true)
        .serve_connection(io, service)
        .await;
    // Errors of disconnecting clients are not reported.
    drop(result);
    shared.remove(number);
}

/// Reads a request and answers it. The connection is busy only while the request is processed, so
/// one that sends slowly may be evicted.
async fn answer(
    shared: &Shared,
    request: hyper::Request<Incoming>,
    client: Client,
    is_busy: &AtomicBool,
) -> Reply {
    match read(shared, request).await {
        Ok(request) => {
            is_busy.store(true, Ordering::Relaxed);
            let reply = process(shared, request, client).await;
            is_busy.store(false, Ordering::Relaxed);
            reply
        }
        Err(refusal) => refusal,
    }
}

/// Checks and reads a request.
async fn read(shared: &Shared, request: hyper::Request<Incoming>) -> Result<Request, Reply> {
    let (head, body) = request.into_parts();
    if head_bytes(&head) > MAX_HEAD_BYTES {
        let why = format!("the head of a request has at most {MAX_HEAD_BYTES} bytes");
        return Err(Reply::refusal(431, why));
    }
    // A proxy may have used another of several `Host` headers than we would.
    if head.headers.get_all("host").iter().count() > 1 {
        return Err(Reply::refusal(
            400,
            "a request must have exactly one Host header",
        ));
    }
    let is_post = head.method == Method::POST;
    if !is_post && head.method != Method::GET && head.method != Method::HEAD {
        let refusal = Reply::refusal(405, "only GET and POST are answered");
        return Err(refusal.with_header("Allow", "GET, HEAD, POST".to_owned()));
    }
    let path = head.uri.path();
    let query = head.uri.query().unwrap_or_default();
    let mut requested = Request::parse(path, query)?;
    requested.is_post = is_post;
    let access = Server::access(&requested.path, is_post);
    if let Err(refusal) = shared.guard.check(&head.headers, access) {
        let is_wrong = refusal.status == 401 && head.headers.contains_key("authorization");
        if is_wrong && shared.guesses.count_wrong_token() {
            tokio::time::sleep(GUESS_DELAY).await;
        }
        return Err(refusal);
    }
    let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    requested.accept = header("accept").unwrap_or_default().to_owned();
    requested.accepts_gzip = header("accept-encoding").is_some_and(accepts_gzip);
    let body = Limited::new(body, MAX_BODY_BYTES).collect();
    let body = tokio::time::timeout(REQUEST_TIMEOUT, body).await;
    let body = body.map_err(|_| Reply::refusal(408, "the request did not arrive in time"))?;
    let body = body.map_err(|_| {
        Reply::refusal(413, format!("a request has at most {MAX_BODY_BYTES} bytes"))
    })?;
    requested.body = body.to_bytes().to_vec();
    Ok(requested)
}

/// Returns true if the header `Accept-Encoding` permits gzip.
fn accepts_gzip(value: &str) -> bool {
    value.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let is_refused = ["q=0", "q=0.0", "q=0.00", "q=0.000"].contains(&weight.trim());
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

/// Returns the size of a request's head in its usual form: lines that end in CRLF, and one space
/// after each colon.
fn head_bytes(head: &hyper::http::request::Parts) -> usize {
    const LINE: usize = "  HTTP/1.1\r\n".len();
    let target = head
        .uri
        .path_and_query()
        .map_or(1, |target| target.as_str().len());
    let lines = head.headers.iter();
    let lines = lines.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    head.method.as_str().len() + target + LINE + lines.sum::<usize>() + "\r\n".len()
}

/// Lets worker threads process a request step by step while its client is connected.
async fn process(shared: &Shared, request: Request, client: Client) -> Reply {
    let server = shared.server.clone();
    let accepts_gzip = request.accepts_gzip;
    let mut waiting_permit = None;
    let mut step: Box<dyn FnOnce() -> Step + Send> = Box::new(move || server.answer(&request));
    loop {
        let Ok(permit) = shared.work_permits.acquire().await else {
            return Reply::refusal(503, "the server ends");
        };
        let run_step = move || match step() {
            Step::Done(reply) => Step::Done(reply.encoded(accepts_gzip)),
            later => later,
        };
        let result = tokio::task::spawn_blocking(run_step).await;
        drop(permit);
        match result {
            Ok(Step::Done(reply)) => return reply,
            Ok(Step::Later(delay, next)) => {
                if waiting_permit.is_none() {
                    waiting_permit = shared.waiting_permits.try_acquire().ok();
                }
                if waiting_permit.is_none() {
                    return Reply::refusal(503, "too many clients wait for a profile already");
                }
                let until = Instant::now() + delay;
                while Instant::now() < until {
                    if client.has_left() {
                        return Reply::refusal(
                            400,
                            "a client that waits for a profile must keep its sending side open: \
                             otherwise it looks like one that has left",
                        );
                    }
                    tokio::time::sleep_until(until.min(Instant::now() + TICK)).await;
                }
                step = next;
            }
            Err(_) => return Reply::refusal(500, "the request could not be processed"),
        }
    }
}

/// Returns a permit to keep a large answer in memory until it is sent; `None` if it needs none.
fn reserve_memory(shared: &Shared, size: usize) -> Result<Option<OwnedSemaphorePermit>, Reply> {
    if size <= MAX_UNCOUNTED_BYTES {
        return Ok(None);
    }
    let kib = size.div_ceil(1024).min(MAX_SENDING_KIB) as u32;
    let permit = Arc::clone(&shared.sending_permits).try_acquire_many_owned(kib);
    permit.map(Some).map_err(|_| {
        Reply::refusal(
            503,
            "clients read other large answers too slowly: try again, and accept gzip",
        )
    })
}

fn response(shared: &Shared, reply: Reply) -> Response<Content> {
    let (reply, memory_permit) = match reserve_memory(shared, reply.body.size()) {
        Ok(permit) => (reply, permit),
        Err(refusal) => (refusal, None),
    };
    shared.server.counts.count_answer(reply.status);
    let mut response = Response::new(Content::new(reply.body, memory_permit));
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(reply.content_type));
    let fixed_headers = [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ];
    for (name, value) in fixed_headers {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, value) in reply.headers {
        if let (Ok(name), Ok(value)) = (
            hyper::header::HeaderName::try_from(name),
            HeaderValue::try_from(value),
        ) {
            headers.insert(name, value);
        }
    }
    response
}
