//! Receives the names of dumps from another program on stdin, as paths that end with NUL.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum number of names that wait to be sent. Above it, the oldest are dropped.
pub const MAX_PENDING_NAMES: usize = 10_000;

/// Names received on stdin.
pub struct Feed {
    names: Receiver<PathBuf>,
}

impl Feed {
    /// Starts a thread that reads the names, so that the other program never has to wait for a
    /// receiver. Then tells that program that its dumps are expected.
    pub fn begin() -> io::Result<Self> {
        let (sender, names) = channel();
        std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || {
                for name in io::stdin().lock().split(0).map_while(Result::ok) {
                    if sender.send(OsString::from_vec(name).into()).is_err() {
                        return;
                    }
                }
            })?;
        let mut out = io::stdout();
        out.write_all(b"ready\n").and_then(|()| out.flush())?;
        Ok(Self { names })
    }

    /// Waits up to `timeout` for a name, and takes all that are available. Returns false at the end
    /// of the input.
    pub fn collect(&self, to: &mut VecDeque<PathBuf>, timeout: Duration) -> bool {
        match self.names.recv_timeout(timeout) {
            Ok(name) => to.push_back(name),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        to.extend(self.names.try_iter());
        true
    }
}
