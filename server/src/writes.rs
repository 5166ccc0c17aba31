//! Writes to clients that may stop reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::time::{Instant, Sleep};

/// Maximum time for which a client may read nothing of its response.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection whose writes fail if the client reads nothing for [`STALL_TIMEOUT`].
pub struct TimedWrites<T> {
    inner: T,
    /// Timer of a blocked write; `None` if no write is blocked.
    stall_timer: Option<Pin<Box<Sleep>>>,
}

impl<T> TimedWrites<T> {
    /// Watches the writes of a connection.
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            stall_timer: None,
        }
    }

    /// Passes on the result of a write, or fails if writes have been blocked for too long.
    fn watch<R>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.stall_timer = None;
            return result;
        }
        let start_timer = || Box::pin(tokio::time::sleep_until(Instant::now() + STALL_TIMEOUT));
        let timer = self.stall_timer.get_or_insert_with(start_timer);
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Read + Unpin> Read for TimedWrites<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for TimedWrites<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(context, buffer);
        self.watch(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(context);
        self.watch(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watch(context, result)
    }
}
