//! The HTTP server: hyper, on one thread of tokio, with limits on everything that a client can
//! consume.
//!
//! Promises
//! - A connection that sends no whole request within `PATIENCE`, or takes nothing of an answer for
//!   `STALL`, is closed. A head has at most `MOST_HEADERS` bytes, a body `MOST_BODY`.
//! - There are at most `MOST_CONNECTIONS`; one more closes the one that has waited longest for its
//!   next request, so that idle connections keep no client out.
//! - At most `MOST_WAITING` requests wait for a session, or for another program.
//! - Work is done by a few threads; for a client that has gone, only the current step is completed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{Instant, Sleep};

use crate::guard::Guard;
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::server::Server;

/// Longest time that a request may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time in which a client takes nothing of its answer.
const STALL: Duration = Duration::from_secs(20);
/// Maximum number of bytes of a request's head.
const MOST_HEADERS: usize = 32 << 10;
/// Maximum number of bytes of a request's body: addresses to be named.
const MOST_BODY: usize = 4 << 20;
/// Maximum number of requests that sample for some time, of all clients.
const MOST_WAITING: usize = 64;
/// Maximum number of connections at a time.
const MOST_CONNECTIONS: usize = 512;
/// How long nothing is accepted when that fails.
const BREATH: Duration = Duration::from_millis(50);
/// Time between looks after the sessions.
pub const TICK: Duration = Duration::from_millis(100);

/// Where clients come from.
pub enum Listener {
    /// The network, mostly loopback.
    Tcp(TcpListener),
    /// A socket in the file system.
    Unix(UnixListener),
}

/// What connections share.
struct Shared {
    server: Server,
    guard: Guard,
    /// Permits to work.
    work: Semaphore,
    /// Permits to wait while a session samples.
    waiting: Semaphore,
    connections: Mutex<BTreeMap<u64, Open>>,
}

/// A connection that is open.
struct Open {
    abort: AbortHandle,
    is_busy: Arc<AtomicBool>,
}

impl Shared {
    /// Makes room for one more connection; whether there is any.
    fn make_room(&self) -> bool {
        let mut open = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if open.len() < MOST_CONNECTIONS {
            return true;
        }
        self.server.counts.evicted.fetch_add(1, Ordering::Relaxed);
        let is_idle = |(_, open): &(&u64, &Open)| !open.is_busy.load(Ordering::Relaxed);
        let oldest = open.iter().find(is_idle).map(|(number, _)| *number);
        let Some(oldest) = oldest else {
            return false;
        };
        if let Some(open) = open.remove(&oldest) {
            open.abort.abort();
        }
        true
    }

    fn note(&self, number: u64, open: Open) {
        let mut all = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(number, open);
    }

    fn forget(&self, number: u64) {
        let mut all = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.remove(&number);
    }
}

/// Serves until `end` comes.
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
        work: Semaphore::new(threads.clamp(2, 8)),
        waiting: Semaphore::new(MOST_WAITING),
        connections: Mutex::default(),
    });
    let local = LocalSet::new();
    let accepting = local.run_until(async move {
        let mut number = 0;
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    number += 1;
                    begin(&shared, stream, number);
                }
                // Out of descriptors, mostly: some are closed in a moment.
                Err(error) if is_short(&error) => tokio::time::sleep(BREATH).await,
                // A client that has left already.
                Err(_) => {}
            }
        }
    });
    either(accepting, end).await;
}

/// Whether there is no room for another connection, so that trying again at once is pointless.
fn is_short(error: &io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error
        .raw_os_error()
        .is_none_or(|code| short.contains(&code))
}

/// Until one of the two is done.
async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let mut one = std::pin::pin!(one);
    let mut other = std::pin::pin!(other);
    std::future::poll_fn(|context| {
        match (other.as_mut().poll(context), one.as_mut().poll(context)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    })
    .await;
}

/// A connection's two directions.
trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin {
    /// Who is at its other end.
    fn client(&self) -> Client;
}

impl Stream for TcpStream {
    /// One that sends nothing more looks like one that has left.
    fn client(&self) -> Client {
        Client {
            descriptor: self.as_raw_fd(),
            end: libc::POLLRDHUP,
        }
    }
}

impl Stream for UnixStream {
    fn client(&self) -> Client {
        Client {
            descriptor: self.as_raw_fd(),
            end: libc::POLLHUP,
        }
    }
}

/// Who is at the other end of a connection, as long as that is open.
#[derive(Clone, Copy)]
struct Client {
    descriptor: RawFd,
    /// The event that signals that it has left.
    end: libc::c_short,
}

impl Client {
    fn has_left(self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.descriptor,
            events: self.end,
            revents: 0,
        };
        // SAFETY: `poll` is one initialised pollfd, and the count says so.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0 && poll.revents & (self.end | libc::POLLHUP | libc::POLLERR) != 0
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without it small answers come later.
                let _ = stream.set_nodelay(true);
                Box::new(stream)
            }
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Serves a connection, beside the others.
fn begin(shared: &Arc<Shared>, stream: Box<dyn Stream>, number: u64) {
    if !shared.make_room() {
        return;
    }
    let is_busy = Arc::new(AtomicBool::new(false));
    let task = connection(Arc::clone(shared), stream, number, Arc::clone(&is_busy));
    let abort = tokio::task::spawn_local(task).abort_handle();
    shared.note(number, Open { abort, is_busy });
}

