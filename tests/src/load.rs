//! Clients that keep a server busy and record each request that fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::wait::{self, WAIT_TIMEOUT};

/// Work that clients have done.
#[derive(Default)]
struct Work {
    stop: AtomicBool,
    rounds: AtomicU64,
    failures: Mutex<Vec<String>>,
}

/// Clients that work until they are stopped.
pub struct Load {
    work: Arc<Work>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts clients that repeat `round` until the first error.
    pub fn of(
        clients: usize,
        round: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let work = Arc::new(Work::default());
        let round = Arc::new(round);
        let start = |_| {
            let (work, round) = (work.clone(), round.clone());
            thread::spawn(move || {
                while !work.stop.load(Ordering::Relaxed) {
                    if let Err(failure) = round() {
                        work.failures.lock().expect("no panic").push(failure);
                        return;
                    }
                    work.rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..clients).map(start).collect();
        Self { work, clients }
    }

    /// Starts clients of an HTTP server at a socket. They send 50 requests on each connection.
    pub fn http(clients: usize, socket: &Path) -> Self {
        let socket: PathBuf = socket.into();
        Self::of(clients, move || {
            let connection = UnixStream::connect(&socket).map_err(|e| format!("connect: {e}"))?;
            (0..50).try_for_each(|_| get(&connection, "/").map(drop))
        })
    }

    /// Waits until the clients have made progress, so that the server is under load during the
    /// test.
    pub fn goes_on(&self) {
        let before = self.work.rounds.load(Ordering::Relaxed);
        wait::until("clients to be served", || {
            self.assert_no_failure();
            (self.work.rounds.load(Ordering::Relaxed) > before).then_some(())
        });
    }

    fn assert_no_failure(&self) {
        let failures = self.work.failures.lock().expect("no panic");
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Stops the clients. None of them may have had an error.
    pub fn end(self) {
        self.work.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().expect("no panic");
        }
        let failures = self.work.failures.lock().expect("no panic");
        assert!(failures.is_empty(), "{failures:?}");
    }
}

/// Returns the body of an answer to a request on a connection that stays open.
pub fn get(connection: &UnixStream, path: &str) -> Result<String, String> {
    let failed =
        |what: &'static str| move |error: std::io::Error| format!("{path}: {what}: {error}");
    let limit = connection.set_read_timeout(Some(WAIT_TIMEOUT));
    limit.map_err(failed("a limit"))?;
    write!(&*connection, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").map_err(failed("ask"))?;
    let mut answer = BufReader::new(connection);
    let (mut line, mut length) = (String::new(), None);
    answer.read_line(&mut line).map_err(failed("status"))?;
    if !line.starts_with("HTTP/1.1 200") {
        return Err(format!("{path}: {line:?}"));
    }
    while line != "\r\n" {
        line.clear();
        if answer.read_line(&mut line).map_err(failed("header"))? == 0 {
            return Err(format!("{path}: the connection was closed"));
        }
        let header = line.to_ascii_lowercase();
        let value = header.strip_prefix("content-length:");
        length = value.and_then(|v| v.trim().parse().ok()).or(length);
        if header.starts_with("transfer-encoding:") {
            return Err(format!("{path}: {line:?}, which this client cannot read"));
        }
    }
    let mut body = vec![0; length.ok_or_else(|| format!("{path}: no length"))?];
    answer.read_exact(&mut body).map_err(failed("body"))?;
    String::from_utf8(body).map_err(|e| format!("{path}: {e}"))
}
