//! Dumps that another program names on stdin while it keeps writing more: paths that end with NUL.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum number of names that wait; beyond, the oldest are dropped.
pub const MOST: usize = 10_000;

/// The names, as they come.
pub struct Feed {
    names: Receiver<PathBuf>,
}

impl Feed {
    /// Notifies the other program that its dumps are expected, and begins to read. A thread does,
    /// so that the other one never waits for a receiver.
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

    /// Waits so long for the next name, and takes all that are there; whether more may come.
    pub fn collect(&self, to: &mut VecDeque<PathBuf>, patience: Duration) -> bool {
        match self.names.recv_timeout(patience) {
            Ok(name) => to.push_back(name),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        to.extend(self.names.try_iter());
        true
    }
}