async fn connection(
    shared: Arc<Shared>,
    stream: Box<dyn Stream>,
    number: u64,
    is_busy: Arc<AtomicBool>,
) {
    let client = stream.client();
    let io = Impatient::new(TokioIo::new(stream));
    let answering = Arc::clone(&shared);
    let service = service_fn(move |request| {
        let (shared, is_busy) = (Arc::clone(&answering), Arc::clone(&is_busy));
        async move {
            let reply = answer(&shared, request, (client, &is_busy)).await;
            Ok::<_, Infallible>(response(&shared, reply))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        // Somewhat more than the maximum of a head: `read` decides by its bytes which one is too
        // long.
        .max_buf_size(2 * MOST_HEADERS)
        // A client may say that it sends nothing more, and still wait for its answer.
        .half_close(true)
        .serve_connection(io, service)
        .await;
    // How a client leaves is its own affair.
    drop(served);
    shared.forget(number);
}

/// Reads a request and answers it. Only a connection whose request is being processed is busy: one
/// that sends slowly may be closed in favour of others.
async fn answer(
    shared: &Shared,
    request: hyper::Request<Incoming>,
    (client, is_busy): (Client, &AtomicBool),
) -> Reply {
    match read(shared, request).await {
        Ok(request) => {
            is_busy.store(true, Ordering::Relaxed);
            let reply = work(shared, request, client).await;
            is_busy.store(false, Ordering::Relaxed);
            reply
        }
        Err(refusal) => refusal,
    }
}

/// Checks and reads a request.
async fn read(shared: &Shared, request: hyper::Request<Incoming>) -> Result<Request, Reply> {
    let (head, body) = request.into_parts();
    if head_bytes(&head) > MOST_HEADERS {
        let why = format!("the head of a request has at most {MOST_HEADERS} bytes");
        return Err(Reply::refusal(431, why));
    }
    // Programs between us and the client may have gone by the other one.
    if head.headers.get_all("host").iter().count() > 1 {
        return Err(Reply::refusal(
            400,
            "a request must have exactly one Host header",
        ));
    }
    let is_post = head.method == Method::POST;
    if !is_post && head.method != Method::GET && head.method != Method::HEAD {
        let refusal = Reply::refusal(405, "only GET and POST are answered");
        return Err(refusal.with("Allow", "GET, HEAD, POST".to_owned()));
    }
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let mut asked = Request::parse(path, query)?;
    asked.is_post = is_post;
    let changes = is_post && Server::changes(&asked.path);
    shared.guard.check(&head.headers, changes)?;
    let accept = head.headers.get("accept");
    asked.accept = accept
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let body = Limited::new(body, MOST_BODY).collect();
    let body = tokio::time::timeout(PATIENCE, body).await;
    let body = body.map_err(|_| Reply::refusal(408, "the request did not arrive in time"))?;
    let body =
        body.map_err(|_| Reply::refusal(413, format!("a request has at most {MOST_BODY} bytes")))?;
    asked.body = body.to_bytes().to_vec();
    Ok(asked)
}

/// Bytes of a request's head as it is commonly sent: lines that end in CRLF, and one space after
/// the colons.
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

/// Has a request answered by another thread, step by step, as long as its client is there.
async fn work(shared: &Shared, request: Request, client: Client) -> Reply {
    let server = shared.server.clone();
    let mut waits = None;
    let mut step: Box<dyn FnOnce() -> Step + Send> = Box::new(move || server.answer(&request));
    loop {
        let Ok(permit) = shared.work.acquire().await else {
            return Reply::refusal(503, "the server ends");
        };
        let done = tokio::task::spawn_blocking(step).await;
        drop(permit);
        match done {
            Ok(Step::Done(reply)) => return reply,
            Ok(Step::Later(after, next)) => {
                if waits.is_none() {
                    waits = shared.waiting.try_acquire().ok();
                }
                if waits.is_none() {
                    return Reply::refusal(503, "too many clients wait for a profile already");
                }
                let until = Instant::now() + after;
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

fn response(shared: &Shared, reply: Reply) -> Response<Full<Bytes>> {
    shared.server.counts.answered(reply.status);
    let mut response = Response::new(Full::new(Bytes::from(reply.body)));
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static(reply.content_type));
    let fixed = [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ];
    for (name, value) in fixed {
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

/// A connection whose writes fail when the client takes nothing for [`STALL`].
struct Impatient<T> {
    inner: T,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Impatient<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            stalled: None,
        }
    }

    /// What a write came to, or its failure when it has waited too long.
    fn watch<R>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if done.is_ready() {
            self.stalled = None;
            return done;
        }
        let new = || Box::pin(tokio::time::sleep_until(Instant::now() + STALL));
        let stalled = self.stalled.get_or_insert_with(new);
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Read + Unpin> Read for Impatient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for Impatient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(context, buffer);
        self.watch(context, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watch(context, done)
    }
}
