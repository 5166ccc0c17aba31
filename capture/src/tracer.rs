//! The tracing thread. A tracer is a thread, not a process: only this thread may make ptrace
//! requests, and when it exits, the kernel releases all threads that it traced.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::RaisedPriority;

/// Interval at which `idle` is called while a job runs.
const IDLE_INTERVAL: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce() + Send>;

/// Thread that runs jobs one after another.
pub struct Tracer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Starts the thread. It handles no signals of this process.
    pub fn start() -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let work = move || {
            block_signals();
            // Schedules this thread before the target's threads.
            let _raised = RaisedPriority::new();
            sleep_exactly();
            crate::alarm::set_up();
            queue.into_iter().for_each(|job| job());
        };
        let thread = Builder::new().name("capture".to_owned()).spawn(work)?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Runs a job on the thread and waits for its result. Returns `None` if the thread has
    /// panicked.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        self.run_while(job, || {})
    }

    /// Like [`run`](Self::run), but calls `idle` on the calling thread from time to time while the
    /// job runs.
    pub fn run_while<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> R + Send + 'static,
        idle: impl Fn(),
    ) -> Option<R> {
        let (sender, results) = channel();
        let job = Box::new(move || {
            // Sending fails only if the caller has panicked, which drops the receiver.
            let _ = sender.send(job());
        });
        self.jobs.as_ref()?.send(job).ok()?;
        loop {
            match results.recv_timeout(IDLE_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => idle(),
                result => return result.ok(),
            }
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, its message has been printed.
            let _ = thread.join();
        }
    }
}

fn block_signals() {
    // SAFETY: an all-zero set is valid, and `pthread_sigmask` changes only this thread's mask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// Disables timer slack, with which the kernel may lengthen each sleep by 50 µs: the target is
/// stopped during these sleeps.
fn sleep_exactly() {
    // SAFETY: the call takes no pointers, and affects only the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}
